"""The kernels of sorted rows, interpreted, against plain torch in float64."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

import triton.language as tl

from cases import normal
from fast_lapsum.backends.torch import ranking_entry as plain
from fast_lapsum.backends.triton import ranking, ranking_launch
from interpreting import poison  # noqa: F401

inf, nan = math.inf, math.nan
# A GPU takes differences of infinities without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(params=["whole rows of doubles", "chunks"])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Rows that a program has whole, and rows in three chunks of 16."""
    monkeypatch.setattr(ranking_launch, "LONGEST", 16)
    return torch.float32 if request.param == "chunks" else torch.float64


def _rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of 40: dense, tied, tied whole, with infinities, far away, hard."""
    rows = torch.stack(
        [
            normal(40, seed=1) * 1e-2,
            (normal(40, seed=3) * 2).round(),
            torch.full((40,), 2.5).double(),
            normal(40, seed=4),
            normal(40, seed=5) + 1e5,
            (normal(40, seed=6) * 2).round(),
            normal(40, seed=7) * torch.finfo(dtype).max / 4,
            normal(40, seed=8),
        ]
    )
    rows[3, :7], rows[3, 33:] = -inf, inf
    t = torch.tensor([1.0, 0.3, 2.0, 0.5, 0.01, 0.0, 1.0, 0.7], dtype=torch.float64)
    t[6] = torch.finfo(dtype).max / 1000
    rows = rows.to(dtype)
    rows[7, 11] = nan
    return rows, t


def _near(found: Tensor, wanted: Tensor, part: float, size: Tensor | float = 1.0) -> None:
    assert torch.equal(found.isnan(), wanted.isnan())
    off = (found.double() - wanted).abs().nan_to_num(nan=0.0, posinf=0.0)
    off = torch.where(found == wanted, 0.0, off)
    assert (off <= part * torch.as_tensor(size).double()).all(), float(off.max())


def test_ranks_and_their_gradients(dtype: torch.dtype) -> None:
    scores, t = _rows(dtype)
    part = 1e-6 if dtype == torch.float32 else 1e-14
    for is_masked in (False, True):
        if is_masked:
            gone = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.3
            scores = scores.masked_fill(gone, nan)
            scores[7] = nan
        ordered, order = scores.sort(-1)
        ranks = ranking_launch.rank_rows(ordered, order, t, is_masked)
        wanted = plain.rank_rows(ordered.double(), order, t, is_masked)
        _near(ranks, wanted, part, wanted.nan_to_num())
        for row in range(len(ordered)):
            for value in scores[row][~scores[row].isnan()].unique():
                assert len(ranks[row][scores[row] == value].unique()) == 1 or row == 7
        grad = normal(*scores.shape, seed=9, dtype=dtype)
        found = ranking_launch.rank_rows_backward(grad, ordered, order, t, is_masked)
        given = (grad.double(), ordered.double(), order, t, is_masked)
        wanted = plain.rank_rows_backward(*given)
        _near(found, wanted, 20 * part, (40 / t)[:, None])


def test_thresholds_and_their_gradients(dtype: torch.dtype) -> None:
    scores, t = _rows(dtype)
    ordered, order = scores.sort(-1)
    part = 2e-6 if dtype == torch.float32 else 1e-13
    some = torch.tensor([1e-170, 1e-9, 3.3, 7.0, 20.0, 20.0, 39.9, nan], dtype=torch.float64)
    for masses in (None, some):
        b, count, low, up = ranking_launch.threshold_rows(ordered, t, masses)
        wanted, counts, lows, ups = plain.threshold_rows(ordered.double(), t, masses)
        size = wanted.abs().nan_to_num(posinf=0.0) + 40 * t[:, None]
        _near(b, wanted, part, size)
        grad = normal(*b.shape, seed=9, dtype=dtype)
        # Next to a score either gap may be taken, so that the parts may differ, not their sum.
        given = (grad, count, low, up, ordered, order, t)
        found = ranking_launch.threshold_rows_backward(*given)
        given = (grad.double(), counts, lows, ups, ordered.double(), order, t)
        _near(found, plain.threshold_rows_backward(*given), 10 * part, float(grad.abs().sum()))


def test_a_number_is_the_temperature_of_all_rows(dtype: torch.dtype) -> None:
    scores, _ = _rows(dtype)
    ordered, order = scores.sort(-1)
    grad = normal(*scores.shape, seed=9, dtype=dtype)
    number = 0.3
    rows = torch.full((len(scores),), number, dtype=torch.float64)

    def everything(t: Tensor | float) -> tuple[Tensor, ...]:
        ranks = ranking_launch.rank_rows(ordered, order, t, False)
        d_ranks = ranking_launch.rank_rows_backward(grad, ordered, order, t, False)
        b, *kept = ranking_launch.threshold_rows(ordered, t, None)
        d_b = ranking_launch.threshold_rows_backward(grad, *kept, ordered, order, t)
        return ranks, d_ranks, b, d_b

    for found, wanted in zip(everything(number), everything(rows), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_the_threshold_between_the_infinities_is_zero() -> None:
    ordered = torch.tensor([[-inf, -inf, inf]] * 2)
    t, masses = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.5, 2.0]).double()
    b, _, low, up = ranking_launch.threshold_rows(ordered, t, masses)
    assert b.tolist() == [[-inf, 0.0]] * 2
    assert not low.any()
    assert not up.any()


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_over_given_gaps(dtype: torch.dtype, reverse: bool) -> None:
    gaps = normal(2, 39, dtype=dtype).abs()
    gaps[0, 20], gaps[1, :30] = inf, 1e-3
    values = normal(2, 3, 40, seed=1, dtype=dtype)
    found = ranking_launch.decayed_sums(gaps, values, reverse)
    torch.testing.assert_close(found, plain.decayed_sums(gaps, values, reverse))


def test_many_chunks_send_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """More chunks than are looked at together."""
    monkeypatch.setattr(ranking, "CHUNK_LANES", tl.constexpr(4))
    monkeypatch.setattr(ranking_launch, "LONGEST_DOUBLE", 16)
    gaps = torch.full((1, 16 * 11 - 1), 1e-3, dtype=torch.float64)
    values = normal(1, 1, 16 * 11)
    for reverse in (False, True):
        found = ranking_launch.decayed_sums(gaps, values, reverse)
        torch.testing.assert_close(found, plain.decayed_sums(gaps, values, reverse))

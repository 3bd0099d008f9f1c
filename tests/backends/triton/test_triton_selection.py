"""Selections and random masks of the GPU kernels, interpreted, against the reference."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum import reference
from fast_lapsum.backends.triton import selection_launch
from interpreting import TIERS, forward, normal, poison

__all__ = ["poison"]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
inf, nan = math.inf, math.nan
PLANS = list(TIERS)


@pytest.fixture(params=["tiles", "one program", "chunks"])
def n(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How long rows are, which are read in every way there is."""
    if request.param == "tiles":
        return 37
    monkeypatch.setattr(selection_launch, "longest_block", lambda itemsize: 16)
    monkeypatch.setattr(selection_launch, "WARPS", 1)
    monkeypatch.setattr(selection_launch, "READ", 2)
    monkeypatch.setattr(selection_launch, "PROGRAMS", 6 if request.param == "chunks" else 1)
    return 300


def _scores(n: int) -> Tensor:
    """Plain rows, ties, +inf, few valid scores, none, a NaN."""
    scores = normal(7, n, seed=3)
    scores[1] = scores[1].round()
    scores[2, 4:9] = inf
    scores[3, 6:] = -inf
    scores[4] = -inf
    scores[5, 3] = nan
    scores[6] = 1.5
    return scores


@pytest.mark.parametrize("t", [0.0, 0.01, 0.7])
@pytest.mark.parametrize("largest", [True, False])
def test_selections(n: int, t: float, largest: bool) -> None:
    scores = _scores(n)
    rows = scores if largest else -scores
    for k in (0, 1, 8, 20):
        indices, weights, _ = selection_launch.select(
            *(rows, k, None, t, None, largest, False, rows.dtype)
        )
        for row, places, found in zip(scores, indices, weights, strict=True):
            wanted, p = reference.select_row(row, k, t)
            assert torch.equal(places, wanted)
            torch.testing.assert_close(found.double(), p, rtol=1e-5, atol=1e-9, equal_nan=True)


def test_a_masked_selection_of_strided_rows(n: int) -> None:
    scores = normal(n, 5, seed=4).mT
    mask = normal(5, n, seed=5) > 0.3
    t = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    indices, weights, _ = selection_launch.select(
        *(scores, 6, t, nan, mask, True, False, torch.float64)
    )
    for i, (row, keep) in enumerate(zip(scores, mask, strict=True)):
        wanted, p = reference.select_row(row.masked_fill(~keep, -inf), 6, float(t[i]))
        assert torch.equal(indices[i], wanted)
        torch.testing.assert_close(weights[i], p, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("t", [0.0, 0.05, 0.7])
def test_random_masks(n: int, t: float) -> None:
    """Exactly k ones, for any start, and those of the reference but for sums at a step.

    Steps at the ends of [0, 1), and tied scores that share a whole budget, are such sums. Rows of a
    call have starts of their own, and every row meets every start.
    """
    scores = _scores(n)
    draw = torch.Generator().manual_seed(1)
    missed = 0
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for turn, k in enumerate((0.0, 1.0, 5.0, 30.0)):
        for half in (0, 1):
            inside = torch.rand(3, generator=draw, dtype=torch.float64)
            places = (torch.arange(len(scores)) + 2 * turn + half) % 5
            starts = torch.cat((ends, inside))[places]
            drawn = selection_launch.sample(
                *(scores, None, k, None, t, None, starts, True, torch.float32)
            )
            for row, found, start in zip(scores, drawn, starts.tolist(), strict=True):
                wanted = reference.sample_row(row, k, t, start)
                assert torch.equal(found.isnan(), wanted.isnan())
                if not wanted.isnan().any():
                    assert found.sum() == k
                    assert ((found == 0) | (found == 1)).all()
                    assert not found[row == -inf].any()
                    is_told = 1e-6 < start < 1 - 1e-6 and len(row[row > -inf].unique()) > 20
                    missed += int(is_told and bool((found.double() != wanted).any()))
    assert missed <= 1


@pytest.mark.parametrize("start", [0.0, 1e-11, 0.5, 1 - 1e-6, 1 - 2**-53])
def test_certain_scores_are_drawn_and_none_is_short(start: float) -> None:
    """Next to scores whose p is less than a tick, and where p had to be raised."""
    many = torch.zeros(4096)
    many[:2] = torch.tensor([200.0, 49.5])
    rows = [(many, 1.0), ([3.0, 1.0, 1.0], 0.0), ([inf, 1.0, 1.1], 1.0), ([60.0, 1.0, 1.1], 1.0)]
    for row, t in rows:
        scores = torch.as_tensor(row)[None]
        given = (scores, None, 2.0, None, t, None, torch.tensor([start], dtype=torch.float64))
        drawn = selection_launch.sample(*given, True, torch.float32)[0]
        assert drawn.sum() == 2
        assert drawn[0] == 1


def test_budgets_that_are_not_whole_have_no_random_mask(n: int) -> None:
    scores, starts = normal(2, n, seed=2), torch.zeros(2, dtype=torch.float64)
    budget = torch.tensor([3.0, 2.5], dtype=torch.float64)
    drawn = selection_launch.sample(
        *(scores, budget, nan, None, 0.3, None, starts, True, torch.float32)
    )
    assert drawn[0].sum() == 3
    assert drawn[1].isnan().all()


def test_marginals(n: int) -> None:
    """Over evenly spaced starts a score is one as often as p says, to one of them."""
    scores, count = normal(1, n, seed=9), 200
    starts = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    rows = scores.expand(count, n).contiguous()
    given = (rows, None, 7.0, None, 0.3, None, starts, True, torch.float32)
    drawn = selection_launch.sample(*given).double().mean(0)
    p = reference.soft_topk(scores, 7.0, 0.3)[0]
    assert ((drawn - p).abs() <= 1.01 / count).all()


@pytest.mark.parametrize("plan", PLANS)
def test_budgets_over_the_valid_scores_are_clamped(plan: str) -> None:
    """In every way that rows are solved: all that there is, +inf alone, or nothing."""
    plans, n = TIERS[plan]
    scores = _scores(n)
    keep = normal(7, n, seed=6) > -2.0
    for t in (0.0, 0.3):
        p, _ = forward(scores, float(n), t, mask=keep, hard=True, clamp=True, plans=plans)
        for row, found in zip(scores.masked_fill(~keep, -inf), p, strict=True):
            wanted = (row > -inf).float()
            assert found.isnan().all() if row.isnan().any() else torch.equal(found.float(), wanted)

"""The GPU kernels, interpreted, on rows that once came back wrong and on a slice of the hunt."""

from __future__ import annotations

import math
import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum.backends.triton.many_launch import ManyPlan, list_forward
from fast_lapsum.backends.triton.ragged_launch import ragged_forward
from hunting import wrong_rows
from hunting.check import judge, solve
from hunting.rows import CALLS, KINDS, Batch, Draw, Spec, make
from interpreting import poison
from places import DATA

__all__ = ["poison"]  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
inf = math.inf
#: Of more than 150 scores a sample is drawn.
LISTS = ManyPlan(part=64, block=64, warps=1, small=150, sample=128, sample_warps=1, read=2, team=1)


def assert_right(batch: Batch, name: str) -> None:
    verdict = judge(batch, solve(batch, "interpreted"))
    assert not verdict.wrong.any(), f"{name}: {verdict.reason(int(verdict.wrong.int().argmax()))}"


@pytest.mark.parametrize("kept", ["on-chip-wrong", "short-rows-wrong"])
def test_kept_rows_are_right(kept: str) -> None:
    for entry, batch in wrong_rows.read(DATA / f"{kept}.json"):
        assert_right(batch, wrong_rows.name(entry))


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_hunt(kind: str) -> None:
    number = list(KINDS).index(kind)
    dtype = ("float32", "float64", "float32", "bfloat16", "float16")[number % 5]
    for n in (7, 64, 500):
        spec = Spec(1, number + n, kind, CALLS[(number + n) % len(CALLS)], dtype, n, 1)
        assert_right(make(spec, torch.device("cpu")), str(spec))


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_hunt_of_lists_and_segments(kind: str) -> None:
    """Rows as four tensors with one budget, and as segments between others."""
    number = list(KINDS).index(kind)
    dtype = ("float32", "float64", "float32", "bfloat16", "float16")[(number + 2) % 5]
    for n in (2, 33, 400):
        call = ("numbers", "infinities")[(number + n) % 2]
        batch = make(Spec(2, number + n, kind, call, dtype, n, 2), torch.device("cpu"))
        for of in (_listed, _in_segments):
            verdict = judge(batch, of(batch))
            row = int(verdict.wrong.int().argmax())
            assert not verdict.wrong.any(), f"{of.__name__}, {n} scores: {verdict.reason(row)}"


def _numbers(batch: Batch, row: int) -> list[float]:
    each = (batch.k, batch.temperature)
    return [float(x[row]) if isinstance(x, torch.Tensor) else x for x in each]


def _listed(batch: Batch) -> torch.Tensor:
    found = []
    for row, scores in enumerate(batch.scores):
        n, (k, t) = len(scores), _numbers(batch, row)
        pieces = list(scores.tensor_split((n // 3, n // 3, n - n // 5)))
        masks = list_forward(pieces, None, k, None, t, batch.largest, "mask", True, plan=LISTS)
        found.append(torch.cat([mask.view(-1) for mask in masks[:-1]]))
    return torch.stack(found)


def _in_segments(batch: Batch) -> torch.Tensor:
    rows, n = batch.scores.shape
    between = torch.linspace(-2, 2, 7).to(batch.scores.dtype)
    values = torch.cat([torch.cat((between[: 2 * i], x)) for i, x in enumerate(batch.scores)])
    lengths = [length for i in range(rows) for length in (2 * i, n)]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    k, t = (
        torch.tensor(x, dtype=torch.float64)
        for x in zip(*(_numbers(batch, i) for i in range(rows)), strict=True)
    )
    k, t = torch.stack((torch.zeros(rows).double(), k), -1).view(-1), t.repeat_interleave(2)
    out = torch.float64 if values.dtype == torch.float64 else torch.float32
    given = (values, offsets, None, None, k, 0.0, t, 0.0, None, None, batch.largest, "mask", out)
    mask, _ = ragged_forward(*given)
    return torch.stack([mask[offsets[2 * i + 1] : offsets[2 * i + 2]] for i in range(rows)])


def test_far_clusters_count_in_a_long_float64_row() -> None:
    """The other clusters' tail sums are 1e-7: less than a band once took for nothing."""
    draw = Draw(1, 20_000, torch.float64, torch.Generator().manual_seed(0))
    scores = KINDS["three clusters"](draw)
    assert_right(Batch(scores, 5705.0, 0.390465672, None, True), "three clusters")


def test_equal_finite_scores_of_a_long_row_are_on_one_side_of_a_band() -> None:
    """All finite scores are equal and in the budget: a band without width lay on them."""
    scores = torch.full((1, 40_000), -inf)
    places = torch.randperm(40_000, generator=torch.Generator().manual_seed(3))
    scores[0, places[:8000]], scores[0, places[8000:8279]] = inf, 0.7
    assert_right(Batch(scores.bfloat16(), 8279.0, 24.96, None, True), "equal finite scores")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [8, 100, 17_000])
def test_the_lowest_number_as_a_mask(dtype: torch.dtype, n: int) -> None:
    """The threshold may lie at or beyond scores at either end of the numbers."""
    g = torch.Generator().manual_seed(n)
    scores = torch.randn(1, n, generator=g, dtype=dtype)
    scores[0, ::3] = torch.finfo(dtype).min
    scores[0, 1] = torch.finfo(dtype).max
    low = int((scores == torch.finfo(dtype).min).sum())
    budgets = (0.3, 1.0, 1.5, n - low, n - low + 0.5, n - 1.0, n - 1e-3)
    for k in budgets if n < 1000 else budgets[3::2]:
        assert_right(Batch(scores, k, 0.1, None, True), f"k = {k}")


@pytest.mark.parametrize(("dtype", "k"), [(torch.float32, 1e-46), (torch.float64, 5e-324)])
@pytest.mark.parametrize("n", [5, 17_000])
def test_a_budget_below_all_numbers_is_an_answer(dtype: torch.dtype, k: float, n: int) -> None:
    g = torch.Generator().manual_seed(n)
    scores = torch.randn(1, n, generator=g, dtype=dtype)
    for t in (1e-8, 0.5, 1e36) if n < 1000 else (0.5,):
        assert_right(Batch(scores, torch.tensor([k], dtype=torch.float64), t, None, True), f"{t}")

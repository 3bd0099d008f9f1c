"""The GPU kernels, interpreted: every way in which rows are solved, against the reference.

Triton's interpreter runs one program after the other, so a team here has one member.
"""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from cases import assert_budget, assert_near, expected, normal
from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import (
    LongBackwardPlan,
    LongPlan,
    SharedPlan,
    TeamPlan,
    TilePlan,
    tile_plan,
)
from hunting.check import judge
from hunting.rows import CALLS, KINDS, Batch, Spec, make
from interpreting import poison

__all__ = ["poison"]  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
inf, nan = math.inf, math.nan
Plan = TilePlan | TeamPlan | LongPlan | SharedPlan | None

#: How rows of some length are solved, and how their gradients are taken.
SCOPES: dict[str, tuple[int, Plan, TilePlan | LongBackwardPlan | None]] = {
    "tile": (37, None, None),
    "aligned tile": (64, tile_plan(64, 4), tile_plan(64, 4)),
    "block": (300, None, None),
    "held by a team": (128, TeamPlan(128, 1, 1, 4, 32, 1, 2), LongBackwardPlan(32, 1, 4, 10, 15)),
    "long": (150, LongPlan(1, 1, 32, 2, 2, 2), None),
    "long, in chunks": (136, SharedPlan(3, 64, 1, 32, 1, 2, 1, 2, 1, 2, 2, 2, 64), None),
}


@pytest.fixture(params=SCOPES)
def scope(request: pytest.FixtureRequest) -> tuple[int, Plan, TilePlan | LongBackwardPlan | None]:
    return SCOPES[request.param]


def forward(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    plan: Plan = None,
    *,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    largest: bool = True,
    hard: bool = False,
) -> tuple[Tensor, Tensor]:
    outer = scores.shape[:-1]
    return launch.forward(
        scores,
        k.expand(outer) if isinstance(k, Tensor) else None,
        nan if isinstance(k, Tensor) else k,
        t.expand(outer) if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        mask,
        warm_start,
        largest,
        "hard" if hard else "mask",
        torch.float32 if scores.dtype.itemsize == 2 else scores.dtype,
        plan=plan,
    )


@pytest.mark.parametrize("value", [0.0, 0.7123, 1.0, -3e4])
@pytest.mark.parametrize("name", [name for name in SCOPES if name != "block"])
def test_equal_scores_far_from_the_root_round_alike(name: str, value: float) -> None:
    """Fifteen temperatures away a distance may be off by 1e-6 of t: that must not add up.

    The interpreter adds the many lanes of a block one after the other, which no GPU does.
    """
    n, plan, _ = SCOPES[name]
    k = torch.tensor([1e-5, 3e-5, 1e-4, 3e-3, 0.3], dtype=torch.float64)
    p, _ = forward(torch.full((5, n), value), k, 0.1, plan)
    assert ((p.double().sum(-1) - k).abs() <= 2e-7 * k).all()


def check(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    scope: tuple[int, Plan, TilePlan | LongBackwardPlan | None],
    **options: Any,
) -> None:
    """Mask and gradients against the reference."""
    _, plan, backward_plan = scope
    p, threshold = forward(scores, k, t, plan, **options)
    grad = normal(*scores.shape, seed=5, dtype=scores.dtype)
    mask, largest = options.get("mask"), options.get("largest", True)
    per_row = isinstance(t, Tensor)
    given = (t.expand(scores.shape[:-1]), nan) if isinstance(t, Tensor) else (None, t)
    common = (grad, scores, *given, mask, threshold, largest, "mask")
    d_scores, d_k, d_t = launch.backward(*common, True, plan=backward_plan)
    d_alone, no_k, no_t = launch.backward(*common, False, plan=backward_plan)
    assert no_k is no_t is None
    assert d_k is not None
    assert d_t is not None
    side = 1 if largest else -1
    rows = side * scores
    rows = rows if mask is None else rows.masked_fill(~mask, -inf)
    want = expected(rows, k, t, grad, p.dtype)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    for name, got in (("d scores", d_scores), ("d scores alone", d_alone)):
        assert_near(side * got, want.d_scores, want.d_scores_tolerance, name)
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")
    answered = ~want.mask.isnan().any(-1)
    ks = torch.as_tensor(k, dtype=torch.float64).expand(scores.shape[:-1])
    if per_row or scores.dtype.itemsize > 2:
        assert_budget(p[answered], ks[answered])


def rows_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_mask_and_gradients(scope: Any) -> None:
    n = scope[0]
    k, t = rows_of(4.5, 4, 1, n - 1, 3), rows_of(1, 0.1, 1e-3, 0.01, 0)
    check(normal(5, n, seed=1, dtype=torch.float32), k, t, scope)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["aligned tile", "held by a team", "long"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    scope = SCOPES[name]
    check(normal(2, scope[0], seed=1, dtype=dtype), rows_of(4.5, 4), rows_of(1, 0.1), scope)


def test_corners(scope: Any) -> None:
    """Nothing and everything, infinities, NaN, masks, ties, budgets without an answer, t = 0."""
    n = scope[0]
    largest = n % 2 == 0
    side = 1 if largest else -1
    scores = (4 * normal(9, n, seed=2, dtype=torch.float32)).round() / 4
    scores[0, 3], scores[1, :5], scores[2, 4] = side * inf, -side * inf, nan
    scores[3, :9], scores[4], scores[5] = side * inf, 1.0, -side * inf
    mask = torch.rand(9, n, generator=torch.Generator().manual_seed(3)) < 0.9
    k = rows_of(1, 2.5, 3, 4, 7, 0, 0, float(mask[7].sum()), n + 1)
    t = rows_of(0.1, 0.0, 0.3, 0, 1e-4, 1, 1, 0.1, 1)
    check(scores, k, t, scope, largest=largest, mask=mask)


def test_no_temperature(scope: Any) -> None:
    """NaN and negative temperatures make their rows NaN, also where a mask is hard."""
    n, plan, _ = scope
    scores = normal(3, n, seed=6, dtype=torch.float32)
    t = rows_of(nan, 0.1, -1)
    for hard in (False, True):
        p, threshold = forward(scores, 3.0, t, plan, hard=hard)
        assert p[::2].isnan().all()
        assert threshold[0].isnan().all()
        assert_budget(p[1:2], rows_of(3))


@pytest.mark.parametrize("k", [40.0, 50.0, 60.0, 63.0])
def test_boundaries_at_the_ends_of_a_band(k: float) -> None:
    """Few levels at t = 0: the ends of a band are scores, and may be the boundary."""
    scores = (normal(4, 150, seed=8, dtype=torch.float32)).round()
    p, _ = forward(scores, k, 0.0, LongPlan(1, 1, 32, 2, 2, 2))
    rank = scores.sort(-1, descending=True).values[:, int(k) - 1 : int(k)]
    above, equal = (scores > rank).sum(-1, True), (scores == rank).sum(-1, True)
    want = torch.where(scores == rank, (k - above) / equal, (scores > rank).float())
    assert torch.allclose(p, want, rtol=1e-6)


def test_hard_masks(scope: Any) -> None:
    """Exactly k ones, the earliest of tied scores first."""
    n, plan, _ = scope
    scores = (3 * normal(7, n, seed=4, dtype=torch.float32)).round() / 2
    scores[0, 3], scores[1, :5], scores[2, 4], scores[3, :9] = inf, -inf, nan, inf
    k = rows_of(1, 4, 3, 9, 0, n - 7, n)
    p, _ = forward(scores, k, 0.1, plan, hard=True)
    for row, count, got in zip(scores, k.long(), p, strict=True):
        if row.isnan().any():
            assert got.isnan().all()
            continue
        want = torch.zeros(n)
        want[row.sort(descending=True, stable=True).indices[:count]] = 1
        assert torch.equal(got, want)


def test_rows_do_not_see_their_neighbours() -> None:
    """The bits of a row are the same alone, beside other rows, and in another place of a tile."""
    for n in (8, 33):
        scores = normal(20, n, seed=n, dtype=torch.float32) ** 3
        scores[3, 0], scores[4, 1], scores[5] = inf, nan, 2.0
        t = torch.logspace(-5, 1, 20, dtype=torch.float64)
        p, threshold = forward(scores, 2.5, t)
        order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
        mixed, _ = forward(scores[order], 2.5, t[order])
        assert torch.equal(mixed.nan_to_num(nan=7), p[order].nan_to_num(nan=7))
        for i in (3, 7):
            alone, pair = forward(scores[i : i + 1], 2.5, t[i : i + 1])
            assert torch.equal(alone[0], p[i])
            assert torch.equal(pair[0], threshold[i])


def test_strides_and_warm_starts() -> None:
    whole = normal(6, 5, 40, seed=7, dtype=torch.float32)
    scores = whole.transpose(0, 2)[::2]  # rows along a dimension in the middle, nothing contiguous
    p, threshold = forward(scores, 2.0, 0.1)
    want, _ = forward(scores.contiguous(), 2.0, 0.1)
    assert torch.equal(p, want)
    warm, _ = forward(scores, 2.0, 0.1, warm_start=threshold.sum(-1))
    assert_budget(warm, torch.full(scores.shape[:-1], 2.0, dtype=torch.float64))


def test_a_gap_that_sums_do_not_see_across() -> None:
    """Both sums have squares below the smallest number: no step from them is certain."""
    scores = torch.cat((torch.zeros(1, 10), torch.full((1, 10), 120.0)), 1)
    start = torch.tensor([60.0001])
    _, threshold = forward(scores, 10.0, 1.0, warm_start=start)
    assert abs(float(threshold.double().sum()) - 60) < 1e-5


def assert_right(batch: Batch, plan: Plan, name: str) -> None:
    k, t = batch.k, batch.temperature
    p, _ = forward(batch.scores, k, t, plan, mask=batch.mask, largest=batch.largest)
    verdict = judge(batch, p)
    assert not verdict.wrong.any(), f"{name}: {verdict.reason(int(verdict.wrong.int().argmax()))}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_the_hunt(kind: str) -> None:
    number = list(KINDS).index(kind)
    dtype = ("float32", "float64", "float32", "bfloat16", "float16")[number % 5]
    # Both scopes of a kind would take too long; the other half is for the GPU.
    n, plan = ((7, None), (500, SharedPlan(2, 256, 1, 64, 1, 4, 1, 2, 4, 4, 4, 4, 128)))[number % 2]
    spec = Spec(3, number + n, kind, CALLS[(number + n) % len(CALLS)], dtype, n, 2)
    assert_right(make(spec, torch.device("cpu")), plan, str(spec))


@pytest.mark.parametrize("off", [-1e-4, 1e-4])
def test_a_first_look_beside_the_bracket(off: float) -> None:
    """Nearly equal scores have a bracket so narrow that a good guess may lie beside it.

    What a look tells is of the place where it was taken.
    """
    scores = 1e-6 * normal(2, 128, seed=3, dtype=torch.float32)
    plan = SCOPES["held by a team"][1]
    _, pairs = forward(scores, 50.0, 1.0, plan)
    p, _ = forward(scores, 50.0, 1.0, plan, warm_start=pairs.sum(-1) + off)
    assert_budget(p, 50.0)

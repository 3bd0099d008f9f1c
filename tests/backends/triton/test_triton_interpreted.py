"""The GPU kernels against reference.py, without a GPU: Triton's interpreter runs them on the CPU.

Triton decides when it is imported whether to interpret, so that this file wants a process of its
own: ``TRITON_INTERPRET=1 pytest tests/backends/triton/test_triton_*.py``, which ``make test`` runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    DTYPES,
    FULL_DTYPES,
    LAYOUTS,
    TEMPERATURES,
    assert_budget,
    assert_near,
    budgets,
    corners,
    expected,
    generator,
    normal,
)

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)


from fast_lapsum.backends.triton import steps
from interpreting import (
    GRADIENTS,
    KERNELS,
    TIERS,
    Plans,
    check,
    forward,
    held,
    in_chunks,
    poison,
    shares,
    tier,
)

__all__ = ["poison", "tier"]  # fixtures
inf, nan = math.inf, math.nan

# numpy, which the interpreter computes with, warns about what a GPU does in silence: infinities
# minus infinities, logarithms of zero, conversions of both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_every_kernel_is_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tiers together launch all there is."""
    launched: set[str] = set()

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name
            self.arg_names = KERNELS[name].arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            launched.add(self.name)
            return KERNELS[self.name][grid]  # type: ignore[no-any-return]

    for name in KERNELS:
        monkeypatch.setattr(steps, name, Recorder(name))
    for plans, n in TIERS.values():
        check(normal(1, n, dtype=torch.float32), 4.5, 0.3, plans=plans)
    assert launched == set(KERNELS)


# the table of cases

#: The half types take turns.
TABLE = [
    (dtype, distribution)
    for dtype in DTYPES
    for number, distribution in enumerate(DISTRIBUTIONS)
    if dtype in FULL_DTYPES or DTYPES.index(dtype) % 2 == number % 2
]


def _some_pairs(n: int, first: int, every: int) -> tuple[Tensor, Tensor]:
    """Budgets and temperatures of the table, one in so many: the interpreter is slow."""
    pairs = [(k, t) for t in TEMPERATURES for k in budgets(n)]
    return torch.tensor(pairs[first % every :: every], dtype=torch.float64).unbind(-1)  # type: ignore[return-value]


def _table_row(distribution: str, n: int, dtype: torch.dtype) -> Tensor:
    row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
    return row if row.isfinite().all() else row.clamp(-1e4, 1e4)


@pytest.mark.parametrize(("dtype", "distribution"), TABLE, ids=str)
def test_rows_of_any_distribution(dtype: torch.dtype, distribution: str) -> None:
    which = DTYPES.index(dtype) + list(DISTRIBUTIONS).index(distribution)
    k, t = _some_pairs(49, which, 11 if dtype in FULL_DTYPES else 19)
    t = t.clamp(min=0.01) if dtype == torch.float16 else t  # 1 / t must exist
    check(_table_row(distribution, 49, dtype).expand(len(k), 49), k, t)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_two_scores(dtype: torch.dtype) -> None:
    """Those of all distributions, several to a tile."""
    pairs = [_some_pairs(2, number, 17) for number in range(len(DISTRIBUTIONS))]
    rows = [_table_row(name, 2, dtype) for name in DISTRIBUTIONS]
    scores = torch.cat([row.expand(len(k), 2) for row, (k, _) in zip(rows, pairs, strict=True)])
    k, t = (torch.cat(column) for column in zip(*pairs, strict=True))
    check(scores, k, t.clamp(min=0.01) if dtype == torch.float16 else t)


#: Plans of longer rows take turns.
LONG = [plans for plans, _ in list(TIERS.values())[1:]]


@pytest.mark.parametrize(("dtype", "distribution"), TABLE, ids=str)
def test_long_rows_of_any_distribution(dtype: torch.dtype, distribution: str) -> None:
    which = DTYPES.index(dtype) + 5 * list(DISTRIBUTIONS).index(distribution)
    number = DTYPES.index(dtype) + list(DISTRIBUTIONS).index(distribution)
    n = 101 if number % 3 == 0 else 150
    k, t = _some_pairs(n, which, {torch.float32: 37, torch.float64: 43}.get(dtype, 53))
    t = t.clamp(min=0.01) if dtype == torch.float16 else t
    check(_table_row(distribution, n, dtype).expand(len(k), n), k, t, plans=LONG[number % 3])


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 33, 64, 129, 300])
def test_rows_around_powers_of_two(n: int) -> None:
    """Blocks are powers of two; rows start anywhere, with NaN next to them."""
    memory = torch.full((2 * n + 7,), nan)
    scores = memory[3 : 3 + 2 * n].view(2, n).copy_(normal(2, n))
    check(scores, torch.tensor([0.2, 0.7]).double() * n, 0.3)


@pytest.mark.parametrize("n", [65, 127, 128, 129, 257])
def test_chunks_and_lists_around_their_ends(n: int) -> None:
    memory = torch.full((n + 7,), nan)
    scores = memory[3 : 3 + n].view(1, n).copy_(normal(1, n))
    for plan in (held(n), in_chunks(n)):
        check(scores, 0.3 * n, 0.3, plans=Plans(plan, GRADIENTS))


# layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(tier: tuple[Plans, int], layout: str) -> None:
    """Every stride of scores and gradient, one value of k and t per row."""
    plans, n = tier
    shapes = (((n,), 0), ((2, n), 1), ((n, 2), 0), ((2, n, 2), 1))
    for shape, dim in shapes if plans.forward is None else shapes[2:3]:
        scores = LAYOUTS[layout](normal(*shape, dtype=torch.float32)).movedim(dim, -1)
        grad = LAYOUTS[layout](normal(*shape, seed=1, dtype=torch.float32)).movedim(dim, -1)
        k = n * shares(*scores.shape[:-1])
        check(scores, k, 0.1 + shares(*k.shape, seed=2), grad=grad, plans=plans)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)], ids=str)
def test_many_dimensions_in_any_order(order: tuple[int, ...]) -> None:
    """More dimensions than two strides describe, each of scores, k, t, mask and grad its own."""
    scores = normal(2, 3, 2, 5, 3, dtype=torch.float32).permute(order)
    mask = normal(*scores.shape[::-1], seed=3).permute(4, 3, 2, 1, 0) > -0.7
    k = shares(*scores.shape[-2::-1]).permute(3, 2, 1, 0) * mask.sum(-1)
    check(scores, k, 0.3 + shares(scores.shape[-2], seed=2), mask=mask)


def test_many_dimensions_of_long_rows() -> None:
    plans, n = TIERS["held by a team"]
    scores = normal(2, n, 2, 2, dtype=torch.float64).permute(3, 0, 2, 1)
    mask = (shares(n, 2, 2, 2, seed=3) < 0.8).permute(1, 2, 3, 0)
    k = shares(2, 2, 2).permute(1, 2, 0) * mask.sum(-1)
    check(scores, k, 0.3 + shares(2, seed=2), mask=mask, plans=plans)


# masks, sides, numbers and tensors


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float32, True), (torch.bfloat16, False)], ids=str
)
def test_masks(tier: tuple[Plans, int], dtype: torch.dtype, largest: bool) -> None:
    """What is masked out may hold anything."""
    plans, n = tier
    mask = (shares(1, n) < 0.6).expand(2, n)  # one for all rows
    mask = mask if largest else mask.roll(1, -1).clone()
    scores = normal(2, n, dtype=dtype).masked_fill(~mask, nan)
    scores[:, ::7] = torch.where(mask[:, ::7], scores[:, ::7], inf)
    k = torch.tensor([0.2, 0.6]).double() * mask.sum(-1)
    check(scores, k, 0.4, mask=mask, largest=largest, plans=plans)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_numbers_are_as_good_as_tensors(tier: tuple[Plans, int], dtype: torch.dtype) -> None:
    plans, n = tier
    numbers = ((n / 3, 0.1), (0.1, 1 / 3), (n - 1e-3, 1e-5))
    for k, t in numbers if plans.forward is None else numbers[::2]:
        check(normal(1, n, dtype=dtype), k, t, plans=plans)


@pytest.mark.parametrize("t", [1e-200, 1e-30, 1e200])
def test_numbers_beyond_float32(tier: tuple[Plans, int], t: float) -> None:
    """A kernel is given float32 numbers; those of float64 rows may be any."""
    plans, n = tier
    check(t * normal(1, n), n / 3, t, plans=plans)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_output(tier: tuple[Plans, int], dtype: torch.dtype) -> None:
    """Half-precision scores under autocast have float32 masks, with their whole budget."""
    plans, n = tier
    scores = normal(1, n, dtype=dtype)
    p, _ = forward(scores, n / 3, 0.2, out_dtype=torch.float32, plans=plans)
    want = expected(scores, n / 3, 0.2, torch.zeros_like(scores), torch.float32)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    assert_budget(p, n / 3)


@pytest.mark.parametrize("start", [0.5, 1e30, -1e30, nan, inf])
def test_any_warm_start(start: float) -> None:
    """It changes the way, not where it ends."""
    warm = torch.tensor([start, 0.0], dtype=torch.float64)
    scores = normal(2, 37, dtype=torch.float32)
    check(scores, 11.5, 0.2, warm_start=warm, largest=start > 0)


# corners


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_corners_of_rows(dtype: torch.dtype) -> None:
    scores, k, t = corners(19, dtype)
    check(scores, k, t)


@pytest.mark.parametrize("name", list(TIERS)[1:])
def test_corners_of_long_rows(name: str) -> None:
    """They take turns: every corner is one tier's."""
    plans, n = TIERS[name]
    number = list(TIERS).index(name)
    check(*(x[number % 3 :: 3] for x in corners(n, torch.float32)), plans=plans)


def test_a_temperature_in_the_denormals_is_zero(tier: tuple[Plans, int]) -> None:
    plans, n = tier
    scores = normal(1, n, dtype=torch.float32)
    results = [
        forward(scores, n / 3, torch.tensor(t, dtype=torch.float64), plans=plans)
        for t in (0.0, 1e-40)
    ]
    for zero, denormal in zip(*results, strict=True):
        assert torch.equal(zero, denormal)


def test_a_temperature_that_is_too_high(tier: tuple[Plans, int]) -> None:
    """Distances of many temperatures must exist: a row that is hotter has no answer."""
    plans, n = tier
    p, threshold = forward(
        normal(1, n, dtype=torch.float32),
        n / 3,
        torch.tensor(1e37, dtype=torch.float64),
        plans=plans,
    )
    assert p.isnan().all()
    assert threshold[..., 0].isnan().all()


def test_hard_masks(tier: tuple[Plans, int]) -> None:
    """Exactly k ones, the earliest of tied scores first; NaN for budgets that have none."""
    plans, n = tier
    largest = n % 2 == 1
    scores = (2 * normal(6, n, dtype=torch.float32)).round()
    scores[1, 3] = -inf
    scores[2, 5] = inf
    scores[4, 6] = nan
    mask = torch.ones(6, n, dtype=torch.bool)
    mask[3, ::3] = False
    k = torch.tensor([5.0, 0.0, n / 2 // 1, 7.0, 4.0, 2.5], dtype=torch.float64)
    t = torch.tensor([0.5, 1.0, 0.1, 0.0, 1.0, 1.0], dtype=torch.float64)
    p, _ = forward(scores, k, t, mask=mask, largest=largest, hard=True, plans=plans)
    rows = (scores if largest else -scores).masked_fill(~mask, -inf)
    for row in range(4):
        order = rows[row].argsort(descending=True, stable=True)
        wanted = torch.zeros(n).index_fill(0, order[: int(k[row])], 1.0)
        assert torch.equal(p[row], wanted)
    assert p[4:].isnan().all()


def test_what_is_left_out_may_have_any_gradient(
    tier: tuple[Plans, int],
) -> None:
    plans, n = tier
    scores = normal(1, n, dtype=torch.float32)
    scores[0, 3], scores[0, 4] = -inf, inf
    mask = torch.ones(1, n, dtype=torch.bool)
    mask[0, 5] = False
    grad = normal(1, n, seed=1, dtype=torch.float32)
    grad[0, 3:6] = nan
    check(scores, n / 3, 0.5, grad=grad, mask=mask, plans=plans)


def test_gradients_in_a_wide_gap(tier: tuple[Plans, int]) -> None:
    """Densities of 1e-35 are small, but not nothing: their mean gradient counts."""
    plans, n = tier
    scores, grad = torch.full((1, n), -inf), torch.zeros(1, n)
    scores[0, :2], grad[0, :2] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0])
    check(scores, 1.0, 1 / 160, grad=grad, plans=plans)


@pytest.mark.parametrize("plans", [Plans(), Plans(backward=GRADIENTS)], ids=["rows", "long"])
def test_gradient_for_the_temperature_beside_scores_near_the_largest_float(plans: Plans) -> None:
    """Where e^-|u| is nothing, u is no number to add up: a thousand of 1e36 are infinite."""
    scores = normal(2, 1000, seed=0, dtype=torch.float32)
    scores[0, 5] = 1e30
    scores[1, :700] = -1e31
    k, t = (torch.tensor(pair).double() for pair in ([1.0, 250.0], [1e-6, 1e-6]))
    check(scores, k, t, plans=plans)

"""log p and the threshold on every backend against reference.py: values and all gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fast_lapsum
from cases import (
    DISTRIBUTIONS,
    DTYPES,
    FULL_DTYPES,
    LAYOUTS,
    SHAPES,
    TEMPERATURES,
    assert_near,
    budgets,
    corners,
    generator,
    normal,
)
from fast_lapsum import hard_topk_mask, reference
from function_cases import wanted

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "log": fast_lapsum.log_soft_topk,
    "threshold": fast_lapsum.threshold,
}


def _near(actual: Tensor, want: Tensor, tolerance: Tensor, what: str) -> None:
    """Near, with infinities where they are wanted and beyond what the dtype can hold."""
    limit = torch.finfo(actual.dtype).max
    actual, want = actual.detach().double(), want.masked_fill(want < -limit, -math.inf)
    ends = want.isinf()
    assert torch.equal(actual[ends], want[ends]), f"{what}: infinities in the wrong places"
    assert_near(actual.masked_fill(ends, 0.0), want.masked_fill(ends, 0.0), tolerance, what)


def _check(
    name: str,
    scores: Tensor,
    k: Tensor,
    temperature: Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    solver: str,
    per_row: bool = True,
) -> None:
    scores = scores.detach().requires_grad_()
    k, temperature = k.clone().requires_grad_(), temperature.clone().requires_grad_()
    value = FUNCTIONS[name](
        scores, k, temperature, dim=dim, largest=largest, mask=mask, solver=solver
    )
    side = 1 if largest else -1
    rows = side * scores.detach().movedim(dim, -1)
    if mask is not None:
        rows = rows.masked_fill(~mask.expand(scores.shape).movedim(dim, -1), -math.inf)
    grad = normal(*value.shape, seed=5, dtype=value.dtype)
    found = torch.autograd.grad(value, (scores, k, temperature), grad)
    is_log = name == "log"
    outer = rows.shape[:-1]
    want = wanted(
        name,
        rows,
        k.detach().expand(outer),
        temperature.detach().expand(outer),
        grad.movedim(dim, -1) if is_log else side * grad,
    )
    got = value.movedim(dim, -1) if is_log else side * value
    _near(got, want.value, want.value_tolerance, name)
    d_scores = side * found[0].movedim(dim, -1)
    assert_near(d_scores, want.d_scores, want.d_scores_tolerance, "d scores")
    if not per_row:
        return
    for what, one, wish, tolerance in (
        ("d k", found[1], want.d_budget, want.d_budget_tolerance),
        ("d temperature", found[2], want.d_temperature, want.d_temperature_tolerance),
    ):
        assert_near(one, wish.sum_to_size(one.shape), tolerance.sum_to_size(one.shape), what)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *FULL_DTYPES], ids=str)
def test_any_shape_dim_and_stride(
    backend: str, name: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int, layout: str
) -> None:
    scores = LAYOUTS[layout](normal(*shape, dtype=dtype))
    outer = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    share = torch.rand(outer, generator=generator(1), dtype=torch.float64)
    temperature = 0.1 + torch.rand(outer, generator=generator(2), dtype=torch.float64)
    _check(name, scores, share * shape[dim], temperature, dim=dim, solver=backend)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_any_distribution_temperature_and_budget(
    backend: str, name: str, dtype: torch.dtype, distribution: str
) -> None:
    for n in (2, 67, 1025):
        row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
        pairs = [(k, t) for t in TEMPERATURES for k in budgets(n)]
        k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        _check(name, row.expand(len(pairs), n), k, t, solver=backend)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [30, 1500])
def test_corners(backend: str, name: str, dtype: torch.dtype, n: int) -> None:
    """NaN, infinities, k = 0 and n, t = 0, and what has no answer."""
    rows, k, t = corners(n, dtype)
    some = (rows != -math.inf).any(-1)  # the threshold of nothing is anywhere
    rows, k, t = rows[some], k[some], t[some]
    _check(name, rows, k, t, solver=backend, per_row=False)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [37, 3000])
def test_log_of_a_share_is_not_that_of_its_rounded_value(
    backend: str, dtype: torch.dtype, n: int
) -> None:
    """Ties in the hard limit, at t = 0 and at +inf: one unit of the logarithm, next to 1, too."""
    near_all = 20 - 2.0 ** -torch.arange(1, 45, dtype=torch.float64)
    k = torch.cat((torch.arange(1, 21) / 3, near_all))
    scores = torch.full((len(k), n), -1.0, dtype=dtype)
    scores[:, :20] = torch.tensor([0.0, math.inf], dtype=dtype).repeat(10)
    for row, tied in ((slice(None), slice(0, 20, 2)), (slice(0, None, 2), slice(0, 20))):
        scores[row, tied] = 0.0
    _check("log", scores, k, torch.zeros_like(k), solver=backend, per_row=False)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_mask_and_side(backend: str, name: str, largest: bool) -> None:
    scores = normal(4, 3, 21, dtype=torch.float32)
    mask = torch.rand(4, 1, 21, generator=generator(4)) < 0.6
    counts = mask.expand(scores.shape).sum(-1).double()
    t = torch.full((), 0.7, dtype=torch.float64)
    _check(name, scores, 0.37 * counts, t, largest=largest, mask=mask, solver=backend)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("t", [1e-5, 1.0])
def test_a_long_row(backend: str, name: str, t: float) -> None:
    scores, k = normal(1, 300_001, dtype=torch.float32), torch.tensor([18_750.25]).double()
    _check(name, scores, k, torch.tensor([t], dtype=torch.float64), solver=backend)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_distances_over_the_largest_number(backend: str, dtype: torch.dtype) -> None:
    """r - b overflows, u does not; and u itself is over the largest float32."""
    far = 0.9 * torch.finfo(dtype).max
    row = torch.tensor([far, 0.0, 1.0, -far, -0.5 * far], dtype=dtype)
    k = torch.tensor([1.5, 2.5, 1.5], dtype=torch.float64)
    hot = torch.finfo(dtype).max / 300
    t = torch.tensor([hot, hot, 1.0], dtype=torch.float64)
    scores = row.expand(3, 5)
    got = fast_lapsum.log_soft_topk(scores, k, t, solver=backend)
    want = wanted("log", scores, k, t, torch.zeros(3, 5))
    _near(got, want.value, want.value_tolerance, "log p")


@pytest.mark.parametrize("gap", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_a_gap_in_which_all_of_phi_underflows(
    backend: str, name: str, dtype: torch.dtype, gap: float
) -> None:
    row = torch.cat((normal(5, dtype=dtype) + gap, normal(6, seed=2, dtype=dtype)))
    k, t = torch.tensor([5.0]).double(), torch.tensor([0.5]).double()
    _check(name, row[None], k, t, solver=backend, per_row=gap < 1e3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hard_masks(dtype: torch.dtype) -> None:
    for distribution in DISTRIBUTIONS.values():
        for n in (1, 66, 1030):
            row = distribution(n, generator(n)).clamp(-1e4, 1e4).to(dtype)
            for k in {0, 1, n // 3, n}:
                want = reference.hard_row(row, k)
                assert torch.equal(hard_topk_mask(row, k).double(), want)

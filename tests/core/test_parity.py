"""Every backend against reference.py: dtype x shape x dim x strides, mask and all gradients."""

from __future__ import annotations

import math

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
    assert_budget,
    assert_near,
    budgets,
    expected,
    generator,
    normal,
)
from fast_lapsum import reference


def _check(
    scores: Tensor,
    k: Tensor,
    temperature: Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    solver: str,
) -> None:
    """Forward and gradients of one call against the reference.

    The call gets the tensors as they are, strides and all; the reference gets rows.
    """
    scores = scores.detach().requires_grad_()
    k, temperature = k.clone().requires_grad_(), temperature.clone().requires_grad_()
    grad = normal(*scores.shape, seed=5, dtype=scores.dtype)
    p = fast_lapsum.soft_topk(
        scores, k, temperature, dim=dim, largest=largest, mask=mask, solver=solver
    )
    assert p.dtype == scores.dtype
    assert p.shape == scores.shape
    d_scores, d_k, d_t = torch.autograd.grad(p, (scores, k, temperature), grad)
    assert d_scores.shape == scores.shape
    assert d_k.shape == k.shape
    assert d_t.shape == temperature.shape
    assert (d_k.dtype, d_t.dtype) == (k.dtype, temperature.dtype)

    side = 1 if largest else -1
    rows = side * scores.detach().movedim(dim, -1)
    if mask is not None:
        rows = rows.masked_fill(~mask.expand(scores.shape).movedim(dim, -1), -math.inf)
    outer = rows.shape[:-1]
    want = expected(
        rows, k.detach().expand(outer), temperature.detach().expand(outer), grad.movedim(dim, -1)
    )
    assert_near(p.movedim(dim, -1), want.mask, want.mask_tolerance, "mask")
    assert_near(
        side * d_scores.movedim(dim, -1), want.d_scores, want.d_scores_tolerance, "d scores"
    )
    for name, got, wanted, tolerance in (
        ("d k", d_k, want.d_budget, want.d_budget_tolerance),
        ("d temperature", d_t, want.d_temperature, want.d_temperature_tolerance),
    ):
        assert_near(got, wanted.sum_to_size(got.shape), tolerance.sum_to_size(got.shape), name)
    if scores.dtype.itemsize > 2:
        assert_budget(p.detach().movedim(dim, -1), k.detach().expand(outer))


def _rows_shape(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    dim %= len(shape)
    return shape[:dim] + shape[dim + 1 :]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_shape_dim_and_stride(
    backend: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int, layout: str
) -> None:
    """One value of k and t per row, whatever the rows look like in memory."""
    scores = LAYOUTS[layout](normal(*shape, dtype=dtype))
    outer = _rows_shape(shape, dim)
    share = torch.rand(outer, generator=generator(1), dtype=torch.float64)
    temperature = 0.1 + torch.rand(outer, generator=generator(2), dtype=torch.float64)
    _check(scores, share * shape[dim], temperature, dim=dim, solver=backend)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 1, 4, 0, 2), (4, 2, 0, 3, 1)], ids=str)
@pytest.mark.parametrize("dim", [0, 2, -1])
def test_many_dimensions_in_any_order(backend: str, order: tuple[int, ...], dim: int) -> None:
    """More dimensions than two strides describe, each of scores, k, t, mask and grad its own."""
    scores = normal(2, 3, 4, 5, 3, dtype=torch.float32).permute(order)
    outer = _rows_shape(scores.shape, dim)
    mask = normal(*scores.shape[::-1], seed=3).permute(4, 3, 2, 1, 0) > -0.7
    share = torch.rand(outer[::-1], generator=generator(1)).permute(3, 2, 1, 0).double()
    temperature = 0.3 + torch.rand(outer[-1:], generator=generator(2), dtype=torch.float64)
    k = share * mask.sum(dim)
    _check(scores, k, temperature, dim=dim, mask=mask, solver=backend)


#: The half types, which differ in how they are read and rounded alone, take turns.
TABLE = [
    (dtype, distribution)
    for dtype in DTYPES
    for number, distribution in enumerate(DISTRIBUTIONS)
    if dtype in FULL_DTYPES or DTYPES.index(dtype) % 2 == number % 2
]


@pytest.mark.parametrize(("dtype", "distribution"), TABLE, ids=str)
def test_any_distribution_temperature_and_budget(
    backend: str, dtype: torch.dtype, distribution: str
) -> None:
    for n in (2, 67, 1025):
        row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
        if not row.isfinite().all():  # beyond float16: its infinities have a test of their own
            row = row.clamp(-1e4, 1e4)
        pairs = [(k, t) for t in TEMPERATURES for k in budgets(n)]
        k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        if dtype == torch.float16:
            # A gradient of 1 / t has no float16 below this temperature.
            t = t.clamp(min=0.01)
        _check(row.expand(len(pairs), n), k, t, solver=backend)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 4099])
def test_every_vector_remainder(backend: str, dtype: torch.dtype, n: int) -> None:
    """Row lengths around the widths of vector registers, and rows that start unaligned."""
    scores = normal(5 * n + 3, dtype=dtype)[3:].view(5, n)
    k = torch.linspace(0.1, 0.9, 5, dtype=torch.float64) * n
    _check(scores, k, torch.full((5,), 0.3, dtype=torch.float64), solver=backend)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [1e-5, 1.0])
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_a_long_row(backend: str, dtype: torch.dtype, temperature: float) -> None:
    """Long enough for several threads on one row."""
    scores = normal(1, 300_001, dtype=dtype)
    k = torch.tensor([18_750.25], dtype=torch.float64)
    _check(scores, k, torch.tensor([temperature], dtype=torch.float64), solver=backend)


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_many_short_rows(backend: str) -> None:
    """Enough rows for several threads over rows, each with its own answer."""
    scores = normal(5_000, 37, dtype=torch.float32)
    k = torch.rand(5_000, generator=generator(3), dtype=torch.float64) * 37
    p = fast_lapsum.soft_topk(scores, k, 0.2, solver=backend)
    assert_budget(p, k)
    some = torch.arange(0, 5_000, 97)
    want = expected(scores[some], k[some], 0.2, torch.zeros(len(some), 37))
    assert_near(p[some], want.mask, want.mask_tolerance, "mask")


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("mask_shape", [(4, 3, 21), (21,), (1, 1, 21), (4, 1, 1)], ids=str)
def test_masks_of_any_broadcast_shape(
    backend: str, dtype: torch.dtype, largest: bool, mask_shape: tuple[int, ...]
) -> None:
    mask = torch.rand(mask_shape, generator=generator(4)) < 0.6
    if mask_shape[-1] == 1:
        mask = torch.tensor([True, True, False, True]).view(4, 1, 1)
    scores = normal(4, 3, 21, dtype=dtype)
    counts = mask.expand(scores.shape).sum(-1).double()
    _check(
        scores, 0.37 * counts, torch.ones(()).double(), largest=largest, mask=mask, solver=backend
    )


@pytest.mark.parametrize("mask_dim", [0, 1, 2])
def test_mask_strides_follow_the_dim(backend: str, mask_dim: int) -> None:
    scores = normal(5, 6, 7, dtype=torch.float32)
    mask = (torch.rand(7, 6, 5, generator=generator(4)) < 0.8).permute(2, 1, 0)
    counts = mask.sum(mask_dim).double()
    _check(
        scores, 0.5 * counts, torch.tensor(0.4).double(), dim=mask_dim, mask=mask, solver=backend
    )


@pytest.mark.parametrize("k_shape", [(), (3,), (2, 1), (1, 3), (2, 3)], ids=str)
def test_k_and_temperature_broadcast_and_their_gradients_sum(
    backend: str, k_shape: tuple[int, ...]
) -> None:
    scores = normal(2, 3, 19)
    share = torch.rand(k_shape, generator=generator(8), dtype=torch.float64)
    temperature = 0.2 + torch.rand(tuple(reversed(k_shape)), generator=generator(9)).double()
    try:
        temperature.expand(2, 3)
    except RuntimeError:
        temperature = temperature.new_full((), 0.7)
    _check(scores, 19 * share, temperature, solver=backend)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str
)
def test_k_and_temperature_of_any_dtype(backend: str, dtype: torch.dtype) -> None:
    """A gradient comes back in the dtype of what it belongs to."""
    scores = normal(3, 19, dtype=torch.float32)
    k = torch.tensor([2, 5, 7]).to(dtype)
    t = torch.tensor([1, 2, 1]).to(dtype)
    p = fast_lapsum.soft_topk(scores, k, t, solver=backend)
    want = expected(scores, k, t, torch.ones_like(scores))
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    if dtype.is_floating_point:
        k.requires_grad_()
        t.requires_grad_()
        p = fast_lapsum.soft_topk(scores, k, t, solver=backend)
        for leaf, grad in zip((k, t), torch.autograd.grad(p.square().sum(), (k, t)), strict=True):
            assert grad.dtype == leaf.dtype
            assert grad.shape == leaf.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_of_strided_and_expanded_upstream(backend: str, dtype: torch.dtype) -> None:
    """The upstream gradient has strides of its own: sum() sends an expanded one."""
    scores = normal(6, 40, dtype=dtype)
    for upstream in (
        torch.ones((), dtype=dtype).expand(6, 40),
        normal(40, 6, seed=1, dtype=dtype).mT,
        normal(6, 80, seed=2, dtype=dtype)[:, ::2],
        normal(40, seed=3, dtype=dtype).expand(6, 40),
    ):
        leaf = scores.clone().requires_grad_()
        p = fast_lapsum.soft_topk(leaf, 9.5, 0.5, solver=backend)
        (grad,) = torch.autograd.grad(p, leaf, upstream)
        want = expected(scores, 9.5, 0.5, upstream)
        assert_near(grad, want.d_scores, want.d_scores_tolerance, "d scores")


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_log_mask_is_accurate_into_the_tail(
    backend: str, dtype: torch.dtype, distribution: str
) -> None:
    """log p is u - log 2 far below b, where p itself is 0."""
    row = DISTRIBUTIONS[distribution](300, generator(6)).to(dtype)
    eps = torch.finfo(dtype).eps
    for t in TEMPERATURES:
        for k in budgets(300):
            found = reference.solve_row(row, k, t)
            u = reference.distances(row, found, t)
            log_p = torch.where(u > 0, torch.log1p(-torch.exp(-u.abs()) / 2), u - math.log(2))
            slack = eps * (8 + 8 * u.abs()) + eps**2 * abs(found.hi) / t
            # d log p / du is 1 below b and falls off like e^-u above it.
            tolerance = slack * torch.exp(-u.clamp(min=0)) + torch.finfo(dtype).tiny
            got = fast_lapsum.log_soft_topk(row, k, t, solver=backend)
            assert got.dtype == dtype
            assert_near(got, log_p, tolerance, f"log p at k={k}, t={t}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_mask_agrees_with_the_logarithm(backend: str, dtype: torch.dtype) -> None:
    scores = normal(4, 50, dtype=dtype)
    p = fast_lapsum.soft_topk(scores, 11.5, 0.7, solver=backend)
    log_p = fast_lapsum.log_soft_topk(scores, 11.5, 0.7, solver=backend)
    assert log_p.dtype == dtype
    torch.testing.assert_close(
        log_p.exp().double(), p.double(), rtol=8 * torch.finfo(dtype).eps, atol=1e-12
    )

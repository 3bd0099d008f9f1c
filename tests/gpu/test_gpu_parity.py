"""The GPU against reference.py: the table of cases, layouts, masks, corners, budgets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import fast_lapsum
from cases import (
    DISTRIBUTIONS,
    DTYPES,
    FULL_DTYPES,
    LAYOUTS,
    TEMPERATURES,
    Expected,
    assert_budget,
    assert_near,
    budgets,
    corners,
    expected,
    generator,
    normal,
)

inf, nan = math.inf, math.nan
#: Rows of one program with every number of warps, and long ones.
LENGTHS = (1, 33, 1000, 4096, 16384, 16385, 32_768, 32_769, 70_000, 1_000_003, 5_000_003)
#: Most of the time here goes into compiling kernels: not every length with everything.
SOME_LENGTHS = (33, 16384, 1_000_003)
#: One length for every way that a few rows are solved: by one program, by a team, and shared.
TIERS = (1000, 16384, 70_000, 2_000_003)


def _check(
    scores: Tensor,
    k: Tensor,
    t: Tensor,
    *,
    dim: int = -1,
    grad: Tensor | None = None,
    **arguments: Any,
) -> None:
    """One call, with tensors k and t, and its gradients against the reference.

    The reference is plain float64 torch: long rows are its business on the device too.
    """
    where = scores.device if scores.shape[dim] > 5000 else torch.device("cpu")
    scores = scores.detach().requires_grad_()
    k, t = (x.to(scores.device).requires_grad_() for x in (k, t))
    if grad is None:
        grad = normal(*scores.shape, seed=5, dtype=scores.dtype).to(scores.device)
    p = fast_lapsum.soft_topk(scores, k, t, dim=dim, **arguments)
    assert (p.dtype, p.shape, p.device) == (scores.dtype, scores.shape, scores.device)
    d_scores, d_k, d_t = torch.autograd.grad(p, (scores, k, t), grad)
    # Numbers for k and t leave out what only their gradients need.
    if k.numel() == 1 and bool((k >= 0) & (t >= 0) & (k <= scores.shape[dim])):
        plain = fast_lapsum.soft_topk(scores, k.item(), t.item(), dim=dim, **arguments)
        (d_scores_alone,) = torch.autograd.grad(plain, scores, grad)
    else:
        d_scores_alone = d_scores

    side = 1 if arguments.get("largest", True) else -1
    rows = side * scores.detach().movedim(dim, -1)
    mask = arguments.get("mask")
    if mask is not None:
        rows = rows.masked_fill(~mask.expand(scores.shape).movedim(dim, -1), -inf)
    outer = rows.shape[:-1]
    ks, ts = (x.detach().cpu().expand(outer) for x in (k, t))
    want = expected(rows.to(where), ks, ts, grad.movedim(dim, -1).to(where))
    if scores.dtype == torch.float64 and rows.shape[-1] > 5000:
        want = _within_the_budget(want, ks)
    assert_near(p.detach().movedim(dim, -1).to(where), want.mask, want.mask_tolerance, "mask")
    for name, got in (("d scores", d_scores), ("d scores alone", d_scores_alone)):
        got = side * got.movedim(dim, -1).to(where)
        assert_near(got, want.d_scores, want.d_scores_tolerance, name)
    for name, got, wanted, tolerance in (
        ("d k", d_k, want.d_budget, want.d_budget_tolerance),
        ("d temperature", d_t, want.d_temperature, want.d_temperature_tolerance),
    ):
        wanted, tolerance = (x.cpu().sum_to_size(got.shape) for x in (wanted, tolerance))
        assert_near(got.cpu(), wanted, tolerance, name)
    if scores.dtype.itemsize > 2:
        answered = ~want.mask.isnan().any(-1).cpu()
        found = p.detach().movedim(dim, -1).cpu()
        assert_budget(found[answered], ks[answered])


def _within_the_budget(want: Expected, k: Tensor) -> Expected:
    """Long sums in float64 may be off by 1e-12 k, which moves u by that much over sum(phi)."""
    phi = torch.minimum(want.mask, 1 - want.mask).nan_to_num().sum(-1)
    factor = 1 + (k.to(phi.device) / phi.clamp(min=1)).nan_to_num(posinf=0.0, neginf=0.0) * 512
    return want._replace(
        mask_tolerance=want.mask_tolerance * factor[..., None],
        d_scores_tolerance=want.d_scores_tolerance * factor[..., None],
        d_budget_tolerance=want.d_budget_tolerance * factor,
        d_temperature_tolerance=want.d_temperature_tolerance * factor,
    )


def _shares(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [(dtype, n) for dtype in DTYPES for n in (LENGTHS if dtype == torch.float32 else SOME_LENGTHS)],
    ids=str,
)
def test_any_length_and_dtype(dtype: torch.dtype, n: int) -> None:
    for k, t in ((n / 16, 1.0), (n / 3, 0.02), (0.7 * n, 1e-3), (min(17.5, n / 2), 0.1)):
        t = max(t, 0.01) if dtype == torch.float16 else t  # 1 / t must exist
        k_tensor, t_tensor = torch.tensor([k]).double(), torch.tensor([t]).double()
        _check(normal(1, n, dtype=dtype).cuda(), k_tensor, t_tensor)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [33, 1000, 16385, 33_000])
def test_any_distribution_temperature_and_budget(n: int, distribution: str) -> None:
    """Every budget with every temperature on short rows; some of them for long ones."""
    row = DISTRIBUTIONS[distribution](n, generator(n))
    pairs = [(k, t) for t in TEMPERATURES for k in budgets(n)]
    pairs = pairs if n < 5000 else pairs[len(distribution) % 5 :: 5]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    for dtype in FULL_DTYPES:
        _check(row.to(dtype).cuda().expand(len(pairs), n), k, t)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [37, 16500, 33_000])
def test_any_layout(n: int, layout: str) -> None:
    shapes = (((3, n), 1), ((n, 3), 0), ((n,), 0), ((2, n, 3), 1))
    for shape, dim in shapes if n < 5000 else shapes[:2]:
        scores, grad = (
            LAYOUTS[layout](normal(*shape, seed=seed, dtype=torch.float32).cuda())
            for seed in (0, 1)
        )
        outer = scores.movedim(dim, -1).shape[:-1]
        _check(scores, n * _shares(*outer), 0.1 + _shares(*outer, seed=2), dim=dim, grad=grad)


@pytest.mark.parametrize("order", [(3, 1, 4, 0, 2), (4, 2, 0, 3, 1)], ids=str)
def test_many_dimensions_in_any_order(order: tuple[int, ...]) -> None:
    """More dimensions than two strides describe, each of scores, k, t, mask and grad its own."""
    scores = normal(2, 3, 4, 5, 3, dtype=torch.float32).cuda().permute(order)
    mask = (normal(*scores.shape[::-1], seed=3).permute(4, 3, 2, 1, 0) > -0.7).cuda()
    k = _shares(*scores.shape[-2::-1]).permute(3, 2, 1, 0) * mask.sum(-1).cpu()
    t = 0.3 + _shares(scores.shape[-2], seed=2)
    grad = normal(*scores.shape[::-1], seed=4, dtype=torch.float32).cuda().permute(4, 3, 2, 1, 0)
    _check(scores, k, t, mask=mask, grad=grad)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("rows", [66, 96], ids=["shared", "many"])
def test_many_long_rows(rows: int, dtype: torch.dtype) -> None:
    """A program for each row, or several: by rows, and along a dimension that is not the last."""
    for shape, dim in (((rows, 33_000), 1), ((33_001, rows), 0)):
        n = shape[dim]
        scores = normal(*shape, dtype=dtype).cuda()
        _check(scores, n * _shares(rows), 0.01 + _shares(rows, seed=2), dim=dim)
        mask = (_shares(*shape, seed=3) < 0.6).cuda()
        k = 0.5 * _shares(rows) * mask.sum(dim).cpu()
        _check(scores, k, torch.tensor(0.1).double(), dim=dim, mask=mask, largest=False)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("n", TIERS)
def test_masks(n: int, largest: bool) -> None:
    """Masks of a row's own and shared ones; what they leave out may hold anything."""
    shape = (3, n) if largest else (n,)
    mask = _shares(*shape) < 0.6
    scores = normal(3, n, dtype=torch.float32).masked_fill(~mask, nan).cuda()
    k = torch.tensor([0.2, 0.6, 1 / n]).double() * mask.expand(3, n).sum(-1)
    t = torch.tensor(0.4).double()
    _check(scores, k, t, mask=mask.cuda(), largest=largest)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [33, 16385, 33_000])
def test_corners(n: int, dtype: torch.dtype) -> None:
    scores, k, t = corners(n, dtype)
    _check(scores.cuda(), k, t)


@pytest.mark.parametrize(
    ("n", "largest"),
    [(1000, True), (1000, False), (16384, True), (70_000, False), (2_000_003, True)],
)
def test_hard_masks(n: int, largest: bool) -> None:
    """Exactly k ones, the earliest of tied scores first, with the soft gradient."""
    scores = (2 * normal(3, n, dtype=torch.float32)).round().cuda().requires_grad_()
    k = torch.tensor([5.0, n // 3, n - 1.0]).double().cuda()
    grad = normal(3, n, seed=1, dtype=torch.float32).cuda()
    t = torch.tensor(0.3, dtype=torch.float64, device="cuda")
    p = fast_lapsum.soft_topk(scores, k, t, largest=largest, hard=True)
    order = scores.detach().argsort(dim=-1, descending=largest, stable=True)
    for row in range(3):
        wanted = torch.zeros(n, device="cuda")
        wanted[order[row, : int(k[row])]] = 1
        assert torch.equal(p[row], wanted)
    soft = fast_lapsum.soft_topk(scores, k, t, largest=largest)
    (got,), (wanted_grad,) = (torch.autograd.grad(x, scores, grad) for x in (p, soft))
    torch.testing.assert_close(got, wanted_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("largest", [True, False])
def test_hard_masks_of_long_rows_for_a_number(largest: bool) -> None:
    """One k for all rows."""
    n = 70_000
    scores = (2 * normal(3, n, dtype=torch.float32)).round().cuda()
    scores[1, ::7] = -0.0
    scores[2, 5] = nan
    order = scores.argsort(dim=-1, descending=largest, stable=True)
    for k in (0, n // 3, n):
        p = fast_lapsum.soft_topk(scores, k, 0.3, largest=largest, hard=True)
        for row in range(2):
            wanted = torch.zeros(n, device="cuda")
            wanted[order[row, :k]] = 1
            assert torch.equal(p[row], wanted)
        assert p[2].isnan().all()


@pytest.mark.parametrize("n", [1 << 14, 10**6, 5 * 10**6])
def test_a_kept_call_is_not_made_with_other_alignment(n: int) -> None:
    memory = normal(1, n + 1, dtype=torch.float32).cuda()[0]
    for scores in (memory[:-1], memory[:-1], memory[1:], memory[1:], memory[:-1]):
        p = fast_lapsum.soft_topk(scores, 1000.3, 0.1)
        assert abs(p.sum(dtype=torch.float64).item() / 1000.3 - 1) <= 1e-6


def test_warm_starts() -> None:
    scores, k = normal(4, 1000, dtype=torch.float32).cuda(), 100.5
    want = expected(scores.cpu(), k, 0.1, torch.zeros(4, 1000))
    for start in (1.28, -1e30, nan, inf):
        warm = torch.full((4,), start, device="cuda")
        p = fast_lapsum.soft_topk(scores, k, 0.1, warm_start=warm)
        assert_near(p.cpu(), want.mask, want.mask_tolerance, f"mask from {start}")


@pytest.mark.parametrize("n", [1000, 70_000])
def test_autocast_keeps_the_budget(n: int) -> None:
    scores = normal(2, n, dtype=torch.bfloat16).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        p = fast_lapsum.soft_topk(scores, n / 7, 0.2)
    assert p.dtype == torch.float32
    assert_budget(p.cpu(), n / 7)


@pytest.mark.parametrize("empty", [(0,), (0, 5), (3, 0), (2, 0, 4)], ids=str)
def test_empty_inputs(empty: tuple[int, ...]) -> None:
    scores = torch.empty(empty, device="cuda", requires_grad=True)
    p = fast_lapsum.soft_topk(scores, 0)
    assert p.shape == empty
    p.sum().backward()


@pytest.mark.parametrize("variant", ["plain", "smallest", "mask"])
def test_gradcheck(variant: str) -> None:
    arguments: dict[str, Any] = {
        "plain": {},
        "smallest": {"largest": False},
        "mask": {"mask": torch.tensor([True, True, False, True, True, True], device="cuda")},
    }[variant]
    leaves = (
        normal(2, 6, seed=3).cuda(),
        torch.tensor([1.63, 3.63]).double().cuda(),
        torch.tensor([0.4, 1.3]).double().cuda(),
    )
    leaves = tuple(leaf.requires_grad_() for leaf in leaves)
    assert gradcheck(lambda *x: fast_lapsum.soft_topk(*x, **arguments), leaves)


def test_gradcheck_of_a_long_row() -> None:
    leaves = (
        normal(1, 16385, seed=3).cuda().requires_grad_(),
        torch.tensor(1234.5).double().cuda().requires_grad_(),
        torch.tensor(0.7).double().cuda().requires_grad_(),
    )
    assert gradcheck(fast_lapsum.soft_topk, leaves, fast_mode=True)


BUDGET_GRID = (
    "normal",
    "student_t2",
    "log_normal",
    "cauchy",
    "three_clusters",
    "sixteen_levels",
    "constant",
    "sorted",
    "periodic",
)


@pytest.mark.parametrize("distribution", BUDGET_GRID)
@pytest.mark.parametrize("n", [4096, 1_000_000, 5_000_000])
def test_the_budget_is_met(n: int, distribution: str) -> None:
    """|sum p - k| <= 1e-6 k for every budget and temperature."""
    scores = DISTRIBUTIONS[distribution](n, generator(9)).float().cuda()
    for k in (1, 17.5, n / 16, n / 2, n - 1):
        for t in (1.0, 0.1, 0.01, 0.001):
            p = fast_lapsum.soft_topk(scores, k, t)
            error = abs(p.double().sum().item() - k)
            assert error <= 1e-6 * k, f"off by {error / k:.2g} k at k={k}, t={t}"

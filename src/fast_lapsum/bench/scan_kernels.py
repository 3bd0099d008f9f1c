"""The paper's three sorted-row kernels (tab:fast-main) in Triton, for the ablation on GPUs.

Rows of up to 16,384 float32 scores come sorted, r_0 >= r_1 >= ... With the prefix and suffix sums

    A_i = 1 + e^{-(r_{i-1} - r_i)/t} A_{i-1},      B_i = 1 + e^{-(r_i - r_{i+1})/t} B_{i+1}

the budget curve at a score is i + 1/2 + (B_i - A_i) / 2. It grows with i; between the two scores
where it passes k the threshold has a closed form. Kernels: both scans one score after the other,
both scans in parallel, and the latter with the mask written by the same launch.

Import this only where Triton is.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

Stage = Literal["scan", "block scan", "fused"]

#: One program holds a row.
LONGEST = 16384


@triton.jit
def _root(upper_sum, lower_sum, upper, lower, excess, t):
    """(hi, lo) of the threshold between two neighbours; an empty side has the sum 0."""
    gap = upper - lower
    coupling = tl.sqrt(upper_sum * lower_sum) * tl.exp(-0.5 * gap / t)
    root = tl.sqrt(excess * excess + coupling * coupling)
    from_upper = -t * tl.log(upper_sum / (root + excess))
    from_lower = t * tl.log(lower_sum / (root - excess))
    middle = -0.5 * (t * tl.log(upper_sum / lower_sum) + gap)  # however wide the gap is
    hi = tl.where(excess < 0, lower, upper)
    lo = tl.where(excess > 0, from_upper, tl.where(excess < 0, from_lower, middle))
    return hi, lo


@triton.jit
def _between(ordered, pair, count, n, upper_sum, lower_sum, k, t):
    """Write the threshold pair that lies below ``count`` scores; their sums are given."""
    upper = tl.load(ordered + tl.maximum(count - 1, 0))
    lower = tl.load(ordered + tl.minimum(count, n - 1))
    # Towards an open end there is no gap: the other score stands in for the missing one.
    hi, lo = _root(upper_sum, lower_sum, upper, lower, count - k, t)
    tl.store(pair, hi)
    tl.store(pair + 1, lo)
    return hi, lo


@triton.jit
def _scan(ordered, suffix_sums, pairs, n, k, t):
    """One score after the other: suffix sums into memory, then prefix sums up to the budget."""
    row = tl.program_id(0).to(tl.int64)
    ordered += row * n
    suffix_sums += row * n
    below = 0.0
    following = tl.load(ordered + n - 1)
    for step in range(n):
        i = n - 1 - step
        r = tl.load(ordered + i)
        below = 1.0 + tl.exp((following - r) / t) * below
        tl.store(suffix_sums + i, below)
        following = r
    tl.debug_barrier()
    above = 0.0
    upper_sum = 0.0
    lower_sum = 0.0
    count = 0
    before = tl.load(ordered)
    for i in range(n):
        r = tl.load(ordered + i)
        below = tl.load(suffix_sums + i)
        above = 1.0 + tl.exp((r - before) / t) * above
        before = r
        is_above = (i + 0.5 - k) + 0.5 * (below - above) <= 0
        # The curve grows: scores above the threshold come first, and the next has the other sum.
        lower_sum = tl.where((i == count) & (is_above == 0), below, lower_sum)
        upper_sum = tl.where((i == count) & is_above, above, upper_sum)
        count += ((i == count) & is_above).to(tl.int32)
    _between(ordered, pairs + row * 2, count, n, upper_sum, lower_sum, k, t)


@triton.jit
def _compose(first_decay, first_sum, then_decay, then_sum):
    """x -> decay x + sum, one after the other."""
    return first_decay * then_decay, first_sum * then_decay + then_sum


@triton.jit
def _parallel_threshold(ordered, pair, n, k, t, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    r = tl.load(ordered + i, mask=inside, other=float("-inf"))
    before = tl.load(ordered + i - 1, mask=inside & (i > 0), other=float("inf"))
    following = tl.load(ordered + i + 1, mask=i < n - 1, other=float("-inf"))
    weight = inside.to(tl.float32)
    to_before = tl.where(inside & (i > 0), tl.exp((r - before) / t), 0.0)
    to_following = tl.where(i < n - 1, tl.exp((following - r) / t), 0.0)
    _, above = tl.associative_scan((to_before, weight), 0, _compose)
    _, below = tl.associative_scan((to_following, weight), 0, _compose, reverse=True)
    surplus = (i + 0.5 - k) + 0.5 * (below - above)
    count = tl.sum((inside & (surplus <= 0)).to(tl.int32), 0)
    upper_sum = tl.sum(tl.where(i == count - 1, above, 0.0), 0)
    lower_sum = tl.sum(tl.where(i == count, below, 0.0), 0)
    return _between(ordered, pair, count, n, upper_sum, lower_sum, k, t)


@triton.jit
def _block_scan(ordered, pairs, n, k, t, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _parallel_threshold(ordered + row * n, pairs + row * 2, n, k, t, BLOCK)


@triton.jit
def _fused(ordered, scores, mask, pairs, n, k, t, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    hi, lo = _parallel_threshold(ordered + row * n, pairs + row * 2, n, k, t, BLOCK)
    i = tl.arange(0, BLOCK)
    u = ((tl.load(scores + row * n + i, mask=i < n, other=0.0) - hi) - lo) / t
    half = 0.5 * tl.exp(-tl.abs(u))
    tl.store(mask + row * n + i, tl.where(u > 0, 1 - half, half), mask=i < n)


def soft_topk(scores: Tensor, k: float, temperature: float, stage: Stage) -> Tensor:
    """The mask of every row of float32 scores [B, n], 0 < k < n, by one of the three kernels."""
    n = scores.shape[-1]
    if scores.dtype != torch.float32 or not 0 < n <= LONGEST or not 0 < k < n:
        raise ValueError(
            f"the kernels take float32 rows of up to {LONGEST} scores and 0 < k < n, got "
            f"{scores.dtype}, n = {n}, k = {k}"
        )
    mask: Tensor = _SortedRows.apply(scores, float(k), float(temperature), stage)
    return mask


class _SortedRows(torch.autograd.Function):
    """A kernel forward, and the closed-form vector-Jacobian product that all of them share."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: float, t: float, stage: Stage) -> Tensor:
        mask = _mask(scores.contiguous(), k, t, stage)
        ctx.save_for_backward(mask)
        ctx.temperature = t
        return mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        slopes = torch.minimum(mask, 1 - mask)  # the Laplace density, on either side
        total = slopes.sum(-1, keepdim=True).clamp(min=torch.finfo(slopes.dtype).tiny)
        mean = (slopes * grad).sum(-1, keepdim=True) / total
        return slopes * (grad - mean) / ctx.temperature, None, None, None


def _mask(scores: Tensor, k: float, t: float, stage: Stage) -> Tensor:
    rows, n = scores.shape
    ordered = scores.sort(-1, descending=True).values
    pairs = scores.new_empty(rows, 2)
    block = max(triton.next_power_of_2(n), 32)
    warps = max(1, min(block // 512, 16))
    with torch.cuda.device_of(scores):
        if stage == "fused":
            mask = torch.empty_like(scores)
            _fused[(rows,)](ordered, scores, mask, pairs, n, k, t, BLOCK=block, num_warps=warps)
            return mask
        if stage == "scan":
            _scan[(rows,)](ordered, torch.empty_like(ordered), pairs, n, k, t, num_warps=1)
        else:
            _block_scan[(rows,)](ordered, pairs, n, k, t, BLOCK=block, num_warps=warps)
    u = ((scores - pairs[:, :1]) - pairs[:, 1:]) / t
    half = torch.exp(-u.abs()) / 2
    return torch.where(u > 0, 1 - half, half)

"""Rows that fit on chip: one program per row, the scores in registers from load to mask.

Reads every score once and writes every p once: 8 bytes per float32 score.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import any_mask, exponent_scale, load_scores, offset, row_value
from .solve import select_rank, solve_clean_row, solve_row


@triton.jit
def rows_forward(
    scores,
    mask,
    budget,
    temperature,
    warm_start,
    out,
    threshold,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    inner_count,
    scores_outer,
    scores_inner,
    scores_along,
    mask_outer,
    mask_inner,
    mask_along,
    budget_outer,
    budget_inner,
    temperature_outer,
    temperature_inner,
    warm_outer,
    warm_inner,
    out_outer,
    out_inner,
    out_along,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Mask and threshold pair of the row ``program_id(0)``."""
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // inner_count, row % inner_count
    k = row_value(budget, k_hi, k_lo, outer, inner, budget_outer, budget_inner)
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    scores += outer * scores_outer + inner * scores_inner
    out += outer * out_outer + inner * out_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    start = tl.full((), float("nan"), COMPUTE)
    if warm_start is not None:
        start = tl.load(warm_start + outer * warm_outer + inner * warm_inner).to(COMPUTE)
        if not LARGEST:
            start = -start

    index = tl.arange(0, BLOCK)
    inside = index < n if PADDED else None
    r = load_scores(scores, mask, 0, index, inside, scores_along, mask_along, LARGEST, COMPUTE)
    # Sums of squares are taken from a score of the row: a huge offset would eat their digits.
    origin = tl.load(scores, mask=n > 0, other=0.0).to(COMPUTE)
    origin = origin if LARGEST else -origin
    origin = tl.where(tl.abs(origin) < float("inf"), origin, 0.0)
    source = (r, scores, mask, n, scores_along, mask_along)
    hi, lo = solve_clean_row(source, inside, k, t, start, origin, LARGEST, BLOCK, COMPUTE)
    lowest = tl.full((), float("-inf"), COMPUTE)
    highest = tl.full((), float("inf"), COMPUTE)
    if (hi != hi) | HARD:
        hi, lo, lowest, highest = solve_row(
            source, k, t, start, origin, "row", LARGEST, BLOCK, COMPUTE
        )
    inverse = exponent_scale(t, COMPUTE)
    if HARD:
        p = tl.full((BLOCK,), float("nan"), COMPUTE)
        if hi == hi:
            p = tl.zeros((BLOCK,), COMPUTE)
            if k > 0:
                boundary, above, _ = select_rank(
                    source, k, lowest, highest, "row", LARGEST, BLOCK, COMPUTE
                )
                tied = r == boundary
                earlier = tl.cumsum(tied.to(tl.int32), 0)
                chosen = (r > boundary) | (tied & (earlier.to(tl.float64) <= k - above))
                p = chosen.to(COMPUTE)
    else:
        p = any_mask(r, hi, lo, t, inverse, COMPUTE)
    place = offset(0, index, out_along)
    tl.store(out + place, p.to(out.dtype.element_ty), mask=inside)
    tl.store(threshold + 2 * row, hi)
    tl.store(threshold + 2 * row + 1, lo)

"""Gradients of a stretch of a row, by one program: its sums (gradients.py), and what is written.

The sums are those of sums_backward, where programs take turns at the tiles of a row instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .backward import TILES_PER_SUM
from .gradients import (
    gradient_terms,
    is_shifted,
    joined_sums,
    least_of_row,
    load_upstream,
    score_gradient,
    seen,
    sum_count,
    sums_of_lanes,
    weighted_sums,
    wide_sum,
    zero_sums,
)
from .views import across, exist, load_scores, part_indices, store_values


@triton.jit
def sums_of(
    call,
    first,
    last,
    grad,
    rows,
    outer,
    inner,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    PER_ROW: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The shift of a stretch of a row and its sums, in float64; without a score it is infinite."""
    FIELDS: tl.constexpr = sum_count(OUTPUT, PER_ROW)
    SHIFTED: tl.constexpr = is_shifted(OUTPUT, PER_ROW)
    WEIGHTED: tl.constexpr = weighted_sums(OUTPUT, PER_ROW) if SHIFTED else 0
    total = zero_sums((1,), FIELDS, tl.float64)
    total_shift = tl.full((1,), float("inf") if SHIFTED else 0.0, COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES
    tiles = (last - first + (BLOCK - 1)) // BLOCK
    for group in range(0, tiles, TILES_PER_SUM):
        of_lanes = zero_sums((REPEATS, 1, LANES, 1), FIELDS, COMPUTE, wide_sum(OUTPUT, PER_ROW))
        shifts = tl.full((REPEATS, 1, LANES, 1), float("inf") if SHIFTED else 0.0, COMPUTE)
        for tile in range(group, tl.minimum(group + TILES_PER_SUM, tiles)):
            index = part_indices(first + tile * BLOCK, 0, REPEATS, LANES, 1)
            inside = exist(index, last, 1)
            r = load_scores(call, outer, inner, index, inside, LARGEST, 1, COMPUTE)
            g = tl.zeros_like(r)
            if OUTPUT != "threshold":
                g, _ = load_upstream(grad, outer, inner, index, inside, r, 1, OUTPUT)
            g, v, distance = seen(r, g, rows, OUTPUT, COMPUTE)
            shift = shifts
            kept = shifts
            w = distance
            if SHIFTED:
                # Each lane's sums are relative to the nearest score it has seen.
                shift = tl.minimum(shifts, distance)
                anchor = tl.where(shift < float("inf"), shift, 0.0)
                kept = tl.exp2(anchor - shifts)
                w = tl.exp2(anchor - distance)
            else:
                w = tl.exp2(-distance)
            terms = gradient_terms(w, g, v, r, rows, OUTPUT, PER_ROW)
            of_lanes = joined_sums(of_lanes, terms, kept, WEIGHTED)
            shifts = shift
        nearest = total_shift
        kept_all = tl.full((1,), 1.0, tl.float64)
        factors = tl.full((REPEATS, 1, LANES, 1), 1.0, tl.float64)
        if SHIFTED:
            nearest = tl.minimum(total_shift, least_of_row(shifts))
            anchor_all = tl.where(nearest < float("inf"), nearest, 0.0)
            kept_all = tl.exp2(anchor_all - total_shift).to(tl.float64)
            factors = tl.exp2(across(anchor_all) - shifts).to(tl.float64)
        of_tile = sums_of_lanes(of_lanes, factors, WEIGHTED)
        total = joined_sums(total, of_tile, kept_all, WEIGHTED)
        total_shift = nearest
    return total_shift.to(tl.float64), total


@triton.jit
def write_gradients(
    call,
    first,
    last,
    grad,
    out,
    of_row,
    rows,
    outer,
    inner,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The gradient of a stretch, from its end: what was read last is still at hand."""
    BLOCK: tl.constexpr = REPEATS * LANES
    tiles = (last - first + (BLOCK - 1)) // BLOCK
    for step in range(tiles):
        index = part_indices(first + (tiles - 1 - step) * BLOCK, 0, REPEATS, LANES, 1)
        inside = exist(index, last, 1)
        r = load_scores(call, outer, inner, index, inside, LARGEST, 1, COMPUTE)
        g = tl.zeros_like(r)
        if OUTPUT != "threshold":
            g, _ = load_upstream(grad, outer, inner, index, inside, r, 1, OUTPUT)
        d = score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
        store_values(out, outer, inner, index, inside, d, 1)

"""Gradients of dense rows (gradients.py has the formulas).

Rows of one program read r and g once (12 bytes per float32 score); longer rows twice (20 bytes):
sums first, then the gradient, in the opposite order for the cache's sake.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gradients import (
    SUMS,
    gradient_terms,
    is_shifted,
    joined_sums,
    least_of_row,
    load_upstream,
    row_gradients,
    score_gradient,
    seen,
    sum_count,
    sum_of_row,
    sums_of_lanes,
    threshold_of,
    weighted_sums,
    wide_sum,
    zero_sums,
)
from .views import (
    across,
    coordinates,
    exist,
    load_scores,
    part_indices,
    row_start,
    store_values,
)

TILES_PER_SUM = tl.constexpr(16)


@triton.jit(do_not_specialize=["row_count"])
def tile_backward(
    call,
    row_count,
    grad,
    threshold,
    out,
    d_budget,
    d_temperature,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """All gradients of ROWS rows, held in registers as :func:`tile_forward` holds them."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < row_count
    outer, inner = coordinates(call, row, row_count)
    index = part_indices(0, 0, REPEATS, LANES, WIDTH)
    inside = exist(index, call.n, WIDTH) if PADDED else None
    r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
    g, g_row = load_upstream(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    g, v, distance = seen(r, g, rows, OUTPUT, COMPUTE)
    PER_ROW: tl.constexpr = d_budget is not None
    if is_shifted(OUTPUT, PER_ROW):
        shift = least_of_row(distance)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        w = tl.exp2(across(shift) - distance)
    else:
        shift = tl.zeros((ROWS,), COMPUTE)
        w = tl.exp2(-distance)
    terms = gradient_terms(w, g, v, r, rows, OUTPUT, PER_ROW)
    sums = ()
    for i in tl.static_range(len(terms)):
        sums = sums + (sum_of_row(terms[i]).to(tl.float64),)  # type: ignore[assignment]
    of_row = row_gradients(shift.to(tl.float64), sums, g_row, rows, LARGEST, OUTPUT, PER_ROW)
    if d_budget is not None:
        tl.store(d_budget + row, of_row.d_budget, mask=is_row)
        tl.store(d_temperature + row, of_row.d_temperature, mask=is_row)
    d = score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
    written = across(is_row)
    if PADDED:
        written = written & inside
    store_values(out, outer, inner, index, written, d, WIDTH)


@triton.jit(do_not_specialize=["row_count"])
def sums_backward(
    call,
    row_count,
    grad,
    threshold,
    out,
    d_budget,
    d_temperature,
    sums,
    programs,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    PER_ROW: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The sums behind <g, q> and d t of long rows, one program's share."""
    program_id = tl.program_id(0).to(tl.int64)
    row, program = program_id // programs + tl.zeros((1,), tl.int64), program_id % programs
    outer, inner = coordinates(call, row, row_count)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    FIELDS: tl.constexpr = sum_count(OUTPUT, PER_ROW)
    SHIFTED: tl.constexpr = is_shifted(OUTPUT, PER_ROW)
    WEIGHTED: tl.constexpr = weighted_sums(OUTPUT, PER_ROW) if SHIFTED else 0
    total = zero_sums((1,), FIELDS, tl.float64)
    total_shift = tl.full((1,), float("inf") if SHIFTED else 0.0, COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for group in range(program, tiles, programs * TILES_PER_SUM):
        of_lanes = zero_sums((REPEATS, 1, LANES, WIDTH), FIELDS, COMPUTE, wide_sum(OUTPUT, PER_ROW))
        shifts = tl.full((REPEATS, 1, LANES, WIDTH), float("inf") if SHIFTED else 0.0, COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            index = part_indices(tile * BLOCK, 0, REPEATS, LANES, WIDTH)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
            g, _ = load_upstream(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
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
        factors = tl.full((REPEATS, 1, LANES, WIDTH), 1.0, tl.float64)
        if SHIFTED:
            nearest = tl.minimum(total_shift, least_of_row(shifts))
            anchor_all = tl.where(nearest < float("inf"), nearest, 0.0)
            kept_all = tl.exp2(anchor_all - total_shift).to(tl.float64)
            factors = tl.exp2(across(anchor_all) - shifts).to(tl.float64)
        of_tile = sums_of_lanes(of_lanes, factors, WEIGHTED)
        total = joined_sums(total, of_tile, kept_all, WEIGHTED)
        total_shift = nearest
    place = sums + program_id * SUMS + tl.arange(0, 1)
    tl.store(place, total_shift.to(tl.float64))
    for field in tl.static_range(FIELDS):
        tl.store(place + 1 + field, total[field])


@triton.jit(do_not_specialize=["row_count"])
def scores_backward(
    call,
    row_count,
    grad,
    threshold,
    out,
    d_budget,
    d_temperature,
    sums,
    programs,
    sum_programs,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SUM_LANES: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Adds the sums up, in their order, and writes the gradient of one program's share."""
    program_id = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    row, program = program_id // programs + tl.zeros((1,), tl.int64), program_id % programs
    outer, inner = coordinates(call, row, row_count)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    lane = tl.arange(0, SUM_LANES)[None, :]
    has_sums = lane < sum_programs
    every = sums + (row[:, None] * sum_programs + lane) * SUMS
    PER_ROW: tl.constexpr = d_budget is not None
    shift = tl.zeros((1,), tl.float64)
    factors = tl.full((1, SUM_LANES), 1.0, tl.float64)
    if is_shifted(OUTPUT, PER_ROW):
        shifts = tl.load(every, mask=has_sums, other=float("inf"))
        shift = tl.min(shifts, 1)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        factors = tl.exp2(shift[:, None] - shifts)
    total = ()
    for i in tl.static_range(sum_count(OUTPUT, PER_ROW)):
        one = tl.load(every + 1 + i, mask=has_sums, other=0.0)
        if i < weighted_sums(OUTPUT, PER_ROW):
            one = one * factors
        total = total + (tl.sum(one, 1),)  # type: ignore[assignment]
    g_row = tl.zeros((1,), tl.float64)
    if OUTPUT == "threshold":
        g_row = tl.load(row_start(grad, outer, inner)).to(tl.float64)
    of_row = row_gradients(shift, total, g_row, rows, LARGEST, OUTPUT, PER_ROW)
    if d_budget is not None:
        if program == 0:
            tl.store(d_budget + row, of_row.d_budget)
            tl.store(d_temperature + row, of_row.d_temperature)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for step in range(program, tiles, programs):
        index = part_indices((tiles - 1 - step) * BLOCK, 0, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        g, _ = load_upstream(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
        d = score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
        store_values(out, outer, inner, index, inside, d, WIDTH)

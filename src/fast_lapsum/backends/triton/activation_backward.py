"""The whole gradient of relu(r) g where the gate g is a mask of the scores r themselves.

The gate is sent c = w relu(r) of an upstream gradient w. With phi and q of gradients.py

    d r = w g [r > 0] + (phi / t) (c - <c, q>)

where c is a product of what is read anyway, so that neither it nor either part of the gradient is
ever in memory. Rows of one program read r, w and g once (16 bytes per float32 score, with the
gradient). Longer rows read r and w twice (24 bytes): sums first, then the gradient, in the opposite
order for the cache's sake. A hard gate need not be read (20 bytes): its boundary is known, or the
best score that it leaves out, over which it is 1 and below which it is 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activation_forward import is_chosen
from .backward import TILES_PER_SUM
from .gradients import Gradients, score_gradient, seen, sum_of_row, threshold_of, zero_sums
from .views import (
    across,
    coordinates,
    exist,
    load_scores,
    load_values,
    part_indices,
    store_values,
)

#: Float64 numbers that a program of a long row leaves: sums of e^-|u| and of c e^-|u|.
ACTIVATION_SUMS = tl.constexpr(2)


@triton.jit
def _sent_to_gate(r, upstream):
    """c = w relu(r)."""
    return upstream * tl.where(r <= 0, 0.0, r)  # a NaN is not at most 0, and stays


@triton.jit
def _terms(r, upstream, rows, COMPUTE: tl.constexpr):
    """e^-|u| and c e^-|u|, zero for scores that have no gradient."""
    c, _, distance = seen(r, _sent_to_gate(r, upstream), rows, "mask", COMPUTE)
    e = tl.exp2(-distance)
    return e, c * e


@triton.jit
def _mean(sums):
    """<c, q> of rows as Gradients has it; where all e vanish, so does the gate's gradient."""
    has_any = sums[0] > 0
    weight = tl.where(has_any, sums[0], 1.0)
    nothing = 0 * weight
    return Gradients(tl.where(has_any, sums[1] / weight, 0.0), nothing, nothing, nothing)


@triton.jit
def _whole_gradient(r, upstream, g, of_row, rows, COMPUTE: tl.constexpr):
    through_gate = score_gradient(
        r, _sent_to_gate(r, upstream), of_row, rows, True, "mask", COMPUTE
    )
    return tl.where(r <= 0, 0.0, upstream * g) + through_gate


@triton.jit(do_not_specialize=["row_count"])
def tile_activation_backward(
    call,
    row_count,
    grad,
    gate,
    threshold,
    out,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The gradient of ROWS rows, held in registers as :func:`tile_backward` holds them."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < row_count
    outer, inner = coordinates(call, row, row_count)
    index = part_indices(0, 0, REPEATS, LANES, WIDTH)
    inside = exist(index, call.n, WIDTH) if PADDED else None
    r = load_scores(call, outer, inner, index, inside, True, WIDTH, COMPUTE)
    upstream = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    e, weighted = _terms(r, upstream, rows, COMPUTE)
    of_row = _mean((sum_of_row(e).to(tl.float64), sum_of_row(weighted).to(tl.float64)))
    # Read behind the sums, so that it takes no registers before.
    g = load_values(gate, outer, inner, index, inside, WIDTH).to(COMPUTE)
    d = _whole_gradient(r, upstream, g, of_row, rows, COMPUTE)
    written = across(is_row)
    if PADDED:
        written = written & inside
    store_values(out, outer, inner, index, written, d, WIDTH)


@triton.jit(do_not_specialize=["row_count"])
def sums_activation_backward(
    call,
    row_count,
    grad,
    gate,
    boundary,
    best,
    best_count,
    threshold,
    out,
    sums,
    programs,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The sums behind <c, q> of long rows, one program's share."""
    program_id = tl.program_id(0).to(tl.int64)
    row, program = program_id // programs + tl.zeros((1,), tl.int64), program_id % programs
    outer, inner = coordinates(call, row, row_count)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    total_e, total_weighted = zero_sums((1,), 2, tl.float64)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for group in range(program, tiles, programs * TILES_PER_SUM):
        sum_e, sum_weighted = zero_sums((REPEATS, 1, LANES, WIDTH), 2, COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            index = part_indices(tile * BLOCK, 0, REPEATS, LANES, WIDTH)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, True, WIDTH, COMPUTE)
            upstream = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
            e, weighted = _terms(r, upstream, rows, COMPUTE)
            sum_e += e
            sum_weighted += weighted
        total_e += sum_of_row(sum_e.to(tl.float64))
        total_weighted += sum_of_row(sum_weighted.to(tl.float64))
    place = sums + program_id * ACTIVATION_SUMS + tl.arange(0, 1)
    tl.store(place, total_e)
    tl.store(place + 1, total_weighted)


@triton.jit
def _best_of_all(best, count, LANES: tl.constexpr):
    """The best score that a gate leaves out, of what programs have found; NaN if one of them is."""
    lane = tl.arange(0, LANES)
    top = tl.full((LANES,), float("-inf"), tl.float32)
    unknown = tl.zeros((LANES,), tl.int32)
    for first in range(0, count, LANES):
        one = tl.load(best + first + lane, mask=first + lane < count, other=float("-inf"))
        top = tl.maximum(top, one)
        unknown |= (one != one).to(tl.int32)
    return tl.where(tl.max(unknown, 0) != 0, float("nan"), tl.max(top, 0))


@triton.jit(do_not_specialize=["row_count"])
def scores_activation_backward(
    call,
    row_count,
    grad,
    gate,
    boundary,
    best,
    best_count,
    threshold,
    out,
    sums,
    programs,
    sum_programs,
    SUM_LANES: tl.constexpr,
    BEST_LANES: tl.constexpr,
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
    every = sums + (row[:, None] * sum_programs + lane) * ACTIVATION_SUMS
    of_row = _mean(
        (
            tl.sum(tl.load(every, mask=has_sums, other=0.0), 1),
            tl.sum(tl.load(every + 1, mask=has_sums, other=0.0), 1),
        )
    )
    limit = tl.zeros((1,), COMPUTE)
    last = tl.zeros((1,), tl.int64)
    if boundary is not None:
        limit += tl.load(boundary).to(COMPUTE)
        last += tl.load(boundary + 1).to(tl.int64)
    elif best is not None:
        limit += _best_of_all(best, best_count, BEST_LANES)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for step in range(program, tiles, programs):
        start = (tiles - 1 - step) * BLOCK
        index = part_indices(start, 0, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, True, WIDTH, COMPUTE)
        upstream = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
        if boundary is not None:
            g = is_chosen(r, index, start, limit, last, BLOCK).to(COMPUTE)
        elif best is not None:
            is_read = (r == across(limit)) | across(limit != limit)
            g = load_values(gate, outer, inner, index, inside & is_read, WIDTH).to(COMPUTE)
            g = tl.where(is_read, g, (r > across(limit)).to(COMPUTE))
        else:
            g = load_values(gate, outer, inner, index, inside, WIDTH).to(COMPUTE)
        d = _whole_gradient(r, upstream, g, of_row, rows, COMPUTE)
        store_values(out, outer, inner, index, inside, d, WIDTH)

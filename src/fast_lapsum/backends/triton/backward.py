"""Gradients for scores, budget and temperature (the paper's eq. vjp) from the threshold pair.

    d r = (phi / t) (g - <g, q>)     d k = <g, q>     d t = -(1 / t) sum_i g_i phi_i (u_i - <q, u>)

Rows of one program read r and g once (12 bytes per float32 score); longer rows twice (20 bytes):
sums first, then the gradient, in the opposite order for the cache's sake. For d k and d t, q =
softmax(-|u|) is taken with its largest exponent shifted to zero: phi / sum(phi) would be 0 / 0
where a gap is wide against t. Without them that is not needed: where all e vanish, so does d r.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import LN2, exponent_scale, smallest_normal
from .views import (
    across,
    coordinates,
    exist,
    load_scores,
    load_values,
    part_indices,
    store_values,
    temperature_of,
)

#: Float64 numbers that a program of a long row leaves: the shift and the :class:`Sums`.
SUMS = tl.constexpr(5)
TILES_PER_SUM = tl.constexpr(16)
#: e^-|u| is zero in every format long before |v| gets here.
VANISHED_AT = tl.constexpr(2048.0)


class Sums(NamedTuple):
    """Sums over a row of w, g w, w v, g w v with w = 2^(shift - |v|); the last two may be 0."""

    weight: Any
    grad_weight: Any
    weight_v: Any
    grad_weight_v: Any


class Threshold(NamedTuple):
    """What is known of rows: their pair, temperature (float64) and log2(e) / t."""

    hi: Any
    lo: Any
    t: Any
    inverse: Any
    is_limit: Any


@triton.jit
def _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE: tl.constexpr):
    t = temperature_of(call, outer, inner)
    row = tl.minimum(row, row_count - 1)
    hi = tl.load(threshold + 2 * row)
    lo = tl.load(threshold + 2 * row + 1)
    is_limit = (t < smallest_normal(COMPUTE)) | (hi == float("inf"))
    return Threshold(hi, lo, t, exponent_scale(t, COMPUTE), is_limit)


@triton.jit
def _exponents(r, rows):
    """v = (r - b) log2(e) / t, and whether the score has a gradient at all."""
    v = ((r - across(rows.hi)) - across(rows.lo)) * across(rows.inverse)
    is_live = tl.abs(v) < float("inf")
    return tl.where(is_live, v, 0.0), is_live


@triton.jit
def _near(v):
    """v where it can matter to d t, else 0: thousands of v near the largest float overflow."""
    return tl.where(tl.abs(v) < VANISHED_AT, v, 0.0)


@triton.jit
def _added2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _added4(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _least(values):
    """The least of every row."""
    return tl.min(tl.min(tl.min(values, 3), 0), 1)


@triton.jit
def _added_up(values):
    """The sum of every row."""
    return tl.sum(tl.sum(tl.sum(values, 3), 0), 1)


@triton.jit
def _sums(w, g, v, PER_ROW: tl.constexpr):
    """:class:`Sums` of rows in registers, in float64."""
    if PER_ROW:
        near = _near(v)
        terms = (w, g * w, w * near, g * w * near)
        thread = tl.reduce(tl.reduce(terms, 3, _added4), 0, _added4)
        a, b, c, d = tl.reduce(thread, 1, _added4)
        return Sums(a.to(tl.float64), b.to(tl.float64), c.to(tl.float64), d.to(tl.float64))
    else:
        few = tl.reduce(tl.reduce((w, g * w), 3, _added2), 0, _added2)
        a, b = tl.reduce(few, 1, _added2)
        none = a.to(tl.float64) * 0
        return Sums(a.to(tl.float64), b.to(tl.float64), none, none)


@triton.jit
def _row_gradients(shift, sums, rows):
    """<g, q>, d k and d t from a row's sums: 0 in the hard limit, NaN where unanswered."""
    has_any = sums.weight > 0
    weight = tl.where(has_any, sums.weight, 1.0)
    mean_grad = tl.where(has_any, sums.grad_weight / weight, 0.0)
    mean_v = tl.where(has_any, sums.weight_v / weight, 0.0)
    spread = sums.grad_weight_v - sums.grad_weight * mean_v
    d_temperature = (-0.5 * LN2) * tl.exp2(-shift) * spread / rows.t
    is_nan = rows.hi != rows.hi
    d_budget = tl.where(rows.is_limit, 0.0, mean_grad)
    d_temperature = tl.where(rows.is_limit, 0.0, d_temperature)
    return (
        mean_grad,
        tl.where(is_nan, float("nan"), d_budget),
        tl.where(is_nan, float("nan"), d_temperature),
    )


@triton.jit
def _score_gradient(r, g, mean_grad, rows, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    v, is_live = _exponents(r, rows)
    half_over_t = (0.5 / rows.t).to(COMPUTE)
    weight = tl.exp2(-tl.abs(v)) * across(half_over_t)
    d = (g - across(mean_grad.to(COMPUTE))) * weight
    if not LARGEST:
        d = -d
    d = tl.where(is_live, d, 0.0)
    d = tl.where(across(rows.is_limit), 0.0, d)
    return tl.where(across(rows.hi != rows.hi), float("nan"), d)


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
    g = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    v, is_live = _exponents(r, rows)
    g = tl.where(is_live, g, 0.0)
    distance = tl.where(is_live, tl.abs(v), float("inf"))
    if d_budget is not None:
        shift = _least(distance)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        sums = _sums(tl.exp2(across(shift) - distance), g, v, True)
        mean_grad, d_k, d_t = _row_gradients(shift.to(tl.float64), sums, rows)
        tl.store(d_budget + row, d_k, mask=is_row)
        tl.store(d_temperature + row, d_t, mask=is_row)
    else:
        sums = _sums(tl.exp2(-distance), g, v, False)
        mean_grad, _, _ = _row_gradients(sums.weight * 0, sums, rows)
    d = _score_gradient(r, g, mean_grad, rows, LARGEST, COMPUTE)
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
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    none = tl.zeros((1,), tl.float64)
    total = Sums(none, none, none, none)
    total_shift = tl.full((1,), float("inf"), COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for group in range(program, tiles, programs * TILES_PER_SUM):
        zeros = tl.zeros((REPEATS, 1, LANES, WIDTH), COMPUTE)
        w_sums, gw_sums, wv_sums, gwv_sums = zeros, zeros, zeros, zeros
        shifts = tl.full((REPEATS, 1, LANES, WIDTH), float("inf"), COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            index = part_indices(tile * BLOCK, 0, REPEATS, LANES, WIDTH)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
            g = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
            v, is_live = _exponents(r, rows)
            g = tl.where(is_live, g, 0.0)
            distance = tl.where(is_live, tl.abs(v), float("inf"))
            if PER_ROW:
                # Each lane's sums are relative to the nearest score it has seen.
                shift = tl.minimum(shifts, distance)
                anchor = tl.where(shift < float("inf"), shift, 0.0)
                kept = tl.exp2(anchor - shifts)
                w = tl.exp2(anchor - distance)
                near = _near(v)
                w_sums = w_sums * kept + w
                gw_sums = gw_sums * kept + g * w
                wv_sums = wv_sums * kept + w * near
                gwv_sums = gwv_sums * kept + g * w * near
                shifts = shift
            else:
                w = tl.exp2(-distance)
                w_sums += w
                gw_sums += g * w
        if PER_ROW:
            nearest = tl.minimum(total_shift, _least(shifts))
            anchor_all = tl.where(nearest < float("inf"), nearest, 0.0)
            kept_all = tl.exp2(anchor_all - total_shift).to(tl.float64)
            factors = tl.exp2(across(anchor_all) - shifts).to(tl.float64)
            total = Sums(
                total.weight * kept_all + _added_up(w_sums.to(tl.float64) * factors),
                total.grad_weight * kept_all + _added_up(gw_sums.to(tl.float64) * factors),
                total.weight_v * kept_all + _added_up(wv_sums.to(tl.float64) * factors),
                total.grad_weight_v * kept_all + _added_up(gwv_sums.to(tl.float64) * factors),
            )
            total_shift = nearest
        else:
            total = Sums(
                total.weight + _added_up(w_sums.to(tl.float64)),
                total.grad_weight + _added_up(gw_sums.to(tl.float64)),
                total.weight_v,
                total.grad_weight_v,
            )
    place = sums + program_id * SUMS + tl.arange(0, 1)
    tl.store(place, total_shift.to(tl.float64))
    for field in tl.static_range(4):
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
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    lane = tl.arange(0, SUM_LANES)[None, :]
    has_sums = lane < sum_programs
    every = sums + (row[:, None] * sum_programs + lane) * SUMS
    weights = tl.load(every + 1, mask=has_sums, other=0.0)
    grad_weights = tl.load(every + 2, mask=has_sums, other=0.0)
    if d_budget is not None:
        shifts = tl.load(every, mask=has_sums, other=float("inf"))
        shift = tl.min(shifts, 1)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        factors = tl.exp2(shift[:, None] - shifts)
        total = Sums(
            tl.sum(weights * factors, 1),
            tl.sum(grad_weights * factors, 1),
            tl.sum(tl.load(every + 3, mask=has_sums, other=0.0) * factors, 1),
            tl.sum(tl.load(every + 4, mask=has_sums, other=0.0) * factors, 1),
        )
        mean_grad, d_k, d_t = _row_gradients(shift, total, rows)
        if program == 0:
            tl.store(d_budget + row, d_k)
            tl.store(d_temperature + row, d_t)
    else:
        weight = tl.sum(weights, 1)
        mean_grad = tl.sum(grad_weights, 1) / tl.where(weight > 0, weight, 1.0)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for step in range(program, tiles, programs):
        index = part_indices((tiles - 1 - step) * BLOCK, 0, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        g = load_values(grad, outer, inner, index, inside, WIDTH).to(COMPUTE)
        d = _score_gradient(r, g, mean_grad, rows, LARGEST, COMPUTE)
        store_values(out, outer, inner, index, inside, d, WIDTH)

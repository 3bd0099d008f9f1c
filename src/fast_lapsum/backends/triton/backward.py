"""Gradients for scores, budget and temperature (the paper's eq. vjp) from the threshold pair.

With u = (r - b) / t, phi = e^-|u| / 2, q = softmax(-|u|) and, for log p, a = g phi / p, which is g
below the threshold however small phi and p are:

    mask       d r = (phi / t) (g - <g, q>)   d k = <g, q>           d t = -<g phi, u - <q, u>> / t
    log p      d r = (a - q sum(a)) / t       d k = <g / p, q>       d t = -<a, u - <q, u>> / t
    threshold  d r = g q                      d k = -g t / sum(phi)  d t = -g <q, u>

Rows of one program read r and g once (12 bytes per float32 score); longer rows twice (20 bytes):
sums first, then the gradient, in the opposite order for the cache's sake. q is taken with its
largest exponent shifted to zero: phi / sum(phi) would be 0 / 0 where a gap is wide against t. For
the scores' gradient of a mask that is not needed: where all e vanish, so does d r.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import LN2, exponent_scale, smallest_normal
from .pass_kinds import constexpr_function
from .views import (
    across,
    coordinates,
    exist,
    load_scores,
    load_values,
    part_indices,
    row_start,
    store_values,
    temperature_of,
)

#: Float64 numbers that a program of a long row leaves: the shift and up to six sums.
SUMS = tl.constexpr(7)
TILES_PER_SUM = tl.constexpr(16)
#: e^-|u| is zero in every format long before |v| gets here.
VANISHED_AT = tl.constexpr(2048.0)
#: And 2 to the power of this is a number.
LARGEST_SHIFT = tl.constexpr(1000.0)


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
def _least(values):
    """The least of every row."""
    return tl.min(tl.min(tl.min(values, 3), 0), 1)


@triton.jit
def _added_up(values):
    """The sum of every row."""
    return tl.sum(tl.sum(tl.sum(values, 3), 0), 1)


@constexpr_function
def _is_shifted(output: str, per_row: bool) -> bool:
    """Whether weights are taken relative to the nearest score of a row."""
    return per_row or output != "mask"


@constexpr_function
def _weighted(output: str, per_row: bool) -> int:
    """How many of the sums are of weights, and relative to the shift; others follow."""
    return {"mask": (2, 4), "log": (1, 3), "threshold": (1, 2)}[output][per_row]


@constexpr_function
def _count(output: str, per_row: bool) -> int:
    """How many sums there are."""
    return {"mask": (2, 4), "log": (2, 6), "threshold": (1, 2)}[output][per_row]


@triton.jit
def _log_weights(g, v):
    """a = g phi / p and 1 / (1 - e^-u / 2), which is 1 / p above the threshold."""
    half = 0.5 * tl.exp2(-tl.maximum(v, 0.0))
    inverse = 1 / (1 - half)
    return tl.where(v <= 0, g, g * (half * inverse)), inverse


@triton.jit
def _terms(w, g, v, OUTPUT: tl.constexpr, PER_ROW: tl.constexpr):
    """What is added up over a row, of w = 2^(shift - |v|), g and v.

    mask: w, g w, w v, g w v. log p: w, w v, g w / p above the threshold; a, a v, g below it.
    threshold: w, w v. Those of w v and those after it are for the gradients of k and t alone, and
    so is g w / p.
    """
    if OUTPUT == "mask":
        if PER_ROW:
            near = _near(v)
            return w, g * w, w * near, g * w * near
        else:
            return w, g * w
    elif OUTPUT == "log":
        a, inverse = _log_weights(g, v)
        if PER_ROW:
            is_below = v <= 0
            above = tl.where(is_below, 0.0, g * w * inverse)
            return w, w * _near(v), above, a, a * v, tl.where(is_below, g, 0.0)
        else:
            return w, a
    elif PER_ROW:
        return w, w * _near(v)
    else:
        return (w,)


class Gradients(NamedTuple):
    """What a score's gradient needs of its row, and the row's own gradients."""

    mean: Any  # <g, q>; sum(a) / sum(w); g / sum(w)
    shift: Any
    d_budget: Any
    d_temperature: Any


@triton.jit
def _row_gradients(
    shift, sums, g_row, rows, LARGEST: tl.constexpr, OUTPUT: tl.constexpr, PER_ROW: tl.constexpr
):
    """:class:`Gradients` from a row's sums: 0 in the hard limit, NaN where unanswered."""
    has_any = sums[0] > 0
    weight = tl.where(has_any, sums[0], 1.0)
    d_budget = 0 * weight
    d_temperature = 0 * weight
    density = tl.exp2(tl.minimum(shift, LARGEST_SHIFT)) * 2 / weight  # 1 / sum(phi)
    density = tl.where(has_any, density, 0.0)
    if OUTPUT == "mask":
        mean = tl.where(has_any, sums[1] / weight, 0.0)
        if PER_ROW:
            spread = sums[3] - sums[1] * tl.where(has_any, sums[2] / weight, 0.0)
            d_budget = mean
            d_temperature = (-0.5 * LN2) * tl.exp2(-shift) * spread / rows.t
    elif OUTPUT == "log":
        mean = tl.where(has_any, sums[3 if PER_ROW else 1] / weight, 0.0)
        if PER_ROW:
            d_budget = tl.where(has_any, sums[2] / weight, 0.0) + sums[5] * density
            spread = sums[4] - sums[3] * tl.where(has_any, sums[1] / weight, 0.0)
            d_temperature = -LN2 * spread / rows.t
    else:
        mean = tl.where(has_any, g_row / weight, 0.0)
        if PER_ROW:
            g = g_row if LARGEST else -g_row
            d_budget = -g * rows.t * density
            d_temperature = -LN2 * g * tl.where(has_any, sums[1] / weight, 0.0)
    is_nan = rows.hi != rows.hi
    d_budget = tl.where(rows.is_limit, 0.0, d_budget)
    d_temperature = tl.where(rows.is_limit, 0.0, d_temperature)
    return Gradients(
        mean,
        shift,
        tl.where(is_nan, float("nan"), d_budget),
        tl.where(is_nan, float("nan"), d_temperature),
    )


@triton.jit
def _score_gradient(
    r, g, of_row, rows, LARGEST: tl.constexpr, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr
):
    v, is_live = _exponents(r, rows)
    mean = across(of_row.mean.to(COMPUTE))
    if OUTPUT == "mask":
        half_over_t = (0.5 / rows.t).to(COMPUTE)
        d = (g - mean) * (tl.exp2(-tl.abs(v)) * across(half_over_t))
    else:
        d = mean * tl.exp2(across(of_row.shift.to(COMPUTE)) - tl.abs(v))
        if OUTPUT == "log":
            a, _ = _log_weights(g, v)
            d = (a - d) * across((1 / rows.t).to(COMPUTE))
    if OUTPUT != "threshold" and not LARGEST:
        d = -d
    d = tl.where(is_live, d, 0.0)
    d = tl.where(across(rows.is_limit), 0.0, d)
    return tl.where(across(rows.hi != rows.hi), float("nan"), d)


@triton.jit
def _load_grad(grad, outer, inner, index, inside, r, WIDTH: tl.constexpr, OUTPUT: tl.constexpr):
    """Gradients of scores, in their shape, and of rows, which a threshold has in their place."""
    if OUTPUT == "threshold":
        g_row = tl.load(row_start(grad, outer, inner)).to(tl.float64)
        return tl.zeros_like(r), g_row
    else:
        g = load_values(grad, outer, inner, index, inside, WIDTH).to(r.dtype)
        return g, tl.zeros_like(outer).to(tl.float64)


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
    g, g_row = _load_grad(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    v, is_live = _exponents(r, rows)
    g = tl.where(is_live, g, 0.0)
    distance = tl.where(is_live, tl.abs(v), float("inf"))
    PER_ROW: tl.constexpr = d_budget is not None
    if _is_shifted(OUTPUT, PER_ROW):
        shift = _least(distance)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        w = tl.exp2(across(shift) - distance)
    else:
        shift = tl.zeros((ROWS,), COMPUTE)
        w = tl.exp2(-distance)
    terms = _terms(w, g, v, OUTPUT, PER_ROW)
    sums = ()
    for i in tl.static_range(len(terms)):
        sums = sums + (_added_up(terms[i]).to(tl.float64),)  # type: ignore[assignment]
    of_row = _row_gradients(shift.to(tl.float64), sums, g_row, rows, LARGEST, OUTPUT, PER_ROW)
    if d_budget is not None:
        tl.store(d_budget + row, of_row.d_budget, mask=is_row)
        tl.store(d_temperature + row, of_row.d_temperature, mask=is_row)
    d = _score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
    written = across(is_row)
    if PADDED:
        written = written & inside
    store_values(out, outer, inner, index, written, d, WIDTH)


@triton.jit
def _zeros(SHAPE: tl.constexpr, COUNT: tl.constexpr, DTYPE: tl.constexpr):
    sums = ()
    for _ in tl.static_range(COUNT):
        sums = sums + (tl.zeros(SHAPE, DTYPE),)  # type: ignore[assignment]
    return sums


@triton.jit
def _joined(sums, more, kept, WEIGHTED: tl.constexpr):
    """Both together; the first ones are relative to a shift, and brought over to a new one."""
    joined = ()
    for i in tl.static_range(len(sums)):
        if i < WEIGHTED:
            joined = joined + (sums[i] * kept + more[i],)  # type: ignore[assignment]
        else:
            joined = joined + (sums[i] + more[i],)  # type: ignore[assignment]
    return joined


@triton.jit
def _of_lanes(sums, factors, WEIGHTED: tl.constexpr):
    """The sums of all lanes in float64, relative to one shift."""
    total = ()
    for i in tl.static_range(len(sums)):
        wide = sums[i].to(tl.float64)
        if i < WEIGHTED:
            wide = wide * factors
        total = total + (_added_up(wide),)  # type: ignore[assignment]
    return total


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
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    FIELDS: tl.constexpr = _count(OUTPUT, PER_ROW)
    SHIFTED: tl.constexpr = _is_shifted(OUTPUT, PER_ROW)
    WEIGHTED: tl.constexpr = _weighted(OUTPUT, PER_ROW) if SHIFTED else 0
    total = _zeros((1,), FIELDS, tl.float64)
    total_shift = tl.full((1,), float("inf") if SHIFTED else 0.0, COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    tiles = (tl.zeros((), tl.int64) + call.n + (BLOCK - 1)) // BLOCK
    for group in range(program, tiles, programs * TILES_PER_SUM):
        of_lanes = _zeros((REPEATS, 1, LANES, WIDTH), FIELDS, COMPUTE)
        shifts = tl.full((REPEATS, 1, LANES, WIDTH), float("inf") if SHIFTED else 0.0, COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            index = part_indices(tile * BLOCK, 0, REPEATS, LANES, WIDTH)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
            g, _ = _load_grad(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
            v, is_live = _exponents(r, rows)
            g = tl.where(is_live, g, 0.0)
            distance = tl.where(is_live, tl.abs(v), float("inf"))
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
            terms = _terms(w, g, v, OUTPUT, PER_ROW)
            of_lanes = _joined(of_lanes, terms, kept, WEIGHTED)
            shifts = shift
        nearest = total_shift
        kept_all = tl.full((1,), 1.0, tl.float64)
        factors = tl.full((REPEATS, 1, LANES, WIDTH), 1.0, tl.float64)
        if SHIFTED:
            nearest = tl.minimum(total_shift, _least(shifts))
            anchor_all = tl.where(nearest < float("inf"), nearest, 0.0)
            kept_all = tl.exp2(anchor_all - total_shift).to(tl.float64)
            factors = tl.exp2(across(anchor_all) - shifts).to(tl.float64)
        of_tile = _of_lanes(of_lanes, factors, WEIGHTED)
        total = _joined(total, of_tile, kept_all, WEIGHTED)
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
    rows = _threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    lane = tl.arange(0, SUM_LANES)[None, :]
    has_sums = lane < sum_programs
    every = sums + (row[:, None] * sum_programs + lane) * SUMS
    PER_ROW: tl.constexpr = d_budget is not None
    shift = tl.zeros((1,), tl.float64)
    factors = tl.full((1, SUM_LANES), 1.0, tl.float64)
    if _is_shifted(OUTPUT, PER_ROW):
        shifts = tl.load(every, mask=has_sums, other=float("inf"))
        shift = tl.min(shifts, 1)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        factors = tl.exp2(shift[:, None] - shifts)
    total = ()
    for i in tl.static_range(_count(OUTPUT, PER_ROW)):
        one = tl.load(every + 1 + i, mask=has_sums, other=0.0)
        if i < _weighted(OUTPUT, PER_ROW):
            one = one * factors
        total = total + (tl.sum(one, 1),)  # type: ignore[assignment]
    g_row = tl.zeros((1,), tl.float64)
    if OUTPUT == "threshold":
        g_row = tl.load(row_start(grad, outer, inner)).to(tl.float64)
    of_row = _row_gradients(shift, total, g_row, rows, LARGEST, OUTPUT, PER_ROW)
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
        g, _ = _load_grad(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
        d = _score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
        store_values(out, outer, inner, index, inside, d, WIDTH)

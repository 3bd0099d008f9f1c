"""Gradients of many tensors with one budget: sums of parts, combined, and the gradient of parts."""

from __future__ import annotations

import triton
import triton.language as tl

from .gradients import (
    SUMS,
    Gradients,
    gradient_terms,
    is_shifted,
    joined_sums,
    least_of_row,
    row_gradients,
    score_gradient,
    seen,
    sum_count,
    sums_of_lanes,
    threshold_of,
    weighted_sums,
    zero_sums,
)
from .many import (
    AT_ONCE,
    DTYPE,
    GRAD,
    OUT,
    OUT_DTYPE,
    load_part,
    part_of,
    read,
    scores_of,
    store_part,
)
from .team import await_last, begin_next
from .views import across, part_indices

#: Of gradients the table has the dtype in the place of that of a result: results have the scores'.
GRAD_DTYPE = OUT_DTYPE


@triton.jit(do_not_specialize=["count"])
def sums_many(
    call,
    table,
    count,
    pair,
    sums,
    PER_ROW: tl.constexpr,
    PART: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    GRAD_KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The shift of a part and its sums, as sums_backward leaves them."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    scores = scores_of(row)
    at, kind = tl.load(row + GRAD), tl.load(row + GRAD_DTYPE)
    zero = tl.zeros((1,), tl.int64)
    rows = threshold_of(call, pair, zero, 1, zero, zero, COMPUTE)
    FIELDS: tl.constexpr = sum_count("mask", PER_ROW)
    SHIFTED: tl.constexpr = is_shifted("mask", PER_ROW)
    WEIGHTED: tl.constexpr = weighted_sums("mask", PER_ROW) if SHIFTED else 0
    BLOCK: tl.constexpr = REPEATS * LANES
    of_lanes = zero_sums((REPEATS, 1, LANES, 1), FIELDS, COMPUTE)
    shifts = tl.full((REPEATS, 1, LANES, 1), float("inf") if SHIFTED else 0.0, COMPUTE)
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = part_indices((tl.zeros((), tl.int64) + block) * BLOCK, 0, REPEATS, LANES, 1)
        inside = index < n
        r = read(scores, first + index, inside, LARGEST, KINDS, COMPUTE)
        g = load_part(at, kind, first + index, inside, 0.0, GRAD_KINDS, COMPUTE)
        g, v, distance = seen(r, g, rows, "mask", COMPUTE)
        shift = shifts
        kept = shifts
        w = distance
        if SHIFTED:
            shift = tl.minimum(shifts, distance)
            anchor = tl.where(shift < float("inf"), shift, 0.0)
            kept = tl.exp2(anchor - shifts)
            w = tl.exp2(anchor - distance)
        else:
            w = tl.exp2(-distance)
        of_lanes = joined_sums(
            of_lanes, gradient_terms(w, g, v, r, rows, "mask", PER_ROW), kept, WEIGHTED
        )
        shifts = shift
    nearest = tl.zeros((1,), COMPUTE)
    factors = tl.full((REPEATS, 1, LANES, 1), 1.0, tl.float64)
    if SHIFTED:
        nearest = least_of_row(shifts)
        anchor_all = tl.where(nearest < float("inf"), nearest, 0.0)
        factors = tl.exp2(across(anchor_all) - shifts).to(tl.float64)
    total = sums_of_lanes(of_lanes, factors, WEIGHTED)
    place = sums + part * SUMS + tl.arange(0, 1)
    tl.store(place, nearest.to(tl.float64))
    for field in tl.static_range(FIELDS):
        tl.store(place + 1 + field, total[field])


@triton.jit(do_not_specialize=["parts"])
def combine_many(
    call,
    pair,
    sums,
    parts,
    of_row,
    PER_ROW: tl.constexpr,
    LARGEST: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The sums of all parts, in their order, as what a gradient needs: mean, shift, d k, d t."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    rows = threshold_of(call, pair, zero, 1, zero, zero, COMPUTE)
    lanes = tl.arange(0, AT_ONCE)[None, :]
    shift = tl.zeros((1,), tl.float64)
    if is_shifted("mask", PER_ROW):
        least = tl.full((1, AT_ONCE), float("inf"), tl.float64)
        for block in range((parts + (AT_ONCE - 1)) // AT_ONCE):
            part = (tl.zeros((), tl.int64) + block) * AT_ONCE + lanes
            here = tl.load(sums + part * SUMS, mask=part < parts, other=float("inf"))
            least = tl.minimum(least, here)
        shift = tl.min(least, 1)
        shift = tl.where(shift < float("inf"), shift, 0.0)
    total = zero_sums((1, AT_ONCE), sum_count("mask", PER_ROW), tl.float64)
    for block in range((parts + (AT_ONCE - 1)) // AT_ONCE):
        part = (tl.zeros((), tl.int64) + block) * AT_ONCE + lanes
        every = sums + part * SUMS
        more = ()
        factors = tl.full((1, AT_ONCE), 1.0, tl.float64)
        if is_shifted("mask", PER_ROW):
            own = tl.load(every, mask=part < parts, other=float("inf"))
            factors = tl.exp2(shift[:, None] - own)
        for i in tl.static_range(sum_count("mask", PER_ROW)):
            one = tl.load(every + 1 + i, mask=part < parts, other=0.0) * factors
            more = more + (total[i] + one,)  # type: ignore[assignment]
        total = more
    found = ()
    for i in tl.static_range(sum_count("mask", PER_ROW)):
        found = found + (tl.sum(total[i], 1),)  # type: ignore[assignment]
    nothing = tl.zeros((1,), tl.float64)
    of = row_gradients(shift, found, nothing, rows, LARGEST, "mask", PER_ROW)
    tl.store(of_row + zero, of.mean)
    tl.store(of_row + 1 + zero, of.d_budget)
    tl.store(of_row + 2 + zero, of.d_temperature)


@triton.jit(do_not_specialize=["count"])
def scores_many(
    call,
    table,
    count,
    pair,
    of_row,
    PART: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    GRAD_KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The gradient of a part."""
    row, first, n = part_of(table, count, tl.program_id(0).to(tl.int64), PART, STEPS)
    scores = scores_of(row)
    at, kind = tl.load(row + GRAD), tl.load(row + GRAD_DTYPE)
    out, out_kind = tl.load(row + OUT), tl.load(row + DTYPE)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    rows = threshold_of(call, pair, zero, 1, zero, zero, COMPUTE)
    mean = tl.load(of_row + zero)
    gradients = Gradients(mean, 0 * mean, mean, mean)
    BLOCK: tl.constexpr = REPEATS * LANES
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = part_indices((tl.zeros((), tl.int64) + block) * BLOCK, 0, REPEATS, LANES, 1)
        inside = index < n
        r = read(scores, first + index, inside, LARGEST, KINDS, COMPUTE)
        g = load_part(at, kind, first + index, inside, 0.0, GRAD_KINDS, COMPUTE)
        d = score_gradient(r, g, gradients, rows, LARGEST, "mask", COMPUTE)
        store_part(out, out_kind, first + index, inside, d, KINDS)

"""Gradients of rows of several lengths: the formulas of gradients.py, the classes of ragged.py."""

from __future__ import annotations

import triton
import triton.language as tl

from .gradients import (
    gradient_terms,
    is_shifted,
    least_of_row,
    load_upstream,
    row_gradients,
    score_gradient,
    seen,
    sum_of_row,
    threshold_of,
)
from .numbers import any_row
from .ragged import refuse
from .ragged_rows import length_of, places_of, rows_to_see
from .ragged_shared import take_slot
from .ragged_stretch import sums_of, write_gradients
from .team import await_last, begin_next
from .views import across, exist, load_scores, part_indices, row_start, store_values


@triton.jit
def _load_upstream(
    grad, own_outer, own_inner, outer, inner, index, inside, r, OUTPUT: tl.constexpr
):
    """Gradients of scores and of rows, each from its own place."""
    if OUTPUT == "threshold":
        return load_upstream(grad, own_outer, own_inner, index, inside, r, 1, OUTPUT)
    else:
        return load_upstream(grad, outer, inner, index, inside, r, 1, OUTPUT)


@triton.jit(do_not_specialize=["row_count"])
def ragged_tile_backward(
    call,
    row_count,
    offsets,
    lengths,
    grad,
    threshold,
    out,
    d_budget,
    d_temperature,
    slots,
    words,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    IS_LAST: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """All gradients of ROWS rows, those of them that are of the class."""
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    length = length_of(call, row, row_count, offsets, lengths)
    is_row = (row < row_count) & (length >= LOWEST) & (length <= HIGHEST)
    own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
    PER_ROW: tl.constexpr = d_budget is not None
    if any_row(is_row):
        index = part_indices(0, 0, REPEATS, LANES, 1)
        inside = exist(index, across(tl.where(is_row, length, 0)), 1)
        r = load_scores(call, outer, inner, index, inside, LARGEST, 1, COMPUTE)
        g, g_row = _load_upstream(
            grad, own_outer, own_inner, outer, inner, index, inside, r, OUTPUT
        )
        rows = threshold_of(call, threshold, row, row_count, own_outer, own_inner, COMPUTE)
        g, v, distance = seen(r, g, rows, OUTPUT, COMPUTE)
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
        store_values(out, outer, inner, index, inside, d, 1)
    if IS_LAST:
        is_over = (row < row_count) & (length > HIGHEST)
        if any_row(is_over):
            refuse(out, outer, inner, length, is_over, LANES)
            if d_budget is not None:
                nothing = tl.zeros_like(length).to(tl.float64) + float("nan")
                tl.store(d_budget + row, nothing, mask=is_over)
                tl.store(d_temperature + row, nothing, mask=is_over)
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit(do_not_specialize=["row_count"])
def ragged_long_backward(
    call,
    row_count,
    offsets,
    lengths,
    grad,
    threshold,
    out,
    d_budget,
    d_temperature,
    slots,
    words,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    SLOTS: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SCANNED: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Longer rows, read twice: sums first, then the gradient, in the opposite order.

    Those that are too long for one program get a slot.
    """
    begin_next(OVERLAP)
    PER_ROW: tl.constexpr = d_budget is not None
    first = tl.program_id(0).to(tl.int64) * SCANNED
    for row_number in range(
        first, first + rows_to_see(call, first, row_count, offsets, lengths, LOWEST, SCANNED)
    ):
        n = length_of(call, tl.minimum(row_number, row_count - 1), row_count, offsets, lengths)
        if (n >= LOWEST) & (row_number < row_count):
            slot = tl.zeros((), tl.int64) + SLOTS
            if slots is not None:
                if n > HIGHEST:
                    slot = take_slot(slots, words, row_number, SLOTS, CHUNK_LANES)
            if slot == SLOTS:
                row = tl.zeros((1,), tl.int64) + row_number
                own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
                rows = threshold_of(call, threshold, row, row_count, own_outer, own_inner, COMPUTE)
                shift, sums = sums_of(
                    *(call, 0 * n, n, grad, rows, outer, inner),
                    *(LARGEST, OUTPUT, PER_ROW, REPEATS, LANES, COMPUTE),
                )
                shift = tl.where(shift < float("inf"), shift, 0.0)
                g_row = tl.zeros((1,), tl.float64)
                if OUTPUT == "threshold":
                    g_row = tl.load(row_start(grad, own_outer, own_inner)).to(tl.float64)
                of_row = row_gradients(shift, sums, g_row, rows, LARGEST, OUTPUT, PER_ROW)
                if d_budget is not None:
                    tl.store(d_budget + row, of_row.d_budget)
                    tl.store(d_temperature + row, of_row.d_temperature)
                write_gradients(
                    *(call, 0 * n, n, grad, out, of_row, rows, outer, inner),
                    *(LARGEST, OUTPUT, REPEATS, LANES, COMPUTE),
                )
    if tl.program_id(0) == 0:
        await_last(OVERLAP)

"""The forward call on rows of several lengths: a launch for every class of lengths, over all rows.

The host does not know how long a row is, and does not wait to be told. A program looks at the rows
that fall to it, and leaves at once where none is of its class. So all classes can be at work at the
same time: a launch begins beside the one before, and only its first program waits for that one to
end, so that who waits for the last launch has waited for all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .boundary import find_boundary
from .forward import FEW_LANES
from .long_rows import solve_row
from .mask import are_plain
from .numbers import any_row, smallest_normal
from .passes import Source, read_parts
from .ragged_rows import length_of, places_of, rows_to_see, start_of
from .ragged_shared import take_slot, tell_place
from .sample import sample_place
from .solve import guess_of, solve, survey_rows
from .team import await_last, begin_next
from .views import (
    Call,
    across,
    budget_of,
    coordinates,
    exist,
    first_score,
    part_indices,
    store_values,
    temperature_of,
    warm_start_of,
)
from .write import store_pair, write_held, write_read, write_row


@triton.jit
def _at(block, LANES: tl.constexpr):
    """The first index of a block."""
    return (tl.zeros((), tl.int64) + block) * LANES


@triton.jit
def refuse(out, outer, inner, n, is_refused, LANES: tl.constexpr):
    """NaN for all of some rows, shape [ROWS]."""
    for block in range((tl.max(tl.where(is_refused, n, 0), 0) + (LANES - 1)) // LANES):
        index = part_indices(_at(block, LANES), 0, 1, LANES, 1)
        inside = exist(index, across(n), 1) & across(is_refused)
        nothing = across(tl.zeros_like(n).to(tl.float32)) + tl.full(inside.shape, 0.0, tl.float32)
        store_values(out, outer, inner, index, inside, nothing + float("nan"), 1)


@triton.jit
def _solve_held(
    source,
    n,
    out,
    is_row,
    k,
    t,
    start,
    origin,
    OUTPUT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Threshold pairs of rows in registers, each of its own length, and what is written of them."""
    survey, mean, square = survey_rows(source, origin, n.to(COMPUTE), COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    guess = guess_of(survey, origin, mean, square, k, t, start, is_hard, COMPUTE)
    meetings = tl.zeros((), tl.int32)  # there is nobody to meet
    pair, _ = solve(source, survey, k, t, is_hard, guess, None, meetings, COMPUTE)
    written = pair
    if OUTPUT == "hard":
        if any_row(~is_hard):
            near = guess_of(survey, origin, mean, square, k, t, start, t >= 0, COMPUTE)
            written, _ = find_boundary(source, survey, k, t, pair, near, meetings, COMPUTE)
    if OUTPUT != "threshold":
        if any_row(~are_plain(written, k, t, OUTPUT, COMPUTE)):
            write_read(source, 0, source.PARTS, out, is_row, k, t, written, None, OUTPUT, COMPUTE)
        else:
            write_held(source, source.r, 0, out, is_row, k, t, written, OUTPUT, COMPUTE)
    return pair


@triton.jit
def _hold(
    call,
    row,
    row_count,
    offsets,
    lengths,
    warm_start,
    out,
    threshold,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    IS_LAST: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of those of some rows that are of a class of lengths."""
    length = length_of(call, row, row_count, offsets, lengths)
    is_row = (row < row_count) & (length >= LOWEST) & (length <= HIGHEST)
    if any_row(is_row):
        own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
        n = tl.where(is_row, length, 0)  # nothing is read of others
        k = tl.where(is_row, budget_of(call, own_outer, own_inner), 0.0)
        t = tl.where(is_row, temperature_of(call, own_outer, own_inner), 1.0)
        start = warm_start_of(warm_start, own_outer, own_inner, LARGEST, COMPUTE)
        if OUTPUT == "hard":  # only a whole budget has a hard mask
            k = tl.where(k == tl.floor(k), k, float("nan"))
        of_rows = Call(call.scores, call.mask, None, None, None, n, call.inner_count)
        # The length of one row is a number of 32 bits: every index is compared with it.
        in_row = tl.max(n, 0).to(tl.int32) if ROWS == 1 else across(n)
        of_scores = Call(call.scores, call.mask, None, None, None, in_row, call.inner_count)
        origin = first_score(of_rows, outer, inner, LARGEST, COMPUTE)
        r = read_parts(
            Source(
                *(None, 0, of_scores, outer, inner, None, 0, None),
                *(LANES <= FEW_LANES, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, 1),
            ),
            0,
            COMPUTE,
        )
        pair = _solve_held(
            Source(
                *(r, 0, of_scores, outer, inner, None, 0, None),
                *(LANES <= FEW_LANES, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, 1),
            ),
            *(n, out, is_row, k, t, start, origin, OUTPUT, COMPUTE),
        )
        store_pair(threshold, row, pair.hi, pair.lo, is_row)
    if IS_LAST:
        is_over = (row < row_count) & (length > HIGHEST)
        if any_row(is_over):
            _, _, outer, inner = places_of(call, row, row_count, offsets)
            if OUTPUT != "threshold":
                refuse(out, outer, inner, length, is_over, LANES)
            nothing = tl.zeros_like(length).to(COMPUTE) + float("nan")
            store_pair(threshold, row, nothing, nothing, is_over)


@triton.jit(do_not_specialize=["row_count"])
def ragged_tile_forward(
    call,
    row_count,
    offsets,
    lengths,
    warm_start,
    out,
    threshold,
    slots,
    words,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    IS_LAST: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """ROWS rows at a time, held in registers from load to mask."""
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    _hold(
        *(call, row, row_count, offsets, lengths, warm_start, out, threshold),
        *(LOWEST, HIGHEST, IS_LAST, LARGEST, OUTPUT, ROWS, PARTS, REPEATS, LANES, WIDTH, COMPUTE),
    )
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit(do_not_specialize=["row_count"])
def ragged_block_forward(
    call,
    row_count,
    offsets,
    lengths,
    warm_start,
    out,
    threshold,
    slots,
    words,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    IS_LAST: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SCANNED: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One row at a time, held in registers, of SCANNED rows those that are of the class."""
    begin_next(OVERLAP)
    first = tl.program_id(0).to(tl.int64) * SCANNED
    for row_number in range(
        first, first + rows_to_see(call, first, row_count, offsets, lengths, LOWEST, SCANNED)
    ):
        row = tl.zeros((1,), tl.int64) + row_number
        _hold(
            *(call, row, row_count, offsets, lengths, warm_start, out, threshold),
            *(LOWEST, HIGHEST, IS_LAST, LARGEST, OUTPUT, 1, PARTS, REPEATS, LANES, WIDTH, COMPUTE),
        )
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit(do_not_specialize=["row_count"])
def ragged_long_forward(
    call,
    row_count,
    offsets,
    lengths,
    warm_start,
    out,
    threshold,
    slots,
    words,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    SLOTS: tl.constexpr,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SCANNED: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Longer rows, which are read twice. Lists are kept in ``out``, also where nothing is written.

    A warm start is of no use here: the sample knows more. Rows that are too long for one program
    get a slot, and are told what the sample says.
    """
    begin_next(OVERLAP)
    first = tl.program_id(0).to(tl.int64) * SCANNED
    for row_number in range(
        first, first + rows_to_see(call, first, row_count, offsets, lengths, LOWEST, SCANNED)
    ):
        n = length_of(call, tl.minimum(row_number, row_count - 1), row_count, offsets, lengths)
        if (n >= LOWEST) & (row_number < row_count):
            row = tl.zeros((1,), tl.int64) + row_number
            own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
            k = budget_of(call, own_outer, own_inner)
            t = temperature_of(call, own_outer, own_inner)
            if OUTPUT == "hard":
                k = tl.where(k == tl.floor(k), k, float("nan"))
            own = Call(call.scores, call.mask, None, None, None, n, call.inner_count)
            place = sample_place(
                own, outer, inner, k, t, OUTPUT, LARGEST, SAMPLE, 1, LANES, COMPUTE
            )
            slot = tl.zeros((), tl.int64) + SLOTS
            if slots is not None:
                if n > HIGHEST:
                    slot = take_slot(slots, words, row_number, SLOTS, CHUNK_LANES)
                    if slot < SLOTS:
                        tell_place(words, slot, place, CHUNK_LANES)
            if slot == SLOTS:
                pair, written, _, _ = solve_row(
                    Source(
                        *(None, 0, own, outer, inner, None, n, None),
                        *(False, True, LARGEST, 1, READ, LANES, 1, 1),
                    ),
                    *(out, place, k, t, tl.zeros((), tl.int32)),
                    *(OUTPUT, False, LISTED, SAMPLE, 1, COMPUTE),
                )
                store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
                if OUTPUT != "threshold":
                    tl.debug_barrier()  # the mask lies where the lists were
                    write_row(
                        Source(
                            *(None, 0, own, outer, inner, None, n, None),
                            *(False, True, LARGEST, 1, WRITTEN, LANES, 1, 1),
                        ),
                        *(out, k, t, written, None, OUTPUT, COMPUTE),
                    )
                tl.debug_barrier()
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit(do_not_specialize=["row_count", "programs"])
def fill_outside(
    call,
    row_count,
    offsets,
    lengths,
    out,
    programs,
    NOTHING: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """What is in no row: before and after all segments, or beyond the ends of rows of one size.

    Every row has so many programs; segments are one row.
    """
    begin_next(OVERLAP)
    row_number, program = tl.program_id(0) // programs, tl.program_id(0) % programs
    row = tl.zeros((1,), tl.int64) + row_number
    if offsets is None:
        outer, inner = coordinates(call, row, row_count)
        head = tl.zeros((), tl.int64)
        tail = length_of(call, row_number, row_count, offsets, lengths)
    else:
        outer = tl.zeros((1,), tl.int64)
        inner = outer
        head = start_of(call, 0, row_count, offsets)
        last = row_count - 1
        tail = start_of(call, last, row_count, offsets)
        tail += length_of(call, last, row_count, offsets, lengths)
    for block in range(program, (head + (LANES - 1)) // LANES, programs):
        _fill(out, outer, inner, _at(block, LANES), head, NOTHING, LANES)
    for block in range(program, (call.n - tail + (LANES - 1)) // LANES, programs):
        _fill(out, outer, inner, tail + _at(block, LANES), call.n, NOTHING, LANES)
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit
def _fill(out, outer, inner, first, end, NOTHING: tl.constexpr, LANES: tl.constexpr):
    index = part_indices(first, 0, 1, LANES, 1)
    nothing = tl.full((1, 1, LANES, 1), NOTHING, tl.float32)
    store_values(out, outer, inner, index, index < end, nothing, 1)

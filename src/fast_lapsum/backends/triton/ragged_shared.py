"""Segments, and rows with lengths, too long for one program: teams share them, in a last launch.

The host does not know how many there are, only how many there may be. The launch that looks at long
rows gives each a slot (:func:`take_slot`): its number in a table, and words for its team. A last
launch, of programs that wait for each other, reads how many slots were taken and splits into teams.
Chunks depend on the length of a segment alone, so its bits do not depend on how many programs there
are, nor on the order in which slots were taken.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gather import gather_chunks
from .gradients import is_shifted, row_gradients, sum_count, threshold_of, weighted_sums
from .long_rows import solve_row
from .numbers import exponent_scale, smallest_normal
from .passes import Source
from .ragged_rows import length_of, places_of
from .ragged_stretch import sums_of, write_gradients
from .sample import Place
from .team import FIELDS, Team, clear, collect, leave, read_note, words_of, write_note
from .views import Call, budget_of, row_start, temperature_of
from .write import store_pair, write_row


@triton.jit
def take_slot(slots, words, row, SLOTS: tl.constexpr, CHUNK_LANES: tl.constexpr):
    """A slot for a row, with words for its team; all of them are taken where it is SLOTS.

    ``slots`` has how many were asked for, and the row of each.
    """
    slot = tl.minimum(tl.atomic_add(slots, 1, sem="relaxed"), SLOTS)
    if slot < SLOTS:
        tl.store(slots + 1 + slot, row)
        clear(words_of(words, slot, CHUNK_LANES), CHUNK_LANES)
    return slot


@triton.jit
def tell_place(words, slot, place, CHUNK_LANES: tl.constexpr):
    """Where the sample of a row says that its threshold is, for its team."""
    own = words_of(words, slot, CHUNK_LANES)
    write_note(own, 0, place.low, CHUNK_LANES)
    write_note(own, 1, place.high, CHUNK_LANES)
    write_note(own, 2, place.point, CHUNK_LANES)


@triton.jit
def _teams(slots, SLOTS: tl.constexpr):
    """How many slots were taken, and of how many programs a team can be."""
    taken = tl.minimum(tl.load(slots), SLOTS).to(tl.int32)
    programs = tl.num_programs(0)
    return taken, programs // tl.maximum(tl.minimum(taken, programs), 1)


@triton.jit
def chunk_length(n, LEAST: tl.constexpr, MOST: tl.constexpr, STEP: tl.constexpr):
    """Of a segment: LEAST scores or more, a multiple of STEP, at most MOST chunks."""
    return tl.maximum((n + (MOST * STEP - 1)) // (MOST * STEP) * STEP, LEAST)


@triton.jit(do_not_specialize=["row_count"])
def ragged_team_forward(
    call,
    row_count,
    offsets,
    lengths,
    warm_start,
    out,
    threshold,
    slots,
    words,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SLOTS: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    STEP: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of all rows that have a slot."""
    taken, size = _teams(slots, SLOTS)
    program = tl.program_id(0)
    for slot in range(program // size, taken, tl.num_programs(0) // size):
        row_number = tl.load(slots + 1 + slot).to(tl.int64)
        n = length_of(call, row_number, row_count, offsets, lengths)
        length = chunk_length(n, LEAST, MOST, STEP)
        chunks = ((n + (length - 1)) // length).to(tl.int32)
        member = program % size
        if member < chunks:  # who has no chunk is not waited for, and must not meet the others
            row = tl.zeros((1,), tl.int64) + row_number
            own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
            k = budget_of(call, own_outer, own_inner)
            t = temperature_of(call, own_outer, own_inner)
            if OUTPUT == "hard":
                k = tl.where(k == tl.floor(k), k, float("nan"))
            own = Call(call.scores, call.mask, None, None, None, n, call.inner_count)
            of_slot = words_of(words, slot, CHUNK_LANES)
            team = Team(of_slot, member, tl.minimum(size, chunks), chunks)
            low = read_note(of_slot, 0, CHUNK_LANES).to(COMPUTE)
            high = read_note(of_slot, 1, CHUNK_LANES).to(COMPUTE)
            point = read_note(of_slot, 2, CHUNK_LANES).to(COMPUTE)
            inverse = exponent_scale(tl.maximum(t, smallest_normal(COMPUTE)), COMPUTE)
            meetings = tl.zeros((), tl.int32)
            gather_chunks(
                Source(
                    *(None, 0, own, outer, inner, team, length, None),
                    *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
                ),
                *(out, low, high, point, inverse, meetings, False, LISTED, COMPUTE),
            )
            pair, written, cut, _ = solve_row(
                Source(
                    *(None, 0, own, outer, inner, team, length, None),
                    *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
                ),
                *(out, Place(low, high, point), k, t, meetings),
                *(OUTPUT, False, LISTED, SAMPLE, 1, COMPUTE),
            )
            if member == 0:
                store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
            if OUTPUT != "threshold":
                tl.debug_barrier()  # the mask lies where the lists were
                write_row(
                    Source(
                        *(None, 0, own, outer, inner, team, length, None),
                        *(False, True, LARGEST, 1, WRITTEN, LANES, 1, CHUNK_LANES),
                    ),
                    *(out, k, t, written, cut, OUTPUT, COMPUTE),
                )
            tl.debug_barrier()


@triton.jit
def _combined(collected, chunks, OUTPUT: tl.constexpr, PER_ROW: tl.constexpr, LANES: tl.constexpr):
    """The shift of a row and its sums, out of what all chunks left of theirs."""
    numbers = tl.reshape(collected, (FIELDS, LANES))
    field = tl.arange(0, FIELDS)[:, None]
    is_left = tl.arange(0, LANES)[None, :] < chunks
    shifts = tl.min(tl.where((field == 0) & is_left, numbers, float("inf")), 0)
    shift = tl.zeros((1,), tl.float64)
    factors = tl.full((LANES,), 1.0, tl.float64)
    if is_shifted(OUTPUT, PER_ROW):
        least = tl.min(shifts, 0)
        shift += tl.where(least < float("inf"), least, 0.0)
        factors = tl.exp2(shift - shifts)
    total = ()
    for i in tl.static_range(sum_count(OUTPUT, PER_ROW)):
        one = tl.sum(tl.where((field == i + 1) & is_left, numbers, 0.0), 0)
        if i < weighted_sums(OUTPUT, PER_ROW):
            one = one * factors
        total = total + (tl.sum(one, 0) + tl.zeros((1,), tl.float64),)  # type: ignore[assignment]
    return shift, total


@triton.jit(do_not_specialize=["row_count"])
def ragged_team_backward(
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
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SLOTS: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    STEP: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of all rows that have a slot: sums of chunks, a meeting, and the gradient."""
    PER_ROW: tl.constexpr = d_budget is not None
    taken, size = _teams(slots, SLOTS)
    program = tl.program_id(0)
    for slot in range(program // size, taken, tl.num_programs(0) // size):
        row_number = tl.load(slots + 1 + slot).to(tl.int64)
        n = length_of(call, row_number, row_count, offsets, lengths)
        length = chunk_length(n, LEAST, MOST, STEP)
        chunks = ((n + (length - 1)) // length).to(tl.int32)
        member = program % size
        if member < chunks:
            row = tl.zeros((1,), tl.int64) + row_number
            own_outer, own_inner, outer, inner = places_of(call, row, row_count, offsets)
            rows = threshold_of(call, threshold, row, row_count, own_outer, own_inner, COMPUTE)
            of_slot = words_of(words, slot, CHUNK_LANES)
            team = Team(of_slot, member, tl.minimum(size, chunks), chunks)
            meetings = tl.zeros((), tl.int32)
            for chunk in range(member, chunks, team.size):
                first = (tl.zeros((), tl.int64) + chunk) * length
                shift, sums = sums_of(
                    *(call, first, tl.minimum(first + length, n), grad, rows, outer, inner),
                    *(LARGEST, OUTPUT, PER_ROW, REPEATS, LANES, COMPUTE),
                )
                leave((shift,) + sums, team, chunk, meetings, CHUNK_LANES)
            collected = collect(team, meetings, sum_count(OUTPUT, PER_ROW) + 1, CHUNK_LANES)
            shift, sums = _combined(collected, chunks, OUTPUT, PER_ROW, CHUNK_LANES)
            g_row = tl.zeros((1,), tl.float64)
            if OUTPUT == "threshold":
                g_row = tl.load(row_start(grad, own_outer, own_inner)).to(tl.float64)
            of_row = row_gradients(shift, sums, g_row, rows, LARGEST, OUTPUT, PER_ROW)
            if d_budget is not None:
                if member == 0:
                    tl.store(d_budget + row, of_row.d_budget)
                    tl.store(d_temperature + row, of_row.d_temperature)
            for chunk in range(member, chunks, team.size):
                first = (tl.zeros((), tl.int64) + chunk) * length
                last = tl.minimum(first + length, n)
                write_gradients(
                    *(call, first, last, grad, out, of_row, rows, outer, inner),
                    *(LARGEST, OUTPUT, REPEATS, LANES, COMPUTE),
                )

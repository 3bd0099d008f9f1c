"""The forward call on a few rows that are too long to hold: a launch each for the sample, the
reading of all chunks, the root in the band, which is a team's work, and the mask.

With a hard mask the first three are done in two turns: for the threshold, and for the boundary,
which at t = 0 is the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gather import gather_chunks
from .long_rows import solve_row
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Source
from .sample import Place, sample_place
from .solve import Pair
from .team import Team, await_last, begin_next, clear, read_note, words_of, write_note
from .views import budget_of, coordinates, temperature_of
from .write import leave_ties, store_pair, write_row


@triton.jit(do_not_specialize=["row_count", "turn"])
def place_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    turn,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A band for each row's threshold (its boundary in the second turn), and a meeting place."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    row = tl.zeros((1,), tl.int64) + tl.program_id(0)
    words = words_of(words, tl.program_id(0), CHUNK_LANES)
    clear(words, CHUNK_LANES)
    outer, inner = coordinates(call, row, row_count)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    is_hard = (t < smallest_normal(COMPUTE)) | (turn > 0)
    place = sample_place(call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    write_note(words, 0, place.low, CHUNK_LANES)
    write_note(words, 1, place.high, CHUNK_LANES)
    write_note(words, 2, place.point, CHUNK_LANES)


@triton.jit(do_not_specialize=["row_count", "chunks", "turn"])
def gather_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    chunks,
    length,
    turn,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The first reading of rows, one program for each of their chunks."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    row_number, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    row = tl.zeros((1,), tl.int64) + row_number
    outer, inner = coordinates(call, row, row_count)
    t = temperature_of(call, outer, inner)
    tiny = smallest_normal(COMPUTE)
    inverse = exponent_scale(tl.where((t < tiny) | (turn > 0), tiny, t), COMPUTE)
    team = Team(words_of(words, row_number, CHUNK_LANES), chunk, chunks, chunks)
    low = read_note(team.words, 0, CHUNK_LANES).to(COMPUTE)
    high = read_note(team.words, 1, CHUNK_LANES).to(COMPUTE)
    point = read_note(team.words, 2, CHUNK_LANES).to(COMPUTE)
    gather_chunks(
        Source(
            *(None, 0, call, outer, inner, team, length, None),
            *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
        ),
        *(out, low, high, point, inverse, tl.zeros((), tl.int32), LISTED, COMPUTE),
    )


@triton.jit(do_not_specialize=["row_count", "chunks", "size", "turn"])
def solve_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    chunks,
    length,
    size,
    turn,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Threshold pairs (boundaries and what chunks need of ties in the second turn), by teams."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    program = tl.program_id(0)
    number, member = program // size, program % size
    for row_number in range(number, row_count, tl.num_programs(0) // size):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        k = budget_of(call, outer, inner)
        t = temperature_of(call, outer, inner)
        is_hard = (t < smallest_normal(COMPUTE)) | (turn > 0)
        team = Team(words_of(words, row_number, CHUNK_LANES), member, size, chunks)
        low = read_note(team.words, 0, CHUNK_LANES).to(COMPUTE)
        high = read_note(team.words, 1, CHUNK_LANES).to(COMPUTE)
        point = read_note(team.words, 2, CHUNK_LANES).to(COMPUTE)
        pair, crossings = solve_row(
            Source(
                *(None, 0, call, outer, inner, team, length, None),
                *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
            ),
            *(out, Place(low, high, point), k, t, is_hard, tl.zeros((), tl.int32)),
            *(CLAMP, LISTED, SAMPLE, RUN, COMPUTE),
        )
        if OUTPUT == "hard":
            if turn > 0:
                leave_ties(
                    Source(
                        *(None, 0, call, outer, inner, team, length, None),
                        *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
                    ),
                    *(pair, k, t, crossings, COMPUTE),
                )
        if member == 0:
            if OUTPUT == "hard":
                write_note(team.words, 3, pair.hi, CHUNK_LANES)
                write_note(team.words, 4, pair.lo, CHUNK_LANES)
                write_note(team.words, 5, pair.above, CHUNK_LANES)
            if OUTPUT == "log":
                write_note(team.words, 3, pair.is_spent, CHUNK_LANES)
            if (turn == 0) | any_row(t < smallest_normal(COMPUTE)):
                store_pair(threshold, row, pair.hi, pair.lo, row >= 0)


@triton.jit(do_not_specialize=["row_count", "chunks"])
def write_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    chunks,
    length,
    OUTPUT: tl.constexpr,
    LARGEST: tl.constexpr,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks of rows, one program for each of their chunks."""
    await_last(OVERLAP)
    row_number, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    row = tl.zeros((1,), tl.int64) + row_number
    outer, inner = coordinates(call, row, row_count)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    team = Team(words_of(words, row_number, CHUNK_LANES), chunk, chunks, chunks)
    none = tl.zeros((1,), tl.int32)
    if OUTPUT == "hard":
        hi = read_note(team.words, 3, CHUNK_LANES).to(COMPUTE)
        lo = read_note(team.words, 4, CHUNK_LANES).to(COMPUTE)
        pair = Pair(hi, lo, read_note(team.words, 5, CHUNK_LANES), none != 0, none)
    else:
        is_spent = none != 0
        if OUTPUT == "log":
            is_spent = read_note(team.words, 3, CHUNK_LANES) != 0
        hi, lo = tl.load(threshold + 2 * row), tl.load(threshold + 2 * row + 1)
        pair = Pair(hi, lo, 0 * k, is_spent, none)
    write_row(
        Source(
            *(None, 0, call, outer, inner, team, length, None),
            *(False, True, LARGEST, 1, WRITTEN, LANES, WIDTH, CHUNK_LANES),
        ),
        *(out, k, t, pair, OUTPUT, COMPUTE),
    )

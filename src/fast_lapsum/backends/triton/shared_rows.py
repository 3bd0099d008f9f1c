"""The forward call on a few rows that are too long to hold: a launch each for the sample, the
reading of all chunks, the root in the band, which is a team's work, and the mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gather import gather_chunks
from .long_rows import solve_row
from .numbers import exponent_scale, smallest_normal
from .passes import Source
from .sample import Place, sample_place
from .solve import Pair
from .team import Team, await_last, begin_next, clear, read_note, words_of, write_note
from .views import budget_of, coordinates, temperature_of
from .write import store_pair, write_row


@triton.jit(do_not_specialize=["row_count"])
def place_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    OUTPUT: tl.constexpr,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A band for each row's threshold, and its boundary, and a meeting place."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    row = tl.zeros((1,), tl.int64) + tl.program_id(0)
    words = words_of(words, tl.program_id(0), CHUNK_LANES)
    clear(words, CHUNK_LANES)
    outer, inner = coordinates(call, row, row_count)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    place = sample_place(call, outer, inner, k, t, OUTPUT, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    write_note(words, 0, place.low, CHUNK_LANES)
    write_note(words, 1, place.high, CHUNK_LANES)
    write_note(words, 2, place.point, CHUNK_LANES)


@triton.jit(do_not_specialize=["row_count", "chunks"])
def gather_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    chunks,
    length,
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
    inverse = exponent_scale(tl.maximum(t, tiny), COMPUTE)
    team = Team(words_of(words, row_number, CHUNK_LANES), chunk, chunks, chunks)
    low = read_note(team.words, 0, CHUNK_LANES).to(COMPUTE)
    high = read_note(team.words, 1, CHUNK_LANES).to(COMPUTE)
    point = read_note(team.words, 2, CHUNK_LANES).to(COMPUTE)
    gather_chunks(
        Source(
            *(None, 0, call, outer, inner, team, length, None),
            *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
        ),
        *(out, low, high, point, inverse, tl.zeros((), tl.int32), True, LISTED, COMPUTE),
    )


@triton.jit(do_not_specialize=["row_count", "chunks", "size"])
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
    """Threshold pairs and boundaries, by teams."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    program = tl.program_id(0)
    number, member = program // size, program % size
    for row_number in range(number, row_count, tl.num_programs(0) // size):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        k = budget_of(call, outer, inner)
        t = temperature_of(call, outer, inner)
        team = Team(words_of(words, row_number, CHUNK_LANES), member, size, chunks)
        low = read_note(team.words, 0, CHUNK_LANES).to(COMPUTE)
        high = read_note(team.words, 1, CHUNK_LANES).to(COMPUTE)
        point = read_note(team.words, 2, CHUNK_LANES).to(COMPUTE)
        pair, written, cut, _ = solve_row(
            Source(
                *(None, 0, call, outer, inner, team, length, None),
                *(False, True, LARGEST, 1, READ, LANES, 1, CHUNK_LANES),
            ),
            *(out, Place(low, high, point), k, t, tl.zeros((), tl.int32)),
            *(OUTPUT, CLAMP, LISTED, SAMPLE, RUN, COMPUTE),
        )
        if member == 0:
            store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
            if OUTPUT == "hard":
                write_note(team.words, 3, written.hi, CHUNK_LANES)
                write_note(team.words, 4, written.lo, CHUNK_LANES)
                write_note(team.words, 5, cut, CHUNK_LANES)
            if OUTPUT == "log":
                write_note(team.words, 3, pair.is_spent, CHUNK_LANES)
                write_note(team.words, 4, pair.log_share, CHUNK_LANES)


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
    cut = none.to(tl.int64)
    if OUTPUT == "hard":
        hi = read_note(team.words, 3, CHUNK_LANES).to(COMPUTE)
        lo = read_note(team.words, 4, CHUNK_LANES).to(COMPUTE)
        pair = Pair(hi, lo, 0 * k, hi, hi, none != 0, none, lo)
        cut = read_note(team.words, 5, CHUNK_LANES).to(tl.int64)
    else:
        hi, lo = tl.load(threshold + 2 * row), tl.load(threshold + 2 * row + 1)
        is_spent, log_share = none != 0, lo
        if OUTPUT == "log":
            is_spent = read_note(team.words, 3, CHUNK_LANES) != 0
            log_share = read_note(team.words, 4, CHUNK_LANES).to(COMPUTE)
        pair = Pair(hi, lo, 0 * k, hi, hi, is_spent, none, log_share)
    write_row(
        Source(
            *(None, 0, call, outer, inner, team, length, None),
            *(False, True, LARGEST, 1, WRITTEN, LANES, WIDTH, CHUNK_LANES),
        ),
        *(out, k, t, pair, cut, OUTPUT, COMPUTE),
    )

"""The forward call on rows that a team of programs solves together, which hold a chunk each or read
their chunks in every pass.

A launch before it samples the rows, so that the first pass of a team, which counts what there is,
looks at the right place, too. Meanwhile the team reads what it is to hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .boundary import find_boundary
from .mask import are_plain
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Look, Source, Survey, over_rows, read_parts
from .sample import sample_guess
from .solve import Guess, solve
from .team import Team, await_last, begin_next, clear, read_note, words_of, write_note
from .ties import find_cut
from .views import budget_of, coordinates, temperature_of, warm_start_of
from .write import store_pair, write_any_chunks, write_held, write_row


@triton.jit(do_not_specialize=["row_count"])
def guess_rows(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What a sample tells of each row's threshold, and a meeting place for its team."""
    begin_next(OVERLAP)
    row = tl.zeros((1,), tl.int64) + tl.program_id(0)
    words = words_of(words, tl.program_id(0), CHUNK_LANES)
    clear(words, CHUNK_LANES)
    outer, inner = coordinates(call, row, row_count)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    is_hard = t < smallest_normal(COMPUTE)
    guess = sample_guess(call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    start = warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    write_note(words, 0, tl.where((start == start) & (~is_hard), start, guess.b), CHUNK_LANES)
    write_note(words, 1, guess.error, CHUNK_LANES)
    if OUTPUT == "hard":
        if any_row(~is_hard):
            guess = sample_guess(
                *(call, outer, inner, k, 0 * t, t >= 0),
                *(LARGEST, SAMPLE, RUN, LANES, COMPUTE),
            )
        write_note(words, 2, guess.b, CHUNK_LANES)
        write_note(words, 3, guess.error, CHUNK_LANES)


@triton.jit
def _read_guess(words, i, LANES: tl.constexpr, COMPUTE: tl.constexpr):
    """A guess from the launch before."""
    b = read_note(words, i, LANES).to(COMPUTE)
    return Guess(b, read_note(words, i + 1, LANES).to(COMPUTE), b)


@triton.jit
def _solve_row(
    source,
    again,
    total,
    out,
    threshold,
    row,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A member's part in one row that a team shares; ``again`` reads its chunks from memory.

    ``total`` is the number of scores, with those of -inf that fill up what is read.
    """
    call = source.call
    outer = source.outer
    inner = source.inner
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    is_hard = t < smallest_normal(COMPUTE)
    crossings = tl.zeros((), tl.int32)
    guess = _read_guess(source.team.words, 0, source.CHUNK_LANES, COMPUTE)
    b = guess.b
    inverse = exponent_scale(tl.where(is_hard, smallest_normal(COMPUTE), t), COMPUTE)
    found, crossings = over_rows(source, (b, inverse), crossings, "first", COMPUTE)
    above, below, higher, nothings, lowest, highest = found
    look = Look(above, below, higher)
    finite = total.to(tl.float64) - nothings
    infinite, nans = 0 * finite, 0 * finite
    if any_row((below != below) | (highest == float("inf"))):  # NaN is in the sum of those below
        counted, crossings = over_rows(source, (0 * b,), crossings, "survey", COMPUTE)
        finite, infinite, nans, lowest, highest, _, _ = counted
    survey = Survey(finite, infinite, nans, lowest.to(COMPUTE), highest.to(COMPUTE))
    if CLAMP:
        k = tl.minimum(k, finite + infinite)
    pair, crossings = solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE)
    if source.team.member == 0:
        store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    written = pair
    cut = tl.zeros((1,), tl.int64)
    if OUTPUT == "hard":
        if any_row(~is_hard):
            near = _read_guess(source.team.words, 2, source.CHUNK_LANES, COMPUTE)
            written, crossings = find_boundary(source, survey, k, t, pair, near, crossings, COMPUTE)
        cut, crossings = find_cut(source, again, written, k, t, crossings, COMPUTE)
    if OUTPUT != "threshold":
        if source.r is None:
            write_row(again, out, k, t, written, cut, OUTPUT, COMPUTE)
        else:
            if any_row(~are_plain(written, k, t, OUTPUT, COMPUTE)):
                write_any_chunks(again, out, k, t, written, cut, OUTPUT, COMPUTE)
            else:
                write_held(
                    *(source, source.r, source.first, out, source.outer >= 0),
                    *(k, t, written, OUTPUT, COMPUTE),
                )


@triton.jit(do_not_specialize=["row_count", "size", "chunks"])
def team_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    words,
    size,
    chunks,
    length,
    LARGEST: tl.constexpr,
    HELD: tl.constexpr,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of rows that teams of ``size`` programs share.

    They are HELD, a chunk by each, or read in every pass, out of the cache where that has room.
    """
    program = tl.program_id(0)
    number, member = program // size, program % size
    BLOCK: tl.constexpr = PARTS * REPEATS * LANES * WIDTH
    if HELD:
        length = BLOCK
    first = (tl.zeros((), tl.int64) + member) * length
    # The last block of a row is filled up with scores of -inf, which take no part.
    total = (tl.zeros((1,), tl.int64) + call.n + (BLOCK - 1)) // BLOCK * BLOCK
    for row_number in range(number, row_count, tl.num_programs(0) // size):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        team = Team(words_of(words, row_number, CHUNK_LANES), member, size, chunks)
        if HELD:
            r = read_parts(
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                first,
                COMPUTE,
            )
            await_last(OVERLAP)
            _solve_row(
                Source(
                    *(r, first, call, outer, inner, team, length, None),
                    *(False, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                *(total, out, threshold, row, OUTPUT, CLAMP, COMPUTE),
            )
        else:
            await_last(OVERLAP)
            _solve_row(
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                *(total, out, threshold, row, OUTPUT, CLAMP, COMPUTE),
            )

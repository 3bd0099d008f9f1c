"""The forward call on rows that a team of programs solves together, which hold a chunk each or read
their chunks in every pass.

A sample comes first, so that the first pass, which counts what there is, looks at the right place,
too. The words by which a team meets are zero before its launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import is_in_limit
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Look, Source, Survey, over_rows, read_parts
from .sample import sample_guess
from .solve import Guess, solve
from .team import Team, words_of
from .views import budget_of, coordinates, temperature_of, warm_start_of
from .write import (
    leave_ties,
    store_pair,
    write_any_chunks,
    write_hard_chunks,
    write_held,
    write_soft_chunks,
)


@triton.jit
def _solve_row(
    source,
    again,
    total,
    warm_start,
    out,
    threshold,
    row,
    HARD: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    SAMPLE_LANES: tl.constexpr,
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
    # Every member samples the row for itself, and finds the same.
    near = sample_guess(
        *(call, outer, inner, k, t, is_hard),
        *(source.LARGEST, SAMPLE, RUN, SAMPLE_LANES, COMPUTE),
    )
    start = warm_start_of(warm_start, outer, inner, source.LARGEST, COMPUTE)
    b = tl.where((start == start) & (~is_hard), start, near.b)
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
    guess = Guess(b, near.error, b)
    pair, crossings = solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE)
    if source.team.member == 0:
        store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    if HARD:
        guess = Guess(pair.hi, t.to(COMPUTE), pair.hi)
        boundary, crossings = solve(source, survey, k, t, t >= 0, guess, None, crossings, COMPUTE)
        leave_ties(again, boundary, crossings, COMPUTE)
        write_hard_chunks(again, out, k, t, boundary, COMPUTE)
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            write_any_chunks(again, out, k, t, pair, COMPUTE)
        else:
            if source.r is None:
                write_soft_chunks(again, out, t, pair, COMPUTE)
            else:
                write_held(source, source.r, source.first, out, source.outer >= 0, t, pair, COMPUTE)


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
    HARD: tl.constexpr,
    PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    SAMPLE_LANES: tl.constexpr,
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
            _solve_row(
                Source(
                    *(r, first, call, outer, inner, team, length, None),
                    *(False, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                *(total, warm_start, out, threshold, row),
                *(HARD, SAMPLE, RUN, SAMPLE_LANES, COMPUTE),
            )
        else:
            _solve_row(
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                Source(
                    *(None, first, call, outer, inner, team, length, None),
                    *(False, True, LARGEST, PARTS, REPEATS, LANES, WIDTH, CHUNK_LANES),
                ),
                *(total, warm_start, out, threshold, row),
                *(HARD, SAMPLE, RUN, SAMPLE_LANES, COMPUTE),
            )

"""The kernels of the forward call: rows of one program, and rows that a team of programs shares.

A tile of short rows and a block of one row are the same kernel. Both read every score once and
write every p once: 8 bytes per float32 score. So does a team whose members hold their chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import is_in_limit
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Look, Source, Survey, over_rows, read_parts
from .sample import sample_place
from .solve import Guess, guess_of, solve, survey_rows
from .team import COUNTER_STRIDE, FIELDS, Team
from .views import budget_of, coordinates, row_start, temperature_of
from .write import store_pair, write_any_chunks, write_hard_chunks, write_held, write_read


@triton.jit
def _warm_start_of(warm_start, outer, inner, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """Thresholds to start from; NaN where there are none."""
    if warm_start is not None:
        start = tl.load(row_start(warm_start, outer, inner)).to(COMPUTE)
        return start if LARGEST else -start
    else:
        return tl.zeros_like(outer).to(COMPUTE) + float("nan")


@triton.jit
def _first_score(call, outer, inner, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """A number near the scores: sums of squares are taken from there, an offset has no part."""
    place = row_start(call.scores, outer, inner)
    origin = tl.load(place, mask=tl.zeros_like(outer) < call.n, other=0.0).to(COMPUTE)
    origin = origin if LARGEST else -origin
    if call.mask is not None:  # what takes no part may be far from the others
        keep = tl.load(
            row_start(call.mask, outer, inner), mask=tl.zeros_like(outer) < call.n, other=0
        )
        origin = tl.where(keep != 0, origin, 0.0)
    return tl.where(tl.abs(origin) < float("inf"), origin, 0.0)


@triton.jit
def _solve_tile(
    source, out, is_row, k, t, start, origin, HARD: tl.constexpr, COMPUTE: tl.constexpr
):
    """Threshold pairs of rows in registers, and their masks, which are written."""
    survey, mean, square = survey_rows(source, origin, source.call.n, COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    guess = guess_of(survey, origin, mean, square, k, t, start, is_hard, COMPUTE)
    meetings = tl.zeros((), tl.int32)  # there is nobody to meet
    pair, _ = solve(source, survey, k, t, is_hard, guess, None, meetings, COMPUTE)
    none = 0.0 * k
    if HARD:
        is_ranked = t >= 0
        near = guess_of(survey, origin, mean, square, k, t, start, is_ranked, COMPUTE)
        ranked, _ = solve(source, survey, k, t, is_ranked, near, None, meetings, COMPUTE)
        write_read(source, 0, source.PARTS, out, is_row, k, t, ranked, none, True, COMPUTE)
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            write_read(source, 0, source.PARTS, out, is_row, k, t, pair, none, False, COMPUTE)
        else:
            write_held(source, source.r, 0, out, is_row, t, pair, COMPUTE)
    return pair


@triton.jit(do_not_specialize=["row_count"])
def tile_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of ROWS rows, held in registers from load to mask."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < row_count
    outer, inner = coordinates(call, row, row_count)
    r = read_parts(
        Source(
            None,
            0,
            call,
            outer,
            inner,
            None,
            0,
            None,
            True,
            PADDED,
            LARGEST,
            PARTS,
            REPEATS,
            LANES,
            WIDTH,
            1,
        ),
        0,
        COMPUTE,
    )
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    start = _warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    origin = _first_score(call, outer, inner, LARGEST, COMPUTE)
    pair = _solve_tile(
        Source(
            r,
            0,
            call,
            outer,
            inner,
            None,
            0,
            None,
            True,
            PADDED,
            LARGEST,
            PARTS,
            REPEATS,
            LANES,
            WIDTH,
            1,
        ),
        *(out, is_row, k, t, start, origin, HARD, COMPUTE),
    )
    store_pair(threshold, row, pair.hi, pair.lo, is_row)


@triton.jit
def _solve_shared_row(
    source,
    again,
    warm_start,
    out,
    threshold,
    row,
    crossings,
    HARD: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A member's part in one row that a team holds; ``again`` reads its chunks from memory."""
    call = source.call
    outer = source.outer
    inner = source.inner
    LARGEST: tl.constexpr = source.LARGEST
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    start = _warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    place = sample_place(
        call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, source.LANES, False, COMPUTE
    )
    is_warm = (start == start) & (~is_hard)
    b = tl.where(is_warm, start, place.middle)
    error = tl.where(is_warm, 0.0, 0.125 * place.high - 0.125 * place.low)
    inverse = exponent_scale(tl.maximum(t, smallest_normal(COMPUTE)), COMPUTE)
    found, crossings = over_rows(source, (b, inverse), crossings, "first", COMPUTE)
    finite, infinite, nans, lowest, highest, above, below, higher = found
    survey = Survey(finite, infinite, nans, lowest.to(COMPUTE), highest.to(COMPUTE))
    look = Look(above, below, higher)
    guess = Guess(b, error)
    pair, crossings = solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE)
    if source.team.member == 0:
        store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    if HARD:
        near = Guess(pair.hi, tl.maximum(t.to(COMPUTE), error))
        boundary, crossings = solve(source, survey, k, t, t >= 0, near, None, crossings, COMPUTE)
        crossings = write_hard_chunks(again, out, k, t, boundary, crossings, COMPUTE)
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            write_any_chunks(again, out, k, t, pair, COMPUTE)
        else:
            write_held(source, source.r, source.first, out, source.outer >= 0, t, pair, COMPUTE)
    return crossings


@triton.jit(do_not_specialize=["row_count"])
def team_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    partials,
    counters,
    chunks,
    size,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of rows whose chunks teams of programs hold in registers."""
    program = tl.program_id(0)
    number, member = program // size, program % size
    team_count = tl.num_programs(0) // size
    partials += number.to(tl.int64) * (2 * FIELDS * CHUNK_LANES)
    team = Team(partials, counters + number * COUNTER_STRIDE, member, size, chunks)
    crossings = tl.zeros((), tl.int32)
    length = PARTS * REPEATS * LANES * WIDTH
    for row_number in range(number, row_count, team_count):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        first = (tl.zeros((), tl.int64) + member) * length
        r = read_parts(
            Source(
                None,
                first,
                call,
                outer,
                inner,
                team,
                length,
                None,
                True,
                True,
                LARGEST,
                PARTS,
                REPEATS,
                LANES,
                WIDTH,
                CHUNK_LANES,
            ),
            first,
            COMPUTE,
        )
        crossings = _solve_shared_row(
            Source(
                r,
                first,
                call,
                outer,
                inner,
                team,
                length,
                None,
                True,
                True,
                LARGEST,
                PARTS,
                REPEATS,
                LANES,
                WIDTH,
                CHUNK_LANES,
            ),
            Source(
                None,
                first,
                call,
                outer,
                inner,
                team,
                length,
                None,
                True,
                True,
                LARGEST,
                PARTS,
                REPEATS,
                LANES,
                WIDTH,
                CHUNK_LANES,
            ),
            *(warm_start, out, threshold, row, crossings, HARD, SAMPLE, COMPUTE),
        )

"""The kernels of the forward call: rows of one program, and rows that a team of programs shares.

A tile of short rows and a block of one row are the same kernel. Both read every score once and
write every p once: 8 bytes per float32 score. So does a team whose members hold their chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import any_mask, hard_mask, is_in_limit, soft_mask, ties_in
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Look, Source, Survey, block_start, over_rows, read_part, read_parts
from .sample import sample_guess
from .solve import Guess, guess_of, solve, survey_rows
from .team import COUNTER_STRIDE, FIELDS, Team, collect, cross, field_of, leave
from .views import (
    across,
    budget_of,
    coordinates,
    exist,
    part_indices,
    row_start,
    store_values,
    temperature_of,
)


@triton.jit
def _warm_start_of(warm_start, outer, inner, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """Thresholds to start from; NaN where there are none."""
    if warm_start is not None:
        start = tl.load(row_start(warm_start, outer, inner)).to(COMPUTE)
        return start if LARGEST else -start
    else:
        return tl.zeros_like(outer).to(COMPUTE) + float("nan")


@triton.jit
def _store_pair(threshold, row, hi, lo, is_row):
    tl.store(threshold + 2 * row, hi, mask=is_row)
    tl.store(threshold + 2 * row + 1, lo, mask=is_row)


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
def _written(source, first, part, is_row):
    """The indices of a part, and which of them are to be written."""
    index = part_indices(first, part, source.REPEATS, source.LANES, source.WIDTH)
    written = across(is_row)
    if source.PADDED:
        written = written & exist(index, source.call.n, source.WIDTH)
    return index, written


@triton.jit
def _write_held(source, r, first, out, is_row, t, pair, COMPUTE: tl.constexpr):
    """Soft masks of parts in registers."""
    for part in tl.static_range(source.PARTS):
        index, written = _written(source, first, part, is_row)
        p = soft_mask(r[part], pair.hi, pair.lo, t, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)


@triton.jit
def _write_read(
    source, first, out, is_row, k, t, pair, earlier, HARD: tl.constexpr, COMPUTE: tl.constexpr
):
    """Masks of any kind of parts that are read again; returns the scores tied with a boundary."""
    for part in range(source.PARTS):
        r = read_part(source, first, part, COMPUTE)
        index, written = _written(source, first, part, is_row)
        if HARD:
            p = hard_mask(r, k, pair.hi, pair.above, earlier, COMPUTE)
            earlier += ties_in(r, pair.hi).to(tl.float64)
        else:
            p = any_mask(r, pair.hi, pair.lo, t, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)
    return earlier


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
        _write_read(source, 0, out, is_row, k, t, ranked, none, True, COMPUTE)
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            _write_read(source, 0, out, is_row, k, t, pair, none, False, COMPUTE)
        else:
            _write_held(source, source.r, 0, out, is_row, t, pair, COMPUTE)
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
            1,
            True,
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
            1,
            True,
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
    _store_pair(threshold, row, pair.hi, pair.lo, is_row)


@triton.jit
def _ties_from(source, first, boundary, COMPUTE: tl.constexpr):
    """How many scores of the parts from an index on equal the boundary."""
    ties = tl.zeros((1,), tl.int64)
    for part in range(source.PARTS):
        ties += ties_in(read_part(source, first, part, COMPUTE), boundary)
    return ties


@triton.jit
def _count_ties(source, pair, crossings, COMPUTE: tl.constexpr):
    """Every member leaves how many scores of its chunks equal the boundary."""
    if source.HELD:
        ties = _ties_from(source, source.first, pair.hi, COMPUTE)
        leave((ties,), source.team, source.team.member, crossings, source.CHUNK_LANES)
    else:
        for chunk in range(source.team.member, source.team.chunks, source.team.size):
            total = tl.zeros((1,), tl.int64)
            for block in range(source.blocks):
                total += _ties_from(source, block_start(source, chunk, block), pair.hi, COMPUTE)
            leave((total,), source.team, chunk, crossings, source.CHUNK_LANES)
    cross(source.team, crossings)


@triton.jit
def _ties_before(source, chunk, crossings):
    """How many scores of earlier chunks equal the boundary, from what was left at a meeting."""
    collected = collect(source.team, crossings, 1, source.CHUNK_LANES)
    counts = field_of(collected, 0, 0.0, source.team)
    lane = tl.arange(0, source.CHUNK_LANES)[None, :]
    return tl.sum(tl.where(lane < chunk, counts, 0.0), 1)


@triton.jit
def _write_chunks(source, out, t, pair, COMPUTE: tl.constexpr):
    """A member's part of a soft mask."""
    is_row = t == t
    if source.HELD:
        _write_held(source, source.r, source.first, out, is_row, t, pair, COMPUTE)
    else:
        for chunk in range(source.team.member, source.team.chunks, source.team.size):
            for block in range(source.blocks):
                first = block_start(source, chunk, block)
                r = read_parts(source, first, COMPUTE)
                _write_held(source, r, first, out, is_row, t, pair, COMPUTE)


@triton.jit
def _write_any_chunks(
    source, out, k, t, pair, crossings, HARD: tl.constexpr, COMPUTE: tl.constexpr
):
    """A member's part of a mask of any kind."""
    is_row = tl.full((1,), 1, tl.int1)
    for chunk in range(source.team.member, source.team.chunks, source.team.size):
        earlier = 0.0 * k
        if HARD:
            earlier = _ties_before(source, chunk, crossings)
        for block in range(source.blocks):
            first = block_start(source, chunk, block)
            earlier = _write_read(source, first, out, is_row, k, t, pair, earlier, HARD, COMPUTE)


@triton.jit
def _solve_shared_row(
    source,
    warm_start,
    out,
    threshold,
    row,
    crossings,
    HARD: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A member's part in one row: threshold pair and mask."""
    call = source.call
    outer = source.outer
    inner = source.inner
    LARGEST: tl.constexpr = source.LARGEST
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    start = _warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    b, error = sample_guess(
        call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, source.LANES, COMPUTE
    )
    is_warm = (start == start) & (~is_hard)
    b = tl.where(is_warm, start, b)
    error = tl.where(is_warm, 0.0, error)
    inverse = exponent_scale(tl.maximum(t, smallest_normal(COMPUTE)), COMPUTE)
    found, crossings = over_rows(source, (b, inverse), crossings, "first", COMPUTE)
    finite, infinite, nans, lowest, highest, above, below, higher = found
    survey = Survey(finite, infinite, nans, lowest.to(COMPUTE), highest.to(COMPUTE))
    look = Look(above, below, higher)
    guess = Guess(b, error)
    pair, crossings = solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE)
    if source.team.member == 0:
        _store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    if HARD:
        near = Guess(pair.hi, tl.maximum(t.to(COMPUTE), error))
        boundary, crossings = solve(source, survey, k, t, t >= 0, near, None, crossings, COMPUTE)
        _count_ties(source, boundary, crossings, COMPUTE)
        _write_any_chunks(source, out, k, t, boundary, crossings, True, COMPUTE)
        crossings += 1
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            _write_any_chunks(source, out, k, t, pair, crossings, False, COMPUTE)
        else:
            _write_chunks(source, out, t, pair, COMPUTE)
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
    blocks,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    HELD: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of rows that teams of ``size`` programs take one after the other.

    A row has ``chunks`` of ``blocks`` blocks each. Members that have a chunk of one block HOLD it
    in registers; others read their chunks again in every pass.
    """
    program = tl.program_id(0)
    number, member = program // size, program % size
    team_count = tl.num_programs(0) // size
    partials += number.to(tl.int64) * (2 * FIELDS * CHUNK_LANES)
    team = Team(partials, counters + number * COUNTER_STRIDE, member, size, chunks)
    crossings = tl.zeros((), tl.int32)
    for row_number in range(number, row_count, team_count):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        first = (tl.zeros((), tl.int64) + member) * (PARTS * REPEATS * LANES * WIDTH)
        r = None
        if HELD:
            r = read_parts(
                Source(
                    None,
                    first,
                    call,
                    outer,
                    inner,
                    team,
                    blocks,
                    HELD,
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
                blocks,
                HELD,
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

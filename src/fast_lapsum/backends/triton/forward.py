"""The kernels of the forward call: rows of one program, and rows that a team of programs shares.

A tile of short rows and a block of one row are the same kernel. Both read every score once and
write every p once: 8 bytes per float32 score. So does a team whose members hold their chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import hard_mask_of, mask_of
from .numbers import exponent_scale, smallest_normal
from .passes import Look, Source, Survey, over_rows, read_block
from .sample import sample_guess
from .solve import Guess, guess_of, solve, survey_rows
from .team import COUNTER_STRIDE, FIELDS, Team, collect, cross, leave
from .views import (
    across,
    budget_of,
    coordinates,
    exist,
    indices,
    load_scores,
    row_start,
    store_values,
    temperature_of,
    tile_indices,
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
    return tl.where(tl.abs(origin) < float("inf"), origin, 0.0)


@triton.jit
def _solve_tile(source, k, t, start, origin, HARD: tl.constexpr, COMPUTE: tl.constexpr):
    """Threshold pairs and masks of rows in registers."""
    survey, mean, square = survey_rows(source, origin, source.call.n, COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    guess = guess_of(survey, origin, mean, square, k, t, start, is_hard, COMPUTE)
    meetings = tl.zeros((), tl.int32)  # there is nobody to meet
    pair, _ = solve(source, survey, k, t, is_hard, guess, None, meetings, COMPUTE)
    if HARD:
        is_ranked = t >= 0
        near = guess_of(survey, origin, mean, square, k, t, start, is_ranked, COMPUTE)
        boundary, _ = solve(source, survey, k, t, is_ranked, near, None, meetings, COMPUTE)
        p = hard_mask_of(source.r, k, boundary.hi, boundary.above, 0.0 * k, COMPUTE)
    else:
        p = mask_of(source.r, pair.hi, pair.lo, t, COMPUTE)
    return pair, p


@triton.jit
def tile_forward(
    call,
    warm_start,
    out,
    threshold,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of ROWS rows, held in registers from load to mask.

    A tile of short rows is laid out as :func:`tile_indices` says; one row alone is one block.
    """
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < call.row_count
    outer, inner = coordinates(call, row)
    index = indices(0, BLOCK) if ROWS == 1 else tile_indices(REPEATS, LANES, WIDTH)
    inside = exist(index, call.n, WIDTH) if PADDED else None
    r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    start = _warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    origin = _first_score(call, outer, inner, LARGEST, COMPUTE)
    pair, p = _solve_tile(
        Source(r, inside, call, outer, inner, None, 1, True, LARGEST, BLOCK, 1, WIDTH),
        *(k, t, start, origin, HARD, COMPUTE),
    )
    written = across(is_row, r)
    if PADDED:
        written = written & inside
    store_values(out, outer, inner, index, written, p, WIDTH)
    _store_pair(threshold, row, pair.hi, pair.lo, is_row)


@triton.jit
def _ties_in(r, boundary):
    return tl.sum((r == boundary[:, None]).to(tl.int32), 1)


@triton.jit
def _count_ties(source, pair, crossings, COMPUTE: tl.constexpr):
    """Every member leaves how many scores of its chunks equal the boundary."""
    if source.HELD:
        ties = _ties_in(source.r, pair.hi)
        leave((ties,), source.team, source.team.member, crossings, source.LANES)
    else:
        for chunk in range(source.team.member, source.team.chunks, source.team.size):
            total = tl.zeros((1,), tl.int64)
            for block in range(source.blocks):
                _, _, r = read_block(source, chunk, block, COMPUTE)
                total += _ties_in(r, pair.hi)
            leave((total,), source.team, chunk, crossings, source.LANES)
    cross(source.team, crossings)


@triton.jit
def _ties_before(source, chunk, crossings):
    """How many scores of earlier chunks equal the boundary, from what was left at a meeting."""
    counts = collect(source.team, crossings, 0, 0.0, source.LANES)
    lane = tl.arange(0, source.LANES)[None, :]
    return tl.sum(tl.where(lane < chunk, counts, 0.0), 1)


@triton.jit
def _write(
    source, out, index, inside, r, k, t, pair, earlier, HARD: tl.constexpr, COMPUTE: tl.constexpr
):
    if HARD:
        p = hard_mask_of(r, k, pair.hi, pair.above, earlier, COMPUTE)
    else:
        p = mask_of(r, pair.hi, pair.lo, t, COMPUTE)
    store_values(out, source.outer, source.inner, index, inside, p, source.WIDTH)


@triton.jit
def _write_chunks(source, out, k, t, pair, crossings, HARD: tl.constexpr, COMPUTE: tl.constexpr):
    """A member's part of the mask."""
    if source.HELD:
        member = tl.zeros((), tl.int64) + source.team.member
        index = indices(member * source.BLOCK, source.BLOCK)
        earlier = 0.0 * k
        if HARD:
            earlier = _ties_before(source, source.team.member, crossings)
        r = source.r
        _write(source, out, index, source.inside, r, k, t, pair, earlier, HARD, COMPUTE)
    else:
        for chunk in range(source.team.member, source.team.chunks, source.team.size):
            before = 0.0 * k
            if HARD:
                before = _ties_before(source, chunk, crossings)
            for block in range(source.blocks):
                index, inside, r = read_block(source, chunk, block, COMPUTE)
                _write(source, out, index, inside, r, k, t, pair, before, HARD, COMPUTE)
                if HARD:
                    before += _ties_in(r, pair.hi).to(tl.float64)


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
    b, error = sample_guess(call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, COMPUTE)
    is_warm = (start == start) & (~is_hard)
    b = tl.where(is_warm, start, b)
    error = tl.where(is_warm, 0.0, error)
    inverse = exponent_scale(tl.maximum(t, smallest_normal(COMPUTE)), COMPUTE)
    found, crossings = over_rows(source, (b, 3 * error, inverse), crossings, "first", COMPUTE)
    finite, infinite, nans, lowest, highest, above, below, higher, beyond, within = found
    survey = Survey(finite, infinite, nans, lowest.to(COMPUTE), highest.to(COMPUTE))
    look = Look(above, below, higher, beyond, within)
    guess = Guess(b, error)
    pair, crossings = solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE)
    if source.team.member == 0:
        _store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    if HARD:
        near = Guess(pair.hi, tl.maximum(t.to(COMPUTE), error))
        boundary, crossings = solve(source, survey, k, t, t >= 0, near, None, crossings, COMPUTE)
        _count_ties(source, boundary, crossings, COMPUTE)
        _write_chunks(source, out, k, t, boundary, crossings, HARD, COMPUTE)
        crossings += 1
    else:
        _write_chunks(source, out, k, t, pair, crossings, HARD, COMPUTE)
    return crossings


@triton.jit
def team_forward(
    call,
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
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
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
    partials += number.to(tl.int64) * (2 * FIELDS * LANES)
    team = Team(partials, counters + number * COUNTER_STRIDE, member, size, chunks)
    crossings = tl.zeros((), tl.int32)
    for row_number in range(number, call.row_count, team_count):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row)
        r = None
        inside = None
        if HELD:
            first = (tl.zeros((), tl.int64) + member) * BLOCK
            index = indices(first, BLOCK)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        crossings = _solve_shared_row(
            Source(r, inside, call, outer, inner, team, blocks, HELD, LARGEST, BLOCK, LANES, WIDTH),
            warm_start,
            out,
            threshold,
            row,
            crossings,
            HARD,
            SAMPLE,
            COMPUTE,
        )

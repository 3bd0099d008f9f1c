"""The forward call on rows that are too long to hold: a sample, one reading, the band, the mask.

One program takes a row where rows are many; a team of them where rows are few.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .band import Band
from .gather import gather
from .mask import is_in_limit
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Source, Survey, over_rows
from .sample import sample_place, sample_point
from .solve import Guess, Pair, solve
from .team import COUNTER_STRIDE, FIELDS, Team
from .views import Call, budget_of, coordinates, temperature_of
from .write import store_pair, write_any_chunks, write_hard_chunks, write_soft_chunks

#: A band that is too full is read again, and one that does not hold the root is followed by all on
#: that side, and by all there is.
MOST_BANDS = tl.constexpr(4)


@triton.jit
def _solve_row(
    source,
    out,
    parts,
    k,
    t,
    is_hard,
    crossings,
    LISTED: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair of one row, of which ``source`` reads the scores."""
    call = source.call
    outer = source.outer
    inner = source.inner
    tiny = smallest_normal(COMPUTE)
    place = sample_place(
        call, outer, inner, k, t, is_hard, source.LARGEST, SAMPLE, source.LANES, True, COMPUTE
    )
    low, high = place.low, place.high
    point = tl.zeros_like(low) + float("nan")
    inverse = exponent_scale(tl.where(is_hard, tiny, t), COMPUTE)
    hi = tl.zeros_like(low) + float("nan")
    lo = tl.zeros_like(hi)
    above_boundary = 0.0 * k
    is_row = outer >= 0
    is_open = is_row
    is_tried = ~is_row
    bands = 0
    while any_row(is_open) & (bands < MOST_BANDS):
        bands += 1
        found, number, listed, crossings = gather(
            source, out, parts, low, high, point, inverse, crossings, LISTED, COMPUTE
        )
        above, below, higher, at_point, lowest, highest = found
        # A large part of the row lies in the band: many scores may be equal.
        is_again = ~is_row
        if any_row((number * 8 > call.n) & (bands == 1)):
            point = sample_point(
                *(call, outer, inner, low, high, inverse),
                *(source.LARGEST, SAMPLE, source.LANES, COMPUTE),
            )
            is_again = point == point
        if any_row(~is_again):
            none = tl.zeros((1,), tl.float64)
            finite, infinite, nans = none + call.n, none, none
            # NaN is in the sum of those below; masked scores and those of -inf take no part.
            is_plain = (below == below) & (lowest > float("-inf")) & (highest < float("inf"))
            if any_row(~is_plain):
                counted, crossings = over_rows(source, (0 * low,), crossings, "survey", COMPUTE)
                finite, infinite, nans, lowest, highest, _, _ = counted
            survey = Survey(finite, infinite, nans, lowest.to(COMPUTE), highest.to(COMPUTE))
            pair, crossings = solve(
                Source(
                    None,
                    0,
                    Call(out, None, None, None, None, call.n, call.inner_count),
                    outer,
                    inner,
                    source.team,
                    source.length,
                    Band(low, high, point, at_point, above, below, higher, listed),
                    False,
                    True,
                    True,
                    1,
                    LISTED,
                    source.LANES,
                    1,
                    source.CHUNK_LANES,
                ),
                *(survey, k, t, is_hard, Guess(low, low), None, crossings, COMPUTE),
            )
            hi, lo, above_boundary = pair.hi, pair.lo, pair.above
            is_open = pair.missed != 0
            next_low = tl.where((pair.missed == 1) & (~is_tried), high, float("-inf"))
            high = tl.where((pair.missed == -1) & (~is_tried), low, float("inf"))
            low = next_low
            is_tried = is_row
    return Pair(hi, lo, above_boundary, is_open), crossings


@triton.jit
def _write_row(source, out, k, t, pair, crossings, HARD: tl.constexpr, COMPUTE: tl.constexpr):
    """A member's part of a row's mask."""
    tl.debug_barrier()  # it lies where the lists were
    if HARD:
        crossings = write_hard_chunks(source, out, k, t, pair, crossings, COMPUTE)
    else:
        if any_row(is_in_limit(pair.hi, t, COMPUTE)):
            write_any_chunks(source, out, k, t, pair, COMPUTE)
        else:
            write_soft_chunks(source, out, t, pair, COMPUTE)
    return crossings


@triton.jit(do_not_specialize=["row_count"])
def long_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    partials,
    counters,
    parts,
    chunks,
    size,
    length,
    LARGEST: tl.constexpr,
    HARD: tl.constexpr,
    SHARED: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of rows in ``chunks`` of some length, by teams of ``size``.

    A warm start is of no use here: the sample knows more.
    """
    program = tl.program_id(0)
    number, member = program // size, program % size
    team_count = tl.num_programs(0) // size
    team = None
    if SHARED:
        partials += number.to(tl.int64) * (2 * FIELDS * CHUNK_LANES)
        parts += number * CHUNK_LANES
        team = Team(partials, counters + number * COUNTER_STRIDE, member, size, chunks)
    crossings = tl.zeros((), tl.int32)
    for row_number in range(number, row_count, team_count):
        row = tl.zeros((1,), tl.int64) + row_number
        outer, inner = coordinates(call, row, row_count)
        k = budget_of(call, outer, inner)
        t = temperature_of(call, outer, inner)
        is_limit = t < smallest_normal(COMPUTE)
        nothing = (0 * k).to(COMPUTE)
        pair = Pair(nothing, nothing, 0 * k, k != k)
        for turn in range(1 + HARD):
            pair, crossings = _solve_row(
                Source(
                    None,
                    0,
                    call,
                    outer,
                    inner,
                    team,
                    length,
                    None,
                    True,
                    True,
                    LARGEST,
                    1,
                    READ,
                    LANES,
                    1,
                    CHUNK_LANES,
                ),
                *(out, parts, k, t, is_limit | (turn > 0), crossings, LISTED, SAMPLE, COMPUTE),
            )
            if (member == 0) & (turn == 0):
                store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
        crossings = _write_row(
            Source(
                None,
                0,
                call,
                outer,
                inner,
                team,
                length,
                None,
                True,
                True,
                LARGEST,
                1,
                WRITTEN,
                LANES,
                WIDTH,
                CHUNK_LANES,
            ),
            *(out, k, t, pair, crossings, HARD, COMPUTE),
        )

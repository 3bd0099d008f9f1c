"""The forward call on rows that are too long to hold: a sample, one reading, the band, the mask.

One program takes a row where rows are many. For a few rows each step is a launch of its own, see
shared_rows.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .band import Band
from .gather import gather
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Source, Survey, over_rows
from .sample import sample_place, sample_point
from .solve import Guess, Pair, solve
from .views import Call, budget_of, coordinates, temperature_of
from .write import store_pair, write_row

#: A band that is too full is read again, and one that does not hold the root is followed by all on
#: that side, and by all there is.
MOST_BANDS = tl.constexpr(4)
#: A band is too full if it has one out of so many scores.
FULL = tl.constexpr(16)


@triton.jit
def solve_row(
    source,
    out,
    place,
    k,
    t,
    is_hard,
    crossings,
    CLAMP: tl.constexpr,
    LISTED: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair of one row, of which ``source`` reads the scores, from the :class:`Place` on."""
    low, high, point = place
    call = source.call
    outer = source.outer
    inner = source.inner
    tiny = smallest_normal(COMPUTE)
    inverse = exponent_scale(tl.where(is_hard, tiny, t), COMPUTE)
    hi = tl.zeros_like(low) + float("nan")
    lo = tl.zeros_like(hi)
    above_boundary = 0.0 * k
    is_row = outer >= 0
    is_spent = ~is_row
    is_open = is_row
    is_tried = ~is_row
    bands = 0
    while any_row(is_open) & (bands < MOST_BANDS):
        bands += 1
        found, number, listed, crossings = gather(
            source, out, low, high, point, inverse, bands > 1, crossings, LISTED, COMPUTE
        )
        above, below, higher, at_point, lowest, highest = found
        # A large part of the row lies in the band: many scores may be equal.
        is_again = ~is_row
        if any_row((number * FULL > call.n) & (bands == 1) & (point != point)):
            point = sample_point(
                *(call, outer, inner, low, high, inverse),
                *(source.LARGEST, SAMPLE, RUN, source.LANES, COMPUTE),
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
            budget = k
            if CLAMP:
                budget = tl.minimum(k, finite + infinite)
            pair, crossings = solve(
                Source(
                    *(
                        None,
                        0,
                        Call(out, None, None, None, None, call.n, call.inner_count),
                        outer,
                        inner,
                        source.team,
                        source.length,
                        Band(low, high, point, at_point, above, below, higher, number, listed),
                    ),
                    *(False, True, True, 1, LISTED, source.LANES, 1, source.CHUNK_LANES),
                ),
                *(survey, budget, t, is_hard, Guess(low, low, low), None, crossings, COMPUTE),
            )
            hi, lo, above_boundary, is_spent = pair.hi, pair.lo, pair.above, pair.is_spent
            is_open = pair.missed != 0
            next_low = tl.where((pair.missed == 1) & (~is_tried), high, float("-inf"))
            high = tl.where((pair.missed == -1) & (~is_tried), low, float("inf"))
            low = next_low
            is_tried = is_row
    return Pair(hi, lo, above_boundary, is_spent, is_open), crossings


@triton.jit(do_not_specialize=["row_count"])
def long_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    READ: tl.constexpr,
    LISTED: tl.constexpr,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of rows, one program each.

    A warm start is of no use here: the sample knows more.
    """
    row = tl.zeros((1,), tl.int64) + tl.program_id(0)
    outer, inner = coordinates(call, row, row_count)
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    is_limit = t < smallest_normal(COMPUTE)
    nothing = (0 * k).to(COMPUTE)
    pair = Pair(nothing, nothing, 0 * k, k != k, k != k)
    alone = tl.zeros((), tl.int32)
    turns = 1
    if OUTPUT == "hard":  # for the threshold and for the boundary, which may be the same
        turns += any_row(~is_limit).to(tl.int32)
    for turn in range(turns):
        is_hard = is_limit | (turn > 0)
        place = sample_place(call, outer, inner, k, t, is_hard, LARGEST, SAMPLE, 1, LANES, COMPUTE)
        pair, _ = solve_row(
            Source(
                *(None, 0, call, outer, inner, None, call.n, None),
                *(False, True, LARGEST, 1, READ, LANES, 1, 1),
            ),
            *(out, place, k, t, is_hard, alone, CLAMP, LISTED, SAMPLE, 1, COMPUTE),
        )
        if turn == 0:
            store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    tl.debug_barrier()  # the mask lies where the lists were
    write_row(
        Source(
            *(None, 0, call, outer, inner, None, call.n, None),
            *(False, True, LARGEST, 1, WRITTEN, LANES, WIDTH, 1),
        ),
        *(out, k, t, pair, OUTPUT, COMPUTE),
    )

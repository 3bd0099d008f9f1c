"""The forward call on rows that are too long to hold: a sample, one reading, the band, the mask.

One program takes a row where rows are many. For a few rows each step is a launch of its own, see
shared_rows.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .band import Band
from .boundary import find_boundary
from .gather import gather
from .numbers import any_row, exponent_scale, smallest_normal
from .passes import Source, Survey, over_rows
from .sample import sample_place, sample_point
from .solve import Guess, Pair, solve
from .ties import find_cut
from .views import Call, budget_of, coordinates, temperature_of
from .write import store_pair, write_row

#: A band that is too full is read again, and one that does not hold the root is followed by all on
#: that side, and by all there is; the same for the boundary of a hard mask.
MOST_BANDS = tl.constexpr(4)
MOST_BANDS_OF_TWO = tl.constexpr(6)
#: A band is too full if it has one out of so many scores.
FULL = tl.constexpr(16)


@triton.jit
def _solve_band(
    source,
    lists,
    survey,
    k,
    t,
    is_hard,
    pair,
    written,
    cut,
    crossings,
    OUTPUT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What was not found before of a pair and of what is written, from the lists of a band."""
    guess = Guess(lists.band.low, lists.band.low, lists.band.low)
    if any_row(pair.missed != 0):
        pair, crossings = solve(lists, survey, k, t, is_hard, guess, None, crossings, COMPUTE)
    if OUTPUT == "hard":
        if any_row(pair.missed == 0):
            if any_row(is_hard):
                written = pair
            else:
                written, crossings = find_boundary(
                    lists, survey, k, t, pair, guess, crossings, COMPUTE
                )
            if source.team is not None:
                if any_row(written.missed == 0):
                    cut, crossings = find_cut(lists, source, written, k, t, crossings, COMPUTE)
    else:
        written = pair
    return pair, written, cut, crossings


@triton.jit
def solve_row(
    source,
    out,
    place,
    k,
    t,
    crossings,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    LISTED: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair of one row, of which ``source`` reads the scores, from the :class:`Place` on.

    Returned, too, are what is to be written, which is the boundary of a hard mask, and the index up
    to which scores that equal it are taken, where a team has the row.
    """
    low, high, point = place
    is_hard = t < smallest_normal(COMPUTE)
    call = source.call
    outer = source.outer
    inner = source.inner
    tiny = smallest_normal(COMPUTE)
    inverse = exponent_scale(tl.where(is_hard, tiny, t), COMPUTE)
    nothing = tl.zeros_like(low) + float("nan")
    is_row = outer >= 0
    unsolved = tl.zeros_like(low).to(tl.int32) + 2
    pair = Pair(nothing, 0 * low, 0.0 * k, 0 * low, 0 * low, ~is_row, unsolved, 0 * low)
    written = pair
    cut = tl.zeros((1,), tl.int64) + call.n
    is_open = is_row
    is_tried = ~is_row
    bands = 0
    MOST: tl.constexpr = MOST_BANDS_OF_TWO if OUTPUT == "hard" else MOST_BANDS
    while any_row(is_open) & (bands < MOST):
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
            pair, written, cut, crossings = _solve_band(
                source,
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
                *(survey, budget, t, is_hard, pair, written, cut, crossings, OUTPUT, COMPUTE),
            )
            missed = tl.where(pair.missed != 0, pair.missed, written.missed)
            is_open = missed != 0
            next_low = tl.where((missed == 1) & (~is_tried), high, float("-inf"))
            high = tl.where((missed == -1) & (~is_tried), low, float("inf"))
            low = next_low
            is_tried = is_row
    return pair, written, cut, crossings


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
    place = sample_place(call, outer, inner, k, t, OUTPUT, LARGEST, SAMPLE, 1, LANES, COMPUTE)
    pair, written, _, _ = solve_row(
        Source(
            *(None, 0, call, outer, inner, None, call.n, None),
            *(False, True, LARGEST, 1, READ, LANES, 1, 1),
        ),
        *(out, place, k, t, tl.zeros((), tl.int32), OUTPUT, CLAMP, LISTED, SAMPLE, 1, COMPUTE),
    )
    store_pair(threshold, row, pair.hi, pair.lo, row >= 0)
    tl.debug_barrier()  # the mask lies where the lists were
    write_row(
        Source(
            *(None, 0, call, outer, inner, None, call.n, None),
            *(False, True, LARGEST, 1, WRITTEN, LANES, WIDTH, 1),
        ),
        *(out, k, t, written, None, OUTPUT, COMPUTE),
    )

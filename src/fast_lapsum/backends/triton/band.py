"""A band of scores around the threshold, and what all others add to a pass over those in it.

The scores of a long row that lie beyond both ends of a band are read once: their sums are kept
relative to the nearer end, and carried over to any trial in the band by one factor each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Band(NamedTuple):
    """The ends, which belong to it, and what is known of all scores that are not in its lists."""

    low: Any
    high: Any
    point: Any  # a score of the band that many equal, which are counted, not listed; or NaN
    at_point: Any  # so many
    above: Any  # scores over the high end
    below: Any  # sum of e^{(r - low) / t} of those under the low end
    higher: Any  # sum of e^{(high - r) / t} of those over the high end
    count: Any  # scores in its lists
    parts: Any  # how long the lists are: a number, or for a team where they are by chunk


@triton.jit
def _carried(total, upper, lower, inverse):
    """A sum of decays relative to one place, as it is relative to the other."""
    # Beyond an end that is infinite there is nothing, and the distance from there is no number.
    distance = upper.to(tl.float64) - lower.to(tl.float64)
    exponent = tl.minimum(distance * -inverse.to(tl.float64), 0.0)
    if inverse.dtype == tl.float32:
        # Whole powers of two are exact, and the rest of the exponent has all its digits.
        whole = tl.floor(tl.maximum(exponent, -1000.0))
        rest = tl.exp2((exponent - whole).to(tl.float32)).to(tl.float64)
        factor = rest * ((whole.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        factor = tl.exp2(exponent)
    return tl.where(total > 0, total * factor, 0.0)


@triton.jit
def _at_point(band, b, inverse):
    """The decays of all scores at the point, rounded as those of single scores are, and the mask's.

    They are all alike: what rounding takes from one it would take from the budget.
    """
    e = tl.exp2(tl.abs(band.point - b) * -inverse).to(tl.float64)
    return tl.where(band.at_point > 0, band.at_point * e, 0.0)


@triton.jit
def with_beyond(found, band, at, KIND: tl.constexpr):
    """What a pass at b found in the lists, with what is beyond the band and at its point."""
    if KIND == "glance":
        b, inverse = at
        above, below, higher = found
        is_over = band.point > b
        is_under = band.point <= b
        near = _at_point(band, b, inverse)
        below += tl.where(is_under, near, 0.0) + _carried(band.below, b, band.low, inverse)
        higher += tl.where(is_over, near, 0.0) + _carried(band.higher, band.high, b, inverse)
        return above + band.above + tl.where(is_over, band.at_point, 0.0), below, higher
    elif KIND == "pass":
        b, inverse = at
        above, equal, below, higher, nearest_below, nearest_above = found
        has_point = band.at_point > 0
        is_over = has_point & (band.point > b)
        is_under = has_point & (band.point < b)
        near = _at_point(band, b, inverse)
        below += tl.where(is_under, near, 0.0) + _carried(band.below, b, band.low, inverse)
        higher += tl.where(is_over, near, 0.0) + _carried(band.higher, band.high, b, inverse)
        # An end counts as a score, at b too: what is beyond is as far as that, and sums are taken
        # relative to it.
        end_below = tl.where(is_under, tl.maximum(band.point, band.low), band.low)
        end_above = tl.where(is_over, tl.minimum(band.point, band.high), band.high)
        return (
            above + band.above + tl.where(is_over, band.at_point, 0.0),
            equal + tl.where(band.point == b, band.at_point, 0.0),
            below,
            higher,
            tl.maximum(nearest_below, end_below.to(tl.float64)),
            tl.minimum(nearest_above, end_above.to(tl.float64)),
        )
    elif KIND == "tails":
        lower, upper, from_lower, from_upper, inverse = at
        above, below, higher = found
        is_over = band.point >= upper
        is_under = band.point <= lower
        to_lower = _at_point(band, from_lower, inverse)
        to_upper = _at_point(band, from_upper, inverse)
        below += tl.where(is_under, to_lower, 0.0)
        higher += tl.where(is_over, to_upper, 0.0)
        below += _carried(band.below, from_lower, band.low, inverse)
        higher += _carried(band.higher, band.high, from_upper, inverse)
        return above + band.above + tl.where(is_over, band.at_point, 0.0), below, higher
    elif KIND == "counts":
        counts = ()
        for i in tl.static_range(4):
            at_point = tl.where(band.point > at[i], band.at_point, 0.0)
            counts = counts + (found[i] + band.above + at_point,)  # type: ignore[assignment]
        return counts
    else:
        tl.static_assert(KIND == "ends")
        left, right = at
        is_between = (band.at_point > 0) & (left < band.point) & (band.point <= right)
        point = band.point.to(tl.float64)
        lowest = tl.where(is_between, tl.minimum(found[0], point), found[0])
        return lowest, tl.where(is_between, tl.maximum(found[1], point), found[1])

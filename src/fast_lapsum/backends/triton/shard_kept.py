"""What is asked of a rank's rows, and what it keeps of them from one measurement to the next.

Of each row that is a band, lists of its scores by chunk and thread, what every chunk leaves of a
measurement, and bins for the quantiles of a band. The chunks' programs (shard_measure.py) and the
one that puts together what they leave (shard_finish.py) take it from here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import HOTTEST, _place_of, largest_finite, smallest_normal

#: What a program leaves of a look at a band, in float64, behind what it left of its reading.
SEEN_ABOVE = tl.constexpr(16)
SEEN_ABOVE_NEAREST = tl.constexpr(17)
SEEN_ABOVE_SUM = tl.constexpr(18)
SEEN_INSIDE = tl.constexpr(19)
SEEN_LEAST = tl.constexpr(20)
SEEN_MOST = tl.constexpr(21)
SEEN_EQUAL = tl.constexpr(22)  # to the band's low end
SEEN_FROM_LOW = tl.constexpr(23)  # sum e^{-(r - next)/t} of those above it, to the number after it
SEEN_TO_HIGH = tl.constexpr(24)  # sum e^{-(high - r)/t} of scores inside
SEEN_BELOW_NEAREST = tl.constexpr(25)
SEEN_BELOW_SUM = tl.constexpr(26)
FIELDS = tl.constexpr(32)


class Band(NamedTuple):
    """What is asked of rows, [rows] or [rows, pivots] each, in float64."""

    low: Any
    high: Any
    pivots: Any
    is_open: Any
    temperature: Any


class Kept(NamedTuple):
    """What a rank keeps of its rows between measurements."""

    bands: Any  # the one that was read last, [rows, 2]; empty before the first
    lists: Any  # scores of that band, [rows, chunks, DEPTH, LANES]
    counts: Any  # of each thread, [rows, chunks, LANES]
    partials: Any  # what programs leave, [rows, chunks, FIELDS]
    cuts: Any  # counts and sums at the cuts, [rows, chunks, 3, CUT_LANES]
    bins: Any  # how many scores of the band are in each bin, [rows, BINS]; 0 between measurements
    few: Any  # scores of the band where there are few, [rows, size], in any order
    cursor: Any  # how many those are, [rows]; 0 between measurements
    sample: Any  # nodes of the sample, [rows, size]


class Bins(NamedTuple):
    """How scores of a band are put into bins: evenly in the order of floats."""

    first: Any
    shift: Any


@triton.jit
def is_covered(kept, row, low, high):
    """Whether the band that was read last holds this one."""
    return (tl.load(kept.bands + 2 * row) <= low) & (high <= tl.load(kept.bands + 2 * row + 1))


@triton.jit
def scale_of(band, row, COMPUTE: tl.constexpr):
    """A row's temperature, 1 where it has none that can be divided by."""
    t = tl.load(band.temperature + row)
    is_usable = (t >= smallest_normal(COMPUTE)) & (t <= largest_finite(COMPUTE) / HOTTEST)
    return tl.where(is_usable, t, 1.0)


@triton.jit
def order_of(x):
    """The place of floats in their order, int64; of float64 every other one."""
    if x.dtype == tl.float64:
        return _place_of(x) >> 1
    else:
        return _place_of(x).to(tl.int64)


@triton.jit
def load_sample(kept, row, size, SIZE_LANES: tl.constexpr, COMPUTE: tl.constexpr):
    """The nodes of a row's sample, NaN behind them."""
    number = tl.arange(0, SIZE_LANES)
    place = kept.sample + row * size + number
    return tl.load(place, mask=number < size, other=float("nan")).to(COMPUTE)


@triton.jit
def bins_of(sample, low, high, BINS: tl.constexpr, COMPUTE: tl.constexpr):
    """Bins between the ends of a band, or of the sample where the band goes far beyond it."""
    limit = largest_finite(COMPUTE)
    is_finite = tl.abs(sample) < float("inf")
    least = tl.min(tl.where(is_finite, sample, float("inf")), 0)
    most = tl.max(tl.where(is_finite, sample, float("-inf")), 0)
    low = tl.maximum(low, -limit)
    high = tl.minimum(high, limit)
    bottom = tl.where((least > low) & (least < high), least, low)
    top = tl.where((most > low) & (most < high), most, high)
    first = order_of(bottom)
    width = tl.maximum(order_of(top) - first, 0)
    shift = tl.zeros((), tl.int64)
    while (width >> shift) >= BINS:
        shift += 1
    return Bins(first, shift)

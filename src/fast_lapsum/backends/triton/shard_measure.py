"""A rank's measurement of its part of rows, chunk by chunk: see backends/shards.py.

A band that lies in the one that was read last is measured from its lists, any other by a reading.
Where a chunk's lists are too short for its band, the chunk is read in every pass over the band.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import HOTTEST, _place_of, exponent_scale, largest_finite, smallest_normal
from .shard_read import Chunk, count_of, decay, read_chunk, read_quickly, scores_at
from .views import coordinates

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
#: Parts of a list that are loaded at a time.
BATCH = tl.constexpr(8)
#: Sums relative to a band's end have all digits if the nearest score weighs so much there.
NEAR = tl.constexpr(2.0**-8)
#: Mass that is farther away than that, 3 temperatures on the average, is added up in float64.
FAR = tl.constexpr(4.328085122666891)


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


@triton.jit
def _is_far(sample, low, high, inverse):
    """Whether the mass outside of a band is many temperatures away, by the sample."""
    is_finite = tl.abs(sample) < float("inf")
    beyond = tl.maximum(tl.maximum(low - sample, sample - high), 0.0)
    v = tl.where(is_finite, beyond * inverse, float("inf"))
    least = tl.min(v, 0)
    e = tl.where(v < float("inf"), tl.exp2(least - v), 0.0)
    return tl.sum(tl.where(e > 0, v * e, 0.0), 0) > tl.sum(e, 0) * FAR


@triton.jit
def _entries(
    chunk,
    part,
    parts,
    count,
    is_listed,
    kept_low,
    kept_high,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A part of a chunk's scores in the band that was read, [LANES], and NaN: listed, or read.

    There are so many ``parts``, and NaN behind them.
    """
    lane = tl.arange(0, LANES)
    if is_listed:
        # NaN by the load itself: nothing waits for one before the next is on its way.
        place = chunk.lists + (part * LANES + lane)
        x = tl.load(place, mask=part < count, other=float("nan"))
    else:
        tile = (tl.zeros((), tl.int64) + chunk.chunk) + part // READ * chunk.chunks
        index = tile * (READ * LANES) + (part % READ * LANES + lane)
        x = scores_at(
            *(chunk.call, chunk.outer, chunk.inner, index, (index < chunk.call.n) & (part < parts)),
            *(LARGEST, COMPUTE),
        )
        x = tl.where((x >= kept_low) & (x < kept_high), x, float("nan"))
    return x


@triton.jit
def _batch(
    chunk,
    part,
    parts,
    count,
    is_listed,
    kept_low,
    kept_high,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    BATCH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """BATCH parts of a chunk's entries, NaN behind the last: memory is waited for once."""
    x = ()
    for i in tl.static_range(BATCH):
        x = x + (  # type: ignore[assignment]
            _entries(
                *(chunk, part + i, parts, count, is_listed, kept_low, kept_high),
                *(LARGEST, READ, LANES, COMPUTE),
            ),
        )
    return x


@triton.jit
def _put_into_bins(
    chunk,
    bins,
    kept,
    row,
    low,
    high,
    count,
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    BINS: tl.constexpr,
):
    """Count the listed scores of a band by bins: all of them, or those that the lists hold."""
    lane = tl.arange(0, LANES)
    listed = tl.minimum(count, DEPTH)
    for first in range(0, tl.max(listed, 0), BATCH):
        x = ()
        for i in tl.static_range(BATCH):
            place = chunk.lists + ((first + i) * LANES + lane)
            one = tl.load(place, mask=first + i < listed, other=float("nan"))
            x = x + (one,)  # type: ignore[assignment]
        for i in tl.static_range(BATCH):
            is_inside = (x[i] >= low) & (x[i] < high)
            number = tl.maximum((order_of(x[i]) - bins.first) >> bins.shift, 0)
            place = kept.bins + row * BINS + tl.minimum(number, BINS - 1)
            tl.atomic_add(place, 1, mask=is_inside, sem="relaxed")


@triton.jit
def _at_cuts(
    chunk,
    pivots,
    to,
    pivot_count,
    parts,
    count,
    is_listed,
    kept_low,
    kept_high,
    inverse,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Counts from each pivot on, and the sums on both sides of it."""
    number = tl.arange(0, CUT_LANES)
    counts = tl.zeros((CUT_LANES,), tl.float64)
    above = counts
    below = counts
    for part in range(parts):
        x = _entries(
            *(chunk, part, parts, count, is_listed, kept_low, kept_high, LARGEST, READ, LANES),
            COMPUTE,
        )
        for pivot in range(3, pivot_count):
            at = tl.load(pivots + pivot).to(COMPUTE)
            e = decay(x, at, inverse).to(tl.float64)
            is_above = x >= at
            is_here = number == pivot
            counts += tl.where(is_here, count_of(is_above), 0.0)
            above += tl.where(is_here, tl.sum(tl.where(is_above, e, 0.0), 0), 0.0)
            below += tl.where(is_here, tl.sum(tl.where(x < at, e, 0.0), 0), 0.0)
    tl.store(to + number, counts)
    tl.store(to + (CUT_LANES + number), above)
    tl.store(to + (2 * CUT_LANES + number), below)


@triton.jit
def _look(
    chunk,
    band,
    kept,
    row,
    size,
    low,
    after,
    high,
    kept_low,
    kept_high,
    is_one,
    inverse,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Measure a chunk at a part [low, high) of the band that was read, and leave what is found.

    ``after`` is the number next to low. Returned are how many parts the entries of the chunk have,
    the lists' lengths, and whether they hold all.
    """
    lane = tl.arange(0, LANES)
    count = tl.load(chunk.counts + lane)
    deepest = tl.max(count, 0)
    is_listed = deepest <= DEPTH
    tiles = ((tl.zeros((), tl.int64) + chunk.call.n + (READ * LANES - 1)) // (READ * LANES)).to(
        tl.int32
    )
    own = (tiles - chunk.chunk + (chunk.chunks - 1)) // chunk.chunks
    parts = tl.where(is_listed, deepest, own * READ)
    parts = tl.where(is_one, 0, parts)  # scores that are all one number need no list
    # Few enough scores of wide numbers at a time leave room for all that is added up.
    SEVERAL: tl.constexpr = BATCH if inverse.dtype == tl.float32 else 2
    none = tl.zeros((LANES,), tl.int32)
    end = tl.full((LANES,), float("inf"), COMPUTE)
    nothing = tl.zeros((LANES,), tl.float64)
    above, inside, equal, up, down, least, most = none, none, none, end, -end, end, -end
    sum_above, sum_below, from_low, to_high = nothing, nothing, nothing, nothing
    for part in range(0, parts, SEVERAL):
        r = _batch(
            *(chunk, part, parts, count, is_listed, kept_low, kept_high),
            *(LARGEST, READ, LANES, SEVERAL, COMPUTE),
        )
        for i in tl.static_range(SEVERAL):
            x = r[i]
            is_above, is_below, is_inside = x >= high, x < low, (x >= low) & (x < high)
            above += is_above.to(tl.int32)
            inside += is_inside.to(tl.int32)
            equal += (x == low).to(tl.int32)
            up = tl.minimum(up, tl.where(is_above, x, float("inf")))
            down = tl.maximum(down, tl.where(is_below, x, float("-inf")))
            least = tl.minimum(least, tl.where(is_inside, x, float("inf")))
            most = tl.maximum(most, tl.where(is_inside, x, float("-inf")))
            from_high = decay(x, high, inverse).to(tl.float64)
            e = decay(x, tl.where(is_below, low, after), inverse).to(tl.float64)
            sum_above += tl.where(is_above, from_high, 0.0)
            to_high += tl.where(is_inside, from_high, 0.0)
            sum_below += tl.where(is_below, e, 0.0)
            from_low += tl.where(is_inside & (x > low), e, 0.0)
    near_above, near_below = tl.min(up, 0), tl.max(down, 0)
    # Sums are relative to the band's ends, unless the nearest scores are so far that digits are
    # lost: then relative to those, which are known by now.
    up_gap = tl.where(near_above < float("inf"), decay(near_above, high, inverse), 1.0)
    down_gap = tl.where(near_below > float("-inf"), decay(near_below, low, inverse), 1.0)
    if (up_gap >= NEAR) & (down_gap >= NEAR):
        near_above = tl.where(near_above < float("inf"), high, near_above)
        near_below = tl.where(near_below > float("-inf"), low, near_below)
    else:
        sum_above, sum_below = nothing, nothing
        for part in range(parts):
            x = _entries(
                *(chunk, part, parts, count, is_listed, kept_low, kept_high, LARGEST, READ, LANES),
                COMPUTE,
            )
            is_above, is_below = x >= high, x < low
            e = decay(x, tl.where(is_above, near_above, near_below), inverse).to(tl.float64)
            sum_above += tl.where(is_above, e, 0.0)
            sum_below += tl.where(is_below, e, 0.0)
    number = count_of(inside)
    if (number > 0) & (number <= size):
        for part in range(0, parts, SEVERAL):
            r = _batch(
                *(chunk, part, parts, count, is_listed, kept_low, kept_high),
                *(LARGEST, READ, LANES, SEVERAL, COMPUTE),
            )
            for i in tl.static_range(SEVERAL):
                x = r[i]
                taken = (x >= low) & (x < high)
                slot = tl.atomic_add(kept.cursor + row + 0 * lane, 1, mask=taken, sem="relaxed")
                place = kept.few + row * size + slot
                tl.store(place, x, mask=taken & (slot < size))
    to = chunk.partial
    tl.store(to + SEEN_ABOVE, count_of(above))
    tl.store(to + SEEN_ABOVE_NEAREST, near_above.to(tl.float64))
    tl.store(to + SEEN_ABOVE_SUM, tl.sum(sum_above, 0))
    tl.store(to + SEEN_INSIDE, number)
    tl.store(to + SEEN_LEAST, tl.min(least, 0).to(tl.float64))
    tl.store(to + SEEN_MOST, tl.max(most, 0).to(tl.float64))
    tl.store(to + SEEN_EQUAL, count_of(equal))
    tl.store(to + SEEN_FROM_LOW, tl.sum(from_low, 0))
    tl.store(to + SEEN_TO_HIGH, tl.sum(to_high, 0))
    tl.store(to + SEEN_BELOW_NEAREST, near_below.to(tl.float64))
    tl.store(to + SEEN_BELOW_SUM, tl.sum(sum_below, 0))
    return parts, count, is_listed


@triton.jit
def _measure(
    chunk,
    band,
    kept,
    row,
    size,
    pivot_count,
    with_cuts,
    low,
    after,
    high,
    inverse,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    CUT_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A chunk's part of a measurement, of which the band is read, or holds this one.

    Exponentials are taken in the dtype of ``inverse``.
    """
    kept_low, kept_high = low, high
    if is_covered(kept, row, tl.load(band.low + row), tl.load(band.high + row)):
        limit = largest_finite(COMPUTE)
        kept_low = tl.maximum(tl.load(kept.bands + 2 * row).to(COMPUTE), -limit)
        kept_high = tl.load(kept.bands + 2 * row + 1).to(COMPUTE)
    # What was read is one number where it is no wider than what is asked for.
    is_one = (kept_low == low) & (kept_high <= after)
    parts, count, is_listed = _look(
        *(chunk, band, kept, row, size, low, after, high, kept_low, kept_high, is_one, inverse),
        *(LARGEST, READ, LANES, DEPTH, COMPUTE),
    )
    if with_cuts > 0:
        program = row * chunk.chunks + chunk.chunk
        _at_cuts(
            *(chunk, band.pivots + row * pivot_count, kept.cuts + program * (3 * CUT_LANES)),
            *(pivot_count, parts, count, is_listed, kept_low, kept_high, inverse),
            *(LARGEST, READ, LANES, CUT_LANES, COMPUTE),
        )
    return is_one


@triton.jit(do_not_specialize=["row_count", "chunks", "size", "pivot_count", "with_cuts"])
def measure_chunks(
    call,
    row_count,
    band,
    kept,
    chunks,
    size,
    pivot_count,
    with_cuts,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    BINS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What the chunks of all open rows leave for :func:`finish_rows`."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    if tl.load(band.is_open + row) != 0:
        number = tl.program_id(0) % chunks
        program = row * chunks + number
        outer, inner = coordinates(call, row, row_count)
        chunk = Chunk(
            *(call, outer, inner, number, chunks, kept.lists + program * (DEPTH * LANES)),
            *(kept.counts + program * LANES, kept.partials + program * FIELDS),
        )
        low = tl.maximum(tl.load(band.low + row).to(COMPUTE), -largest_finite(COMPUTE))
        high = tl.load(band.high + row).to(COMPUTE)
        after = tl.load(band.pivots + row * pivot_count + 1).to(COMPUTE)
        t = scale_of(band, row, COMPUTE)
        sample = load_sample(kept, row, size, SIZE_LANES, COMPUTE)
        inverse = exponent_scale(t, COMPUTE)
        wide = exponent_scale(t, tl.float64)
        counts_only = tl.load(band.temperature + row) < smallest_normal(COMPUTE)
        is_far = low != low
        if COMPUTE == tl.float32:
            is_far = _is_far(sample, low, high, inverse) & ~counts_only
        if not is_covered(kept, row, tl.load(band.low + row), tl.load(band.high + row)):
            # A band of one number needs no lists.
            keeps, reads = high > after, is_far
            if not is_far:
                has_left_out = tl.max((sample == float("-inf")).to(tl.int32), 0) > 0
                reads = read_quickly(
                    *(chunk, low, high, inverse, keeps, counts_only, has_left_out),
                    *(LARGEST, READ, LANES, DEPTH, COMPUTE),
                )
            if reads:
                tl.debug_barrier()
                read_chunk(*(chunk, low, high, wide, keeps, LARGEST, READ, LANES, DEPTH, COMPUTE))
            tl.debug_barrier()
        if COMPUTE == tl.float64:
            is_one = _measure(
                *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high, inverse),
                *(LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
            )
        else:
            if is_far:
                is_one = _measure(
                    *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high, wide),
                    *(LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
                )
            else:
                is_one = _measure(
                    *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high),
                    *(inverse, LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
                )
        if not is_one:
            bins = bins_of(sample, low, high, BINS, COMPUTE)
            count = tl.load(chunk.counts + tl.arange(0, LANES))
            _put_into_bins(chunk, bins, kept, row, low, high, count, DEPTH, LANES, BINS)

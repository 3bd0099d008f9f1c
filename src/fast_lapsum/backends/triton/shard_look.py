"""One look of a chunk's program at a band within the one that was read: at lists, or by reading.

Counts, nearest scores and sums on both sides of its ends, the scores inside where they are few,
counts by bins, and masses at pivots: what shard_finish.py puts together for all chunks of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .shard_kept import (
    SEEN_ABOVE,
    SEEN_ABOVE_NEAREST,
    SEEN_ABOVE_SUM,
    SEEN_BELOW_NEAREST,
    SEEN_BELOW_SUM,
    SEEN_EQUAL,
    SEEN_FROM_LOW,
    SEEN_INSIDE,
    SEEN_LEAST,
    SEEN_MOST,
    SEEN_TO_HIGH,
    order_of,
)
from .shard_read import count_of, decay, scores_at

#: Parts of a list that are loaded at a time.
BATCH = tl.constexpr(8)
#: Sums relative to a band's end have all digits if the nearest score weighs so much there.
NEAR = tl.constexpr(2.0**-8)


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

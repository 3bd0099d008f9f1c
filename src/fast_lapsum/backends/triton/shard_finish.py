"""A rank's measurement of its part of rows, put together from what its chunks have left.

Sums of chunks are added in one order, and what is counted is whole: the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import shard_read as read
from .numbers import _float_at, largest_finite
from .shard_kept import (
    FIELDS,
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
    bins_of,
    is_covered,
    load_sample,
    order_of,
    scale_of,
)
from .shard_read import decay, moved
from .team import await_last, begin_next

ABOVE, ABOVE_NEAREST, ABOVE_SUM = read.ABOVE, read.ABOVE_NEAREST, read.ABOVE_SUM
BELOW_NEAREST, BELOW_SUM, INSIDE = read.BELOW_NEAREST, read.BELOW_SUM, read.INSIDE
HIGHEST, INFINITE, LOWEST = read.HIGHEST, read.INFINITE, read.LOWEST
NANS, VALID = read.NANS, read.VALID
#: Columns of a measurement: see backends/shards.py. Those before the band's are the reading's.
COLUMNS = tl.constexpr(11)


@triton.jit
def _field(partials, field, chunks, nothing, CHUNK_LANES: tl.constexpr):
    """What every chunk has left in a field."""
    number = tl.arange(0, CHUNK_LANES)
    return tl.load(partials + number * FIELDS + field, mask=number < chunks, other=nothing)


@triton.jit
def _add_two(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _nearer(a0, a1, a2, a3, b0, b1, b2, b3):
    least = tl.minimum(a0, b0), tl.minimum(a1, b1)
    return least[0], least[1], tl.maximum(a2, b2), tl.maximum(a3, b3)


@triton.jit
def _add_sides(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _sums(partials, FIVE: tl.constexpr, chunks, CHUNK_LANES: tl.constexpr):
    """Sums of five fields: threads meet once for all of them."""
    return tl.reduce(
        (
            _field(partials, FIVE[0], chunks, 0.0, CHUNK_LANES),
            _field(partials, FIVE[1], chunks, 0.0, CHUNK_LANES),
            _field(partials, FIVE[2], chunks, 0.0, CHUNK_LANES),
            _field(partials, FIVE[3], chunks, 0.0, CHUNK_LANES),
            _field(partials, FIVE[4], chunks, 0.0, CHUNK_LANES),
        ),
        0,
        _add_two,
    )


@triton.jit
def _ends(partials, LEAST: tl.constexpr, MOST: tl.constexpr, chunks, CHUNK_LANES: tl.constexpr):
    """The least of two fields, and the greatest of two."""
    end = float("inf")
    return tl.reduce(
        (
            _field(partials, LEAST[0], chunks, end, CHUNK_LANES),
            _field(partials, LEAST[1], chunks, end, CHUNK_LANES),
            _field(partials, MOST[0], chunks, -end, CHUNK_LANES),
            _field(partials, MOST[1], chunks, -end, CHUNK_LANES),
        ),
        0,
        _nearer,
    )


@triton.jit
def _relative(partials, nearest, sums, chunks, best, end, inverse, CHUNK_LANES: tl.constexpr):
    """Sums of a side, relative to the nearest score of all chunks."""
    scores = _field(partials, nearest, chunks, end, CHUNK_LANES)
    return moved(_field(partials, sums, chunks, 0.0, CHUNK_LANES), scores, best, inverse)


@triton.jit
def _sides(partials, chunks, inverse, CHUNK_LANES: tl.constexpr):
    """What is outside of the band that was read, and what of it is outside of this one.

    The nearest scores and the sums relative to them.
    """
    end = float("inf")
    far_above, up, far_below, down = _ends(
        *(partials, (ABOVE_NEAREST, SEEN_ABOVE_NEAREST), (BELOW_NEAREST, SEEN_BELOW_NEAREST)),
        *(chunks, CHUNK_LANES),
    )
    far_above_sum, sum_above, far_below_sum, sum_below = tl.reduce(
        (
            _relative(
                partials, ABOVE_NEAREST, ABOVE_SUM, chunks, far_above, end, inverse, CHUNK_LANES
            ),
            _relative(
                partials, SEEN_ABOVE_NEAREST, SEEN_ABOVE_SUM, chunks, up, end, inverse, CHUNK_LANES
            ),
            _relative(
                partials, BELOW_NEAREST, BELOW_SUM, chunks, far_below, -end, inverse, CHUNK_LANES
            ),
            _relative(
                partials,
                SEEN_BELOW_NEAREST,
                SEEN_BELOW_SUM,
                chunks,
                down,
                -end,
                inverse,
                CHUNK_LANES,
            ),
        ),
        0,
        _add_sides,
    )
    above = (far_above, far_above_sum, up, sum_above)
    return above, (far_below, far_below_sum, down, sum_below)


@triton.jit
def _joined(inner, inner_sum, outer, outer_sum, inverse):
    """Two sums of one side, of which the first has the nearer scores if it has any."""
    has_inner = tl.abs(inner) < float("inf")
    nearest = tl.where(has_inner, inner, outer)
    return nearest, inner_sum + at(nearest, outer, outer_sum, inverse)


@triton.jit
def at(place, nearest, total, inverse):
    """What a sum relative to the nearest score is at another place."""
    return tl.where(total > 0, total * decay(place, nearest, inverse), 0.0)


@triton.jit
def _quantiles(
    bins,
    cumulative,
    inside,
    least,
    most,
    size,
    BINS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Scores, or numbers next to them, that stand for all of a band, descending.

    ``cumulative`` is how many there are in the first bins, from the highest on. In a bin they are
    taken to lie evenly. The first and the last are scores: nothing lies beyond.
    """
    number = tl.arange(0, SIZE_LANES)
    listed = tl.load(cumulative + (BINS - 1))
    target = number.to(tl.float64) * (listed - 1) / (size - 1)
    target = tl.minimum(target.to(tl.int64), tl.maximum(listed - 1, 0))
    place = tl.zeros((SIZE_LANES,), tl.int32)
    STEP: tl.constexpr = BINS // 2
    step = tl.zeros((), tl.int32) + STEP
    while step > 0:
        place += tl.where(tl.load(cumulative + (place + step - 1)) <= target, step, 0)
        step = step // 2
    before = tl.load(cumulative + tl.maximum(place - 1, 0))
    before = tl.where(place > 0, before, 0)
    here = tl.maximum(tl.load(cumulative + place) - before, 1)
    of_bin = (BINS - 1 - place).to(tl.int64)
    bottom = bins.first + (of_bin << bins.shift)
    top = bottom + (tl.zeros((), tl.int64) + 1 << bins.shift)
    # What is beyond the ends of the bins is in the first and the last of them.
    bottom = tl.where(of_bin == 0, tl.minimum(bottom, order_of(least)), bottom)
    top = tl.where(of_bin == BINS - 1, tl.maximum(top, order_of(most)), top)
    part = ((target - before).to(tl.float64) + 0.5) / here.to(tl.float64)
    order = top - (part * (top - bottom).to(tl.float64)).to(tl.int64)
    order = tl.minimum(tl.maximum(order, order_of(least)), order_of(most))
    if COMPUTE == tl.float64:
        value = _float_at(order * 2, COMPUTE)
    else:
        value = _float_at(order.to(tl.int32), COMPUTE)
    value = tl.minimum(tl.maximum(value, least), most)
    value = tl.where(number == 0, most, value)
    return tl.where(number == size - 1, least, value)


@triton.jit
def _accumulate(bins, BINS: tl.constexpr):
    """Counts of bins as those of the first ones, from the highest on, in their place."""
    number = tl.arange(0, BINS)
    counts = tl.load(bins + (BINS - 1 - number))
    tl.debug_barrier()
    tl.store(bins + number, tl.cumsum(counts, 0))
    tl.debug_barrier()


@triton.jit(do_not_specialize=["chunks", "size", "pivot_count", "with_cuts"])
def finish_rows(
    band,
    kept,
    columns,
    nodes,
    chunks,
    size,
    pivot_count,
    with_cuts,
    BINS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Columns and nodes of all open rows; nothing of the others, of which nobody asks."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    if tl.load(band.is_open + row) != 0:
        low, high = tl.load(band.low + row), tl.load(band.high + row)
        after = tl.load(band.pivots + row * pivot_count + 1)
        inverse = 1.4426950408889634 / scale_of(band, row, COMPUTE)
        partials = kept.partials + row * chunks * FIELDS
        if not is_covered(kept, row, low, high):
            tl.debug_barrier()
            tl.store(kept.bands + 2 * row, low)
            tl.store(kept.bands + 2 * row + 1, high)
            tl.debug_barrier()
        kept_low, kept_high = tl.load(kept.bands + 2 * row), tl.load(kept.bands + 2 * row + 1)
        is_one = (kept_low == low) & (kept_high <= after)
        to = columns + row * (COLUMNS + 2 * pivot_count)
        of_above, of_below = _sides(partials, chunks, inverse, CHUNK_LANES)
        far_above, far_above_sum, up, sum_above = of_above
        far_below, far_below_sum, down, sum_below = of_below
        up, sum_above = _joined(up, sum_above, far_above, far_above_sum, inverse)
        down, sum_below = _joined(down, sum_below, far_below, far_below_sum, inverse)
        nans, infinite, valid, beyond, read_inside = _sums(
            partials, (NANS, INFINITE, VALID, ABOVE, INSIDE), chunks, CHUNK_LANES
        )
        above, inside, equal, from_low, to_high = _sums(
            *(partials, (SEEN_ABOVE, SEEN_INSIDE, SEEN_EQUAL, SEEN_FROM_LOW, SEEN_TO_HIGH)),
            *(chunks, CHUNK_LANES),
        )
        lowest, least, highest, most = _ends(
            partials, (LOWEST, SEEN_LEAST), (HIGHEST, SEEN_MOST), chunks, CHUNK_LANES
        )
        above += beyond
        inside = tl.where(is_one, read_inside, inside)
        equal = tl.where(is_one, read_inside, equal)
        to_high = tl.where(is_one, at(high, low, read_inside, inverse), to_high)
        tl.store(to + 0, nans)
        tl.store(to + 1, infinite)
        tl.store(to + 2, valid)
        tl.store(to + 3, lowest)
        tl.store(to + 4, highest)
        tl.store(to + 5, above)
        tl.store(to + 6, up)
        tl.store(to + 7, sum_above)
        tl.store(to + 8, inside)
        tl.store(to + 9, down)
        tl.store(to + 10, sum_below)
        # Counts and half masses at the ends of the band, and at the number after the low one.
        counts, halves = to + COLUMNS, to + (COLUMNS + pivot_count)
        of_low = at(low, up, sum_above, inverse) + (equal + at(low, after, from_low, inverse))
        tl.store(counts, above + inside)
        tl.store(halves, (at(low, down, sum_below, inverse) - of_low) / 2)
        of_after = at(after, down, sum_below, inverse) + at(after, low, equal, inverse)
        tl.store(counts + 1, above + inside - equal)
        tl.store(halves + 1, (of_after - (from_low + at(after, up, sum_above, inverse))) / 2)
        of_high = at(high, down, sum_below, inverse) + to_high
        tl.store(counts + 2, above)
        tl.store(halves + 2, (of_high - at(high, up, sum_above, inverse)) / 2)
        # Those at the cuts are known where all scores around are at hand, and were looked for.
        number = tl.arange(0, CUT_LANES)
        is_cut = (number >= 3) & (number < pivot_count)
        cut = tl.load(band.pivots + row * pivot_count + number, mask=is_cut, other=0.0)
        is_known = (kept_low <= cut) & (cut <= kept_high) & (with_cuts > 0) & ~is_one
        cut_count = tl.zeros((CUT_LANES,), tl.float64)
        cut_above = cut_count
        cut_below = cut_count
        if with_cuts > 0:
            for chunk in range(chunks):
                place = kept.cuts + (row * chunks + chunk) * (3 * CUT_LANES) + number
                cut_count += tl.load(place)
                cut_above += tl.load(place + CUT_LANES)
                cut_below += tl.load(place + 2 * CUT_LANES)
        cut_above += at(cut, far_above, far_above_sum, inverse)
        cut_below += at(cut, far_below, far_below_sum, inverse)
        unknown = float("nan")
        tl.store(counts + number, tl.where(is_known, beyond + cut_count, unknown), mask=is_cut)
        half = tl.where(is_known, (cut_below - cut_above) / 2, unknown)
        tl.store(halves + number, half, mask=is_cut)
        # The nodes: all scores inside, or numbers that stand for them.
        place = tl.arange(0, SIZE_LANES)
        is_node = place < size
        value = tl.load(kept.few + row * size + place, mask=is_node & (place < inside), other=0.0)
        value = tl.where((place < inside) & ~is_one, value, float("nan"))
        if (inside > size) & (not is_one):
            sample = load_sample(kept, row, size, SIZE_LANES, COMPUTE)
            low_finite = tl.maximum(low.to(COMPUTE), -largest_finite(COMPUTE))
            bins = bins_of(sample, low_finite, high.to(COMPUTE), BINS, COMPUTE)
            own = kept.bins + row * BINS
            _accumulate(own, BINS)
            value = _quantiles(
                *(bins, own, inside, least.to(COMPUTE), most.to(COMPUTE), size),
                *(BINS, SIZE_LANES, COMPUTE),
            )
            tl.debug_barrier()
        tl.store(nodes + row * size + place, value.to(nodes.dtype.element_ty), mask=is_node)
        tl.store(kept.cursor + row, 0)
        tl.store(kept.bins + row * BINS + tl.arange(0, BINS), tl.zeros((BINS,), tl.int32))

"""One reading of many tensors: of each part what is beyond the band, and the scores that lie in it.

    summarise_many   a part: its summary, and lists of its scores in the band
    compact_many     all lists as one vector

As in gather.py, every thread moves the scores that it finds in the band to its own first places of
the part, in the memory of the result, which is written last; no thread asks another. Lists are as
long as the longest, and filled up with -inf, so that they can be told apart where they are joined.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .many import (
    HIGH,
    LOW,
    OUT,
    OUT_DTYPE,
    POINT,
    added,
    load_part,
    part_of,
    read,
    scores_of,
    store_part,
)
from .numbers import any_row, exponent_scale, largest_finite, smallest_normal
from .team import await_last, begin_next
from .views import temperature_of


@triton.jit
def _take(
    out,
    out_kind,
    first,
    r,
    inside,
    seen,
    next_place,
    low,
    high,
    point,
    inverse,
    HAS_POINT: tl.constexpr,
    LANES: tl.constexpr,
    OUT_KINDS: tl.constexpr,
):
    """One more score of every thread: what was seen with it, and where its list goes on."""
    above, sum_below, sum_above, at_point, lowest, highest = seen
    e = tl.exp2(tl.maximum(low - r, r - high) * -inverse)
    is_above = r > high
    is_below = ~(r >= low)  # so is NaN, which then makes the sum NaN
    is_listed = ~(is_above | is_below)
    if HAS_POINT:
        is_point = r == point
        is_listed = is_listed & (~is_point)
        at_point += is_point.to(tl.int32)
    sum_below += tl.where(is_below, e, 0.0)
    sum_above += tl.where(is_above, e, 0.0)
    above += is_above.to(tl.int32)
    lowest = tl.minimum(lowest, r if inside is None else tl.where(inside, r, float("inf")))
    highest = tl.maximum(highest, r)
    # Not so, but it keeps every lane in its thread; single scores are stored all the same.
    place = tl.max_contiguous(first + next_place, LANES)
    store_part(out, out_kind, place, is_listed, r, OUT_KINDS)
    next_place += tl.where(is_listed, LANES, 0)
    return (above, sum_below, sum_above, at_point, lowest, highest), next_place


@triton.jit
def _begin_sums(total):
    """What was seen so far, with sums that begin anew: they go into float64 block by block."""
    above, _, _, at_point, lowest, highest = total
    none = tl.zeros_like(lowest)
    return (above, none, none, at_point, lowest, highest)


@triton.jit
def _end_sums(total, seen):
    _, below, higher, _, _, _ = total
    above, sum_below, sum_above, at_point, lowest, highest = seen
    below += sum_below.to(tl.float64)
    higher += sum_above.to(tl.float64)
    return (above, below, higher, at_point, lowest, highest)


@triton.jit
def _count_odd(
    scores,
    first,
    n,
    low,
    inverse,
    LANES: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Of a part with scores that are not finite: how many there are of each kind, the ends of those
    that are, and the sum below the band, to which NaN adds nothing.
    """
    infinite = tl.zeros((LANES,), tl.int32)
    nans = infinite
    excluded = infinite
    below = infinite.to(tl.float64)
    lowest = tl.full((LANES,), float("inf"), COMPUTE)
    highest = -lowest
    for start in range(0, n, LANES):
        index = start + tl.arange(0, LANES)
        inside = index < n
        r = read(scores, first + index, inside, LARGEST, KINDS, COMPUTE)
        infinite += (r == float("inf")).to(tl.int32)
        nans += (r != r).to(tl.int32)
        excluded += (inside & (r == float("-inf"))).to(tl.int32)
        is_finite = tl.abs(r) < float("inf")
        lowest = tl.minimum(lowest, tl.where(is_finite, r, float("inf")))
        highest = tl.maximum(highest, tl.where(is_finite, r, float("-inf")))
        below += tl.where(r < low, tl.exp2((low - r) * -inverse), 0.0).to(tl.float64)
    counts = (tl.sum(infinite, 0), tl.sum(nans, 0), tl.sum(excluded, 0))
    return counts, tl.min(lowest, 0), tl.max(highest, 0), tl.sum(below, 0)


@triton.jit
def _read_part(
    scores,
    out,
    out_kind,
    first,
    n,
    low,
    high,
    point,
    inverse,
    HAS_POINT: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What every thread has seen of a part, and where its list would go on."""
    lane = tl.arange(0, LANES)
    next_place = lane
    none = tl.zeros((LANES,), tl.int32)
    ends = tl.full((LANES,), float("inf"), COMPUTE)
    total = (none, none.to(tl.float64), none.to(tl.float64), none, ends, -ends)
    BLOCK: tl.constexpr = REPEATS * LANES
    whole = n // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        r = ()
        for i in tl.static_range(REPEATS):
            index = first + (start + i * LANES + lane)
            r = r + (read(scores, index, None, LARGEST, KINDS, COMPUTE),)  # type: ignore[assignment]
        seen = _begin_sums(total)
        for i in tl.static_range(REPEATS):
            seen, next_place = _take(
                *(out, out_kind, first, r[i], None, seen, next_place),
                *(low, high, point, inverse, HAS_POINT, LANES, OUT_KINDS),
            )
        total = _end_sums(total, seen)
    for start in range(whole, n, LANES):
        index = start + lane
        inside = index < n
        r = read(scores, first + index, inside, LARGEST, KINDS, COMPUTE)
        seen, next_place = _take(
            *(out, out_kind, first, r, inside, _begin_sums(total), next_place),
            *(low, high, point, inverse, HAS_POINT, LANES, OUT_KINDS),
        )
        total = _end_sums(total, seen)
    return total, next_place


@triton.jit(do_not_specialize=["count"])
def summarise_many(
    call,
    table,
    count,
    state,
    summaries,
    PART: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The summary of a part, and lists of its scores in the band at its places in the result."""
    begin_next(OVERLAP)
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    n = n.to(tl.int32)
    scores = scores_of(row)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    t = tl.maximum(temperature_of(call, zero, zero), smallest_normal(COMPUTE))
    inverse = exponent_scale(t, COMPUTE)
    limit = largest_finite(COMPUTE)
    # Scores of -inf take no part, and those of +inf are above any band.
    low = tl.maximum(tl.load(state + LOW + zero).to(COMPUTE), -limit)
    high = tl.minimum(tl.load(state + HIGH + zero).to(COMPUTE), limit)
    point = tl.load(state + POINT + zero).to(COMPUTE)
    if any_row(point < float("inf")):
        total, next_place = _read_part(
            *(scores, out, out_kind, first, n, low, high, point, inverse),
            *(True, REPEATS, LANES, LARGEST, KINDS, OUT_KINDS, COMPUTE),
        )
    else:
        total, next_place = _read_part(
            *(scores, out, out_kind, first, n, low, high, point, inverse),
            *(False, REPEATS, LANES, LARGEST, KINDS, OUT_KINDS, COMPUTE),
        )
    lane = tl.arange(0, LANES)
    lengths = (next_place - lane) // LANES
    longest = tl.max(lengths, 0)
    for i in range(longest):
        index = i * LANES + lane
        nothing = tl.full((LANES,), float("-inf"), COMPUTE)
        is_free = (index < n) & (lengths <= i)
        store_part(out, out_kind, first + index, is_free, nothing, OUT_KINDS)
    above, of_below, of_above, at_point, ends_low, ends_high = total
    below = tl.sum(of_below, 0)
    lowest = tl.min(ends_low, 0)
    highest = tl.max(ends_high, 0)
    counts = (longest * 0, longest * 0, longest * 0)
    if (lowest == float("-inf")) | (highest == float("inf")) | (below != below):
        counts, lowest, highest, below = _count_odd(
            scores, first, n, low, inverse, LANES, LARGEST, KINDS, COMPUTE
        )
    to = summaries + part  # field by field: neighbouring parts are neighbours
    parts = tl.num_programs(0).to(tl.int64)
    tl.store(to, tl.sum(above, 0).to(tl.float64))
    tl.store(to + 1 * parts, below)
    tl.store(to + 2 * parts, tl.sum(of_above, 0))
    tl.store(to + 3 * parts, tl.sum(lengths, 0).to(tl.float64))
    tl.store(to + 4 * parts, lowest.to(tl.float64))
    tl.store(to + 5 * parts, highest.to(tl.float64))
    for i in tl.static_range(3):
        tl.store(to + (6 + i) * parts, counts[i].to(tl.float64))
    tl.store(to + 9 * parts, longest.to(tl.float64))
    tl.store(to + 10 * parts, tl.sum(at_point, 0).to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def compact_many(
    table,
    count,
    summaries,
    band,
    room,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The scores of a part that are in the band, after those of all parts before it."""
    begin_next(OVERLAP)
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    await_last(OVERLAP)
    parts = tl.num_programs(0).to(tl.int64)
    written = tl.sum(added(summaries, parts, part, 3, "sum"), 0).to(tl.int64)
    longest = tl.load(summaries + 9 * parts + part).to(tl.int64)
    places = tl.minimum(longest * LANES, n)
    for block in range((places + (BLOCK - 1)) // BLOCK):
        index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        r = load_part(
            *(out, out_kind, first + index, index < places, float("-inf"), OUT_KINDS, COMPUTE)
        )
        is_listed = (r > float("-inf")).to(tl.int32)
        place = written + tl.cumsum(is_listed, 0) - 1
        tl.store(band + place, r, mask=(is_listed != 0) & (place < room))
        written += tl.sum(is_listed, 0)

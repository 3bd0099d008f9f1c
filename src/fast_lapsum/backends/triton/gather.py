"""One reading of a long row: sums of what is beyond a band, lists of what lies in it.

Every thread moves the scores it finds in the band to its own first places of the row, in the
memory of the result, which is written last: lists of any length, no room beside the result, and no
thread asks another. A pass over the band reads them from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import largest_finite
from .passes import of_chunks, wide
from .team import collect, leave, parts_place
from .views import across, exist, load_scores, part_indices, store_values

#: Number over, sums under and over, number at the point, the ends, and how many are in the lists.
GATHERED = tl.constexpr(7)


@triton.jit
def _added(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.minimum(a4, b4), tl.maximum(a5, b5)


@triton.jit
def _gather_block(
    source,
    out,
    first,
    start,
    count,
    low,
    high,
    point,
    inverse,
    POINT: tl.constexpr,
    PADDED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The sums of some scores from ``start`` on, and the lengths of the lists after them."""
    LANES: tl.constexpr = source.LANES
    READ: tl.constexpr = source.REPEATS
    index = part_indices(start, 0, READ, LANES, 1)
    inside = exist(index, source.call.n, 1) if PADDED else None
    r = load_scores(
        source.call, source.outer, source.inner, index, inside, source.LARGEST, 1, COMPUTE
    )
    beyond = tl.maximum(across(low) - r, r - across(high))
    e = tl.exp2(beyond * across(-inverse))
    is_above = r > across(high)
    is_below = ~(r >= across(low))  # so is NaN, which then makes the sum NaN
    is_point = (r == across(point)) & POINT
    terms = (
        is_above.to(COMPUTE),
        tl.where(is_below, e, 0.0),
        tl.where(is_above, e, 0.0),
        is_point.to(COMPUTE),
        tl.where(inside, r, float("inf")) if PADDED else r,
        r,
    )
    is_listed = ~(is_above | is_below | is_point)
    if PADDED:
        is_listed = is_listed & inside
    listed = is_listed.to(tl.int32)
    number = count + tl.cumsum(listed, 0) - listed
    lane = tl.arange(0, LANES)[None, None, :, None]
    # Not so, but it keeps every lane in its thread; single scores are stored all the same.
    place = tl.max_contiguous(first + number * LANES + lane, (1, 1, LANES, 1))
    store_values(out, source.outer, source.inner, place, is_listed, r, 1)
    count += tl.sum(listed, 0)[None, :, :, :]
    return tl.reduce(tl.reduce(terms, 3, _added), 0, _added), count


@triton.jit
def _gather_chunk(
    source, out, chunk, low, high, point, inverse, POINT: tl.constexpr, COMPUTE: tl.constexpr
):
    """Sums of one chunk in float64, and the lengths of its lists."""
    low = tl.maximum(low, -largest_finite(COMPUTE))  # scores of -inf take no part
    LANES: tl.constexpr = source.LANES
    BLOCK: tl.constexpr = source.REPEATS * source.LANES
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    last = tl.minimum(first + source.length, source.call.n)
    whole = first + (last - first) // BLOCK * BLOCK
    count = tl.zeros((1, 1, LANES, 1), tl.int32)
    none = tl.zeros((1, LANES), tl.float64)
    total = (none, none, none, none, none + float("inf"), none - float("inf"))
    for start in range(first, whole, BLOCK):
        terms, count = _gather_block(
            source, out, first, start, count, low, high, point, inverse, POINT, False, COMPUTE
        )
        total = _added(*total, *wide(terms))
    if whole < last:
        terms, count = _gather_block(
            source, out, first, whole, count, low, high, point, inverse, POINT, True, COMPUTE
        )
        total = _added(*total, *wide(terms))
    return tl.reduce(total, 1, _added), count


@triton.jit
def _end_lists(source, out, chunk, count, LISTED: tl.constexpr, COMPUTE: tl.constexpr):
    """Fill up the parts that a chunk's lists take, and return how many these are."""
    LANES: tl.constexpr = source.LANES
    longest = tl.max(tl.max(tl.max(tl.max(count, 3), 2), 1), 0)
    parts = (longest + (LISTED - 1)) // LISTED
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    for part in range(parts):
        index = part_indices(first, part, LISTED, LANES, 1)
        number = part * LISTED + tl.arange(0, LISTED)[:, None, None, None]
        is_free = exist(index, source.call.n, 1) & (number >= count)
        nothing = tl.full(index.shape, float("-inf"), COMPUTE)
        store_values(out, source.outer, source.inner, index, is_free, nothing, 1)
    return parts


@triton.jit
def _number(count):
    """How many scores are in the lists."""
    return tl.sum(tl.sum(tl.sum(count, 3), 2), 0).to(tl.float64)


@triton.jit
def gather_chunks(
    source,
    out,
    low,
    high,
    point,
    inverse,
    meeting,
    LISTED: tl.constexpr,
    POINT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Lists of a member's chunks, and what they give left for its team.

    Without a POINT none of the scores in the band is to be counted instead.
    """
    team = source.team
    LANES: tl.constexpr = source.CHUNK_LANES
    point = _within(point, low, high)
    for chunk in range(team.member, team.chunks, team.size):
        sums, count = _gather_chunk(source, out, chunk, low, high, point, inverse, POINT, COMPUTE)
        above, below, higher, at_point, lowest, highest = sums
        left = (above, below, higher, at_point, lowest, highest, _number(count))
        leave(left, team, chunk, meeting, LANES)
        parts = _end_lists(source, out, chunk, count, LISTED, COMPUTE)
        tl.store(parts_place(team.words, chunk, LANES), parts.to(tl.int64))
    tl.debug_barrier()


@triton.jit
def _within(point, low, high):
    return tl.where((low <= point) & (point <= high), point, float("nan"))


@triton.jit
def gather(
    source,
    out,
    low,
    high,
    point,
    inverse,
    is_again,
    crossings,
    LISTED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Fields of a :class:`Band`, the ends of the row, and how many scores the lists have.

    The first band of a team was gathered by the launch before.
    """
    team = source.team
    if team is None:
        point = _within(point, low, high)
        found, count = _gather_chunk(source, out, 0, low, high, point, inverse, True, COMPUTE)
        listed = _end_lists(source, out, 0, count, LISTED, COMPUTE)
        tl.debug_barrier()
        return found, _number(count), listed, crossings
    else:
        if is_again:
            gather_chunks(source, out, low, high, point, inverse, crossings, LISTED, True, COMPUTE)
        collected = collect(team, crossings, GATHERED, source.CHUNK_LANES)
        above, below, higher, at_point, lowest, highest, number = of_chunks(
            collected, team, source.CHUNK_LANES, 1, "gathered"
        )
        found = (above, below, higher, at_point, lowest, highest)
        listed = parts_place(team.words, 0, source.CHUNK_LANES)
        return found, number, listed, crossings + 1

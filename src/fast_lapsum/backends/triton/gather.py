"""One reading of a long row: sums of what is beyond a band, lists of what lies in it.

Every thread moves the scores it finds in the band to its own first places of the row, in the
memory of the result, which is written last: lists of any length, no room beside the result, and no
thread asks another. A pass over the band reads them from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import any_row, largest_finite
from .passes import of_chunks, wide
from .team import collect, leave, parts_place, point_place
from .views import across, exist, load_scores, part_indices, store_values

#: From block to block a thread's place moves by so many scores: a sector of memory.
TURN = tl.constexpr(8)
#: Number over, sums under and over, number at the point, the ends, and how many are in the lists.
GATHERED = tl.constexpr(7)


@triton.jit
def _added(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.minimum(a4, b4), tl.maximum(a5, b5)


@triton.jit
def _take(
    source,
    out,
    first,
    r,
    inside,
    seen,
    next_place,
    low,
    high,
    point,
    inverse,
    POINT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One more score of every thread: what was seen with it, and where its list goes on."""
    LANES: tl.constexpr = source.LANES
    above, sum_below, sum_above, at_point, lowest, highest = seen
    beyond = tl.maximum(across(low) - r, r - across(high))
    e = tl.exp2(beyond * across(-inverse))
    is_above = r > across(high)
    is_below = ~(r >= across(low))  # so is NaN, which then makes the sum NaN
    is_listed = ~(is_above | is_below)
    if POINT:
        is_point = r == across(point)
        is_listed = is_listed & (~is_point)
        at_point += is_point.to(tl.int32)
    if inside is not None:
        is_listed = is_listed & inside
    sum_below += tl.where(is_below, e, 0.0)
    sum_above += tl.where(is_above, e, 0.0)
    above += is_above.to(tl.int32)
    lowest = tl.minimum(lowest, r if inside is None else tl.where(inside, r, float("inf")))
    highest = tl.maximum(highest, r)
    # Not so, but it keeps every lane in its thread; single scores are stored all the same.
    place = tl.max_contiguous(first + next_place, (1, 1, LANES, 1))
    store_values(out, source.outer, source.inner, place, is_listed, r, 1)
    next_place += tl.where(is_listed, LANES, 0)
    return (above, sum_below, sum_above, at_point, lowest, highest), next_place


@triton.jit
def _begin_sums(total, LANES: tl.constexpr, COMPUTE: tl.constexpr):
    """What was seen so far, with sums that begin anew: they go into float64 block by block."""
    above, _, _, at_point, lowest, highest = total
    none = tl.zeros((1, 1, LANES, 1), COMPUTE)
    return (above, none, none, at_point, lowest, highest)


@triton.jit
def _end_sums(total, seen):
    _, below, higher, _, _, _ = total
    above, sum_below, sum_above, at_point, lowest, highest = seen
    below += sum_below.to(tl.float64)
    higher += sum_above.to(tl.float64)
    return (above, below, higher, at_point, lowest, highest)


@triton.jit
def _gather_block(
    source,
    out,
    first,
    start,
    total,
    next_place,
    low,
    high,
    point,
    inverse,
    POINT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """``total`` with the sums of a block of scores from ``start`` on, and where each list goes on.

    Every thread takes its scores one after the other: what is done with each is a few instructions,
    and they are what a reading of a long row takes. From block to block threads take other places,
    or scores with a period would all be in the lists of a few of them.
    """
    LANES: tl.constexpr = source.LANES
    BLOCK: tl.constexpr = source.REPEATS * source.LANES
    lane = tl.arange(0, LANES)[None, None, :, None]
    lane = (lane + ((start - first) // BLOCK * TURN).to(tl.int32)) % LANES
    r = ()
    for i in tl.static_range(source.REPEATS):
        index = start + (i * LANES + lane)
        r = r + (  # type: ignore[assignment]
            load_scores(
                source.call, source.outer, source.inner, index, None, source.LARGEST, 1, COMPUTE
            ),
        )
    seen = _begin_sums(total, LANES, COMPUTE)
    for i in tl.static_range(source.REPEATS):
        seen, next_place = _take(
            *(source, out, first, r[i], None, seen, next_place),
            *(low, high, point, inverse, POINT, COMPUTE),
        )
    return _end_sums(total, seen), next_place


@triton.jit
def _gather_rest(
    source,
    out,
    first,
    start,
    total,
    next_place,
    low,
    high,
    point,
    inverse,
    POINT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The same of a block that the row ends in, score by score.

    Threads keep their places there, or lists would go on where the row has ended. It is a loop, and
    not unrolled: every load and store of a kernel costs its compiler a look at all of the kernel.
    """
    LANES: tl.constexpr = source.LANES
    lane = tl.arange(0, LANES)[None, None, :, None]
    seen = _begin_sums(total, LANES, COMPUTE)
    for i in range(source.REPEATS):
        index = start + (i * LANES + lane)
        inside = exist(index, source.call.n, 1)
        r = load_scores(
            source.call, source.outer, source.inner, index, inside, source.LARGEST, 1, COMPUTE
        )
        seen, next_place = _take(
            *(source, out, first, r, inside, seen, next_place),
            *(low, high, point, inverse, POINT, COMPUTE),
        )
    return _end_sums(total, seen), next_place


@triton.jit
def _gather_chunk(
    source, out, chunk, low, high, point, inverse, POINT: tl.constexpr, COMPUTE: tl.constexpr
):
    """Sums of one chunk in float64, and the lengths of its lists."""
    # Scores of -inf take no part, and those of +inf are above any band.
    low = tl.maximum(low, -largest_finite(COMPUTE))
    high = tl.minimum(high, largest_finite(COMPUTE))
    LANES: tl.constexpr = source.LANES
    BLOCK: tl.constexpr = source.REPEATS * source.LANES
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    last = tl.minimum(first + source.length, source.call.n)
    whole = first + (last - first) // BLOCK * BLOCK
    lane = tl.arange(0, LANES)[None, None, :, None]
    next_place = lane
    none = tl.zeros((1, 1, LANES, 1), tl.int32)
    sums = none.to(tl.float64)
    ends = tl.full((1, 1, LANES, 1), float("inf"), COMPUTE)
    total = (none, sums, sums, none, ends, -ends)
    for start in range(first, whole, BLOCK):
        total, next_place = _gather_block(
            *(source, out, first, start, total, next_place),
            *(low, high, point, inverse, POINT, COMPUTE),
        )
    if whole < last:
        total, next_place = _gather_rest(
            *(source, out, first, whole, total, next_place),
            *(low, high, point, inverse, POINT, COMPUTE),
        )
    found = tl.reduce(tl.reduce(tl.reduce(wide(total), 3, _added), 0, _added), 1, _added)
    return found, (next_place - lane) // LANES


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
def _read_chunk(
    source, out, chunk, low, high, point, inverse, OFTEN: tl.constexpr, COMPUTE: tl.constexpr
):
    """The same; scores at a point are asked for where there is one.

    What is not done OFTEN has one code for both, and asks in vain where there is no point.
    """
    if OFTEN:
        if any_row(point == point):
            found, count = _gather_chunk(
                source, out, chunk, low, high, point, inverse, True, COMPUTE
            )
        else:
            found, count = _gather_chunk(
                source, out, chunk, low, high, point, inverse, False, COMPUTE
            )
    else:
        found, count = _gather_chunk(source, out, chunk, low, high, point, inverse, True, COMPUTE)
    return found, count


@triton.jit
def gather_chunks(
    source,
    out,
    low,
    high,
    point,
    inverse,
    meeting,
    OFTEN: tl.constexpr,
    LISTED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Lists of a member's chunks, and what they give left for its team."""
    team = source.team
    LANES: tl.constexpr = source.CHUNK_LANES
    point = _within(point, low, high)
    for chunk in range(team.member, team.chunks, team.size):
        sums, count = _read_chunk(source, out, chunk, low, high, point, inverse, OFTEN, COMPUTE)
        above, below, higher, at_point, lowest, highest = sums
        left = (above, below, higher, at_point, lowest, highest, _number(count))
        leave(left, team, chunk, meeting, LANES)
        parts = _end_lists(source, out, chunk, count, LISTED, COMPUTE)
        tl.store(parts_place(team.words, chunk, LANES), parts.to(tl.int64))
        place = point_place(team.words, chunk, LANES) + tl.zeros((1,), tl.int32)
        tl.store(place, at_point.to(tl.int64))
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
        found, count = _read_chunk(source, out, 0, low, high, point, inverse, True, COMPUTE)
        listed = _end_lists(source, out, 0, count, LISTED, COMPUTE)
        tl.debug_barrier()
        return found, _number(count), listed, crossings
    else:
        if is_again:
            gather_chunks(source, out, low, high, point, inverse, crossings, False, LISTED, COMPUTE)
        collected = collect(team, crossings, GATHERED, source.CHUNK_LANES)
        above, below, higher, at_point, lowest, highest, number = of_chunks(
            collected, team, source.CHUNK_LANES, 1, "gathered"
        )
        found = (above, below, higher, at_point, lowest, highest)
        listed = parts_place(team.words, 0, source.CHUNK_LANES)
        return found, number, listed, crossings + 1

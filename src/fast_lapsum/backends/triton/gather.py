"""One reading of a long row: sums of what is beyond a band, lists of what lies in it.

Every thread moves the scores it finds in the band to its own first places of the row, in the
memory of the result, which is written last: lists of any length, no room beside the result, and no
thread asks another. A pass over the band reads them from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import read_parts, wide
from .team import collect, cross, field_of, leave
from .views import across, exist, part_indices, store_values

#: Sums over and under, number at the point, whether all are finite (NaN if not), the ends.
GATHERED = tl.constexpr(7)


@triton.jit
def _added(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    ends = tl.minimum(a5, b5), tl.maximum(a6, b6)
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, ends[0], ends[1]


@triton.jit
def _beyond_terms(r, inside, low, high, point, inverse, COMPUTE: tl.constexpr):
    """What a score adds, and whether it goes into a list."""
    beyond = tl.maximum(across(low) - r, r - across(high))
    e = tl.exp2(beyond * across(-inverse))
    is_above = r > across(high)
    is_below = r < across(low)
    is_between = inside & (~is_above) & (~is_below)
    is_point = is_between & (r == across(point))
    is_listed = is_between & (~is_point)
    terms = (
        is_above.to(COMPUTE),
        tl.where(is_below, e, 0.0),
        tl.where(is_above, e, 0.0),
        is_point.to(COMPUTE),
        tl.where(inside, r * 0.0, 0.0),
        tl.where(inside, r, float("inf")),
        tl.where(inside, r, float("-inf")),
    )
    return terms, is_listed


@triton.jit
def _gather_chunk(source, out, chunk, low, high, point, inverse, COMPUTE: tl.constexpr):
    """Sums of one chunk in float64, and the parts that its longest list takes."""
    LANES: tl.constexpr = source.LANES
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    last = tl.minimum(first + source.length, source.call.n)
    lane = tl.arange(0, LANES)[None, None, :, None]
    count = tl.zeros((1, 1, LANES, 1), tl.int32)
    none = tl.zeros((1, LANES), tl.float64)
    total = (none, none, none, none, none, none + float("inf"), none - float("inf"))
    for start in range(first, last, source.PARTS * LANES):
        r = read_parts(source, start, COMPUTE)
        for part in tl.static_range(source.PARTS):
            index = part_indices(start, part, 1, LANES, 1)
            inside = exist(index, source.call.n, 1)
            terms, is_listed = _beyond_terms(r[part], inside, low, high, point, inverse, COMPUTE)
            place = first + count * LANES + lane
            store_values(out, source.outer, source.inner, place, is_listed, r[part], 1)
            count += is_listed.to(tl.int32)
            if part == 0:
                block = terms
            else:
                block = _added(*block, *terms)
        block = tl.reduce(tl.reduce(block, 3, _added), 0, _added)
        total = _added(*total, *wide(block))
    return tl.reduce(total, 1, _added), count


@triton.jit
def _end_lists(source, out, chunk, count, REPEATS: tl.constexpr, COMPUTE: tl.constexpr):
    """Fill up the parts that a chunk's lists take, and return how many these are."""
    LANES: tl.constexpr = source.LANES
    longest = tl.max(tl.max(tl.max(tl.max(count, 3), 2), 1), 0)
    parts = (longest + (REPEATS - 1)) // REPEATS
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    for part in range(parts):
        index = part_indices(first, part, REPEATS, LANES, 1)
        number = part * REPEATS + tl.arange(0, REPEATS)[:, None, None, None]
        is_free = exist(index, source.call.n, 1) & (number >= count)
        nothing = tl.full(index.shape, float("-inf"), COMPUTE)
        store_values(out, source.outer, source.inner, index, is_free, nothing, 1)
    return parts


@triton.jit
def gather(
    source,
    out,
    parts,
    low,
    high,
    point,
    inverse,
    crossings,
    REPEATS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What there is beyond the band, and the :class:`Band` with its lists.

    ``parts`` is where a team keeps how long they are; with one program that is just a number.
    """
    team = source.team
    if team is None:
        found, count = _gather_chunk(source, out, 0, low, high, point, inverse, COMPUTE)
        listed = _end_lists(source, out, 0, count, REPEATS, COMPUTE)
        tl.debug_barrier()
        return found, listed, crossings
    else:
        for chunk in range(team.member, team.chunks, team.size):
            sums, count = _gather_chunk(source, out, chunk, low, high, point, inverse, COMPUTE)
            leave(sums, team, chunk, crossings, source.CHUNK_LANES)
            tl.store(parts + chunk, _end_lists(source, out, chunk, count, REPEATS, COMPUTE))
        cross(team, crossings)
        collected = collect(team, crossings, GATHERED, source.CHUNK_LANES)
        every = ()
        for field in tl.static_range(GATHERED):
            nothing = 0.0 if field < 5 else (float("inf") if field == 5 else float("-inf"))
            every = every + (field_of(collected, field, nothing, team, 1),)  # type: ignore
        return tl.reduce(every, 1, _added), parts, crossings + 1

"""Which of the scores that equal the boundary a hard mask takes, where a team shares the row.

It takes the earliest. How many each chunk has tells in which of them there is room for some only;
the same again with pieces of that chunk, and what is left is short enough for every member to read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import are_plain, running_sums
from .numbers import any_row
from .passes import parts_of, read_part
from .team import FIELDS, collect, field_of, leave, point_place
from .views import across, part_indices


@triton.jit
def _tied_of_threads(r, boundary):
    """How many scores of each thread equal the boundary."""
    return tl.sum(tl.sum((r == across(boundary)).to(tl.int32), 3), 0)


@triton.jit
def _tied_of_parts(source, first, begin, end, boundary, COMPUTE: tl.constexpr):
    """How many scores of some parts do, shape [1]."""
    tied = tl.zeros((1, source.LANES), tl.int32)
    for part in range(begin, end):
        tied += _tied_of_threads(read_part(source, first, part, COMPUTE), boundary)
    return tl.sum(tied.to(tl.int64), 1)


@triton.jit
def _tied_of_chunk(source, chunk, boundary, COMPUTE: tl.constexpr):
    """How many scores of a chunk do: those a program holds, lists or reads."""
    if source.r is not None:
        tied = tl.zeros((1, source.LANES), tl.int32)
        for part in tl.static_range(source.PARTS):
            tied += _tied_of_threads(source.r[part], boundary)
        return tl.sum(tied.to(tl.int64), 1)
    else:
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        tied = _tied_of_parts(source, first, 0, parts_of(source, chunk), boundary, COMPUTE)
        if source.band is not None:
            at_point = tl.load(point_place(source.team.words, chunk, source.CHUNK_LANES))
            tied += tl.where(boundary == source.band.point, at_point, 0)
        return tied


@triton.jit
def _where_room_ends(team, room, crossings, LANES: tl.constexpr):
    """In which of the parts that members have left counts of, and how many are tied before it."""
    counts = field_of(collect(team, crossings, 1, LANES), 0, 0.0, team, LANES)
    counts = tl.sum(tl.reshape(counts, (FIELDS, LANES)), 0)
    before = tl.cumsum(counts, 0) - counts
    is_here = (before < room) & (room <= before + counts)
    number = tl.max(tl.where(is_here, tl.arange(0, LANES), 0), 0)
    return number, tl.max(tl.where(is_here, before, 0.0), 0)


@triton.jit
def _cut(source, again, boundary, k, crossings, COMPUTE: tl.constexpr):
    team = again.team
    LANES: tl.constexpr = again.CHUNK_LANES
    PART: tl.constexpr = again.REPEATS * again.LANES * again.WIDTH
    room = tl.floor(k - boundary.above)
    for chunk in range(team.member, team.chunks, team.size):
        # What is infinite is in no list.
        if any_row(boundary.hi == float("inf")):
            tied = _tied_of_chunk(again, chunk, boundary.hi, COMPUTE)
        else:
            tied = _tied_of_chunk(source, chunk, boundary.hi, COMPUTE)
        leave((tied,), team, chunk, crossings, LANES)
    number, before = _where_room_ends(team, room, crossings, LANES)
    crossings += 1
    first = (tl.zeros((), tl.int64) + number) * again.length
    parts = parts_of(again, number)
    of_piece = (parts + (team.chunks - 1)) // team.chunks
    for piece in range(team.member, team.chunks, team.size):
        begin = tl.minimum(piece * of_piece, parts)
        end = tl.minimum(begin + of_piece, parts)
        tied = _tied_of_parts(again, first, begin, end, boundary.hi, COMPUTE)
        leave((tied,), team, piece, crossings, LANES)
    number, within = _where_room_ends(team, room - before, crossings, LANES)
    crossings += 1
    first += number.to(tl.int64) * of_piece * PART
    passed = (tl.zeros((1,), tl.float64) + before + within).to(tl.int64)
    cut = tl.zeros((1,), tl.int64) - 1
    for part in range(tl.minimum(of_piece, parts - number * of_piece)):
        index = part_indices(first, part, again.REPEATS, again.LANES, again.WIDTH)
        is_tied = read_part(again, first, part, COMPUTE) == across(boundary.hi)
        count = across(passed) + running_sums(is_tied.to(tl.int32))
        is_last = is_tied & (count.to(tl.float64) == across(room))
        last = tl.where(is_last, index, -1)
        cut = tl.maximum(cut, tl.max(tl.max(tl.max(last, 3), 0), 1))
        passed += tl.sum(tl.sum(tl.sum(is_tied.to(tl.int64), 3), 0), 1)
    return cut, crossings


@triton.jit
def find_cut(source, again, boundary, k, t, crossings, COMPUTE: tl.constexpr):
    """The index of the last score that is taken of those that equal the boundary.

    ``source`` is what counts are taken of, ``again`` reads all scores.
    """
    cut = tl.zeros((1,), tl.int64) + again.call.n
    if any_row(~are_plain(boundary, k, t, "hard", COMPUTE)):
        cut, crossings = _cut(source, again, boundary, k, crossings, COMPUTE)
    return cut, crossings

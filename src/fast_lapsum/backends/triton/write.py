"""Writing the results: masks of parts in registers, of parts that are read again, pairs."""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import any_mask, hard_mask, soft_mask, ties_in
from .passes import parts_of, read_part, read_parts
from .team import FIELDS, collect, earlier_place, field_of, leave, my_chunks
from .views import across, exist, part_indices, store_values


@triton.jit
def store_pair(threshold, row, hi, lo, is_row):
    tl.store(threshold + 2 * row, hi, mask=is_row)
    tl.store(threshold + 2 * row + 1, lo, mask=is_row)


@triton.jit
def _written(source, first, part, is_row):
    """The indices of a part, and which of them are to be written."""
    index = part_indices(first, part, source.REPEATS, source.LANES, source.WIDTH)
    written = across(is_row)
    if source.PADDED:
        written = written & exist(index, source.call.n, source.WIDTH)
    return index, written


@triton.jit
def write_held(source, r, first, out, is_row, t, pair, COMPUTE: tl.constexpr):
    """Soft masks of parts in registers."""
    for part in tl.static_range(source.PARTS):
        index, written = _written(source, first, part, is_row)
        p = soft_mask(r[part], pair.hi, pair.lo, t, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)


@triton.jit
def write_read(
    source,
    first,
    parts,
    out,
    is_row,
    k,
    t,
    pair,
    earlier,
    HARD: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks of any kind of parts that are read again; returns the scores tied with a boundary."""
    for part in range(parts):
        r = read_part(source, first, part, COMPUTE)
        index, written = _written(source, first, part, is_row)
        if HARD:
            p = hard_mask(r, k, pair.hi, pair.above, earlier, COMPUTE)
            earlier += ties_in(r, pair.hi).to(tl.float64)
        else:
            p = any_mask(r, pair.hi, pair.lo, t, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)
    return earlier


@triton.jit
def write_soft_chunks(source, out, t, pair, COMPUTE: tl.constexpr):
    """A member's part of a soft mask, from its end: what was read last is still at hand."""
    BLOCK: tl.constexpr = source.PARTS * source.REPEATS * source.LANES * source.WIDTH
    own, end, step = my_chunks(source.team)
    for chunk in range(own, end, step):
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        last = tl.minimum(first + source.length, source.call.n)
        blocks = (last - first + (BLOCK - 1)) // BLOCK
        for block in range(blocks):
            start = first + (blocks - 1 - block) * BLOCK
            r = read_parts(source, start, COMPUTE)
            write_held(source, r, start, out, source.outer >= 0, t, pair, COMPUTE)


@triton.jit
def write_any_chunks(source, out, k, t, pair, COMPUTE: tl.constexpr):
    """A member's part of a mask that may be in the hard limit."""
    own, end, step = my_chunks(source.team)
    for chunk in range(own, end, step):
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        parts = parts_of(source, chunk)
        write_read(
            source, first, parts, out, source.outer >= 0, k, t, pair, 0.0 * k, False, COMPUTE
        )


@triton.jit
def leave_ties(source, boundary, crossings, COMPUTE: tl.constexpr):
    """Tell every chunk how many scores of earlier chunks equal the boundary."""
    team = source.team
    LANES: tl.constexpr = source.CHUNK_LANES
    for chunk in range(team.member, team.chunks, team.size):
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        ties = tl.zeros((1,), tl.int64)
        for part in range(parts_of(source, chunk)):
            ties += ties_in(read_part(source, first, part, COMPUTE), boundary.hi)
        leave((ties,), team, chunk, crossings, LANES)
    counts = field_of(collect(team, crossings, 1, LANES), 0, 0.0, team, LANES)
    counts = tl.sum(tl.reshape(counts, (FIELDS, LANES)), 0)
    before = (tl.cumsum(counts, 0) - counts).to(tl.int64)
    lane = tl.arange(0, LANES)
    is_mine = (lane < team.chunks) & (lane % team.size == team.member)
    tl.store(earlier_place(team.words, lane, LANES), before, mask=is_mine)
    tl.debug_barrier()


@triton.jit
def write_hard_chunks(source, out, k, t, boundary, COMPUTE: tl.constexpr):
    """A member's part of a hard mask; chunks of a team were told how many ties are before them."""
    own, end, step = my_chunks(source.team)
    for chunk in range(own, end, step):
        earlier = 0.0 * k
        if source.team is not None:
            place = earlier_place(source.team.words, chunk, source.CHUNK_LANES)
            earlier += tl.load(place).to(tl.float64)
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        parts = parts_of(source, chunk)
        write_read(
            source, first, parts, out, source.outer >= 0, k, t, boundary, earlier, True, COMPUTE
        )

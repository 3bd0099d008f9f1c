"""One reading of a rank's part of a row: what is outside of a band, and lists of what is inside.

Every thread keeps the scores of the band that it finds, as many as its list holds. A quick reading
adds up what is outside relative to the band's ends. If that loses digits, because the nearest score
is far from there, or if there are NaN or +inf, a careful one follows: relative to the nearest score
that a thread has seen, in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .views import row_start

#: From tile to tile a thread's place moves by so many scores: a sector of memory.
TURN = tl.constexpr(8)
#: Sums below this may have lost their digits to denormals.
WHOLE = tl.constexpr(2.0**-60)
#: What a program leaves of a reading, in float64.
NANS = tl.constexpr(0)
INFINITE = tl.constexpr(1)
VALID = tl.constexpr(2)
LOWEST = tl.constexpr(3)
HIGHEST = tl.constexpr(4)
ABOVE = tl.constexpr(5)
ABOVE_NEAREST = tl.constexpr(6)
ABOVE_SUM = tl.constexpr(7)
INSIDE = tl.constexpr(8)
BELOW_NEAREST = tl.constexpr(9)
BELOW_SUM = tl.constexpr(10)


class Chunk(NamedTuple):
    """A program's part of a row: every ``chunks``-th tile, beginning with number ``chunk``."""

    call: Any
    outer: Any
    inner: Any
    chunk: Any
    chunks: Any
    lists: Any  # of its threads, [DEPTH, LANES]
    counts: Any  # how many scores of the band each thread has found, [LANES]
    partial: Any  # what it leaves


class Seen(NamedTuple):
    """What the threads of a program have seen, [LANES] each."""

    nans: Any
    infinite: Any
    above: Any
    below: Any
    inside: Any
    lowest: Any
    highest: Any
    near_above: Any
    near_below: Any
    sum_above: Any
    sum_below: Any


@triton.jit
def scores_at(call, outer, inner, index, inside, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """The scores at indices of one row, [LANES]; -inf where ``inside`` says that there is none."""
    place = row_start(call.scores, outer, inner) + index * call.scores.along
    if inside is None:
        r = tl.load(place).to(COMPUTE)
    else:
        outside = float("-inf") if LARGEST else float("inf")
        r = tl.load(place, mask=inside, other=outside).to(COMPUTE)
    if not LARGEST:
        r = -r
    if call.mask is not None:
        place = row_start(call.mask, outer, inner) + index * call.mask.along
        if inside is None:
            keep = tl.load(place)
        else:
            keep = tl.load(place, mask=inside, other=0)
        r = tl.where(keep != 0, r, float("-inf"))
    return r


@triton.jit
def _tile_scores(
    chunk,
    turn,
    MASKED: tl.constexpr,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The scores of a chunk's tile, READ of each thread; all of them exist unless it is MASKED.

    From tile to tile threads take other places, or scores with a period would all be in the lists
    of a few of them.
    """
    tile = (tl.zeros((), tl.int64) + chunk.chunk) + turn * chunk.chunks
    first = tile * (READ * LANES) + (tl.arange(0, LANES) + turn * TURN) % LANES
    r = ()
    for i in tl.static_range(READ):
        index = first + i * LANES
        inside = index < chunk.call.n if MASKED else None
        r = r + (  # type: ignore[assignment]
            scores_at(chunk.call, chunk.outer, chunk.inner, index, inside, LARGEST, COMPUTE),
        )
    return r


@triton.jit
def decay(near, far, inverse):
    """2^-|v| of two places, in the dtype of ``inverse``.

    By halves in float64, where a distance may be over the largest number.
    """
    near = near.to(inverse.dtype)
    far = far.to(inverse.dtype)
    if inverse.dtype == tl.float64:
        return tl.exp2(-tl.abs(near * 0.5 - far * 0.5) * inverse * 2)
    else:
        return tl.exp2(-tl.abs(near - far) * inverse)


@triton.jit
def moved(total, near, nearer, inverse):
    """A sum relative to a nearer score; without a score before there is nothing in it."""
    is_moved = tl.abs(near) < float("inf")
    return tl.where(is_moved, total * decay(nearer, near, inverse).to(tl.float64), 0.0)


@triton.jit
def _read_tile(
    chunk,
    turn,
    low,
    high,
    inverse,
    seen,
    keeps,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What was seen, with one more tile."""
    lane = tl.arange(0, LANES)
    r = _tile_scores(chunk, turn, True, LARGEST, READ, LANES, COMPUTE)
    nans, infinite, above, below, inside, lowest, highest, up, down, sum_above, sum_below = seen
    near_above = up
    near_below = down
    for i in tl.static_range(READ):
        is_above = (r[i] >= high) & (r[i] < float("inf"))
        is_below = (r[i] < low) & (r[i] > float("-inf"))
        up = tl.minimum(up, tl.where(is_above, r[i], float("inf")))
        down = tl.maximum(down, tl.where(is_below, r[i], float("-inf")))
    of_above = tl.zeros((LANES,), inverse.dtype)
    of_below = of_above
    for i in tl.static_range(READ):
        x = r[i]
        is_above = (x >= high) & (x < float("inf"))
        is_below = (x < low) & (x > float("-inf"))
        is_inside = (x >= low) & (x < high)
        is_finite = tl.abs(x) < float("inf")
        e = decay(x, tl.where(is_above, up, down), inverse)
        of_above += tl.where(is_above, e, 0.0)
        of_below += tl.where(is_below, e, 0.0)
        nans += (x != x).to(tl.int32)
        infinite += (x == float("inf")).to(tl.int32)
        above += is_above.to(tl.int32)
        below += is_below.to(tl.int32)
        lowest = tl.minimum(lowest, tl.where(is_finite, x, float("inf")))
        highest = tl.maximum(highest, tl.where(is_finite, x, float("-inf")))
        is_kept = is_inside & (inside < DEPTH) & keeps
        tl.store(chunk.lists + (inside * LANES + lane), x, mask=is_kept)
        inside += is_inside.to(tl.int32)
    sum_above = moved(sum_above, near_above, up, inverse) + of_above.to(tl.float64)
    sum_below = moved(sum_below, near_below, down, inverse) + of_below.to(tl.float64)
    return Seen(
        *(nans, infinite, above, below, inside, lowest, highest, up, down, sum_above, sum_below)
    )


class Quick(NamedTuple):
    """The same of a quick reading."""

    above: Any
    left_out: Any
    place: Any  # where the thread's list goes on
    lowest: Any
    highest: Any
    sum_above: Any
    sum_below: Any


@triton.jit
def _quick_tile(
    chunk,
    turn,
    low,
    high,
    inverse,
    quick,
    room,
    MASKED: tl.constexpr,
    COUNTED: tl.constexpr,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What was seen, with one more tile, of which all scores exist unless it is MASKED.

    There is room in the lists before the place ``room``. Scores that are left out are not COUNTED
    where there seem to be none: what is done with each score is what a reading takes.
    """
    r = _tile_scores(chunk, turn, MASKED, LARGEST, READ, LANES, COMPUTE)
    above, left_out, place, lowest, highest, sum_above, sum_below = quick
    of_above = tl.zeros((LANES,), COMPUTE)
    of_below = of_above
    for i in tl.static_range(READ):
        x = r[i]
        is_above = x >= high
        is_below = ~(x >= low)  # so is NaN, which then makes the sum NaN
        e = tl.exp2(tl.maximum(low - x, x - high) * -inverse)
        of_above += tl.where(is_above, e, 0.0)
        of_below += tl.where(is_below, e, 0.0)
        above += is_above.to(tl.int32)
        if COUNTED:
            is_out = x == float("-inf")
            left_out += is_out.to(tl.int32)
            lowest = tl.minimum(lowest, tl.where(is_out, float("inf"), x))
        else:
            lowest = tl.minimum(lowest, x)
        highest = tl.maximum(highest, x)
        is_inside = ~(is_above | is_below)
        tl.store(chunk.lists + place, x, mask=is_inside & (place < room))
        place += tl.where(is_inside, LANES, 0)
    sum_above += of_above.to(tl.float64)
    sum_below += of_below.to(tl.float64)
    return Quick(above, left_out, place, lowest, highest, sum_above, sum_below)


@triton.jit
def read_quickly(
    chunk,
    low,
    high,
    inverse,
    keeps,
    counts_only,
    has_left_out,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Read a chunk as :func:`read_chunk` does; returned is whether that has to do it again.

    Not so because of its sums where a row is searched by ``counts_only``. Those that are left out
    are counted if the sample ``has_left_out`` some, or if they are met.
    """
    reads = has_left_out
    if chunk.call.mask is None:
        if not has_left_out:
            reads, has_left_out = _read_quickly(
                *(chunk, low, high, inverse, keeps, counts_only),
                *(False, LARGEST, READ, LANES, DEPTH, COMPUTE),
            )
            tl.debug_barrier()
        if has_left_out:
            reads, _ = _read_quickly(
                *(chunk, low, high, inverse, keeps, counts_only),
                *(True, LARGEST, READ, LANES, DEPTH, COMPUTE),
            )
    else:
        reads, _ = _read_quickly(
            *(chunk, low, high, inverse, keeps, counts_only),
            *(True, LARGEST, READ, LANES, DEPTH, COMPUTE),
        )
    return reads


@triton.jit
def _read_quickly(
    chunk,
    low,
    high,
    inverse,
    keeps,
    counts_only,
    COUNTED: tl.constexpr,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The same, and whether scores are left out that were not COUNTED."""
    lane = tl.arange(0, LANES)
    none = tl.zeros((LANES,), tl.int32)
    end = tl.full((LANES,), float("inf"), COMPUTE)
    nothing = tl.zeros((LANES,), tl.float64)
    quick = Quick(none, none, lane, end, -end, nothing, nothing)
    n = tl.zeros((), tl.int64) + chunk.call.n
    whole = (n // (READ * LANES)).to(tl.int32)
    tiles = ((n + (READ * LANES - 1)) // (READ * LANES)).to(tl.int32)
    room = tl.where(keeps, DEPTH * LANES, 0)
    turns = (whole - chunk.chunk + (chunk.chunks - 1)) // chunk.chunks
    for turn in range(turns):
        quick = _quick_tile(
            *(chunk, turn, low, high, inverse, quick, room),
            *(False, COUNTED, LARGEST, READ, LANES, DEPTH, COMPUTE),
        )
    has_left_out = tl.min(quick.lowest, 0) == float("-inf")
    if (whole < tiles) & (whole % chunk.chunks == chunk.chunk):
        quick = _quick_tile(
            *(chunk, turns, low, high, inverse, quick, room),
            *(True, True, LARGEST, READ, LANES, DEPTH, COMPUTE),
        )
    count = (quick.place - lane) // LANES
    tl.store(chunk.counts + lane, count)
    own = tl.maximum((tiles - chunk.chunk + (chunk.chunks - 1)) // chunk.chunks, 0)
    above, inside = count_of(quick.above), count_of(count)
    slots = own.to(tl.float64) * (READ * LANES)
    below = slots - above - inside - count_of(quick.left_out)
    sum_above, sum_below = tl.sum(quick.sum_above, 0), tl.sum(quick.sum_below, 0)
    highest = tl.max(quick.highest, 0)
    is_sound = (sum_above >= 0) & (sum_below >= 0) & (highest < float("inf"))
    is_whole = ((above == 0) | (sum_above >= WHOLE)) & ((below == 0) | (sum_below >= WHOLE))
    is_sound &= is_whole | counts_only
    to = chunk.partial
    tl.store(to + NANS, 0.0)
    tl.store(to + INFINITE, 0.0)
    tl.store(to + VALID, above + below + inside)
    tl.store(to + LOWEST, tl.min(quick.lowest, 0).to(tl.float64))
    tl.store(to + HIGHEST, highest.to(tl.float64))
    tl.store(to + ABOVE, above)
    tl.store(to + ABOVE_NEAREST, tl.where(above > 0, high, float("inf")).to(tl.float64))
    tl.store(to + ABOVE_SUM, sum_above)
    tl.store(to + INSIDE, inside)
    tl.store(to + BELOW_NEAREST, tl.where(below > 0, low, float("-inf")).to(tl.float64))
    tl.store(to + BELOW_SUM, sum_below)
    return ~is_sound, has_left_out


@triton.jit
def nearest_sum(nearest, sums, best, inverse):
    """Sums [...], each relative to its own nearest score, as one relative to the best of those."""
    return tl.sum(moved(sums, nearest, best, inverse), 0)


@triton.jit
def count_of(counts):
    """The sum of whole numbers as float64."""
    return tl.sum(counts.to(tl.int64), 0).to(tl.float64)


@triton.jit
def read_chunk(
    chunk,
    low,
    high,
    inverse,
    keeps,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Read a chunk at the band [low, high), both finite or high +inf, and leave what it comes to.

    Exponentials are taken in float64, as ``inverse`` is. Lists are made where it ``keeps`` them.
    """
    none = tl.zeros((LANES,), tl.int32)
    end = tl.full((LANES,), float("inf"), COMPUTE)
    nothing = tl.zeros((LANES,), tl.float64)
    seen = Seen(none, none, none, none, none, end, -end, end, -end, nothing, nothing)
    tiles = (tl.zeros((), tl.int64) + chunk.call.n + (READ * LANES - 1)) // (READ * LANES)
    turns = (tiles.to(tl.int32) - chunk.chunk + (chunk.chunks - 1)) // chunk.chunks
    for turn in range(turns):
        seen = _read_tile(
            *(chunk, turn, low, high, inverse, seen, keeps),
            *(LARGEST, READ, LANES, DEPTH, COMPUTE),
        )
    tl.store(chunk.counts + tl.arange(0, LANES), seen.inside)
    above, below, infinite = count_of(seen.above), count_of(seen.below), count_of(seen.infinite)
    inside = count_of(seen.inside)
    up, down = tl.min(seen.near_above, 0), tl.max(seen.near_below, 0)
    to = chunk.partial
    tl.store(to + NANS, count_of(seen.nans))
    tl.store(to + INFINITE, infinite)
    tl.store(to + VALID, above + below + inside + infinite)
    tl.store(to + LOWEST, tl.min(seen.lowest, 0).to(tl.float64))
    tl.store(to + HIGHEST, tl.max(seen.highest, 0).to(tl.float64))
    tl.store(to + ABOVE, above)
    tl.store(to + ABOVE_NEAREST, up.to(tl.float64))
    tl.store(to + ABOVE_SUM, nearest_sum(seen.near_above, seen.sum_above, up, inverse))
    tl.store(to + INSIDE, inside)
    tl.store(to + BELOW_NEAREST, down.to(tl.float64))
    tl.store(to + BELOW_SUM, nearest_sum(seen.near_below, seen.sum_below, down, inverse))

"""Long rows: what one program reads of its share of a row, for each kind of round."""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import LISTS, decay, load_tile, tile_count, tile_of
from .sample import masses_at
from .state import steps_to

#: Tiles whose float32 sums are added before they go to float64: equal addends do not average out.
TILES_PER_SUM = tl.constexpr(16)
#: Scores that a thread loads at once (contiguous float32; elsewhere neighbours may be another's,
#: and their sums take a few shuffles).
NEIGHBOURS = tl.constexpr(4)
#: Tiles that a program of the first round asks for ahead, and cache lines in each.
PREFETCHED_TILES = tl.constexpr(8)
PREFETCHED_LINES = tl.constexpr(64)


@triton.jit
def prefetch(scores, n, program, programs, along, BLOCK: tl.constexpr):
    """Ask for this program's next tiles to come into the cache, while it has to wait anyway."""
    if n > 2 * programs * BLOCK:
        _prefetch_tiles(scores, n, program, programs, along, BLOCK)


@triton.jit
def _prefetch_tiles(scores, n, program, programs, along, BLOCK: tl.constexpr):
    line = tl.arange(0, PREFETCHED_TILES * PREFETCHED_LINES)
    tile = program + (1 + line // PREFETCHED_LINES) * programs
    index = tile.to(tl.int64) * BLOCK + line % PREFETCHED_LINES * (BLOCK // PREFETCHED_LINES)
    address = (scores + tl.minimum(index, n - 1) * along).to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _add5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _by_neighbours(x, BLOCK: tl.constexpr):
    """Sums of few neighbours, which one thread holds: no thread waits for another."""
    return tl.sum(tl.reshape(x, (BLOCK // NEIGHBOURS, NEIGHBOURS)), 1)


@triton.jit
def _add3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def take_statistics(
    reading,
    r,
    b,
    half_window,
    inverse,
    n,
    program,
    programs,
    IS_FIRST: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One program's share at b: N>, those near b on either side, equal, S<, S>, nearest.

    The first round does without the number equal and the nearest, which are for rows full of ties:
    its S< is S<=. What it can certify is a short step, to which equal scores are like others.
    ``r`` is the first tile; while one is worked on the next is on its way.
    """
    scores, mask, along, mask_along = reading
    total = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)  # S< + S> in the first round, else S<
    total_above = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    packed = tl.zeros((BLOCK // NEIGHBOURS,), tl.int64)
    at = tl.zeros((), tl.int32)
    near_below = tl.full((), float("-inf"), COMPUTE)
    near_above = tl.full((), float("inf"), COMPUTE)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_SUM):
        counts = tl.zeros((BLOCK,), tl.int32)
        sums = tl.zeros((BLOCK,), COMPUTE)
        above_sums = tl.zeros((BLOCK,), COMPUTE)
        if not IS_FIRST:
            below_scores = tl.full((BLOCK,), float("-inf"), COMPUTE)
            above_scores = tl.full((BLOCK,), float("inf"), COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            first, count = tile_of(tile + programs, n, BLOCK)
            following = load_tile(
                scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE
            )
            distance = r - b
            e = decay(distance, inverse)
            is_above = distance > 0
            is_near = tl.abs(distance) <= half_window
            if IS_FIRST:
                # S< is what S> leaves of the sum: its error, like that of S>, is one of their sum.
                sums += e
            else:
                # Neighbouring scores are certified by S< itself, however small; a NaN must show.
                sums += tl.where(r >= b, 0.0, e)
            above_sums += tl.where(is_above, e, 0.0)
            # Counts in one, at most 16 each: above, above and near, not above and near, equal.
            counts += tl.where(
                is_above, tl.where(is_near, 1 + (1 << 8), 1), tl.where(is_near, 1 << 16, 0)
            )
            if not IS_FIRST:
                counts += tl.where(r == b, 1 << 24, 0)
                below_scores = tl.maximum(below_scores, tl.where(r < b, r, float("-inf")))
                above_scores = tl.minimum(above_scores, tl.where(is_above, r, float("inf")))
            r = following
        total += _by_neighbours(sums, BLOCK).to(tl.float64)
        total_above += _by_neighbours(above_sums, BLOCK).to(tl.float64)
        fields = _by_neighbours(counts & 0xFFFFFF, BLOCK).to(tl.int64)
        # 21 bits each: a program's share of a row has to be under 2^30 scores.
        packed += fields & 255 | (fields & 0xFF00) << 13 | (fields & 0xFF0000) << 26
        if not IS_FIRST:
            at += tl.sum(counts >> 24, 0)
            near_below = tl.maximum(near_below, tl.max(below_scores, 0))
            near_above = tl.minimum(near_above, tl.min(above_scores, 0))
    low_bits = (1 << 21) - 1
    above, close_above, close_below, sum_below, sum_above = tl.reduce(
        (
            (packed & low_bits).to(tl.int32),
            ((packed >> 21) & low_bits).to(tl.int32),
            (packed >> 42).to(tl.int32),
            total,
            total_above,
        ),
        0,
        _add5,
    )
    if IS_FIRST:
        sum_below -= sum_above
    return above, close_above, close_below, at, sum_below, sum_above, near_below, near_above


@triton.jit
def _gather(
    reading,
    lo,
    hi,
    n,
    group,
    hits,
    programs,
    counters,
    band,
    capacity,
    SPACING: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Append the scores inside (lo, hi) of the tiles that have any to the band's lists."""
    scores, mask, along, mask_along = reading
    lanes = tl.arange(0, BLOCK)
    list_capacity = capacity // LISTS
    # A lane's list changes from group to group, as if at random: scores that repeat, as the columns
    # of a picture do, would fill few of them.
    mixed = (tl.zeros((), tl.int32) + group).to(tl.uint32) * 2654435769
    mine = (lanes + (mixed >> 27).to(tl.int32)) % LISTS
    my_counter = counters + mine * SPACING
    my_list = band + mine * list_capacity
    for number in range(TILES_PER_SUM):
        if (hits >> number) & 1:
            first, count = tile_of(group + number * programs, n, BLOCK)
            r = load_tile(scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE)
            inside = (r > lo) & (r < hi)
            slot = tl.atomic_add(my_counter, 1, mask=inside, sem="relaxed")
            tl.store(my_list + slot, r, mask=inside & (slot < list_capacity))


@triton.jit
def take_band(
    reading,
    r,
    lo,
    hi,
    inverse,
    n,
    program,
    programs,
    counters,
    band,
    capacity,
    SPACING: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One program's share outside (lo, hi): number above, tail sums; gathers the scores inside.

    Few tiles have any: those are read once more.
    """
    scores, mask, along, mask_along = reading
    total_below = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    total_above = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    number_above = tl.zeros((BLOCK // NEIGHBOURS,), tl.int32)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_SUM):
        counts = tl.zeros((BLOCK,), tl.int32)
        below_sums = tl.zeros((BLOCK,), COMPUTE)
        above_sums = tl.zeros((BLOCK,), COMPUTE)
        hit = tl.full((), 1 << 8, tl.int32)  # this tile's bit
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            first, count = tile_of(tile + programs, n, BLOCK)
            following = load_tile(
                scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE
            )
            is_above = r >= hi
            is_over = r > lo  # a NaN counts as below: its exponential must not get lost
            e = tl.exp2(tl.where(is_above, r - hi, lo - r) * (-inverse))  # not used inside
            # The number above, at most 16, and a bit for every tile with a score inside.
            counts += tl.where(is_above, 1, tl.where(is_over, hit, 0))
            above_sums += tl.where(is_above, e, 0.0)
            below_sums += tl.where(is_over, 0.0, e)
            hit *= 2
            r = following
        total_below += _by_neighbours(below_sums, BLOCK).to(tl.float64)
        total_above += _by_neighbours(above_sums, BLOCK).to(tl.float64)
        number_above += _by_neighbours(counts & 255, BLOCK)
        hits = tl.reduce(counts >> 8, 0, _or)
        if hits > 0:
            _gather(
                reading,
                lo,
                hi,
                n,
                group,
                hits,
                programs,
                counters,
                band,
                capacity,
                SPACING,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
    above, sum_below, sum_above = tl.reduce((number_above, total_below, total_above), 0, _add3)
    return above, sum_below, sum_above


@triton.jit
def add_six(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit
def take_ladder(
    reading,
    r,
    b,
    step,
    widening,
    inverse,
    n,
    program,
    programs,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One program's share of the masses at six rungs, the first of them a step from b."""
    b_1 = b + steps_to(1, widening) * step
    b_2 = b + steps_to(2, widening) * step
    b_3 = b + steps_to(3, widening) * step
    b_4 = b + steps_to(4, widening) * step
    b_5 = b + steps_to(5, widening) * step
    b_6 = b + steps_to(6, widening) * step
    scores, mask, along, mask_along = reading
    m_1 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    m_2 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    m_3 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    m_4 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    m_5 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    m_6 = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    for tile in range(program, tile_count(n, BLOCK), programs):
        first, count = tile_of(tile + programs, n, BLOCK)
        following = load_tile(
            scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE
        )
        m_1 += _by_neighbours(masses_at(r, b_1, inverse), BLOCK).to(tl.float64)
        m_2 += _by_neighbours(masses_at(r, b_2, inverse), BLOCK).to(tl.float64)
        m_3 += _by_neighbours(masses_at(r, b_3, inverse), BLOCK).to(tl.float64)
        m_4 += _by_neighbours(masses_at(r, b_4, inverse), BLOCK).to(tl.float64)
        m_5 += _by_neighbours(masses_at(r, b_5, inverse), BLOCK).to(tl.float64)
        m_6 += _by_neighbours(masses_at(r, b_6, inverse), BLOCK).to(tl.float64)
        r = following
    return tl.reduce((m_1, m_2, m_3, m_4, m_5, m_6), 0, add_six)

"""Long rows: full readings shared by several programs, each closed by one step of the solver.

The first round starts from the sample. A round is one of two kinds, chosen on the device:

* statistics at a trial threshold b: N>, S<, S> and counts of the scores near b. The root of the
  interval equation from b is exact up to what it crosses, and the counts bound that; mostly, at
  temperatures that the sample resolves, this is all there is to do.
* a band: tail sums outside (lo, hi), the few scores inside gathered, and the root found among
  them exactly, at any temperature.

After statistics that tell nothing, as where mass comes in steps, a later round is a ladder: the
masses at six trials between which the root must be, for a band in the round after it.

The last program of a row to end its share adds the partial sums up in their order and decides:
done, or what the next launch has to look at. A round that finds nothing to do returns at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .plan import (
    BAND,
    CORNER,
    DONE,
    LADDER,
    STATE_FIELDS,
    STATISTICS,
    after_band,
    after_ladder,
    after_statistics,
    plan,
    steps_to,
)
from .primitives import (
    LISTS,
    await_launch,
    decay,
    exponent_scale,
    load_tile,
    row_value,
    start_next_launch,
    tile_count,
    tile_of,
)
from .sample import SAMPLE_FIELDS, masses_at

#: Float64 values that a program leaves of its share.
PARTIAL_FIELDS = tl.constexpr(8)
#: Integers per row and round, in units of SPACING (a sector for each, where rows are few): programs
#: that are through, then the lists' counters.
TICKET_FIELDS = tl.constexpr(33)
#: Tiles whose float32 sums are added before they go to float64: equal addends do not average out.
TILES_PER_SUM = tl.constexpr(16)
#: Scores that a thread loads at once (contiguous float32; elsewhere neighbours may be another's,
#: and their sums take a few shuffles).
NEIGHBOURS = tl.constexpr(4)
#: Tiles that a program of the first round asks for ahead, and cache lines in each.
PREFETCHED_TILES = tl.constexpr(8)
PREFETCHED_LINES = tl.constexpr(64)


@triton.jit
def _prefetch(scores, n, program, programs, along, BLOCK: tl.constexpr):
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
def _statistics(
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
    """One program's share at b: N>, those near b on either side, equal, S<=, S>, nearest.

    The first round does without the number equal and the nearest: they are for rows full of ties.
    ``r`` is the first tile; while one is worked on the next is on its way.
    """
    scores, mask, along, mask_along = reading
    total = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    total_above = tl.zeros((BLOCK // NEIGHBOURS,), tl.float64)
    packed = tl.zeros((BLOCK // NEIGHBOURS,), tl.int64)
    at = tl.zeros((), tl.int32)
    near_below = tl.full((), float("-inf"), COMPUTE)
    near_above = tl.full((), float("inf"), COMPUTE)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_SUM):
        counts = tl.zeros((BLOCK,), tl.int32)
        all_sums = tl.zeros((BLOCK,), COMPUTE)
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
            # S< is what S> leaves of the sum: its error, like that of S>, is one of their sum.
            all_sums += e
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
        total += _by_neighbours(all_sums, BLOCK).to(tl.float64)
        total_above += _by_neighbours(above_sums, BLOCK).to(tl.float64)
        fields = _by_neighbours(counts & 0xFFFFFF, BLOCK).to(tl.int64)
        # 21 bits each: a program's share of a row has to be under 2^30 scores.
        packed += fields & 255 | (fields & 0xFF00) << 13 | (fields & 0xFF0000) << 26
        if not IS_FIRST:
            at += tl.sum(counts >> 24, 0)
            near_below = tl.maximum(near_below, tl.max(below_scores, 0))
            near_above = tl.minimum(near_above, tl.min(above_scores, 0))
    low_bits = (1 << 21) - 1
    above, close_above, close_below, sum_all, sum_above = tl.reduce(
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
    sum_below = sum_all - sum_above
    return above, close_above, close_below, at, sum_below, sum_above, near_below, near_above


@triton.jit
def _gather(
    reading,
    lo,
    hi,
    n,
    group,
    hits,
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
    """Append the scores inside (lo, hi) of the tiles that have any to the band's lists."""
    scores, mask, along, mask_along = reading
    lanes = tl.arange(0, BLOCK)
    list_capacity = capacity // LISTS
    # Another list for a lane in every program: scores that repeat, as the columns of a picture do,
    # would fill few of them.
    mine = (lanes + program) % LISTS
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
def _band(
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
                program,
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
def _ladder(
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
    return tl.reduce((m_1, m_2, m_3, m_4, m_5, m_6), 0, _add6)


@triton.jit
def _leave(mine, f_0, f_1, f_2, f_3, f_4, f_5):
    """This program's share, for the last one to add up."""
    tl.store(mine, f_0.to(tl.float64))
    tl.store(mine + 1, f_1.to(tl.float64))
    tl.store(mine + 2, f_2.to(tl.float64))
    tl.store(mine + 3, f_3.to(tl.float64))
    tl.store(mine + 4, f_4.to(tl.float64))
    tl.store(mine + 5, f_5.to(tl.float64))


@triton.jit
def _field(every, number: tl.constexpr, inside, other):
    return tl.load(every + number, mask=inside, other=other, cache_modifier=".cg")


@triton.jit
def _add6(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit
def _sums(every, inside):
    """The first six fields of all programs' partial results, added up in their order."""
    return tl.reduce(
        (
            _field(every, 0, inside, 0.0),
            _field(every, 1, inside, 0.0),
            _field(every, 2, inside, 0.0),
            _field(every, 3, inside, 0.0),
            _field(every, 4, inside, 0.0),
            _field(every, 5, inside, 0.0),
        ),
        0,
        _add6,
    )


@triton.jit(
    do_not_specialize=[
        "n",
        "programs",
        "sample_programs",
        "sample_chunks",
        "ticket_count",
        "first_ticket",
        "capacity",
        "planned",
        "may_climb",
    ]
)
def round_forward(
    scores,
    mask,
    budget,
    temperature,
    samples,
    state,
    partials,
    tickets,
    band,
    threshold,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    inner_count,
    programs,
    sample_programs,
    sample_chunks,
    ticket_count,
    first_ticket,
    capacity,
    planned,
    may_climb,
    scores_outer,
    scores_inner,
    scores_along,
    mask_outer,
    mask_inner,
    mask_along,
    budget_outer,
    budget_inner,
    temperature_outer,
    temperature_inner,
    IS_FIRST: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    SAMPLE_LANES: tl.constexpr,
    LANES: tl.constexpr,
    SPACING: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One round for every row that is not done; ``programs`` programs per row."""
    start_next_launch(OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    row, program = pid // programs, (pid % programs).to(tl.int32)
    outer, inner = row // inner_count, row % inner_count
    k = row_value(budget, k_hi, k_lo, outer, inner, budget_outer, budget_inner)
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    scores += outer * scores_outer + inner * scores_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    reading = (scores, mask, scores_along, mask_along)
    first, count = tile_of(program, n, BLOCK)
    state += row * STATE_FIELDS
    left = tl.full((), float("-inf"), COMPUTE)
    right = tl.full((), float("inf"), COMPUTE)
    if IS_FIRST:
        # Scores can be asked for before the sample is through.
        r = load_tile(scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE)
        if OVERLAP:  # what waits has nothing better to do
            _prefetch(scores, n, program, programs, scores_along, BLOCK)
        await_launch(OVERLAP)
        wanted, b, half_window, lo, hi = plan(
            samples + row * sample_programs * SAMPLE_FIELDS,
            k,
            t,
            n,
            sample_programs,
            sample_chunks,
            capacity,
            planned,
            SAMPLE_LANES,
            COMPUTE,
        )
        if (wanted == CORNER) & (program == 0):
            fields = tl.arange(0, 16)
            tl.store(state + fields, tl.where(fields == 0, CORNER, 0.0), mask=fields < STATE_FIELDS)
    else:
        await_launch(OVERLAP)
        wanted = tl.load(state).to(tl.float32)
        b = tl.load(state + 1).to(COMPUTE)
        half_window = tl.load(state + 2).to(COMPUTE)
        lo = tl.load(state + 3).to(COMPUTE)
        hi = tl.load(state + 4).to(COMPUTE)
        left = tl.load(state + 5).to(COMPUTE)
        right = tl.load(state + 6).to(COMPUTE)
    if (wanted == BAND) | (wanted == STATISTICS) | (wanted == LADDER):
        if not IS_FIRST:
            r = load_tile(
                scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE
            )
        tickets += row * ticket_count + first_ticket
        band += row * capacity
        inverse = exponent_scale(t, COMPUTE)
        mine = partials + pid * PARTIAL_FIELDS
        if wanted == BAND:
            above, sum_below, sum_above = _band(
                reading,
                r,
                lo,
                hi,
                inverse,
                n,
                program,
                programs,
                tickets + SPACING,
                band,
                capacity,
                SPACING,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
            none = tl.zeros((), tl.float64)
            _leave(mine, above, none, none, none, sum_below, sum_above)
        elif wanted == STATISTICS:
            above, close_above, close_below, at, sum_below, sum_above, near_below, near_above = (
                _statistics(
                    reading,
                    r,
                    b,
                    half_window,
                    inverse,
                    n,
                    program,
                    programs,
                    IS_FIRST,
                    LARGEST,
                    BLOCK,
                    COMPUTE,
                )
            )
            _leave(mine, above, close_above, close_below, at, sum_below, sum_above)
            if not IS_FIRST:
                tl.store(mine + 6, near_below.to(tl.float64))
                tl.store(mine + 7, near_above.to(tl.float64))
        elif not IS_FIRST:
            m_1, m_2, m_3, m_4, m_5, m_6 = _ladder(
                reading,
                r,
                b,
                half_window,
                hi,
                inverse,
                n,
                program,
                programs,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
            _leave(mine, m_1, m_2, m_3, m_4, m_5, m_6)
        tl.debug_barrier()  # every thread's stores come before this program's ticket
        if tl.atomic_add(tickets, 1) == programs - 1:
            lane = tl.arange(0, LANES)
            inside = lane < programs
            every = partials + (row * programs + lane) * PARTIAL_FIELDS
            total_above, total_close_above, total_close_below, total_at, below_sum, above_sum = (
                _sums(every, inside)
            )
            pair_hi = b
            pair_lo = tl.zeros((), COMPUTE)
            next_lo = lo
            next_hi = hi
            if wanted == BAND:
                lists = tickets + (1 + tl.arange(0, LISTS)) * SPACING
                lengths = tl.load(lists, cache_modifier=".cg")
                next_wanted, next_b, next_half, left, right = after_band(
                    k,
                    t,
                    b,
                    half_window,
                    lo,
                    hi,
                    left,
                    right,
                    total_above,
                    below_sum,
                    above_sum,
                    tl.sum(lengths, 0),
                    tl.max(lengths, 0) <= capacity // LISTS,
                    IS_FIRST,
                    COMPUTE,
                )
                tl.store(state + 7, total_above)
                tl.store(state + 8, below_sum)
                tl.store(state + 9, above_sum)
                tl.store(state + 10, tl.zeros((), tl.float64) + first_ticket)
            elif wanted == LADDER:
                next_wanted, next_b, next_half, next_lo, next_hi = after_ladder(
                    k,
                    t,
                    b,
                    half_window,
                    lo,
                    hi,
                    left,
                    right,
                    total_above,
                    total_close_above,
                    total_close_below,
                    total_at,
                    below_sum,
                    above_sum,
                    capacity,
                    may_climb,
                    COMPUTE,
                )
            else:
                near_below = tl.full((), float("-inf"), COMPUTE)
                near_above = tl.full((), float("inf"), COMPUTE)
                if not IS_FIRST:
                    near_below = tl.max(_field(every, 6, inside, float("-inf")), 0).to(COMPUTE)
                    near_above = tl.min(_field(every, 7, inside, float("inf")), 0).to(COMPUTE)
                next_wanted, pair_lo, next_b, next_half, next_lo, next_hi, left, right = (
                    after_statistics(
                        k,
                        t,
                        b,
                        half_window,
                        left,
                        right,
                        total_above,
                        total_close_above,
                        total_close_below,
                        total_at,
                        below_sum - total_at,
                        above_sum,
                        near_below,
                        near_above,
                        n,
                        capacity,
                        may_climb,
                        IS_FIRST,
                        COMPUTE,
                    )
                )
            # A NaN among the scores shows in the sums.
            is_nan = below_sum != below_sum
            next_wanted = tl.where(is_nan, DONE, next_wanted)
            pair_hi = tl.where(is_nan, float("nan"), pair_hi)
            tl.store(state, next_wanted.to(tl.float64))
            tl.store(state + 1, next_b.to(tl.float64))
            tl.store(state + 2, next_half.to(tl.float64))
            tl.store(state + 3, next_lo.to(tl.float64))
            tl.store(state + 4, next_hi.to(tl.float64))
            tl.store(state + 5, left.to(tl.float64))
            tl.store(state + 6, right.to(tl.float64))
            tl.store(threshold + 2 * row, pair_hi)
            tl.store(threshold + 2 * row + 1, pair_lo)

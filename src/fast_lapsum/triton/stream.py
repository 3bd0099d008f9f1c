"""Long rows: full readings shared by several programs, each closed by one step of the solver.

The first round starts from the sample. A round is mostly one of two kinds, chosen on the device:

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

from .decide import after_band, after_ladder, after_statistics
from .plan import plan
from .primitives import (
    LISTS,
    await_launch,
    exponent_scale,
    load_tile,
    row_value,
    smallest_normal,
    start_next_launch,
    tile_of,
)
from .readings import add_six, prefetch, take_band, take_ladder, take_statistics
from .sample import SAMPLE_FIELDS
from .state import BAND, CORNER, DONE, LADDER, STATE_FIELDS, STATISTICS, digits

#: Float64 values that a program leaves of its share.
PARTIAL_FIELDS = tl.constexpr(8)
#: Integers per row and round, in units of SPACING (a sector for each, where rows are few): programs
#: that are through, then the lists' counters.
TICKET_FIELDS = tl.constexpr(33)


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
        add_six,
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
            prefetch(scores, n, program, programs, scores_along, BLOCK)
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
    # Far from all scores a round before this one may have put the next trial at infinity.
    is_somewhere = (tl.abs(b) < float("inf")) & (tl.abs(half_window) < float("inf"))
    if (wanted == BAND) | (is_somewhere & ((wanted == STATISTICS) | (wanted == LADDER))):
        # A sample of equal scores puts both ends of a band onto them: they would count twice. The
        # end that is moved goes towards 0, where there are numbers.
        is_closed = (wanted == BAND) & (lo >= hi)
        apart = digits(COMPUTE) * tl.abs(hi) + smallest_normal(COMPUTE)
        lo = tl.where(is_closed, tl.where(hi > 0, hi - apart, hi), lo)
        hi = tl.where(is_closed & (hi <= 0), hi + apart, hi)
        if not IS_FIRST:
            r = load_tile(
                scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE
            )
        tickets += row * ticket_count + first_ticket
        band += row * capacity
        inverse = exponent_scale(t, COMPUTE)
        mine = partials + pid * PARTIAL_FIELDS
        if wanted == BAND:
            above, sum_below, sum_above = take_band(
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
                take_statistics(
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
            m_1, m_2, m_3, m_4, m_5, m_6 = take_ladder(
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
                        below_sum,
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

"""Long rows, after the rounds: the exact root among the scores of a band, and the last resort.

One program per row. A row that the statistics settled returns at once. A row whose band was
gathered is solved on that band, with the tail sums of all other scores beside it. Whatever is left
(a corner, a band that overflowed twice, a sample that misled) is read by this one program until it
is certain: slow for a long row, and never wrong.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import load_lists, measure
from .primitives import (
    LISTS,
    await_launch,
    exponent_scale,
    largest_finite,
    row_value,
    start_next_launch,
)
from .root import root_between
from .solve import solve_row
from .state import ALONE, CORNER, DONE, GATHERED, STATE_FIELDS


@triton.jit
def _solve_band(
    band,
    counters,
    state,
    k,
    t,
    n,
    longest,
    LIST_CAPACITY: tl.constexpr,
    LONGEST: tl.constexpr,
    HOLDS: tl.constexpr,
    SPACING: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair (hi, lo), NaN where the band does not tell it.

    A "band" goes into registers: no list is over ``LONGEST``. Of longer "lists" so much is read at
    a time. Scores come in any order: sums over them are integers, so that bits do not vary.
    """
    BLOCK: tl.constexpr = LISTS * LONGEST
    lo = tl.load(state + 3).to(COMPUTE)
    hi = tl.load(state + 4).to(COMPUTE)
    above = tl.load(state + 7)
    sum_below = tl.load(state + 8)
    sum_above = tl.load(state + 9)
    inverse = exponent_scale(t, COMPUTE)
    if HOLDS == "band":
        r = load_lists(band, counters, 0, LIST_CAPACITY, SPACING, BLOCK)
        source = (r, band, None, BLOCK, 1, 1)
    else:
        r = tl.zeros((BLOCK,), COMPUTE)
        source = (r, band, counters, LISTS * longest, LIST_CAPACITY, SPACING)
    # Where nothing lies beyond an open end, the root may.
    limit = largest_finite(COMPUTE)
    end_lo = tl.where((lo == -limit) & (sum_below == 0), float("-inf"), lo)
    end_hi = tl.where((hi == limit) & (sum_above == 0), float("inf"), hi)
    outside = (above, sum_below, sum_above, end_lo, end_hi)
    over_lo, _, below_lo, above_lo, _, lowest = measure(
        source, lo, inverse, HOLDS, True, BLOCK, COMPUTE
    )
    over_hi, _, below_hi, above_hi, highest, _ = measure(
        source, hi, inverse, HOLDS, True, BLOCK, COMPUTE
    )
    across = tl.exp2((lo - hi) * inverse).to(tl.float64)
    mass_lo = above + over_lo + (below_lo + sum_below - above_lo - sum_above * across) / 2
    mass_hi = above + over_hi + (below_hi + sum_below * across - above_hi - sum_above) / 2
    pair_hi = tl.full((), float("nan"), COMPUTE)
    pair_lo = tl.full((), float("nan"), COMPUTE)
    # All that is finite on one side is a root at no finite place: not one to be found here.
    is_over = (mass_lo > k) | ((mass_lo == k) & (end_lo == lo))
    is_under = (mass_hi < k) | ((mass_hi == k) & (end_hi == hi))
    if is_over & is_under:
        first = tl.where(end_lo < lo, tl.minimum(lowest, hi), lo)
        last = tl.where(end_hi > hi, tl.maximum(highest, lo), hi)
        part = ((mass_lo - k) / tl.maximum(mass_lo - mass_hi, 1e-30)).to(COMPUTE)
        pair_hi, pair_lo = root_between(
            source,
            outside,
            k,
            t,
            (tl.zeros((), tl.float64) + n).to(COMPUTE),
            lo,
            hi,
            mass_lo.to(COMPUTE),
            mass_hi.to(COMPUTE),
            first * (1 - part) + last * part,
            0.0,
            HOLDS,
            True,
            BLOCK,
            COMPUTE,
        )
    return pair_hi, pair_lo


@triton.jit(do_not_specialize=["n", "ticket_count"])
def settle_forward(
    scores,
    mask,
    budget,
    temperature,
    state,
    tickets,
    band,
    threshold,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    inner_count,
    ticket_count,
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
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
    HELD: tl.constexpr,
    SPACING: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The threshold pair of the row ``program_id(0)``, if the rounds left it open."""
    start_next_launch(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    await_launch(OVERLAP)
    state += row * STATE_FIELDS
    wanted = tl.load(state).to(tl.float32)
    if wanted != DONE:
        outer, inner = row // inner_count, row % inner_count
        k = row_value(budget, k_hi, k_lo, outer, inner, budget_outer, budget_inner)
        t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
        hi = tl.full((), float("nan"), COMPUTE)
        lo = tl.full((), float("nan"), COMPUTE)
        if wanted == GATHERED:
            counters = tickets + row * ticket_count + tl.load(state + 10).to(tl.int32) + SPACING
            longest = tl.max(tl.load(counters + tl.arange(0, LISTS) * SPACING), 0)
            whole: tl.constexpr = CAPACITY // LISTS
            few: tl.constexpr = HELD // LISTS  # mostly that is enough
            some: tl.constexpr = BLOCK // LISTS if BLOCK < CAPACITY else whole
            band += row * CAPACITY
            if longest <= few:
                hi, lo = _solve_band(
                    band, counters, state, k, t, n, longest, whole, few, "band", SPACING, COMPUTE
                )
            elif few < whole:
                hi, lo = _solve_band(
                    band, counters, state, k, t, n, longest, whole, some, "lists", SPACING, COMPUTE
                )
        if hi != hi:
            scores += outer * scores_outer + inner * scores_inner
            if mask is not None:
                mask += outer * mask_outer + inner * mask_inner
            source = (tl.zeros((BLOCK,), COMPUTE), scores, mask, n, scores_along, mask_along)
            tl.store(state, tl.zeros((), tl.float64) + ALONE)
            # The rounds may have come close, except where they were not for this row.
            start = tl.load(state + 1).to(COMPUTE)
            start = tl.where(wanted == CORNER, float("nan"), start)
            origin = tl.zeros((), COMPUTE)
            hi, lo, _, _ = solve_row(source, k, t, start, origin, "memory", LARGEST, BLOCK, COMPUTE)
        tl.store(threshold + 2 * row, hi)
        tl.store(threshold + 2 * row + 1, lo)

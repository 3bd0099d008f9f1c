"""The score of a rank, by counts: what the hard limit asks for, and what a root is near to.

Each pass counts the scores over four trials. Two of them are where the rank should be by the counts
at both ends of the bracket, give or take what chance allows; one halves the bracket, and one halves
the floats in it, so that no row takes more passes than a float has bits. Most take three. Where any
number between two scores will do, the other two are nearer to where the rank should be, too, unless
the pass before met with ties or a gap.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import any_row, as_finite, between, float_after, float_before, middle_float
from .passes import over_rows

#: Trials are so many standard deviations of a count from where it should be reached.
MARGIN = tl.constexpr(1.2)
#: And so many standard errors from a guess.
ERRORS = tl.constexpr(2.5)
#: The other two are so much nearer.
NEARER = tl.constexpr(0.3)
#: A pass that leaves more than this of the scores in the bracket has met with ties, or a gap.
STALLED = tl.constexpr(0.75)
#: From so many such passes on the scores next to the bracket's ends are asked for.
MOST_STALLS = tl.constexpr(2)
#: An end is lone if it is so many times as far away as the other.
LONE = tl.constexpr(8.0)
#: A soft root is near enough when the bracket is so many temperatures wide.
NEAR = tl.constexpr(2.0)
MOST_PASSES = tl.constexpr(96)
#: Passes after which every one halves the order of floats, too.
PATIENCE = tl.constexpr(24)


class Ranks(NamedTuple):
    """The score of the rank is in (left, right], with so many scores above each of them.

    Where ``is_found`` it is right, and all others in there equal it.
    """

    left: Any
    right: Any
    above_left: Any  # float64, or what is computed in where one program holds the row
    above_right: Any
    is_found: Any


@triton.jit
def _inside(b, left, right, COMPUTE: tl.constexpr):
    """The nearest number to b that is between the ends; some number there if b is NaN."""
    return tl.minimum(tl.maximum(b, float_after(left, COMPUTE)), float_before(right, COMPUTE))


@triton.jit
def _half_way(left, right, among):
    """Half-way between the ends, or where a lone end is far from all others, near those.

    That is twice as far from ``among``, a number that is among the scores, as the other end.
    """
    to_left = 0.5 * among - 0.5 * left
    to_right = 0.5 * right - 0.5 * among
    is_inside = (to_left > 0) & (to_right > 0)
    half = 0.5 * left + 0.5 * right
    half = tl.where(is_inside & (to_right > to_left * LONE), among + 4 * to_left, half)
    return tl.where(is_inside & (to_left > to_right * LONE), among - 4 * to_right, half)


@triton.jit
def _is_one(left, right, COMPUTE: tl.constexpr):
    """Whether right is the only number in (left, right]."""
    return float_before(right, COMPUTE) <= left


@triton.jit
def has_rank(ranks, row):
    """Whether the score of rank k is in the bracket, which a soft row's band may leave out."""
    rank = tl.ceil(row.k)
    return (ranks.above_right < rank) & (rank <= ranks.above_left)


@triton.jit
def near_rank(ranks):
    """A number near the score of the rank, or that score where it is found."""
    return tl.where(ranks.is_found, ranks.right, 0.5 * ranks.left + 0.5 * ranks.right)


@triton.jit
def with_trial(ranks, b, above, rank, is_live):
    """The bracket with a trial as an end, unless a nearer one is known."""
    is_left = is_live & (above >= rank) & (b > ranks.left)
    is_right = is_live & (above < rank) & (b < ranks.right)
    return Ranks(
        tl.where(is_left, b, ranks.left),
        tl.where(is_right, b, ranks.right),
        tl.where(is_left, above, ranks.above_left),
        tl.where(is_right, above, ranks.above_right),
        ranks.is_found,
    )


@triton.jit
def _with_ends(ranks, first, last, rank, is_live, COMPUTE: tl.constexpr):
    """The bracket with its first and last score as ends: of two scores it is one of them."""
    before_first = float_before(first, COMPUTE)
    before_last = float_before(last, COMPUTE)
    is_pair = is_live & (ranks.above_left - ranks.above_right == 2) & (first < last)
    is_last = is_pair & (rank <= ranks.above_right + 1)
    is_first = is_pair & (~is_last)
    left = tl.where(is_last, before_last, tl.where(is_live, before_first, ranks.left))
    right = tl.where(is_first, first, tl.where(is_live, last, ranks.right))
    above_left = tl.where(is_last, ranks.above_right + 1, ranks.above_left)
    above_right = tl.where(is_first, ranks.above_right + 1, ranks.above_right)
    return Ranks(left, right, above_left, above_right, ranks.is_found)


@triton.jit
def _with_gap(ranks, rank, is_free, COMPUTE: tl.constexpr):
    """Where a boundary need be no score: the number after the left end, if that has the rank.

    What is said to be over it is then no count: scores may equal it.
    """
    is_hit = is_free & (ranks.above_left == rank)
    right = tl.where(is_hit, float_after(ranks.left, COMPUTE), ranks.right)
    above_right = tl.where(is_hit, rank - 1, ranks.above_right)
    return Ranks(ranks.left, right, ranks.above_left, above_right, ranks.is_found)


@triton.jit
def search_rank(
    source,
    row,
    ranks,
    guess,
    error,
    among,
    is_live,
    crossings,
    FREE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Narrow ``ranks`` down to the score of rank k, rounded up, or to where a soft root is near.

    ``guess`` is where to look first, with its standard error; NaN if there is none. ``among`` is a
    number that is among the scores. FREE: any number will do that has k scores at or over it.
    """
    rank = tl.ceil(row.k).to(ranks.above_left.dtype)
    is_asked = is_live
    if FREE:
        ranks = _with_gap(ranks, rank, is_live, COMPUTE)
        is_live = is_live & (~_is_one(ranks.left, ranks.right, COMPUTE))
    aim_low = guess - error * ERRORS
    aim_high = guess + error * ERRORS
    stalls = tl.zeros_like(guess)
    is_going = is_live
    taken = 0
    while any_row(is_going) & (taken < MOST_PASSES):
        taken += 1
        count = ranks.above_left - ranks.above_right
        part = (ranks.above_left - rank + 0.5).to(COMPUTE) / count.to(COMPUTE)
        margin = 0.5 + tl.sqrt(tl.maximum(part * (1 - part), 0.0) * count.to(COMPUTE)) * MARGIN
        margin = margin / count.to(COMPUTE)
        left = as_finite(ranks.left, COMPUTE)
        low = between(left, ranks.right, tl.maximum(part - margin, 0.0))
        high = between(left, ranks.right, tl.minimum(part + margin, 1.0))
        low = tl.where(aim_low == aim_low, aim_low, low)
        high = tl.where(aim_high == aim_high, aim_high, high)
        inner = 0.5 * low + 0.5 * high
        reach = (0.5 * high - 0.5 * low) * NEARER
        low = _inside(low, ranks.left, ranks.right, COMPUTE)
        high = _inside(high, ranks.left, ranks.right, COMPUTE)
        half = _inside(_half_way(left, ranks.right, among), ranks.left, ranks.right, COMPUTE)
        middle = middle_float(ranks.left, ranks.right, COMPUTE)
        if FREE:
            is_met = (stalls > 0) | (taken > PATIENCE)
            nearer = _inside(inner - reach, ranks.left, ranks.right, COMPUTE)
            half = tl.where(is_met, half, nearer)
            nearer = _inside(inner + reach, ranks.left, ranks.right, COMPUTE)
            middle = tl.where(is_met, middle, nearer)
        found, crossings = over_rows(
            source, (low, high, half, middle), crossings, "counts", COMPUTE
        )
        above_low, above_high, above_half, above_middle = found
        ranks = with_trial(ranks, low, above_low.to(rank.dtype), rank, is_going)
        ranks = with_trial(ranks, high, above_high.to(rank.dtype), rank, is_going)
        ranks = with_trial(ranks, half, above_half.to(rank.dtype), rank, is_going)
        ranks = with_trial(ranks, middle, above_middle.to(rank.dtype), rank, is_going)
        if FREE:
            ranks = _with_gap(ranks, rank, is_going, COMPUTE)
        left_over = ranks.above_left - ranks.above_right
        stalls = tl.where(left_over > count * STALLED, stalls + 1, 0.0)
        aim_low = tl.zeros_like(guess) + float("nan")
        aim_high = aim_low
        is_near = (~row.is_hard) & (ranks.right - ranks.left <= row.t * NEAR)
        is_going = is_going & (~is_near)
        is_going = is_going & (~_is_one(ranks.left, ranks.right, COMPUTE))
        is_asking = is_going & ((left_over <= 2) | (stalls >= MOST_STALLS))
        if any_row(is_asking):
            ends, crossings = over_rows(
                source, (ranks.left, ranks.right), crossings, "ends", COMPUTE
            )
            first, last = ends[0].to(COMPUTE), ends[1].to(COMPUTE)
            ranks = _with_ends(ranks, first, last, rank, is_asking, COMPUTE)
            aim_low = tl.where(is_asking, first, aim_low)
            aim_high = tl.where(is_asking, float_before(last, COMPUTE), aim_high)
            stalls = tl.where(is_asking, 0.0, stalls)
            is_going = is_going & (~_is_one(ranks.left, ranks.right, COMPUTE))
    is_found = is_asked & _is_one(ranks.left, ranks.right, COMPUTE)
    left, right, above_left, above_right, _ = ranks
    return Ranks(left, right, above_left, above_right, is_found), crossings

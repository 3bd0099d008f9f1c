"""The score of a rank, by counts: what the hard limit asks for, and what a root is near to.

Each pass counts the scores over four trials. Two of them are where the rank should be by the counts
at both ends of the bracket, give or take what chance allows; one halves the bracket, and one halves
the floats in it, so that no row takes more passes than a float has bits. Most take three.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import any_row, as_finite, between, float_after, float_before, middle_float
from .passes import Source, over_rows, over_threads

#: Trials are so many standard deviations of a count from where it should be reached.
MARGIN = tl.constexpr(1.2)
#: And so many standard errors from a guess.
ERRORS = tl.constexpr(2.5)
#: A pass that leaves more than this of the scores in the bracket has met with ties, or a gap.
STALLED = tl.constexpr(0.75)
#: From so many such passes on the scores next to the bracket's ends are asked for.
MOST_STALLS = tl.constexpr(2)
#: An end is lone if it is so many times as far away as the other.
LONE = tl.constexpr(8.0)
#: A soft root is near enough when the bracket is so many temperatures wide.
NEAR = tl.constexpr(2.0)
MOST_PASSES = tl.constexpr(96)
#: Threads that hold so many scores keep what is left of them, when it is one for so many threads.
MANY_SCORES = tl.constexpr(32)
LANES_FOR_ONE = tl.constexpr(8)


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


class Search(NamedTuple):
    """How far a search has come: where to look next, NaN for by the counts, and in which rows."""

    aim_low: Any
    aim_high: Any
    stalls: Any  # passes in a row that left most scores where they were
    is_going: Any
    taken: Any  # passes


@triton.jit
def _narrow(
    source,
    row,
    ranks,
    search,
    among,
    base,
    are_all,
    enough,
    crossings,
    KIND: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Passes until every row's score is found, or ``enough`` scores or fewer are left of each.

    Where ``source`` has only some of the scores there are ``base`` above those, and passes are
    "few": they end if they are not all that any member should have (``are_all``).
    """
    rank = tl.ceil(row.k).to(ranks.above_left.dtype)
    aim_low, aim_high, stalls, is_going, taken = search
    is_told = tl.zeros((), tl.int32) == 0
    is_large = is_told
    while any_row(is_going) & (taken < MOST_PASSES) & is_told & is_large:
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
        low = _inside(low, ranks.left, ranks.right, COMPUTE)
        high = _inside(high, ranks.left, ranks.right, COMPUTE)
        half = _inside(_half_way(left, ranks.right, among), ranks.left, ranks.right, COMPUTE)
        middle = middle_float(ranks.left, ranks.right, COMPUTE)
        if KIND == "few":
            found, crossings = over_rows(
                source, (low, high, half, middle, are_all), crossings, KIND, COMPUTE
            )
        else:
            found, crossings = over_rows(
                source, (low, high, half, middle), crossings, KIND, COMPUTE
            )
        above_low, above_high, above_half, above_middle = found
        # NaN is no count: nothing below moves an end by it.
        is_told = ~any_row(above_low != above_low)
        is_live = is_going & is_told
        ranks = with_trial(ranks, low, above_low.to(rank.dtype) + base, rank, is_live)
        ranks = with_trial(ranks, high, above_high.to(rank.dtype) + base, rank, is_live)
        ranks = with_trial(ranks, half, above_half.to(rank.dtype) + base, rank, is_live)
        ranks = with_trial(ranks, middle, above_middle.to(rank.dtype) + base, rank, is_live)
        left_over = ranks.above_left - ranks.above_right
        stalls = tl.where(left_over > count * STALLED, stalls + 1, 0.0)
        aim_low = tl.zeros_like(aim_low) + float("nan")
        aim_high = aim_low
        is_near = (~row.is_hard) & (ranks.right - ranks.left <= row.t * NEAR)
        is_going = is_going & (~is_near)
        is_going = is_going & (~_is_one(ranks.left, ranks.right, COMPUTE))
        is_large = any_row(is_going & (left_over > enough))
        is_asking = is_going & ((left_over <= 2) | (stalls >= MOST_STALLS))
        if any_row(is_asking) & is_told & is_large:
            ends, crossings = over_rows(
                source, (ranks.left, ranks.right), crossings, "ends", COMPUTE
            )
            first, last = ends[0].to(COMPUTE), ends[1].to(COMPUTE)
            ranks = _with_ends(ranks, first, last, rank, is_asking, COMPUTE)
            aim_low = tl.where(is_asking, first, aim_low)
            aim_high = tl.where(is_asking, float_before(last, COMPUTE), aim_high)
            stalls = tl.where(is_asking, 0.0, stalls)
            is_going = is_going & (~_is_one(ranks.left, ranks.right, COMPUTE))
    return ranks, Search(aim_low, aim_high, stalls, is_going, taken), crossings


@triton.jit
def _left_over(source, ranks, is_going, COMPUTE: tl.constexpr):
    """The scores in the brackets, two of each thread at most, and whether those are all."""
    count, first, last = over_threads(source, (ranks.left, ranks.right), "inner", COMPUTE)
    nothing = float("-inf")
    both = tl.join(tl.where(count > 1, first, nothing), tl.where(count > 0, last, nothing))
    return both[None, :, :, :], (tl.max(count, 1) <= 2) | (~is_going)


@triton.jit
def search_rank(source, row, ranks, guess, error, among, is_live, crossings, COMPUTE: tl.constexpr):
    """Narrow ``ranks`` down to the score of rank k, rounded up, or to where a soft root is near.

    ``guess`` is where to look first, with its standard error; NaN if there is none. ``among`` is a
    number that is among the scores. Threads that hold many scores keep what is left in the bracket
    once it is little, and go on with that.
    """
    aim_low = guess - error * ERRORS
    aim_high = guess + error * ERRORS
    search = Search(aim_low, aim_high, tl.zeros_like(guess), is_live, tl.zeros((), tl.int32))
    none = ranks.above_right * 0
    every = row.t == row.t
    if source.r is not None and source.PARTS * source.REPEATS * source.WIDTH >= MANY_SCORES:
        enough = source.LANES // LANES_FOR_ONE
        if source.team is not None:
            enough = enough * source.team.chunks // 2
        ranks, search, crossings = _narrow(
            *(source, row, ranks, search, among, none, every, enough, crossings),
            *("counts", COMPUTE),
        )
        if any_row(search.is_going):
            r, are_all = _left_over(source, ranks, search.is_going, COMPUTE)
            ranks, search, crossings = _narrow(
                Source(
                    *((r,), 0, source.call, source.outer, source.inner, source.team, 0, None),
                    *(False, False, source.LARGEST, 1, 1, source.LANES, 2, source.CHUNK_LANES),
                ),
                *(row, ranks, search, among, ranks.above_right, are_all, -1, crossings),
                *("few", COMPUTE),
            )
    ranks, _, crossings = _narrow(
        *(source, row, ranks, search, among, none, every, -1, crossings), *("counts", COMPUTE)
    )
    is_found = is_live & _is_one(ranks.left, ranks.right, COMPUTE)
    left, right, above_left, above_right, _ = ranks
    return Ranks(left, right, above_left, above_right, is_found), crossings

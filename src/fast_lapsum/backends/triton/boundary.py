"""The boundary of hard masks, which is the score of rank k, from what a soft threshold has told.

N> at the threshold differs from k by half of S<= + S> at most, which are also how many scores there
are within a temperature on both sides: the boundary is so many scores away.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import any_row, float_before, smallest_normal
from .passes import over_rows
from .rank import MANY_SCORES, Ranks, has_rank, search_rank, with_trial
from .root import Row
from .solve import Pair, corners, ranks_in_band, tie_share

#: A boundary that is so few scores away is reached score by score: a pass each, and one more.
MOST_HOPS = tl.constexpr(1)
MOST_HOPS_OF_SHORT_ROWS = tl.constexpr(2)


@triton.jit
def _hop(source, ranks, rank, k, b, above, is_live, crossings, HOPS: tl.constexpr, COMPUTE: tl.constexpr):
    """The boundary of rows in which ``above`` scores lie over b, where that is near the rank."""
    distance = tl.abs(above - rank)
    is_going = is_live & (distance <= HOPS)
    is_found = ranks.is_found & (~is_live)
    hops = 0
    while any_row(is_going) & (hops <= HOPS):
        hops += 1
        found, crossings = over_rows(source, (b,), crossings, "near", COMPUTE)
        above, equal, lower, upper = found
        above = above.to(ranks.above_left.dtype)
        with_equal = above + equal.to(ranks.above_left.dtype)
        lower, upper = lower.to(COMPUTE), upper.to(COMPUTE)
        is_here = is_going & (above < rank) & (rank <= with_equal)
        # All of the scores above, however many of them equal the first.
        is_next = is_going & (above == rank) & (k == rank)
        boundary = tl.where(is_next, upper, b)
        is_done = is_here | is_next
        ranks = Ranks(
            tl.where(is_done, float_before(boundary, COMPUTE), ranks.left),
            tl.where(is_done, boundary, ranks.right),
            tl.where(is_here, with_equal, tl.where(is_next, above, ranks.above_left)),
            tl.where(is_here, above, tl.where(is_next, above - 1, ranks.above_right)),
            ranks.is_found,
        )
        is_found = is_found | is_done
        is_going = is_going & (~is_done)
        b = tl.where(is_going, tl.where(above >= rank, upper, lower), b)
    left, right, above_left, above_right, _ = ranks
    return Ranks(left, right, above_left, above_right, is_found), crossings


@triton.jit
def find_boundary(source, survey, k, t, soft, guess, crossings, COMPUTE: tl.constexpr):
    """The :class:`Pair` of hard masks, NaN for rows without an answer.

    ``soft`` is the rows' pair at their temperature, and ``guess`` is for rows that it says nothing
    of.
    """
    is_hard = survey.finite >= 0
    hi, lo, above, is_answered, takes_none, is_live = corners(survey, k, t, is_hard, COMPUTE)
    missed = tl.zeros_like(hi).to(tl.int32)
    if any_row(is_live):
        tiny = tl.zeros_like(hi) + smallest_normal(COMPUTE)
        valid = survey.finite + survey.infinite
        rank = tl.ceil(k)
        before = float_before(survey.lowest, COMPUTE)
        ranks = Ranks(before, survey.highest, valid, survey.infinite, takes_none)
        row = Row(rank - 0.5, tiny, tiny, valid.to(COMPUTE), is_hard, tiny)
        if source.band is not None:
            ranks = ranks_in_band(source.band, ranks, before, survey.highest, COMPUTE)
            is_beside = ~has_rank(ranks, row)
            beside = tl.where(ranks.above_right >= rank, 1, -1)
            missed = tl.where(is_live & is_beside, beside, missed)
            is_live = is_live & (~is_beside)
        if source.team is None and source.band is None:
            ranks = Ranks(
                *(before, survey.highest, valid.to(COMPUTE), survey.infinite.to(COMPUTE)),
                takes_none,
            )
        rank = rank.to(ranks.above_left.dtype)
        known = soft.above.to(rank.dtype)
        is_known = is_live & (soft.tails > 0)
        ranks = with_trial(ranks, soft.hi, known, rank, is_known)
        excess = (known - rank).to(COMPUTE) + 0.5
        tails = tl.maximum(soft.tails, 0.5)
        per_score = 2 * t.to(COMPUTE) / tails
        error = (1 + tl.sqrt(tl.abs(excess)) + tl.abs(excess) / tl.sqrt(tails)) * per_score
        aim = tl.where(is_known, soft.hi + excess * per_score, guess.b)
        error = tl.where(is_known, error, guess.error)
        SHORT: tl.constexpr = source.PARTS * source.REPEATS * source.WIDTH < MANY_SCORES
        ranks, crossings = _hop(
            *(source, ranks, rank, k.to(rank.dtype), soft.hi, known, is_known, crossings),
            *(MOST_HOPS_OF_SHORT_ROWS if SHORT else MOST_HOPS, COMPUTE),
        )
        is_hopped = ranks.is_found & is_live
        among = tl.where(is_known, soft.hi, guess.among)
        is_sought = is_live & (~is_hopped)
        if any_row(is_sought):
            ranks, crossings = search_rank(
                source, row, ranks, aim, error, among, is_sought, crossings, COMPUTE
            )
        is_found = is_hopped | ranks.is_found
        hi = tl.where(is_live, tl.where(is_found, ranks.right, float("nan")), hi)
        lo = tl.where(is_live, tie_share(k, ranks, COMPUTE), lo)
        above = tl.where(is_live, ranks.above_right, above)
        missed = tl.where(is_live & (~is_found), 2, missed)
        hi = tl.where(missed != 0, float("nan"), hi)
    nothing = float("nan")
    hi = tl.where(is_answered, hi, nothing)
    lo = tl.where(is_answered, lo, nothing)
    return Pair(hi, lo, above, 0 * hi, takes_none, missed), crossings

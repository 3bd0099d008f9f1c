"""The boundary of hard masks, at or over which k scores lie, from what a soft threshold has told.

N> at the threshold differs from k by half of S<= + S> at most, which are also how many scores there
are within a temperature on both sides: the boundary is so many scores away.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import any_row, float_before, smallest_normal
from .rank import Ranks, has_rank, search_rank, with_trial
from .root import Row
from .solve import Pair, corners, ranks_in_band, tie_share

#: How far the boundary may be, in temperatures, where all scores are on one side of the threshold.
UNEVEN = tl.constexpr(6.0)


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
        ranks = with_trial(ranks, soft.at, known, rank, is_known)
        excess = (known - rank).to(COMPUTE) + 0.5
        tails = tl.maximum(soft.tails, 0.5)
        per_score = 2 * t.to(COMPUTE) / tails
        # Chance, and how much denser scores may be there: the more, the less they are on one side.
        part = excess / tails
        error = (1 + tl.sqrt(tl.abs(excess))) * per_score + part * part * t.to(COMPUTE) * UNEVEN
        is_nearer = is_known & (~(guess.error < error))
        aim = tl.where(is_nearer, soft.at + excess * per_score, guess.b)
        error = tl.where(is_nearer, error, guess.error)
        among = tl.where(is_known, soft.at, guess.among)
        ranks, crossings = search_rank(
            source, row, ranks, aim, error, among, is_live, crossings, True, COMPUTE
        )
        is_found = ranks.is_found
        hi = tl.where(is_live, tl.where(is_found, ranks.right, float("nan")), hi)
        lo = tl.where(is_live, tie_share(k, ranks, COMPUTE), lo)
        # There is room for all that equal a boundary of which all are taken, however many they are.
        above = tl.where(is_live, tl.where(lo == 1, -1.0, ranks.above_right), above)
        missed = tl.where(is_live & (~is_found), 2, missed)
        hi = tl.where(missed != 0, float("nan"), hi)
    nothing = float("nan")
    hi = tl.where(is_answered, hi, nothing)
    lo = tl.where(is_answered, lo, nothing)
    return Pair(hi, lo, above, hi, 0 * hi, takes_none, missed, 0 * hi), crossings

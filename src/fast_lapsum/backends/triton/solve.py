"""From any rows to their threshold pairs: the corners, and the bracket and guess for all others.

The pair of a soft row is (hi, lo) with b = hi + lo. In the hard limit, which is t = 0 or hi = +inf,
it is (boundary score, share of a score that equals it).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import (
    HOTTEST,
    SATURATION,
    any_row,
    as_finite,
    below_one,
    exponent_scale,
    first_guess,
    float_before,
    interpolate,
    largest_finite,
    lift_of,
    log_quotient,
    pick,
    prior_bracket,
    smallest_normal,
)
from .passes import Survey, look_at, over_rows
from .rank import Ranks, has_rank, near_rank, search_rank, with_trial
from .root import MOST_STEPS, Bracket, Row, approach, bracket_of, finish, iterate


class Guess(NamedTuple):
    """Where to look first, how far off that may be, and a number that is among the scores."""

    b: Any
    error: Any
    among: Any


class Pair(NamedTuple):
    """Threshold pairs, and in the hard limit how many scores are above the boundary.

    Of a soft row ``above`` is N> at the number ``at``, and ``tails`` is S<= + S> near there; where
    nothing is known of that there are no tails.
    ``is_spent``: +inf scores take all of the budget, and finite ones nothing.
    ``log_share`` is the logarithm of the share in the hard limit, where log p is written.
    Of the scores in a band: whether the root is below it (-1), above it (1) or was not found (2).
    """

    hi: Any
    lo: Any
    above: Any
    at: Any
    tails: Any
    is_spent: Any
    missed: Any
    log_share: Any


class Corners(NamedTuple):
    """Pairs of rows that need no search, and which do: those that are live."""

    hi: Any
    lo: Any
    above: Any
    is_answered: Any
    takes_none: Any
    is_live: Any


@triton.jit
def survey_rows(source, origin, n, COMPUTE: tl.constexpr):
    """The :class:`Survey` of rows in registers, and mean and mean square relative to the origin.

    Rows without infinities and NaN are told by their ends and squares, and need no counting.
    """
    moments, _ = over_rows(source, (origin,), 0, "moments", COMPUTE)
    lowest, highest, total, squares = moments
    is_clean = (lowest > float("-inf")) & (highest < float("inf")) & (squares == squares)
    length = origin * 0 + n
    none = origin * 0
    finite, infinite, nans, count = length, none, none, length
    if any_row(~is_clean):
        counted, _ = over_rows(source, (origin,), 0, "survey", COMPUTE)
        finite_here, infinite_here, nans_here, low, high, total_here, squares_here = counted
        finite = tl.where(is_clean, finite, finite_here)
        infinite = tl.where(is_clean, infinite, infinite_here)
        nans = tl.where(is_clean, nans, nans_here)
        lowest = tl.where(is_clean, lowest, low)
        highest = tl.where(is_clean, highest, high)
        total = tl.where(is_clean, total, total_here)
        squares = tl.where(is_clean, squares, squares_here)
        count = tl.maximum(finite, 1.0)
    survey = Survey(finite.to(tl.float64), infinite.to(tl.float64), nans, lowest, highest)
    return survey, total / count, squares / count


@triton.jit
def guess_of(survey, origin, mean, square, k, t, start, is_hard, COMPUTE: tl.constexpr):
    """A :class:`Guess` from mean and variance, or from a warm start where that is a number."""
    t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t)
    share = tl.maximum(k - survey.infinite, 0.0)
    b, error = first_guess(origin, mean, square, share, survey.finite, t_soft, COMPUTE)
    is_warm = (start == start) & (~is_hard)
    return Guess(tl.where(is_warm, start, b), tl.where(is_warm, 0.0, error), origin)


@triton.jit
def ranks_in_band(band, ranks, left, right, COMPUTE: tl.constexpr):
    """Ranks within the band, of which the bracket of a row (left, right) may have more."""
    before_band = float_before(as_finite(band.low, COMPUTE), COMPUTE)
    of_band = band.above + band.at_point + band.count
    is_certain_left = left >= band.low
    is_certain_right = right <= band.high
    return Ranks(
        tl.where(is_certain_left, ranks.left, before_band),
        tl.where(is_certain_right, ranks.right, band.high),
        tl.where(is_certain_left, ranks.above_left, of_band),
        tl.where(is_certain_right, ranks.above_right, band.above),
        ranks.is_found,
    )


@triton.jit
def _in_band(source, row, ranks, left, right, crossings, COMPUTE: tl.constexpr):
    """Bracket and ranks within the band, and whether the root is there: one look at both ends."""
    band = source.band
    # Of the row's own bracket it is certain, and a root may lie beyond the largest number.
    is_certain_left = left >= band.low
    is_certain_right = right <= band.high
    ranks = ranks_in_band(band, ranks, left, right, COMPUTE)
    left = tl.maximum(left, band.low)
    right = tl.minimum(right, band.high)
    end = tl.arange(0, 2)
    trial = as_finite(tl.where(end == 0, left, right), COMPUTE)
    look, crossings = look_at(source, trial, row.inverse + 0 * trial, crossings, COMPUTE)
    excess = look.above - row.k + 0.5 * (look.below - look.higher)
    over_left = tl.where(row.is_hard, ranks.above_left - row.k, pick(excess, 0))
    over_right = tl.where(row.is_hard, ranks.above_right - row.k, pick(excess, 1))
    over_left = tl.where(is_certain_left, tl.maximum(over_left, 0.0), over_left)
    over_right = tl.where(is_certain_right, tl.minimum(over_right, 0.0), over_right)
    missed = tl.where(over_left < 0, -1, tl.where(over_right > 0, 1, 0))
    bracket = Bracket(left, right, over_left.to(COMPUTE), over_right.to(COMPUTE))
    return bracket, ranks, missed, crossings


@triton.jit
def corners(survey, k, t, is_hard, COMPUTE: tl.constexpr):
    """Rows that take no finite score or all of them, or that have no answer."""
    tiny = smallest_normal(COMPUTE)
    limit = largest_finite(COMPUTE)
    finite = survey.finite
    infinite = survey.infinite
    valid = finite + infinite
    remaining = k - infinite
    is_answered = (k >= 0) & (k <= valid) & (t >= 0) & (t <= limit / HOTTEST) & (survey.nans == 0)
    # Nothing of the finite scores, or all of them: the ends of the bracket, beyond which p is 0, 1.
    edge = tl.minimum(t * SATURATION, limit / 2).to(COMPUTE)
    takes_none = remaining <= 0
    takes_few = takes_none | (~is_hard & (remaining < tiny * finite))  # p is no normal number
    takes_all = remaining == finite
    hi = tl.where(takes_few, survey.highest, survey.lowest)
    lo = tl.where(takes_few, edge, -edge)
    lo = tl.where(is_hard, tl.where(takes_few, 0.0, 1.0), lo)
    # No finite score: +inf scores take the budget, and any threshold will do.
    is_empty = finite == 0
    hi = tl.where(is_empty, 0.0, hi)
    lo = tl.where(is_empty, 0.0, lo)
    # More +inf scores than budget share it; so they do in the hard limit where they just fit.
    is_shared = (remaining < 0) | (is_hard & (remaining == 0) & (infinite > 0))
    hi = tl.where(is_shared, float("inf"), hi)
    lo = tl.where(is_shared, (k / tl.maximum(infinite, 1.0)).to(COMPUTE), lo)
    # Whatever equals the boundary has room where all is taken, and none where nothing is.
    above = tl.where(takes_all & (~takes_none), -1.0, 0.0 * k)
    is_live = is_answered & (~takes_few) & (~takes_all) & (~is_empty)
    return Corners(hi, lo, above, is_answered, takes_none, is_live)


@triton.jit
def tie_share(k, ranks, COMPUTE: tl.constexpr):
    """What there is for each score that equals the boundary, where ranks are found."""
    equal_count = tl.maximum(ranks.above_left - ranks.above_right, 1.0)
    share = ((k - ranks.above_right) / equal_count).to(COMPUTE)
    # 1 only if all are taken: all but one of 2^25 that are tied would round to it. A budget that is
    # not whole, and short of all by less than one, is rounded as any other.
    is_part = k - ranks.above_right <= equal_count - 1
    return tl.where(is_part, tl.minimum(share, below_one(COMPUTE)), share)


@triton.jit
def solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE: tl.constexpr):
    """The :class:`Pair` of any rows, NaN for those without an answer.

    ``look`` is one that was taken at the guess before, or None.
    Rows that are ``is_hard`` are searched for their score of rank k, rounded up; t plays no part.
    """
    tiny = smallest_normal(COMPUTE)
    finite = survey.finite
    infinite = survey.infinite
    valid = finite + infinite
    lowest = survey.lowest
    highest = survey.highest
    hi, lo, above, is_answered, takes_none, is_live = corners(survey, k, t, is_hard, COMPUTE)
    at = hi
    tails = 0 * hi
    missed = tl.zeros_like(lowest).to(tl.int32)
    # The share in the hard limit, as a quotient.
    is_infinite = hi == float("inf")
    shared = tl.where(is_infinite, k, lo.to(tl.float64))
    among_ties = tl.where(is_infinite, tl.maximum(infinite, 1.0), 1.0)
    if any_row(is_live):
        t_soft = tl.where(is_hard, tiny, t)
        # Half a score below the rank, where counts are all there is.
        target = tl.where(is_hard, tl.ceil(k) - 0.5, k)
        inverse = exponent_scale(t_soft, COMPUTE)
        only = tl.full((1,), -1.0, COMPUTE)
        row = Row(target, t_soft.to(COMPUTE), inverse, valid.to(COMPUTE), is_hard, only)
        share = tl.minimum(tl.maximum(target - infinite, tiny), finite)
        # A boundary is a score: the bracket of t = 0 has them all inside.
        t_bracket = tl.where(is_hard, 0.0, t)
        left, right = prior_bracket(lowest, highest, share, finite, t_bracket, COMPUTE)
        # All scores lie between these, which a bracket of a soft root need not hold.
        before = tl.minimum(left, float_before(lowest, COMPUTE))
        last = tl.maximum(as_finite(right, COMPUTE), highest)
        ranks = Ranks(before, last, valid, infinite, takes_none)
        if source.team is None and source.band is None:
            ranks = Ranks(before, last, valid.to(COMPUTE), infinite.to(COMPUTE), takes_none)
        if source.band is None:
            bracket = bracket_of(left, right, valid.to(COMPUTE), target.to(COMPUTE))
            if look is not None:
                ranks = with_trial(ranks, guess.b, look.above, tl.ceil(target), is_live)
            trial, bracket, crossings = approach(
                *(source, row, bracket, guess.b, guess.error),
                *(is_live, look, crossings, MOST_STEPS, COMPUTE),
            )
            aim, error, among = guess.b, guess.error, guess.among
        else:
            bracket, ranks, beside, crossings = _in_band(
                source, row, ranks, left, right, crossings, COMPUTE
            )
            missed = tl.where(is_live, beside, missed)
            hi = tl.where(missed != 0, float("nan"), hi)
            is_live = is_live & (beside == 0)
            lift_left = lift_of(bracket.over_left, target.to(COMPUTE), row.count)
            lift_right = lift_of(bracket.over_right, target.to(COMPUTE), row.count)
            b = interpolate(bracket.left, bracket.right, lift_left, lift_right, COMPUTE)
            trial, bracket, crossings = approach(
                *(source, row, bracket, b, 0 * b),
                *(is_live, None, crossings, MOST_STEPS, COMPUTE),
            )
            aim = tl.zeros_like(b) + float("nan")  # by the counts at both ends
            error, among = aim, b
        hi = tl.where(is_live, trial.b, hi)
        lo = tl.where(is_live, trial.step, lo)
        above = tl.where(is_live & trial.is_exact, trial.above, above)
        at = tl.where(is_live, trial.b, at)
        tails = tl.where(is_live & trial.is_exact, trial.tails, tails)
        is_open = is_live & (~trial.is_exact)
        if any_row(is_open):
            start = trial.b
            is_sought = is_open & trial.is_far & has_rank(ranks, row)
            if any_row(is_sought):
                ranks, crossings = search_rank(
                    source, row, ranks, aim, error, among, is_sought, crossings, False, COMPUTE
                )
                start = tl.where(is_sought, near_rank(ranks), start)
                is_ranked = is_sought & is_hard
                hi = tl.where(is_ranked, ranks.right, hi)
                lo = tl.where(is_ranked, tie_share(k, ranks, COMPUTE), lo)
                above = tl.where(is_ranked, ranks.above_right, above)
                shared = tl.where(is_ranked, k - ranks.above_right, shared)
                ties = tl.maximum(ranks.above_left - ranks.above_right, 1.0)
                among_ties = tl.where(is_ranked, ties, among_ties)
            hi = tl.where(is_open & is_hard & (~ranks.is_found), float("nan"), hi)
            is_soft = is_open & (~is_hard)
            if any_row(is_soft):
                found, crossings = iterate(source, row, bracket, start, is_soft, crossings, COMPUTE)
                soft_hi, soft_lo, crossings = finish(
                    source, row, found, is_soft, crossings, COMPUTE
                )
                # N> at the next score below.
                is_next = is_soft & found.is_found & (found.lower > float("-inf"))
                above = tl.where(is_next, found.above, above)
                at = tl.where(is_next, found.lower, at)
                tails = tl.where(is_next, tl.maximum(trial.tails, 1.0), tails)
                hi = tl.where(is_soft, soft_hi, hi)
                lo = tl.where(is_soft, soft_lo, lo)
            missed = tl.where(is_open & (hi != hi), 2, missed)
    nothing = float("nan")
    hi = tl.where(is_answered, hi, nothing)
    lo = tl.where(is_answered, lo, nothing)
    log_share = 0 * lo
    if any_row(is_hard | is_infinite):
        log_share = log_quotient(shared, among_ties, COMPUTE)
    return Pair(hi, lo, above, at, tails, takes_none, missed, log_share), crossings

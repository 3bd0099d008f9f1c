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
    exponent_scale,
    first_guess,
    interpolate,
    largest_finite,
    lift_of,
    pick,
    prior_bracket,
    smallest_normal,
)
from .passes import Survey, look_at, over_rows
from .root import MOST_STEPS, Bracket, Row, approach, bracket_of, finish, iterate


class Guess(NamedTuple):
    """Where to look first, and how far off that may be."""

    b: Any
    error: Any


class Pair(NamedTuple):
    """Threshold pairs, and in the hard limit how many scores are above the boundary.

    Of the scores in a band: whether the root is below it (-1), above it (1) or was not found (2).
    """

    hi: Any
    lo: Any
    above: Any
    missed: Any


@triton.jit
def survey_rows(source, origin, n, COMPUTE: tl.constexpr):
    """The :class:`Survey` of rows in registers, and mean and mean square relative to the origin.

    Rows without infinities and NaN are told by their sum of squares, and need no counting.
    """
    moments, _ = over_rows(source, (origin,), 0, "moments", COMPUTE)
    lowest, highest, total, squares = moments
    is_clean = squares < float("inf")
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
    return Guess(tl.where(is_warm, start, b), tl.where(is_warm, 0.0, error))


@triton.jit
def _in_band(source, row, left, right, crossings, COMPUTE: tl.constexpr):
    """The bracket within the band, and whether the root is in it: one look at both ends."""
    # Of the row's own bracket it is certain, and a root may lie beyond the largest number.
    is_certain_left = left >= source.band.low
    is_certain_right = right <= source.band.high
    left = tl.maximum(left, source.band.low)
    right = tl.minimum(right, source.band.high)
    end = tl.arange(0, 2)
    trial = as_finite(tl.where(end == 0, left, right), COMPUTE)
    look, crossings = look_at(source, trial, row.inverse + 0 * trial, crossings, COMPUTE)
    over = look.above - row.k
    # In the hard limit S<= is the number of equal scores: a boundary at the low end is in the band.
    at_end = tl.where(end == 0, look.below, 0.0)
    excess = over + tl.where(row.is_hard, at_end, 0.5 * (look.below - look.higher))
    over_left = pick(excess, 0)
    over_right = pick(excess, 1)
    over_left = tl.where(is_certain_left, tl.maximum(over_left, 0.0), over_left)
    over_right = tl.where(is_certain_right, tl.minimum(over_right, 0.0), over_right)
    missed = tl.where(over_left < 0, -1, tl.where(over_right > 0, 1, 0))
    # A boundary may be an end of the band, and trials lie within the bracket.
    tiny = smallest_normal(COMPUTE)
    left = tl.where(row.is_hard, left - tl.abs(left) * 2.0**-20 - tiny, left)
    right = tl.where(row.is_hard, right + tl.abs(right) * 2.0**-20 + tiny, right)
    bracket = Bracket(left, right, over_left.to(COMPUTE), over_right.to(COMPUTE))
    return bracket, missed, crossings


@triton.jit
def solve(source, survey, k, t, is_hard, guess, look, crossings, COMPUTE: tl.constexpr):
    """The :class:`Pair` of any rows, NaN for those without an answer.

    ``look`` is one that was taken at the guess before, or None.
    Rows that are ``is_hard`` are searched for their score of rank k, rounded up; t plays no part.
    """
    tiny = smallest_normal(COMPUTE)
    limit = largest_finite(COMPUTE)
    finite = survey.finite
    infinite = survey.infinite
    valid = finite + infinite
    lowest = survey.lowest
    highest = survey.highest
    remaining = k - infinite
    is_answered = (k >= 0) & (k <= valid) & (t >= 0) & (t <= limit / HOTTEST) & (survey.nans == 0)

    # Nothing of the finite scores, or all of them: the ends of the bracket, beyond which p is 0, 1.
    edge = tl.minimum(t * SATURATION, limit / 2).to(COMPUTE)
    takes_none = remaining <= 0
    takes_few = takes_none | (~is_hard & (remaining < tiny * finite))  # p is no normal number
    takes_all = remaining == finite
    hi = tl.where(takes_few, highest, lowest)
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

    missed = tl.zeros_like(lowest).to(tl.int32)

    is_live = is_answered & (~takes_few) & (~takes_all) & (~is_empty)
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
        if source.band is None:
            bracket = bracket_of(left, right, valid.to(COMPUTE), target.to(COMPUTE))
            trial, bracket, crossings = approach(
                *(source, row, bracket, guess.b, guess.error),
                *(is_live, look, crossings, MOST_STEPS, COMPUTE),
            )
        else:
            bracket, beside, crossings = _in_band(source, row, left, right, crossings, COMPUTE)
            missed = tl.where(is_live, beside, missed)
            hi = tl.where(missed != 0, float("nan"), hi)
            is_live = is_live & (beside == 0)
            lift_left = lift_of(bracket.over_left, target.to(COMPUTE), row.count)
            lift_right = lift_of(bracket.over_right, target.to(COMPUTE), row.count)
            b = interpolate(bracket.left, bracket.right, lift_left, lift_right, COMPUTE)
            error = tl.where(is_hard, 0.125 * bracket.right - 0.125 * bracket.left, 0.0)
            trial, bracket, crossings = approach(
                *(source, row, bracket, b, error),
                *(is_live, None, crossings, MOST_STEPS, COMPUTE),
            )
        hi = tl.where(is_live, trial.b, hi)
        lo = tl.where(is_live, trial.step, lo)
        is_open = is_live & (~trial.is_exact)
        if any_row(is_open):
            found, crossings = iterate(source, row, bracket, trial, is_open, crossings, COMPUTE)
            soft_hi, soft_lo, crossings = finish(
                source, row, found, is_open & (~is_hard), crossings, COMPUTE
            )
            room = k - found.above
            share_of_equal = (room / tl.maximum(found.equal_count, 1.0)).to(COMPUTE)
            hi = tl.where(is_open, tl.where(is_hard, found.b, soft_hi), hi)
            lo = tl.where(is_open, tl.where(is_hard, share_of_equal, soft_lo), lo)
            hi = tl.where(is_open & (~found.is_found), float("nan"), hi)
            missed = tl.where(is_open & (hi != hi), 2, missed)
            above = tl.where(is_open & is_hard, found.above, above)
    nothing = float("nan")
    hi = tl.where(is_answered, hi, nothing)
    return Pair(hi, tl.where(is_answered, lo, nothing), above, missed), crossings

"""From any row to its threshold pair: the corners, and the bracket and guess for all others."""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import measure, survey, survey_clean
from .primitives import (
    HOTTEST,
    SATURATION,
    first_guess,
    largest_finite,
    middle_float,
    prior_bracket,
    smallest_normal,
)
from .root import approach, root_between


@triton.jit
def nothing_outside(COMPUTE: tl.constexpr):
    """The tails outside a source that is the whole row: N>, S<, S>, and the ends they are from."""
    none = tl.zeros((), tl.float64)
    lowest = tl.full((), float("-inf"), COMPUTE)
    highest = tl.full((), float("inf"), COMPUTE)
    return none, none, none, lowest, highest


@triton.jit
def select_rank(
    source,
    rank,
    lowest,
    highest,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The score of rank ``rank`` (1 is the largest), how many lie above and how many equal it.

    Both ends of the bracket are scores; its middle in the order of floats halves it.
    """
    inverse = tl.zeros((), COMPUTE)  # exponentials play no part
    left = lowest
    right = highest
    b = middle_float(left, right, COMPUTE)
    above = tl.zeros((), tl.float64)
    at = tl.zeros((), tl.float64)
    found = False
    taken = 0
    while (not found) & (taken < 72):
        taken += 1
        above, at, _, _, below_score, above_score = measure(
            source, b, inverse, HOLDS, LARGEST, BLOCK, COMPUTE
        )
        above = above.to(tl.float64)
        at = at.to(tl.float64)
        found = (above < rank) & (rank <= above + at)
        if not found:
            left = tl.where(above >= rank, above_score, left)
            right = tl.where(above >= rank, right, below_score)
            b = middle_float(left, right, COMPUTE)
    return b, above, at


@triton.jit
def solve_row(
    source,
    k,
    t,
    start,
    origin,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The threshold pair of any row, and the survey's lowest and highest score."""
    finite, infinite, nans, lowest, highest, mean, square = survey(
        source, origin, HOLDS, LARGEST, BLOCK, COMPUTE
    )
    valid = finite + infinite
    tiny = smallest_normal(COMPUTE)
    limit = largest_finite(COMPUTE)
    answerable = (k >= 0) & (k <= valid) & (t >= 0) & (t <= limit / HOTTEST) & (nans == 0)
    remaining = k - infinite
    highest_any = tl.where(infinite > 0, float("inf"), highest)
    lowest_any = tl.where(finite > 0, lowest, float("inf"))
    hi = tl.full((), float("nan"), COMPUTE)
    lo = tl.full((), float("nan"), COMPUTE)
    if answerable:
        edge = tl.minimum(t * SATURATION, limit / 2).to(COMPUTE)
        if remaining < 0:
            hi = tl.full((), float("inf"), COMPUTE)
            lo = (k / infinite).to(COMPUTE)
        elif t < tiny:
            if valid > 0:
                rank = tl.maximum(tl.ceil(k), 1.0)
                hi, above, at = select_rank(
                    source, rank, lowest_any, highest_any, HOLDS, LARGEST, BLOCK, COMPUTE
                )
                lo = ((k - above) / at).to(COMPUTE)
            else:
                hi = tl.zeros((), COMPUTE)
                lo = tl.zeros((), COMPUTE)
        elif finite == 0:
            hi = tl.zeros((), COMPUTE)
            lo = tl.zeros((), COMPUTE)
        elif remaining < tiny * finite:  # nothing, or so little that no p is a normal number
            hi = highest
            lo = edge
        elif remaining == finite:
            hi = lowest
            lo = -edge
        else:
            left, right = prior_bracket(lowest, highest, remaining, finite, t, COMPUTE)
            mass_left = (valid - 0.5).to(COMPUTE)
            mass_right = (infinite + 0.5).to(COMPUTE)
            guess, _ = first_guess(origin, mean, square, remaining, finite, t, COMPUTE)
            guess = tl.where(start == start, start, guess)
            outside = nothing_outside(COMPUTE)
            hi, lo = root_between(
                source,
                outside,
                k,
                t,
                valid.to(COMPUTE),
                left,
                right,
                mass_left,
                mass_right,
                guess,
                0.0,
                HOLDS,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
    return hi, lo, lowest_any, highest_any


@triton.jit
def solve_clean_row(
    source,
    inside,
    k,
    t,
    start,
    origin,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair of a row in registers that is as rows mostly are: finite, 0 < k < n, t > 0.

    NaN for any other row, and :func:`solve_row` is for those.
    """
    r, _, _, n, _, _ = source
    hi = tl.full((), float("nan"), COMPUTE)
    lo = tl.full((), float("nan"), COMPUTE)
    lowest, highest, mean, square = survey_clean(r, inside, origin, n)
    is_soft = (t >= smallest_normal(COMPUTE)) & (t <= largest_finite(COMPUTE) / HOTTEST)
    is_between = (k >= smallest_normal(COMPUTE) * n) & (k < n)
    if is_soft & is_between & (square < float("inf")):
        length = tl.zeros((), tl.float64) + n
        count = length.to(COMPUTE)
        left, right = prior_bracket(lowest, highest, k, length, t, COMPUTE)
        guess, error = first_guess(origin, mean, square, k, length, t, COMPUTE)
        is_warm = start == start
        guess = tl.where(is_warm, start, guess)
        error = tl.where(is_warm, 0.0, error)
        is_exact, b, step, spacing, left, right, mass_left, mass_right = approach(
            r, k, t, guess, error, left, right, count - 0.5, 0.5 + 0.0 * count, 3, COMPUTE
        )
        hi = b
        lo = step
        if not is_exact:
            outside = nothing_outside(COMPUTE)
            hi, lo = root_between(
                source,
                outside,
                k,
                t,
                count,
                left,
                right,
                mass_left,
                mass_right,
                b,
                spacing,
                "row",
                LARGEST,
                BLOCK,
                COMPUTE,
            )
    return hi, lo

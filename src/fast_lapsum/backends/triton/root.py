"""From a bracket to the root in it: cheap looks, the two-exponential iteration, the last digits.

Everything here is a vector with one entry per row. A row that is done is frozen: its bits do not
depend on the rows beside it. A row in the hard limit (``is_hard``) has no root but a rank, half a
score above its budget, which is found by counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import (
    SQUARABLE,
    VANISHED,
    any_row,
    as_finite,
    closed_form_step,
    hypotenuse,
    interpolate,
    lift_of,
    middle_float,
    model_factor,
    negligible_step,
    sum_of_two,
)
from .passes import look_at, measure, over_rows

#: Passes after which the order of floats is only halved, and the most there are.
BISECT_ONLY_FROM = tl.constexpr(20)
MOST_PASSES = tl.constexpr(96)
#: Closed-form steps by cheap looks before a row is left to the iteration.
MOST_STEPS = tl.constexpr(8)
#: No such steps are taken from a guess that may be off by so many temperatures, nor longer ones.
LONGEST_STEP = tl.constexpr(60.0)
#: Sums of so much on both sides are those of many scores, and a straight step may be so long.
DENSE = tl.constexpr(4.0)
LONGEST_STRAIGHT = tl.constexpr(1000.0)
#: Closed-form steps lead as long as the mass to be crossed is so many times the sums; from outside
#: all scores one or two lead to them.
LED = tl.constexpr(4.0)
UNLED_STEPS = tl.constexpr(3)
#: Temperatures beyond which sums at the root have too few digits left to be taken there again, the
#: share of the budget that far scores must have for it, and by how much that may move the root.
FARTHEST = tl.constexpr(40.0)
MADE_UP = tl.constexpr(0.125)
CLOSE = tl.constexpr(2.0**-12)
#: A root that is so few scores away is left to the iteration, which knows the nearest ones.
FEW = tl.constexpr(2.0)


class Row(NamedTuple):
    """What is looked for in each row."""

    k: Any  # float64
    t: Any
    inverse: Any  # log2(e) / t
    count: Any  # of scores that the budget is for
    is_hard: Any
    slack: Any  # a trial whose mass is off by no more will do; below 0: only the root does


class Bracket(NamedTuple):
    """Numbers that hold the root, and how far the mass there is from the target: for guidance."""

    left: Any
    right: Any
    over_left: Any
    over_right: Any


class Trial(NamedTuple):
    """b + step is the root where ``is_exact``; else b is a trial, which ``is_far`` from the root.

    ``above`` and ``tails`` are N> and S<= + S> of the last look, which was at b where it is exact.
    """

    b: Any
    step: Any
    is_exact: Any
    is_far: Any
    above: Any
    tails: Any


class Found(NamedTuple):
    """b + step is the root, between neighbouring scores; ``is_direct`` needs no finishing."""

    is_found: Any
    b: Any
    step: Any
    lower: Any
    upper: Any
    above: Any  # scores over ``lower``
    is_direct: Any


@triton.jit
def _minus_budget(count, k, COMPUTE: tl.constexpr):
    """A count of scores less k. Float32 counts do without float64: k is split in two."""
    if count.dtype == tl.float64:
        return count - k
    else:
        head = k.to(COMPUTE)
        rest = (k - head.to(tl.float64)).to(COMPUTE)
        return (count - head) - rest


@triton.jit
def bracket_of(left, right, count, target_mass):
    """The bracket before any pass: half a score from all mass, and from none."""
    return Bracket(left, right, count - 0.5 - target_mass, 0.5 - target_mass)


@triton.jit
def _narrowed(bracket, b, excess, is_live):
    """The bracket with the trial b, whose mass is over the target by ``excess``, as an end."""
    is_left = is_live & (excess >= 0)
    is_right = is_live & (excess < 0)
    return Bracket(
        tl.where(is_left, b, bracket.left),
        tl.where(is_right, b, bracket.right),
        tl.where(is_left, excess, bracket.over_left),
        tl.where(is_right, excess, bracket.over_right),
    )


@triton.jit
def approach(
    source,
    row,
    bracket,
    guess,
    error,
    is_live,
    first,
    crossings,
    STEPS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Cheap looks, from a guess to the root, or to where the iteration begins.

    A look takes one closed-form step, and one that is short enough is exact: two to five do for
    most rows. ``error`` is how far off the guess may be. ``first`` is a look at the guess that was
    taken before, or None.
    """
    b = guess  # where the first look was taken, be that in the bracket or not
    is_near = ~row.is_hard
    if first is None:
        b = tl.minimum(tl.maximum(guess, bracket.left), bracket.right)
        is_near = is_near & (3 * error <= row.t * LONGEST_STEP)
    is_exact = is_live & (row.k != row.k)
    step = tl.zeros_like(b)
    tails = tl.zeros_like(b)
    above = tl.zeros_like(b).to(tl.float64)
    is_far = is_live
    is_going = is_live & is_near & (tl.abs(guess) < float("inf"))
    looks = 0
    while any_row(is_going):
        if first is None:
            look, crossings = look_at(source, b, row.inverse, crossings, COMPUTE)
        else:
            look = first
            if looks > 0:
                look, crossings = look_at(source, b, row.inverse, crossings, COMPUTE)
        looks += 1
        count_excess = _minus_budget(look.above, row.k, COMPUTE)
        excess = (count_excess + 0.5 * (look.below - look.higher)).to(COMPUTE)
        bracket = _narrowed(bracket, b, excess, is_going)
        relative = closed_form_step(
            count_excess.to(COMPUTE), look.below.to(COMPUTE), look.higher.to(COMPUTE), excess
        )
        tails = tl.where(is_going, (look.below + look.higher).to(COMPUTE), tails)
        above = tl.where(is_going, look.above.to(tl.float64), above)
        # Among many scores the mass is straight over distances at which the closed form, which
        # knows nothing of the scores ahead, would take many steps.
        is_dense = tl.minimum(look.below, look.higher) >= DENSE
        straight = 2 * excess / tl.maximum(tails, SQUARABLE)
        is_straight = is_dense & (tl.abs(relative) > 1) & (tl.abs(straight) < LONGEST_STRAIGHT)
        relative = tl.where(is_straight, straight, relative)
        # The squares of smaller sums are no normal numbers: the iteration does without them.
        is_told = tails >= SQUARABLE
        is_short = is_told & (tl.abs(relative) <= negligible_step(COMPUTE))
        is_short = is_short | (tl.abs(excess) <= row.slack)
        is_exact = is_exact | (is_going & is_short)
        step = tl.where(is_going, row.t * relative, step)
        b = tl.where(is_going & (~is_short), b + step, b)
        is_far = tl.where(is_going, tl.abs(excess) > tl.maximum(2 * tails, FEW), is_far)
        is_inner = (bracket.left < b) & (b < bracket.right) & (looks < STEPS)
        # Where few scores are near and many are to be crossed, counts lead: see rank.py.
        is_led = (tl.abs(excess) <= tails * LED) | (looks < UNLED_STEPS)
        is_led = is_led & (tl.abs(relative) < LONGEST_STEP)
        is_going = is_going & is_told & (~is_short) & is_inner & (is_straight | is_led)
    return Trial(b, step, is_exact, is_far, above, tails), bracket, crossings


@triton.jit
def iterate(source, row, bracket, start, is_live, crossings, COMPUTE: tl.constexpr):
    """Iterate the closed form until a pass certifies itself.

    The root lies in the bracket. Between its ends the logit of the mass is interpolated: a lift is
    by how much it is over that of the budget. The lift of an end which stays while the other one
    moves twice is halved (the Illinois rule), so that a far end does not hold the interpolation
    back; ``last`` is 1 if the left end moved last, -1 if the right one did.
    """
    t = row.t
    target_mass = row.k.to(COMPUTE)
    is_between = (bracket.left < start) & (start < bracket.right)
    lift_left = lift_of(bracket.over_left, target_mass, row.count)
    lift_right = lift_of(bracket.over_right, target_mass, row.count)
    last = 0.0 * start
    b = interpolate(bracket.left, bracket.right, lift_left, lift_right, COMPUTE)
    # Of ends that are neighbours an interpolation may round to a number beside them.
    is_inside = (bracket.left < b) & (b < bracket.right)
    b = tl.where(is_inside, b, middle_float(bracket.left, bracket.right, COMPUTE))
    b = tl.where(is_between, start, b)
    is_found = is_live & (row.k != row.k)
    is_direct = is_live & (row.k != row.k)
    step = tl.zeros_like(b)
    lower = bracket.left
    upper = bracket.right
    above = row.k * 0
    # Where to interpolate: from the nearest scores inside, not across the gaps at the ends.
    inner_left = bracket.left
    inner_right = bracket.right
    is_going = is_live
    taken = 0
    while any_row(is_going) & (taken < MOST_PASSES):
        taken += 1
        totals, crossings = measure(source, b, row.inverse, crossings, COMPUTE)
        equal = totals.equal_count
        below = totals.sum_below
        higher = totals.sum_above
        over = _minus_budget(totals.above, row.k, COMPUTE)
        excess = (over + 0.5 * (equal + below - higher)).to(COMPUTE)
        rising = excess >= 0  # the root is at b or above it
        # Scores equal to b belong to the side that the root leaves behind. They are counted before
        # k is taken off: n - k may be small against the rounding of N> - k.
        not_below = totals.above + tl.where(rising, 0.0, equal)
        count_excess = _minus_budget(not_below, row.k, COMPUTE).to(COMPUTE)
        has_equal = equal > 0
        sum_below = (below + tl.where(rising, equal, 0.0)).to(COMPUTE)
        sum_above = (higher + tl.where(rising, 0.0, equal)).to(COMPUTE)
        sum_below = tl.where(sum_below < VANISHED, 0.0, sum_below)
        sum_above = tl.where(sum_above < VANISHED, 0.0, sum_above)
        next_lower = tl.where(rising & has_equal, b, totals.nearest_below)
        next_upper = tl.where((~rising) & has_equal, b, totals.nearest_above)
        relative = tl.log(model_factor(count_excess, sum_below, sum_above))
        next_step = t * relative
        bracket = _narrowed(bracket, b, excess, is_going)
        lift = lift_of(excess, target_mass, row.count)
        is_left = is_going & rising
        is_right = is_going & (~rising)
        stays_left = tl.where(is_right & (last < 0), 0.5, 1.0) * lift_left
        stays_right = tl.where(is_left & (last > 0), 0.5, 1.0) * lift_right
        lift_left = tl.where(is_left, lift, stays_left)
        lift_right = tl.where(is_right, lift, stays_right)
        last = tl.where(is_left, 1.0, tl.where(is_right, -1.0, last))

        end = tl.where(rising, next_upper, next_lower)
        inner_left = tl.where(is_left, end, inner_left)
        inner_right = tl.where(is_right, end, inner_right)
        # Compared as distances: b + step would round to a score that it must not reach.
        before_end = tl.where(rising, next_step <= end - b, next_step >= end - b)
        # The step of a vanished sum is infinite, and so is a distance over the largest number.
        before_end = before_end & (tl.abs(next_step) < float("inf"))
        nothing_between = tl.where(rising, end >= bracket.right, end <= bracket.left)
        # k scores above and nothing near: the root is in the gap ahead, wherever that ends.
        in_gap = (count_excess == 0) & (tl.where(rising, sum_above, sum_below) == 0)
        is_short = tl.abs(relative) <= negligible_step(COMPUTE)
        is_root = before_end | nothing_between | in_gap | is_short
        is_root = is_root | (tl.abs(excess) <= row.slack)

        is_found = is_found | (is_going & is_root)
        is_direct = tl.where(is_going, is_short, is_direct)
        step = tl.where(is_going, next_step, step)
        lower = tl.where(is_going, next_lower, lower)
        upper = tl.where(is_going, next_upper, upper)
        above = tl.where(is_going, not_below.to(tl.float64), above)
        is_going = is_going & (~is_root)
        if any_row(is_going):
            ahead = b + next_step
            # Few scores are left in between, or many that are equal: counts lead, not the sums.
            is_stepwise = (taken < BISECT_ONLY_FROM) & (
                tl.abs(excess) <= 2 * (sum_below + sum_above)
            )
            # One score is left between the nearest ones of both sides, or one more step will do.
            is_hop = (tl.abs(excess) <= 2) | (inner_left >= inner_right)
            between = interpolate(inner_left, inner_right, lift_left, lift_right, COMPUTE)
            middle = middle_float(bracket.left, bracket.right, COMPUTE)
            led = tl.where(is_hop, end, between)
            is_halved = (taken >= BISECT_ONLY_FROM) | ((taken % 6 == 0) & (~is_hop))
            led = tl.where(is_halved, middle, led)
            ahead = tl.where(is_stepwise, ahead, led)
            is_inside = (bracket.left < ahead) & (ahead < bracket.right)
            ahead = tl.where(is_inside, ahead, middle)
            b = tl.where(is_going, as_finite(ahead, COMPUTE), b)
    return Found(is_found, b, step, lower, upper, above, is_direct), crossings


@triton.jit
def finish(source, row, found, is_live, crossings, COMPUTE: tl.constexpr):
    """The threshold pair between two neighbouring scores.

    Where the neighbours are far from b, sums relative to b have few digits left: they are taken
    again, relative to the neighbours. Where far scores make up the budget they are then taken once
    more, at the root: the mask rounds distances from there, and those of equal scores all alike.
    """
    t = row.t
    lower = found.lower
    upper = found.upper
    has_below = lower > float("-inf")
    has_above = upper < float("inf")
    near_below = (~has_below) | (found.b - lower <= 2 * row.t)
    near_above = (~has_above) | (upper - found.b <= 2 * row.t)
    is_done = found.is_direct | (near_below & near_above)
    is_done = is_done & (tl.abs(found.step) < float("inf"))
    is_open = is_live & (~is_done)
    pair_hi = found.b
    pair_lo = found.step
    from_upper = tl.where(has_above, upper, 0.0)
    from_lower = tl.where(has_below, lower, 0.0)
    half_gap = 0.5 * upper - 0.5 * lower  # which is a number
    is_again = is_open & is_done
    while any_row(is_open):
        sums, crossings = over_rows(
            source, (lower, upper, from_lower, from_upper, row.inverse), crossings, "tails", COMPUTE
        )
        above, below, higher = sums
        sum_below = below.to(COMPUTE)
        sum_above = higher.to(COMPUTE)
        excess = _minus_budget(above, row.k, COMPUTE).to(COMPUTE)
        # Half the exponent under the root: neither square may underflow on its own.
        coupling = tl.sqrt(sum_above) * tl.sqrt(sum_below) * tl.exp(-half_gap / t)
        coupling = tl.where(has_below & has_above, coupling, 0.0)
        root = hypotenuse(excess, coupling)
        from_above = -t * tl.log(sum_above / (root + excess))
        from_below = t * tl.log(sum_below / (root - excess))
        # Without excess: from the end that b is nearer to, as half a gap and more may be no number.
        off_middle = 0.5 * t * tl.log(sum_above / sum_below)
        is_lower = (excess < 0) | ((excess == 0) & (off_middle > 0))
        balanced = tl.where(is_lower, half_gap, -half_gap) - off_middle
        offset = tl.where(excess > 0, from_above, tl.where(excess < 0, from_below, balanced))
        # A clear excess is made up on one side; what has vanished on the other does not count then.
        is_told_below = (~has_below) | (sum_below >= VANISHED) | (excess > 2.0**-10)
        is_told_above = (~has_above) | (sum_above >= VANISHED) | (excess < -(2.0**-10))
        is_told = is_told_below & is_told_above
        hi, lo = sum_of_two(tl.where(is_lower, from_lower, from_upper), offset, COMPUTE)
        hi = tl.where(is_told, hi, float("nan"))
        # Only the rounding differs the second time: what says something else is not believed.
        is_better = is_again & is_told & (tl.abs(offset - pair_lo) <= t * CLOSE)
        is_first = is_open & (~is_again)
        pair_hi = tl.where(is_first, hi, pair_hi)
        pair_lo = tl.where(is_first, lo, tl.where(is_better, offset, pair_lo))
        is_far = (tl.abs(offset) > 2 * t) & (tl.abs(offset) <= t * FARTHEST)
        is_again = is_first & is_far & (-excess > row.k.to(COMPUTE) * MADE_UP)
        is_again = is_again & (lower < hi) & (hi < upper)
        from_lower = tl.where(is_again, hi, from_lower)
        from_upper = tl.where(is_again, hi, from_upper)
        half_gap = tl.where(is_again, 0.0, half_gap)
        is_open = is_again
    return tl.where(found.is_found, pair_hi, float("nan")), pair_lo, crossings

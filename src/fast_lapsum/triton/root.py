"""From a bracket to the root in it: the two-exponential iteration, and the root's last digits.

The same functions serve a row held in registers, a row read from memory by one program, and the
few scores of a band with the tail sums of all others beside them (``out_*``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import glance, look_around, measure, tails
from .primitives import (
    VANISHED,
    as_finite,
    exponent_scale,
    hypotenuse,
    logit,
    middle_float,
    model_factor,
    negligible_step,
)

#: Passes after which the order of floats is only halved, and the most there are.
BISECT_ONLY_FROM = tl.constexpr(20)
MOST_PASSES = tl.constexpr(96)


@triton.jit
def _over(above, out_above, k, HOLDS: tl.constexpr, COMPUTE: tl.constexpr):
    """N> - k. A row on chip does without float64, whose k it splits in two."""
    if HOLDS == "row":
        head = k.to(COMPUTE)
        rest = (k - head.to(tl.float64)).to(COMPUTE)
        return (above - head) - rest
    else:
        return above.to(tl.float64) + out_above - k


@triton.jit
def _vanished(HOLDS: tl.constexpr, COMPUTE: tl.constexpr):
    """Sums below this have too few digits left and count as nothing.

    Those over a band are integers, off by 2^-31 at most, or 2^-77 with float64's remainders.
    """
    if (HOLDS == "band") | (HOLDS == "lists"):
        return 2.0**-60 if COMPUTE == tl.float64 else 2.0**-24
    else:
        return VANISHED


@triton.jit
def interpolate(left, right, mass_left, mass_right, wanted, count):
    """Where a straight line through both ends' logits meets the wanted one, kept off the ends."""
    logit_left = logit(mass_left, count)
    logit_right = logit(mass_right, count)
    weight = (logit_left - logit(wanted, count)) / (logit_left - logit_right)
    weight = tl.where(logit_left > logit_right, weight, 0.5)
    weight = tl.minimum(tl.maximum(weight, 0.02), 0.98)
    return as_finite(left, left.dtype) * (1 - weight) + as_finite(right, left.dtype) * weight


@triton.jit
def iterate(
    source,
    outside,
    k,
    t,
    count,
    left,
    right,
    mass_left,
    mass_right,
    start,
    spacing,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Iterate the closed form until a pass certifies itself.

    The root lies in [left, right]. The masses at both ends guide the interpolation, and at first
    the mean distance ``spacing`` of scores near the start, where it is known (not 0). Returns
    found, b, step (b + step is the root), the neighbouring scores lower and upper, and whether the
    step is so small that it needs no finishing.
    """
    out_above, out_sum_below, out_sum_above, lo, hi = outside
    vanished = _vanished(HOLDS, COMPUTE)
    scale = t.to(COMPUTE)
    inverse = exponent_scale(t, COMPUTE)
    wanted = k.to(COMPUTE)
    b = start
    if not ((left < start) & (start < right)):
        b = interpolate(left, right, mass_left, mass_right, wanted, count)
    found = False
    direct = False
    taken = 0
    step = tl.zeros((), COMPUTE)
    lower = left
    upper = right
    while (not found) & (taken < MOST_PASSES):
        taken += 1
        above, at, below, higher, near_below, near_above = measure(
            source, b, inverse, HOLDS, LARGEST, BLOCK, COMPUTE
        )
        if (HOLDS == "band") | (HOLDS == "lists"):
            near_below = tl.maximum(near_below, lo)
            near_above = tl.minimum(near_above, hi)
            below += out_sum_below * tl.exp2((lo - b) * inverse).to(tl.float64)
            higher += out_sum_above * tl.exp2((b - hi) * inverse).to(tl.float64)
        over = _over(above, out_above, k, HOLDS, COMPUTE)
        excess = (over + 0.5 * (at + below - higher)).to(COMPUTE)
        rising = excess >= 0  # the root is at b or above it
        # Scores equal to b belong to the side that the root leaves behind. They are counted before
        # k is taken off: n - k may be small against the rounding of N> - k.
        not_below = above + tl.where(rising, 0.0, at)
        count_excess = _over(not_below, out_above, k, HOLDS, COMPUTE).to(COMPUTE)
        at = at.to(COMPUTE)
        sum_below = below.to(COMPUTE) + tl.where(rising, at, 0.0)
        sum_above = higher.to(COMPUTE) + tl.where(rising, 0.0, at)
        sum_below = tl.where(sum_below < vanished, 0.0, sum_below)
        sum_above = tl.where(sum_above < vanished, 0.0, sum_above)
        lower = tl.where(rising & (at > 0), b, near_below)
        upper = tl.where((not rising) & (at > 0), b, near_above)
        relative = tl.log(model_factor(count_excess, sum_below, sum_above))
        step = scale * relative
        left = tl.where(rising, b, left)
        right = tl.where(rising, right, b)
        mass_left = tl.where(rising, wanted + excess, mass_left)
        mass_right = tl.where(rising, mass_right, wanted + excess)

        end = tl.where(rising, upper, lower)
        # Compared as distances: b + step would round to a score that it must not reach.
        before_end = tl.where(rising, step <= end - b, step >= end - b)
        # The step of a vanished sum is infinite, and so is a distance over the largest number.
        before_end = before_end & (tl.abs(step) < float("inf"))
        nothing_between = tl.where(rising, end >= right, end <= left)
        # k scores above and nothing near: the root is in the gap ahead, wherever that ends.
        in_gap = (count_excess == 0) & (tl.where(rising, sum_above, sum_below) == 0)
        direct = tl.abs(relative) <= negligible_step(COMPUTE)
        found = before_end | nothing_between | in_gap | direct
        if (HOLDS == "band") | (HOLDS == "lists"):
            direct = direct & (sum_below + sum_above > 2.0**-10)  # else finishing has more digits
        if not found:
            trial = b + step
            if (taken >= BISECT_ONLY_FROM) | (tl.abs(excess) > 2 * (sum_below + sum_above)):
                # Few scores are left in between, or many that are equal.
                if (tl.abs(excess) <= 2) | ((taken > 3) & (taken % 3 == 1)):
                    trial = end
                elif (taken <= 4) & (spacing > 0):
                    trial = b + spacing * excess
                else:
                    trial = interpolate(left, right, mass_left, mass_right, wanted, count)
                is_first_guide = (taken <= 4) & (spacing > 0)
                if (taken >= BISECT_ONLY_FROM) | ((taken % 3 == 0) & (not is_first_guide)):
                    trial = middle_float(left, right, COMPUTE)
            if not ((left < trial) & (trial < right)):
                trial = middle_float(left, right, COMPUTE)
            b = as_finite(trial, COMPUTE)
    return found, b, step, lower, upper, direct


@triton.jit
def approach(
    r, k, t, guess, error, left, right, mass_left, mass_right, most_steps, COMPUTE: tl.constexpr
):
    """Cheap passes over a row in registers, from a guess to a trial within a few scores or t / 2.

    At temperatures that the guess resolves a pass takes one closed-form step, and one that is short
    enough is exact. At lower ones counts in a window around the trial say how far to go, and how
    narrow the next window may be.
    """
    scale = t.to(COMPUTE)
    inverse = exponent_scale(t, COMPUTE)
    wanted = k.to(COMPUTE)
    b = tl.minimum(tl.maximum(guess, left), right)
    half_window = 3 * error
    spacing = tl.zeros((), COMPUTE)
    step = tl.zeros((), COMPUTE)
    is_exact = False
    if half_window <= 0.5 * scale:
        is_near = True
        looks = 0
        while is_near & (looks < most_steps):
            looks += 1
            b += step
            above, below, higher = glance(r, b, inverse, COMPUTE)
            over = _over(above, 0.0, k, "row", COMPUTE)
            excess = over + 0.5 * (below - higher)
            rising = excess >= 0
            left = tl.where(rising, b, left)
            right = tl.where(rising, right, b)
            mass_left = tl.where(rising, wanted + excess, mass_left)
            mass_right = tl.where(rising, mass_right, wanted + excess)
            relative = tl.log(model_factor(over, below, higher))
            step = scale * relative
            is_exact = tl.abs(relative) <= negligible_step(COMPUTE)
            is_near = (not is_exact) & (tl.abs(relative) < 1)
        if not is_exact:
            b += step
    else:
        is_coarse = True
        looks = 0
        while is_coarse & (looks < 12):  # one or two, unless outliers spoil the guess
            looks += 1
            above, below, higher, beyond, within = look_around(r, b, half_window, inverse, COMPUTE)
            excess = _over(above, 0.0, k, "row", COMPUTE) + 0.5 * (below - higher)
            rising = excess >= 0
            left = tl.where(rising, b, left)
            right = tl.where(rising, right, b)
            mass_left = tl.where(rising, wanted + excess, mass_left)
            mass_right = tl.where(rising, mass_right, wanted + excess)
            near_by = tl.where(rising, above - beyond, within - above)
            is_inside = tl.abs(excess) <= near_by
            per_score = half_window / tl.maximum(near_by, 1.0)
            ranks = 1.5 * tl.sqrt(near_by) + 1
            far = tl.where(rising, 3 * half_window, -3 * half_window)
            b += tl.where(is_inside, per_score * excess, far)
            half_window *= tl.where(is_inside, ranks / tl.maximum(near_by, 1.0), 3.0)
            b = tl.minimum(tl.maximum(b, left), right)
            spacing = per_score
            is_coarse = (not is_inside) | ((ranks > 16) & (half_window > 0.5 * scale))
    return is_exact, b, step, spacing, left, right, mass_left, mass_right


@triton.jit
def finish(
    source,
    outside,
    k,
    t,
    b,
    step,
    lower,
    upper,
    direct,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The threshold pair between two neighbouring scores; NaN where a band's ends tell nothing.

    Where the neighbours are far from b, sums relative to b have few digits left: they are taken
    again, relative to the neighbours.
    """
    out_above, out_sum_below, out_sum_above, lo, hi = outside
    scale = t.to(COMPUTE)
    has_below = lower > float("-inf")
    has_above = upper < float("inf")
    near_below = (not has_below) | (b - lower <= 2 * scale)
    near_above = (not has_above) | (upper - b <= 2 * scale)
    is_finite = tl.abs(step) < float("inf")
    pair_hi = b
    pair_lo = step
    if not ((direct | (near_below & near_above)) & is_finite):
        inverse = exponent_scale(t, COMPUTE)
        above, below64, above64 = tails(
            source, lower, upper, inverse, HOLDS, LARGEST, BLOCK, COMPUTE
        )
        below64 = below64.to(tl.float64)
        above64 = above64.to(tl.float64)
        from_lower = tl.where(has_below, lower, lo)
        from_upper = tl.where(has_above, upper, hi)
        below64 += out_sum_below * tl.exp2(
            tl.where(lo < from_lower, (lo - from_lower) * inverse, 0.0)
        ).to(tl.float64)
        above64 += out_sum_above * tl.exp2(
            tl.where(hi > from_upper, (from_upper - hi) * inverse, 0.0)
        ).to(tl.float64)
        half_gap = 0.5 * upper.to(tl.float64) - 0.5 * lower.to(tl.float64)  # which is a number
        excess = above.to(tl.float64) + out_above - k
        # Half the exponent under the root: neither square may underflow on its own.
        coupling = tl.sqrt(above64) * tl.sqrt(below64) * tl.exp(-half_gap / t)
        coupling = tl.where(has_below & has_above, coupling, 0.0)
        root = hypotenuse(excess, coupling)
        from_above = -t * tl.log(above64 / (root + excess))
        from_below = t * tl.log(below64 / (root - excess))
        # Without excess: from the end that b is nearer to, as half a gap and more may be no number.
        off_middle = 0.5 * t * tl.log(above64 / below64)
        is_lower = (excess < 0) | ((excess == 0) & (off_middle > 0))
        balanced = tl.where(is_lower, half_gap, -half_gap) - off_middle
        offset = tl.where(excess > 0, from_above, tl.where(excess < 0, from_below, balanced))
        anchor = tl.where(is_lower, lower.to(tl.float64), upper.to(tl.float64))
        # A clear excess is made up on one side; what has vanished on the other does not count then.
        is_told_below = (not has_below) | (below64 >= VANISHED) | (excess > 2.0**-10)
        is_told_above = (not has_above) | (above64 >= VANISHED) | (excess < -(2.0**-10))
        told = is_told_below & is_told_above
        pair_hi = as_finite(anchor + offset, COMPUTE).to(COMPUTE)
        pair_lo = ((anchor - pair_hi.to(tl.float64)) + offset).to(COMPUTE)
        if (HOLDS == "band") | (HOLDS == "lists"):
            # The ends of a band are no scores: the root must show to be inside.
            b64 = anchor + offset
            told = told & (b64 >= lower.to(tl.float64)) & (b64 <= upper.to(tl.float64))
        pair_hi = tl.where(told, pair_hi, float("nan"))
    return pair_hi, pair_lo


@triton.jit
def root_between(
    source,
    outside,
    k,
    t,
    count,
    left,
    right,
    mass_left,
    mass_right,
    start,
    spacing,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The threshold pair of a root in [left, right] (:func:`iterate`, :func:`finish`), else NaN."""
    found, b, step, lower, upper, direct = iterate(
        source,
        outside,
        k,
        t,
        count,
        left,
        right,
        mass_left,
        mass_right,
        start,
        spacing,
        HOLDS,
        LARGEST,
        BLOCK,
        COMPUTE,
    )
    hi, lo = finish(
        source,
        outside,
        k,
        t,
        b,
        step,
        lower,
        upper,
        direct,
        HOLDS,
        LARGEST,
        BLOCK,
        COMPUTE,
    )
    return tl.where(found, hi, float("nan")), lo

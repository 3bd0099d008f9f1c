"""The default solver: iterate the paper's interval root, without a sort.

One pass at a trial threshold b gives the counts and tail sums

    N> = #{r > b}   E = #{r = b}   S< = sum_{r<b} e^{(r-b)/t}   S> = sum_{r>b} e^{-(r-b)/t}

and the nearest scores m< and m> on either side. As long as no score lies between b and b + d,
x = e^{d/t} solves S+ x^2 - 2 (N+ - k) x - S- = 0 (the paper's root inside an interval). Used as a
step from any b it matches F, F' and F'', never oversteps the root, and is exact, so that the pass
certifies itself, when b + d stays between m< and m>. Far from the root, where the step is short
against the bracket, the bracket is cut by interpolation in the logit of F / n or by bisection in
the order of floating-point numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import sort_scan
from .closed_form import prior_bracket, root_between
from .float_order import middle_float

#: No row takes more passes over its scores than this.
MAX_PASSES = 64
#: From this pass on the bracket is only bisected; a row that is still open at the end is sorted.
_BISECT_ONLY_FROM = 40


class Pass(NamedTuple):
    """What one pass over the scores at a trial threshold tells; each field is [rows]."""

    above: Tensor
    equal_count: Tensor
    sum_above: Tensor
    sum_below: Tensor
    nearest_above: Tensor
    nearest_below: Tensor


def solve(
    scores: Tensor, budget: Tensor, temperature: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of clean rows; ``start`` is a guess that changes only the speed."""
    return solve_counting_passes(scores, budget, temperature, start)[:2]


def solve_counting_passes(
    scores: Tensor, budget: Tensor, temperature: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, int]:
    """Like :func:`solve`, and the number of passes that the slowest row took."""
    count = (scores > -math.inf).sum(-1)
    lowest, highest, shift = prior_bracket(scores, budget, temperature)
    # One float further out on either side: rounding must not leave the root outside.
    left = torch.nextafter(lowest + shift, torch.full_like(lowest, -math.inf))
    right = torch.nextafter(highest + shift, torch.full_like(highest, math.inf))
    logit_left, logit_right = _logit(count - 0.5, count), _logit(0.5 * torch.ones_like(left), count)
    target_logit = _logit(budget, count)
    b = _interpolate(left, right, logit_left, logit_right, target_logit)
    b = b if start is None else torch.where((left < start) & (start < right), start, b)
    b = torch.where((left < b) & (b < right), b, middle_float(left, right))

    lower_end, upper_end = left.clone(), right.clone()
    done = torch.zeros_like(b, dtype=torch.bool)
    passes = 0
    while passes < MAX_PASSES:
        passes += 1
        seen = _pass(scores, b, temperature)
        excess = (seen.above - budget) + (seen.equal_count + seen.sum_below - seen.sum_above) / 2
        rising = excess >= 0  # the root is at b or above it
        # Scores equal to b belong to the side that the root leaves behind.
        count_above = seen.above + torch.where(rising, 0, seen.equal_count)
        sum_below = _unless_vanished(seen.sum_below + torch.where(rising, seen.equal_count, 0))
        sum_above = _unless_vanished(seen.sum_above + torch.where(rising, 0, seen.equal_count))
        below = torch.where(rising & (seen.equal_count > 0), b, seen.nearest_below)
        above = torch.where(~rising & (seen.equal_count > 0), b, seen.nearest_above)
        step = temperature * _model_step(count_above - budget, sum_below, sum_above)
        target = b + step

        left = torch.where(rising, torch.maximum(left, b), left)
        right = torch.where(rising, right, torch.minimum(right, b))
        logit = _logit(budget + excess, count)
        logit_left = torch.where(rising, logit, logit_left)
        logit_right = torch.where(rising, logit_right, logit)

        # Compared as distances: b + step would round to a score that it must not reach. The step
        # of a vanished sum is infinite, and so is a distance over the largest float.
        certified = step.isfinite() & torch.where(
            rising, step <= seen.nearest_above - b, step >= seen.nearest_below - b
        )
        certified |= torch.where(rising, above >= right, below <= left)
        # k scores above and nothing near: the root is in the gap ahead, wherever that ends.
        certified |= (count_above == budget) & (torch.where(rising, sum_above, sum_below) == 0)
        fresh = certified & ~done
        lower_end = torch.where(fresh, below, lower_end)
        upper_end = torch.where(fresh, above, upper_end)
        done |= certified
        if bool(done.all()):
            break

        near = excess.abs() <= 2 * (sum_below + sum_above)
        hop = torch.where(rising, seen.nearest_above, seen.nearest_below)
        interpolated = _interpolate(left, right, logit_left, logit_right, target_logit)
        middle = middle_float(left, right)
        if passes >= _BISECT_ONLY_FROM:
            trial = middle
        else:
            trial = interpolated if passes % 3 else middle
            # Few scores are left in between, or many that are equal.
            take_hop = (
                excess.abs() <= 2 if passes <= 3 or passes % 3 != 1 else torch.ones_like(done)
            )
            trial = torch.where(take_hop, hop, trial)
            trial = torch.where(near, target, trial)
        inside = (left < trial) & (trial < right)
        trial = torch.where(inside, trial, middle)
        b = torch.where(done, b, trial)

    hi, lo = root_between(scores, budget, temperature, lower_end, upper_end)
    if passes == MAX_PASSES:  # not seen in any test; a sort has no such limit
        sorted_hi, sorted_lo = sort_scan.solve(scores, budget, temperature)
        hi, lo = torch.where(done, hi, sorted_hi), torch.where(done, lo, sorted_lo)
    return hi, lo, passes


def _pass(scores: Tensor, b: Tensor, temperature: Tensor) -> Pass:
    """Counts, tail sums and nearest scores at b: one reading of the scores."""
    distance = scores - b[:, None]
    tail = torch.exp(-distance.abs() / temperature[:, None])
    is_above, is_below = distance > 0, distance < 0
    return Pass(
        above=is_above.sum(-1),
        equal_count=(distance == 0).sum(-1),
        sum_above=(tail * is_above).sum(-1),
        sum_below=(tail * is_below).sum(-1),
        nearest_above=scores.masked_fill(~is_above, math.inf).amin(-1),
        nearest_below=scores.masked_fill(~is_below, -math.inf).amax(-1),
    )


def _model_step(count_excess: Tensor, sum_below: Tensor, sum_above: Tensor) -> Tensor:
    """log x for S+ x^2 - 2 c x - S- = 0, in the form that does not cancel."""
    root = torch.hypot(count_excess, sum_above.sqrt() * sum_below.sqrt())
    up = (count_excess + root) / sum_above
    down = sum_below / (root - count_excess)
    return torch.where(count_excess >= 0, up, down).log()


def _unless_vanished(tail_sum: Tensor) -> Tensor:
    """Zero for a sum that has lost its digits to denormals: it must not certify anything."""
    return torch.where(tail_sum < 2.0**-100, 0.0, tail_sum)


def _interpolate(
    left: Tensor, right: Tensor, logit_left: Tensor, logit_right: Tensor, target_logit: Tensor
) -> Tensor:
    """Where a straight line through both ends' logits meets the target, kept off the ends."""
    weight = ((logit_left - target_logit) / (logit_left - logit_right)).nan_to_num(nan=0.5)
    weight = weight.clamp(0.02, 0.98)
    largest = torch.finfo(left.dtype).max
    return left.clamp(min=-largest) * (1 - weight) + right.clamp(max=largest) * weight


def _logit(mass: Tensor, count: Tensor) -> Tensor:
    clipped = torch.minimum(mass.clamp(min=0.25), count - 0.25)
    return torch.log(clipped) - torch.log(count - clipped)

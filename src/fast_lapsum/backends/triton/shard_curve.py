"""The budget curve at the scores that all ranks have sent of a row, and what it leads to.

See backends/torch/sort_scan.py: nodes descend, with one more on either side for the scores beyond.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import hypotenuse
from .shard_order import next_number
from .shard_read import decay


class Curve(NamedTuple):
    """Nodes of a row and their sums, [count] each, in memory; and the scores on both sides."""

    scores: Any
    weights: Any
    upper: Any  # sum_{j <= i} weight_j e^{-|r_j - r_i|/t}
    passed: Any  # the weight of the first nodes, with this one
    lower: Any
    surplus: Any  # of the curve over the target
    count: Any
    above: Any  # a score and the sum relative to it
    above_sum: Any
    below: Any
    below_sum: Any
    excess: Any  # what lies above all nodes, less the target


@triton.jit
def _follow(a_decay, a_sum, b_decay, b_sum):
    return a_decay * b_decay, a_sum * b_decay + b_sum


@triton.jit
def node_at(curve, place):
    """The value of a node, that of the scores on a side where the place is beyond all nodes."""
    is_node = (place >= 0) & (place < curve.count)
    weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
    value = tl.load(curve.scores + place, mask=is_node, other=0.0)
    return tl.where(place < 0, curve.above, tl.where(weight > 0, value, curve.below))


@triton.jit
def _last(values, BLOCK: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, values, 0.0), 0)


@triton.jit
def add_up(curve, inverse, BLOCK: tl.constexpr):
    """Fill in the sums and the surplus; returned is how many nodes have none above 0."""
    carried, passed = curve.above_sum, 0.0 * curve.above_sum
    for start in range(0, curve.count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_node = place < curve.count
        weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
        faded = decay(node_at(curve, place), node_at(curve, place - 1), inverse)
        faded = tl.where(is_node, faded, 1.0)
        faded, sums = tl.associative_scan((faded, weight), 0, _follow)
        sums += faded * carried
        until = tl.cumsum(weight, 0) + passed
        tl.store(curve.upper + place, sums, mask=is_node)
        tl.store(curve.passed + place, until, mask=is_node)
        carried = _last(sums, BLOCK)
        passed = _last(until, BLOCK)
    tl.debug_barrier()
    carried = curve.below_sum
    under = tl.zeros((), tl.int32)
    for start in range(0, curve.count, BLOCK):
        place = curve.count - 1 - (start + tl.arange(0, BLOCK))
        is_node = place >= 0
        weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
        faded = decay(node_at(curve, place), node_at(curve, place + 1), inverse)
        faded = tl.where(is_node, faded, 1.0)
        faded, sums = tl.associative_scan((faded, weight), 0, _follow)
        sums += faded * carried
        carried = _last(sums, BLOCK)
        upper = tl.load(curve.upper + place, mask=is_node, other=0.0)
        until = tl.load(curve.passed + place, mask=is_node, other=0.0)
        # What lies above a node is worth its count; the node is worth half of its own weight, and
        # stands in both sums.
        surplus = (curve.excess + (until - weight) + weight / 2) + (sums - upper) / 2
        surplus = tl.where(weight > 0, surplus, float("inf"))
        tl.store(curve.lower + place, sums, mask=is_node)
        tl.store(curve.surplus + place, surplus, mask=is_node)
        under += tl.sum((is_node & (surplus <= 0)).to(tl.int32), 0)
    tl.debug_barrier()
    return under


@triton.jit
def _log_quotient(total, share):
    """log(total / share): a denormal share makes the quotient overflow."""
    quotient = total / share
    is_over = quotient == float("inf")
    return tl.where(is_over, tl.log(total) - tl.log(share), tl.log(quotient))


@triton.jit
def root_of(curve, under, t, inverse):
    """The threshold as a place and what is to be added to it: see closed_form.interval_root."""
    has_upper, has_lower = under > 0, under < curve.count
    upper = tl.load(curve.upper + under - 1, mask=has_upper, other=0.0)
    upper = tl.where(has_upper, upper, curve.above_sum)
    lower = tl.load(curve.lower + under, mask=has_lower, other=0.0)
    lower = tl.where(has_lower, lower, curve.below_sum)
    over = curve.excess + tl.load(curve.passed + under - 1, mask=has_upper, other=0.0)
    high, low = node_at(curve, under - 1), node_at(curve, under)
    half_gap = high / 2 - low / 2
    coupling = tl.sqrt(upper) * tl.sqrt(lower) * tl.exp2(-half_gap * inverse)
    root = hypotenuse(over, coupling)
    from_high = -t * _log_quotient(upper, root + over)
    from_low = t * _log_quotient(lower, root - over)
    aside = t * tl.log(upper / lower) / 2
    from_low = tl.where(over < 0, from_low, half_gap - aside)
    from_high = tl.where(over > 0, from_high, -half_gap - aside)
    is_low = (over < 0) | ((over == 0) & (aside > 0))
    return tl.where(is_low, low, high), tl.where(is_low, from_low, from_high)


@triton.jit
def band_of(curve, left, right, margin, is_hard, NAME: tl.constexpr, BLOCK: tl.constexpr):
    """The nodes on either side of the threshold whose masses differ from it by the margin."""
    beyond = tl.zeros((), tl.int32)
    not_below = beyond
    for start in range(0, curve.count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_node = place < curve.count
        weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
        surplus = tl.load(curve.surplus + place, mask=is_node, other=float("inf"))
        by_count = tl.load(curve.passed + place, mask=is_node, other=0.0) + curve.excess
        surplus = tl.where(is_hard, by_count, surplus)
        surplus = tl.where(weight > 0, surplus, float("inf"))
        beyond += tl.sum((surplus < -margin).to(tl.int32), 0)
        not_below += tl.sum((surplus < margin).to(tl.int32), 0)
    # Nodes descend and masses rise: first those beyond the band, last those below it.
    has_low = not_below < curve.count
    has_low &= tl.load(curve.weights + not_below, mask=has_low, other=0.0) > 0
    high = tl.where(beyond > 0, node_at(curve, beyond - 1), right)
    low = tl.where(has_low, node_at(curve, not_below), left)
    low, high = tl.maximum(low, left), tl.minimum(high, right)
    # Both ends are one score where many are tied: the threshold is there, or next to it.
    high = tl.where(low < high, high, next_number(low, NAME))
    is_inside = high <= right
    return tl.where(is_inside, low, left), tl.where(is_inside, high, right)

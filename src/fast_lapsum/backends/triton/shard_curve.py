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

#: Neighbouring nodes that one thread adds up.
PER_THREAD = tl.constexpr(8)


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
def _numbers(start, BLOCK: tl.constexpr):
    """Numbers of a block from ``start`` on, [lanes, PER_THREAD]: a line of neighbours a thread.

    That they are neighbours is hidden from Triton, which would deal them out over threads, and then
    every step of a sum would be an exchange.
    """
    lane = tl.arange(0, BLOCK // PER_THREAD)[:, None]
    number = start + (lane * PER_THREAD + tl.arange(0, PER_THREAD)[None, :])
    return tl.max_contiguous(number, (1, 1))


@triton.jit
def _ends_of_lines(values):
    is_last = tl.arange(0, PER_THREAD)[None, :] == PER_THREAD - 1
    return tl.sum(tl.where(is_last, values, 0.0), 1)


@triton.jit
def _decayed(sums, place, faded, weight, carried, STEP: tl.constexpr, BLOCK: tl.constexpr, count):
    """Sums with decay along a block, which go on from ``carried``; stored, too.

    First those of lines, then those of their ends, which the next lines go on from: by way of
    memory. STEP is from one node's place to the next.
    """
    faded, own = tl.associative_scan((faded, weight), 1, _follow)
    ends = tl.associative_scan((_ends_of_lines(faded), _ends_of_lines(own)), 0, _follow)
    is_node = (place >= 0) & (place < count)
    number = tl.arange(0, PER_THREAD)[None, :]
    last = ends[1] + ends[0] * carried
    tl.store(sums + place, last[:, None] + 0.0 * own, mask=is_node & (number == PER_THREAD - 1))
    tl.debug_barrier()
    first = tl.arange(0, BLOCK // PER_THREAD)
    before = tl.sum(tl.where(number == 0, place, 0), 1) - STEP
    is_there = (first > 0) & (before >= 0) & (before < count)
    before = tl.load(sums + before, mask=is_there, other=0.0)
    before = tl.where(first > 0, before, carried)
    # The ends stay as they were stored, to the last bit: others may be reading them.
    total = tl.where(number == PER_THREAD - 1, last[:, None], own + faded * before[:, None])
    tl.store(sums + place, total, mask=is_node)
    # Where the block ends before it is full nothing goes on from there.
    return total, tl.sum(tl.where(first == BLOCK // PER_THREAD - 1, last, 0.0), 0)


@triton.jit
def add_up(curve, inverse, BLOCK: tl.constexpr):
    """Fill in the sums and the surplus; returned is how many nodes have none above 0."""
    carried, passed = curve.above_sum, 0.0 * curve.above_sum
    for start in range(0, curve.count, BLOCK):
        place = _numbers(start, BLOCK)
        is_node = place < curve.count
        weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
        faded = decay(node_at(curve, place), node_at(curve, place - 1), inverse)
        faded = tl.where(is_node, faded, 1.0)
        _, carried = _decayed(curve.upper, place, faded, weight, carried, 1, BLOCK, curve.count)
        until = tl.cumsum(weight, 1)
        of_lines = _ends_of_lines(until)
        before = tl.cumsum(of_lines, 0) - of_lines
        tl.store(curve.passed + place, until + (before + passed)[:, None], mask=is_node)
        passed += tl.sum(of_lines, 0)
    tl.debug_barrier()
    carried = curve.below_sum
    under = tl.zeros((), tl.int32)
    for start in range(0, curve.count, BLOCK):
        place = curve.count - 1 - _numbers(start, BLOCK)
        is_node = place >= 0
        weight = tl.load(curve.weights + place, mask=is_node, other=0.0)
        faded = decay(node_at(curve, place), node_at(curve, place + 1), inverse)
        faded = tl.where(is_node, faded, 1.0)
        upper = tl.load(curve.upper + place, mask=is_node, other=0.0)
        until = tl.load(curve.passed + place, mask=is_node, other=0.0)
        sums, carried = _decayed(curve.lower, place, faded, weight, carried, -1, BLOCK, curve.count)
        # What lies above a node is worth its count; the node is worth half of its own weight, and
        # stands in both sums.
        surplus = (curve.excess + (until - weight) + weight * 0.5) + (sums - upper) * 0.5
        surplus = tl.where(weight > 0, surplus, float("inf"))
        tl.store(curve.surplus + place, surplus, mask=is_node)
        under += tl.sum(tl.sum((is_node & (surplus <= 0)).to(tl.int32), 0), 0)
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
    half_gap = high * 0.5 - low * 0.5
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

"""The budget curve at the scores that all ranks have sent of a row, and what it leads to.

See backends/torch/sort_scan.py: nodes descend, with one more on either side for the scores beyond.
Sums run along blocks of neighbours, each of which is a program's (sum_blocks). What a block has of
the others is one number for either side, and only the blocks that are looked at need theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import hypotenuse
from .shard_nodes import Nodes, asked_of, nodes_of
from .shard_order import next_number, number_at, order_among
from .shard_read import decay
from .team import await_last, begin_next

#: Nodes of a block.
BLOCK = tl.constexpr(128)
#: Of what the mass may be off by between nodes, the part that a band has room for where it varies
#: evenly there: as a rule, and after one that was missed.
UNCERTAIN, AT_MOST = tl.constexpr(0.25), tl.constexpr(0.5)
#: Quotients that overflow are taken of so much less, and its logarithm is added.
FAR, LOG_FAR = tl.constexpr(2.0**128), tl.constexpr(88.722839111673)


class Curve(NamedTuple):
    """Nodes of a row, and what their blocks have of all others, [BLOCKS] each, in float64."""

    nodes: Nodes
    upper: Any  # sum of what is before a block, relative to its first node
    passed: Any  # the weight of the nodes before it
    lower: Any  # sum of what is behind it, relative to its last node
    value: Any  # of its first node, -inf where there is no such block
    surplus: Any  # of the curve over the target there, infinite where there is none
    rank: Any  # what counts alone say of it
    above: Any  # a score above all nodes and the sum relative to it
    above_sum: Any
    below: Any
    below_sum: Any
    excess: Any  # what lies above all nodes, less the target


@triton.jit
def _follow(a_decay, a_sum, b_decay, b_sum):
    return a_decay * b_decay, a_sum * b_decay + b_sum


@triton.jit(do_not_specialize=["rows", "blocks", "count"])
def sum_blocks(
    search,
    rows,
    blocks,
    count,
    IS_SAMPLE: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Sums along the nodes of a block, of itself alone: see Nodes."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    is_open = row >= 0
    if not IS_SAMPLE:
        is_open = tl.load(search.is_open + row) != 0
    if is_open:
        nodes = nodes_of(search, row, rows, count)
        inverse = asked_of(search, row, COMPUTE).inverse
        number = tl.arange(0, BLOCK)
        place = (tl.program_id(0) % blocks) * BLOCK + number
        is_node = place < count
        weight = tl.load(nodes.weights + place, mask=is_node, other=0.0)
        value = tl.load(nodes.scores + place, mask=is_node, other=0.0)
        has_next = (place + 1 < count) & (number + 1 < BLOCK)
        after = tl.load(nodes.scores + place + 1, mask=has_next, other=0.0)
        has_next &= tl.load(nodes.weights + place + 1, mask=has_next, other=0.0) > 0
        before = tl.load(nodes.scores + place - 1, mask=is_node & (number > 0), other=0.0)
        # Those without a weight, which are the last, are where the last one is that has some.
        is_real = weight > 0
        first = tl.max(tl.where(is_real, value, float("-inf")), 0)
        last = tl.min(tl.where(is_real, value, float("inf")), 0)
        value = tl.where(is_real, value, last)
        faded = tl.where(is_real & (number > 0), decay(value, before, inverse), 1.0)
        rising = tl.where(has_next, decay(value, after, inverse), 1.0)
        upper = tl.associative_scan((faded, weight), 0, _follow)[1]
        lower = tl.associative_scan((rising, weight), 0, _follow, reverse=True)[1]
        tl.store(nodes.scores + place, value, mask=is_node)
        tl.store(nodes.upper + place, upper, mask=is_node)
        tl.store(nodes.from_first + place, decay(value, first, inverse), mask=is_node)
        tl.store(nodes.lower + place, lower, mask=is_node)
        tl.store(nodes.to_last + place, decay(value, last, inverse), mask=is_node)
        tl.store(nodes.passed + place, tl.cumsum(weight, 0), mask=is_node)


@triton.jit
def curve_of(nodes, above, above_sum, below, below_sum, excess, inverse, BLOCKS: tl.constexpr):
    """The curve of nodes whose blocks are added up, of which there are at most BLOCKS."""
    number = tl.arange(0, BLOCKS)
    first = number * BLOCK
    behind = first + BLOCK
    weight = tl.load(nodes.weights + first, mask=first < nodes.count, other=0.0)
    # Nodes without a weight are the last: blocks behind the last one that has some are left out.
    blocks = tl.sum((weight > 0).to(tl.int32), 0)
    is_block, has_before, has_next = number < blocks, number < blocks, number + 1 < blocks
    has_before &= number > 0
    last = tl.minimum(behind, nodes.count) - 1
    last_of_next = tl.minimum(behind + BLOCK, nodes.count) - 1
    value = tl.load(nodes.scores + first, mask=is_block, other=0.0)
    end = tl.load(nodes.scores + last, mask=is_block, other=0.0)
    # Sums go from the first node of a block to that of the next, and the other way between the
    # last ones.
    earlier = tl.load(nodes.scores + (first - BLOCK), mask=has_before, other=0.0)
    before = tl.load(nodes.scores + (first - 1), mask=has_before, other=0.0)
    its_sum = tl.load(nodes.upper + (first - 1), mask=has_before, other=0.0)
    before, its_sum = tl.where(has_before, before, above), tl.where(has_before, its_sum, above_sum)
    added = tl.where(is_block, its_sum * decay(value, before, inverse), 0.0)
    faded = tl.where(has_before, decay(value, earlier, inverse), 1.0)
    upper = tl.associative_scan((faded, added), 0, _follow)[1]
    passed = tl.cumsum(tl.load(nodes.passed + (first - 1), mask=has_before, other=0.0), 0)
    later = tl.load(nodes.scores + last_of_next, mask=has_next, other=0.0)
    after = tl.load(nodes.scores + behind, mask=has_next, other=0.0)
    its_sum = tl.load(nodes.lower + behind, mask=has_next, other=0.0)
    after, its_sum = tl.where(has_next, after, below), tl.where(has_next, its_sum, below_sum)
    added = tl.where(is_block, its_sum * decay(end, after, inverse), 0.0)
    faded = tl.where(has_next, decay(end, later, inverse), 1.0)
    lower = tl.associative_scan((faded, added), 0, _follow, reverse=True)[1]
    own = tl.load(nodes.lower + first, mask=is_block, other=0.0)
    to_last = tl.load(nodes.to_last + first, mask=is_block, other=0.0)
    surplus = _surplus(excess, passed + weight, weight, upper + weight, own + to_last * lower)
    return Curve(
        *(nodes, upper, passed, lower, tl.where(is_block, value, float("-inf"))),
        *(surplus, tl.where(is_block, excess + (passed + weight), float("inf"))),
        *(above, above_sum, below, below_sum, excess),
    )


@triton.jit
def _surplus(excess, passed, weight, upper, lower):
    """What the curve has over the target at nodes: sums and the weight passed are with their own.

    What lies above a node is worth its count; the node is worth half of its own weight, and stands
    in both sums.
    """
    surplus = (excess + (passed - weight) + weight * 0.5) + (lower - upper) * 0.5
    return tl.where(weight > 0, surplus, float("inf"))


@triton.jit
def _of_block(values, block):
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == block, values, 0.0), 0)


@triton.jit
def _nodes_in(curve, block):
    """A block's nodes, their weights, and what ranks and masses there have over the target."""
    place = block * BLOCK + tl.arange(0, BLOCK)
    nodes = curve.nodes
    is_node = place < nodes.count
    weight = tl.load(nodes.weights + place, mask=is_node, other=0.0)
    value = tl.load(nodes.scores + place, mask=is_node, other=0.0)
    upper = tl.load(nodes.upper + place, mask=is_node, other=0.0)
    upper += tl.load(nodes.from_first + place, mask=is_node, other=0.0) * _of_block(
        curve.upper, block
    )
    lower = tl.load(nodes.lower + place, mask=is_node, other=0.0)
    lower += tl.load(nodes.to_last + place, mask=is_node, other=0.0) * _of_block(curve.lower, block)
    passed = tl.load(nodes.passed + place, mask=is_node, other=0.0)
    passed += _of_block(curve.passed, block)
    rank = tl.where(weight > 0, curve.excess + passed, float("inf"))
    return value, weight, rank, _surplus(curve.excess, passed, weight, upper, lower)


@triton.jit
def _count_under(values, limit, OR_AT: tl.constexpr):
    return tl.sum((values <= limit if OR_AT else values < limit).to(tl.int32), 0)


@triton.jit
def nodes_under(curve, limit, is_hard, OR_AT: tl.constexpr):
    """How many nodes have less than the limit over the target, or as much with OR_AT.

    In the hard limit it is their ranks that count. Nodes descend and masses rise: they are the
    first.
    """
    blocks = _count_under(tl.where(is_hard, curve.rank, curve.surplus), limit, OR_AT)
    block = tl.maximum(blocks - 1, 0)
    _, _, rank, surplus = _nodes_in(curve, block)
    under = _count_under(tl.where(is_hard, rank, surplus), limit, OR_AT)
    return tl.where(blocks > 0, block * BLOCK + under, 0)


@triton.jit
def weight_above(curve, boundary):
    """The weight of the nodes over a number."""
    blocks = tl.sum((curve.value > boundary).to(tl.int32), 0)
    block = tl.maximum(blocks - 1, 0)
    value, weight, _, _ = _nodes_in(curve, block)
    weight = tl.sum(tl.where(value > boundary, weight, 0.0), 0)
    return tl.where(blocks > 0, _of_block(curve.passed, block) + weight, 0.0)


@triton.jit
def node_at(curve, place):
    """The value of a node, that of the scores on a side where the place is beyond all nodes."""
    is_node = (place >= 0) & (place < curve.nodes.count)
    weight = tl.load(curve.nodes.weights + place, mask=is_node, other=0.0)
    value = tl.load(curve.nodes.scores + place, mask=is_node, other=0.0)
    return tl.where(place < 0, curve.above, tl.where(weight > 0, value, curve.below))


@triton.jit
def _log_quotient(total, share):
    """log(total / share): a denormal share makes the quotient overflow."""
    quotient = total / share
    is_over = quotient == float("inf")
    quotient = tl.where(is_over, (total / FAR) / share, quotient)
    return tl.log(quotient) + tl.where(is_over, LOG_FAR, 0.0)


@triton.jit
def root_of(curve, t, inverse):
    """The threshold as a place and what is to be added to it: see closed_form.interval_root."""
    return _root_under(curve, nodes_under(curve, 0.0, t != t, True), 0.0, t, inverse)


@triton.jit
def _root_under(curve, under, margin, t, inverse):
    """The same of a curve less a margin, which so many nodes are not over."""
    nodes, place = curve.nodes, under - 1
    block = place // BLOCK
    has_upper = under > 0
    upper = tl.load(nodes.upper + place, mask=has_upper, other=0.0)
    fading = tl.load(nodes.from_first + place, mask=has_upper, other=0.0)
    upper = tl.where(has_upper, upper + fading * _of_block(curve.upper, block), curve.above_sum)
    over = curve.excess - margin
    over += tl.load(nodes.passed + place, mask=has_upper, other=0.0)
    over += tl.where(has_upper, _of_block(curve.passed, block), 0.0)
    has_lower = under < nodes.count
    has_lower &= tl.load(nodes.weights + under, mask=has_lower, other=0.0) > 0
    block = under // BLOCK
    lower = tl.load(nodes.lower + under, mask=has_lower, other=0.0)
    fading = tl.load(nodes.to_last + under, mask=has_lower, other=0.0)
    lower = tl.where(has_lower, lower + fading * _of_block(curve.lower, block), curve.below_sum)
    high, low = node_at(curve, place), node_at(curve, under)
    half_gap = high * 0.5 - low * 0.5
    coupling = tl.sqrt(upper) * tl.sqrt(lower) * tl.exp2(-half_gap * inverse)
    root = hypotenuse(over, coupling)
    # One of three logarithms is asked for: from the lower node, from the upper one, between both.
    total = tl.where(over < 0, lower, upper)
    share = tl.where(over == 0, lower, root + tl.abs(over))
    aside = t * _log_quotient(total, share)
    from_low = tl.where(over < 0, aside, half_gap - aside / 2)
    from_high = tl.where(over > 0, -aside, -half_gap - aside / 2)
    is_low = (over < 0) | ((over == 0) & (aside > 0))
    return tl.where(is_low, low, high), tl.where(is_low, from_low, from_high)


@triton.jit
def band_of(curve, left, right, margin, less, asked, NAME: tl.constexpr):
    """The numbers on either side of the threshold whose masses differ from it by a margin.

    Nodes, or where the mass varies evenly between them any numbers, by ``less``: see
    backends/torch/shard_search.py.
    """
    low, is_low = _crossing(curve, less, asked, NAME)
    high, is_high = _crossing(curve, -less, asked, NAME)
    low, high = -_at_or_above(-low, NAME), _at_or_above(high, NAME)
    if not (is_low & is_high):
        wide_low, wide_high = _nodes_around(curve, left, right, margin, asked.is_hard)
        low, high = tl.where(is_low, low, wide_low), tl.where(is_high, high, wide_high)
    # A band beside the bracket says nothing.
    is_beside = (low >= right) | (high < left) | ((high == left) & (low < high))
    low, high = tl.maximum(low, left), tl.minimum(high, right)
    # Both ends are one score where many are tied: the threshold is there, or next to it.
    high = tl.where(low < high, high, next_number(low, NAME))
    is_inside = (high <= right) & ~is_beside
    return tl.where(is_inside, low, left), tl.where(is_inside, high, right)


@triton.jit
def _crossing(curve, margin, asked, NAME: tl.constexpr):
    """Where the curve differs from the target by a margin, and whether it is known there."""
    under = nodes_under(curve, margin, margin != margin, True)
    has_lower = (under > 0) & (under < curve.nodes.count)
    has_lower &= tl.load(curve.nodes.weights + under, mask=has_lower, other=0.0) > 0
    gap = node_at(curve, under - 1) * 0.5 - node_at(curve, under) * 0.5
    is_known = has_lower & (gap < asked.scale * 0.5) & (margin != 0) & ~asked.is_hard
    hi, lo = _root_under(curve, under, margin, asked.scale, asked.inverse)
    return tl.where(is_known, hi + lo, 0.0), is_known


@triton.jit
def _at_or_above(value, NAME: tl.constexpr):
    """The least number of the dtype that is not below."""
    order = order_among(value, NAME)
    near = number_at(order, NAME)
    return tl.where(near < value, number_at(order + 1, NAME), near)


@triton.jit
def _nodes_around(curve, left, right, margin, is_hard):
    """The nodes on either side of the threshold whose masses differ from it by the margin."""
    beyond = nodes_under(curve, -margin, is_hard, False)
    not_below = nodes_under(curve, margin, is_hard, False)
    has_low = not_below < curve.nodes.count
    has_low &= tl.load(curve.nodes.weights + not_below, mask=has_low, other=0.0) > 0
    high = tl.where(beyond > 0, node_at(curve, beyond - 1), right)
    return tl.where(has_low, node_at(curve, not_below), left), high

"""The scores that all ranks have sent of a row, in descending order.

A node's place is how many there are before it, which every program counts for some of them: what
is before it does not depend on how the lists of ranks are ordered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import HOTTEST, largest_finite, smallest_normal
from .shard_order import next_number
from .team import await_last, begin_next

#: Columns of messages that say for how many scores nodes stand: of a sample, of a measurement.
LENGTH = tl.constexpr(0)
INSIDE_COUNT = tl.constexpr(8)


class Messages(NamedTuple):
    """What ranks have said: numbers [ranks, rows, columns], nodes [ranks, rows, size]."""

    numbers: Any
    numbers_stride: Any  # from one rank to the next
    columns: Any  # of a row; 0 where all rows have the same
    nodes: Any
    nodes_stride: Any
    size: Any
    ranks: Any


class Search(NamedTuple):
    """Where a search is, [rows] each unless it says otherwise, in float64."""

    budget: Any
    temperature: Any
    state: Any  # left, right, low, high, [4, rows]
    is_open: Any
    pivots: Any  # [rows, 3 + cuts]
    solved: Any  # [7, rows], in the order of shard_steps.py
    ties: Any  # [ranks, rows]
    nodes: Any  # [7, rows, m], in the order of Nodes


class Nodes(NamedTuple):
    """Nodes of a row in descending order, [count] each, in memory.

    Those that stand for no score are the last. Sums are of a node's own block: see shard_curve.py.
    """

    scores: Any
    weights: Any
    upper: Any  # sum_{j <= i} weight_j e^{-|r_j - r_i|/t}
    from_first: Any  # e^{-|r - r_i|/t} of the first node
    lower: Any
    to_last: Any
    passed: Any  # the weight of the first nodes, with this one
    count: Any


class Asked(NamedTuple):
    """What is asked of a row, float64."""

    budget: Any
    temperature: Any
    is_hard: Any  # in the hard limit, where a row is searched by counts
    is_usable: Any  # whether it is a temperature at all
    scale: Any  # a temperature that can be divided by
    inverse: Any  # log2(e) / scale
    target: Any  # the mass, or in the hard limit the rank, that is looked for


@triton.jit
def asked_of(search, row, COMPUTE: tl.constexpr):
    """What is asked of a row."""
    budget, t = tl.load(search.budget + row), tl.load(search.temperature + row)
    is_hard = t < smallest_normal(COMPUTE)
    is_usable = (t >= 0) & (t <= largest_finite(COMPUTE) / HOTTEST)
    scale = tl.where(is_usable & ~is_hard, t, 1.0)
    target = tl.where(is_hard, tl.maximum(tl.ceil(budget), 1.0), budget)
    target = tl.where(budget == budget, target, 0.5)
    return Asked(budget, t, is_hard, is_usable, scale, 1.4426950408889634 / scale, target)


@triton.jit
def nodes_of(search, row, rows, count):
    """Where the nodes of a row are, of which there are so many."""
    step = (tl.zeros((), tl.int64) + rows) * count
    first = search.nodes + row * count
    return Nodes(
        *(first, first + step, first + 2 * step, first + 3 * step, first + 4 * step),
        *(first + 5 * step, first + 6 * step, count),
    )


@triton.jit
def number_of(messages, rank, row, column):
    """A number that ranks have said of a row."""
    place = rank * messages.numbers_stride + row * messages.columns + column
    return messages.numbers + place


@triton.jit
def counts_of(messages, row, rank, is_rank, IS_SAMPLE: tl.constexpr):
    """For how many scores the nodes of ranks stand, float64."""
    COLUMN: tl.constexpr = LENGTH if IS_SAMPLE else INSIDE_COUNT
    return tl.load(number_of(messages, rank, row, COLUMN), mask=is_rank, other=0.0)


@triton.jit
def one_number(search, row, rows, IS_SAMPLE: tl.constexpr, NAME: tl.constexpr):
    """The low end of the band of a measurement, and whether no other number is in it."""
    low = tl.zeros((), tl.float64)
    is_one = row < 0
    if not IS_SAMPLE:
        low = tl.load(search.state + 2 * rows + row)
        is_one = tl.load(search.state + 3 * rows + row) <= next_number(low, NAME)
    return low, is_one


@triton.jit
def load_nodes(messages, row, rank, number, is_node):
    """Nodes of ranks as they were sent, NaN where there is none."""
    place = messages.nodes + rank * messages.nodes_stride + row * messages.size + number
    return tl.load(place, mask=is_node, other=float("nan"))


@triton.jit
def said(sent, number, is_node, count, low, is_one, IS_SAMPLE: tl.constexpr, NAME: tl.constexpr):
    """Nodes as they are compared, and which of them have a weight; low and is_one: one_number.

    A float64 takes twice as long to compare, so other numbers stay what they are.
    """
    value = sent
    if NAME != "float64":
        value = value.to(tl.float32)
    if IS_SAMPLE:
        is_real = tl.abs(value) < float("inf")
    else:
        # Scores that are all equal need no list: the first node stands for them.
        is_real = tl.where(is_one, number == 0, value == value)
        value = tl.where(is_one, low.to(value.dtype), value)
    return value, is_real & is_node & (count > 0)


@triton.jit
def step_of(count, size):
    """How many of ``count`` scores one of ``size`` nodes stands for: itself where they are few."""
    return tl.maximum((count - 1) / (size - 1), tl.minimum(count, 1.0))


@triton.jit
def weight_of(count, number, size):
    """The same of a node by its number: those at the ends have half of what is beside them."""
    step = step_of(count, size)
    is_end = ((number == 0) | (number == size - 1)) & (count > size)
    return tl.where(is_end, step / 2 + 0.5, step)


@triton.jit
def _place_nodes(
    messages,
    search,
    row,
    rows,
    first,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Put OWN nodes of a row, from the ``first`` on, to their places among all.

    Of equal ones the earlier is before the other. Those that stand for no score are the last.
    """
    size = messages.size
    count = messages.ranks * size
    low, is_one = one_number(search, row, rows, IS_SAMPLE, NAME)
    own = first + tl.arange(0, OWN)
    rank = (own // size).to(tl.int64)
    scores = counts_of(messages, row, rank, own < count, IS_SAMPLE)
    sent = load_nodes(messages, row, rank, own % size, own < count)
    value, is_real = said(sent, own % size, own < count, scores, low, is_one, IS_SAMPLE, NAME)
    weight = tl.where(is_one, scores, weight_of(scores, own % size, size))
    value = tl.where(is_real, value, float("-inf"))
    wanted = value[:, None]
    before = tl.zeros((OWN, OTHERS), tl.int32)
    lane = tl.arange(0, OTHERS)
    parts = (size + (OTHERS - 1)) // OTHERS
    far = tl.zeros((), tl.int64)
    its_count = counts_of(messages, row, far, far < messages.ranks, IS_SAMPLE)
    sent = load_nodes(messages, row, far, lane, lane < size)
    for turn in range(messages.ranks * parts):
        # What is next is on its way while this is compared.
        far = tl.zeros((), tl.int64) + (turn + 1) // parts
        number = (turn + 1) % parts * OTHERS + lane
        next_count = counts_of(messages, row, far, far < messages.ranks, IS_SAMPLE)
        is_next = (number < size) & (far < messages.ranks)
        next_sent = load_nodes(messages, row, far, number, is_next)
        number = turn % parts * OTHERS + lane
        is_node = number < size
        one, is_one_real = said(sent, number, is_node, its_count, low, is_one, IS_SAMPLE, NAME)
        one = tl.where(is_one_real, one, float("-inf"))
        one = tl.where(is_node, one, float("nan"))[None, :]  # before nothing
        begin = turn // parts * size + turn % parts * OTHERS
        # Most are all earlier, or all later, and then one comparison does.
        if begin + OTHERS <= first:
            before += (one >= wanted).to(tl.int32)
        elif begin >= first + OWN:
            before += (one > wanted).to(tl.int32)
        else:
            is_earlier = (begin + lane)[None, :] < own[:, None]
            before += ((one > wanted) | ((one == wanted) & is_earlier)).to(tl.int32)
        its_count, sent = next_count, next_sent
    nodes = nodes_of(search, row, rows, count)
    place = tl.sum(before, 1)
    tl.store(nodes.scores + place, value.to(tl.float64), mask=own < count)
    tl.store(nodes.weights + place, tl.where(is_real, weight, 0.0), mask=own < count)


@triton.jit(do_not_specialize=["rows", "blocks"])
def order_nodes(
    messages,
    search,
    rows,
    blocks,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The same of all rows that are open, by one program for OWN nodes each."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    is_open = row >= 0
    if not IS_SAMPLE:
        is_open = tl.load(search.is_open + row) != 0
    if is_open:
        first = (tl.program_id(0) % blocks) * OWN
        _place_nodes(messages, search, row, rows, first, IS_SAMPLE, NAME, OWN, OTHERS)

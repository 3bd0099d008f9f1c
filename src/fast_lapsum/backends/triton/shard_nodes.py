"""The scores that all ranks have sent of a row, in descending order.

A node's place is how many there are before it, which every program counts for some of them: what
is before it does not depend on how the lists of ranks are ordered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .shard_order import next_number

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
    nodes: Any  # values, weights, sums above, weights passed, sums below, surplus: [6, rows, m]


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
def said(
    messages,
    search,
    row,
    rows,
    rank,
    number,
    is_node,
    count,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
):
    """Nodes as they are compared, which of them have a weight, and the band where it is one number.

    A float64 takes twice as long to compare, so other numbers stay what they are.
    """
    place = messages.nodes + rank * messages.nodes_stride + row * messages.size + number
    value = tl.load(place, mask=is_node, other=float("nan"))
    if NAME != "float64":
        value = value.to(tl.float32)
    is_one = row < 0
    if IS_SAMPLE:
        is_real = tl.abs(value) < float("inf")
    else:
        low = tl.load(search.state + 2 * rows + row)
        is_one = tl.load(search.state + 3 * rows + row) <= next_number(low, NAME)
        # Scores that are all equal need no list: the first node stands for them.
        is_real = tl.where(is_one, number == 0, value == value)
        value = tl.where(is_one, low.to(value.dtype), value)
    return value, is_real & is_node & (count > 0), is_one


@triton.jit
def per_node(count, size):
    """How many scores one of ``size`` nodes stands for: for itself alone where they are few."""
    return tl.maximum(count / size, tl.minimum(count, 1.0))


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
    """Put OWN nodes of a row, from the ``first`` on, to their places among all."""
    count = messages.ranks * messages.size
    own = first + tl.arange(0, OWN)
    rank = (own // messages.size).to(tl.int64)
    scores = counts_of(messages, row, rank, own < count, IS_SAMPLE)
    value, is_real, is_one = said(
        *(messages, search, row, rows, rank, own % messages.size, own < count, scores),
        *(IS_SAMPLE, NAME),
    )
    weight = tl.where(is_one, scores, per_node(scores, messages.size))
    value = tl.where(is_real, value, float("-inf"))
    before = tl.zeros((OWN, OTHERS), tl.int32)
    for start in range(0, count, OTHERS):
        other = start + tl.arange(0, OTHERS)
        is_other = other < count
        its_rank = (other // messages.size).to(tl.int64)
        its_count = counts_of(messages, row, its_rank, is_other, IS_SAMPLE)
        one, is_one_real, _ = said(
            *(messages, search, row, rows, its_rank, other % messages.size, is_other),
            *(its_count, IS_SAMPLE, NAME),
        )
        one = tl.where(is_one_real, one, float("-inf"))
        one = tl.where(is_other, one, float("nan"))[None, :]  # before nothing
        is_earlier = other[None, :] < own[:, None]
        is_before = (one > value[:, None]) | ((one == value[:, None]) & is_earlier)
        before += is_before.to(tl.int32)
    to = search.nodes + row * count + tl.sum(before, 1)
    step = (tl.zeros((), tl.int64) + rows) * count
    tl.store(to, value.to(tl.float64), mask=own < count)
    tl.store(to + step, tl.where(is_real, weight, 0.0), mask=own < count)


@triton.jit
def place_all(
    messages,
    search,
    row,
    rows,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """The same of all nodes, where that is one program's: OWN is 0 where it was done before."""
    if OWN > 0:
        for first in range(0, messages.ranks * messages.size, OWN):
            _place_nodes(messages, search, row, rows, first, IS_SAMPLE, NAME, OWN, OTHERS)
        tl.debug_barrier()


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
):
    """The same of all rows that are open, by one program for OWN nodes each."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    is_open = row >= 0
    if not IS_SAMPLE:
        is_open = tl.load(search.is_open + row) != 0
    if is_open:
        first = (tl.program_id(0) % blocks) * OWN
        _place_nodes(messages, search, row, rows, first, IS_SAMPLE, NAME, OWN, OTHERS)

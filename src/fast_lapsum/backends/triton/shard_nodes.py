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
def nodes_of(
    messages,
    search,
    row,
    rows,
    rank,
    number,
    is_node,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
):
    """Nodes and their weights, float64: how many scores each stands for, 0 where there is none."""
    place = messages.nodes + rank * messages.nodes_stride + row * messages.size + number
    value = tl.load(place, mask=is_node, other=float("nan"))
    if NAME != "float64":
        value = value.to(tl.float32)
    value = value.to(tl.float64)
    size = messages.size
    if IS_SAMPLE:
        at = number_of(messages, rank, row, LENGTH) + 0 * number
        count = tl.load(at, mask=is_node, other=0.0)
        weight = count / tl.minimum(tl.maximum(count, 1.0), size)
        weight = tl.where(tl.abs(value) < float("inf"), weight, 0.0)
    else:
        at = number_of(messages, rank, row, INSIDE_COUNT) + 0 * number
        count = tl.load(at, mask=is_node, other=0.0)
        low = tl.load(search.state + 2 * rows + row)
        is_one = tl.load(search.state + 3 * rows + row) <= next_number(low, NAME)
        weight = count / tl.minimum(tl.maximum(count, 1.0), size)
        weight = tl.where(value == value, weight, 0.0)
        # Scores that are all equal need no list: the first node stands for them.
        weight = tl.where(is_one, tl.where(number == 0, count, 0.0), weight)
        value = tl.where(is_one, low, value)
    weight = tl.where(is_node, weight, 0.0)
    return tl.where(is_node, value, float("nan")), weight


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
    """Put OWN nodes of a row to their places among all."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    is_open = row >= 0
    if not IS_SAMPLE:
        is_open = tl.load(search.is_open + row) != 0
    if is_open:
        count = messages.ranks * messages.size
        own = (tl.program_id(0) % blocks) * OWN + tl.arange(0, OWN)
        value, weight = nodes_of(
            *(messages, search, row, rows, (own // messages.size).to(tl.int64)),
            *(own % messages.size, own < count, IS_SAMPLE, NAME),
        )
        value = tl.where(weight > 0, value, float("-inf"))
        # Compared as what they are: a float64 takes twice as long.
        COMPARED: tl.constexpr = tl.float64 if NAME == "float64" else tl.float32
        own_value = value.to(COMPARED)[:, None]
        place = tl.zeros((OWN,), tl.int32)
        for start in range(0, count, OTHERS):
            other = start + tl.arange(0, OTHERS)
            one, one_weight = nodes_of(
                *(messages, search, row, rows, (other // messages.size).to(tl.int64)),
                *(other % messages.size, other < count, IS_SAMPLE, NAME),
            )
            one = tl.where(one_weight > 0, one, float("-inf")).to(COMPARED)[None, :]
            is_before = one > own_value
            is_earlier = (one == own_value) & (other[None, :] < own[:, None])
            is_before = (is_before | is_earlier) & (other < count)[None, :]
            place += tl.sum(is_before.to(tl.int32), 1)
        to = search.nodes + row * count + place
        step = (tl.zeros((), tl.int64) + rows) * count
        tl.store(to, value, mask=own < count)
        tl.store(to + step, weight, mask=own < count)

"""The paper's full-sort solver: sort, one prefix/suffix scan, index lookup, closed-form root.

The scan and the lookup are written for a sorted band of scores between two tails that have been
summed up already (the paper's "Exact Solve Inside a Bracket"). The full sort is the band that
holds every score, between two empty tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .closed_form import interval_root

#: Prefix and suffix sums of nodes and weights at temperatures: see :func:`scan`.
Scan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Tail(NamedTuple):
    """All scores on one side of a band; each field is [rows].

    ``decayed_sum`` is the tail sum sum_i e^{-|r_i - score|/t}, relative to the tail's own score
    next to the band; ``members`` is how many scores there are. An empty tail has the sum 0 and any
    finite score at or beyond the band's end.
    """

    score: Tensor
    decayed_sum: Tensor
    members: Tensor


class Curve(NamedTuple):
    """The budget curve at the scores of a band, [rows, m], with a node for each tail around it."""

    surplus: Tensor  # LapSum(r_i) - k at score i of the band; inf at padding
    passed: Tensor  # the weight of the first i scores of the band, [rows, m + 1]
    nodes: Tensor  # [rows, m + 2], like the sums
    upper_sums: Tensor
    lower_sums: Tensor


def solve(scores: Tensor, budget: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of clean rows, by a full sort; O(n log n), no host sync."""
    ordered = scores.sort(-1, descending=True).values
    included = ordered > -math.inf
    lowest = torch.where(included, ordered, math.inf).amin(-1)
    # Excluded scores stay as weightless copies of the lowest one: they change no sum.
    band = torch.where(included, ordered, lowest[:, None])
    none = torch.zeros_like(budget)
    above, below = Tail(band[:, 0], none, none), Tail(lowest, none, none)
    return solve_band(band, included.to(scores.dtype), above, below, budget, temperature)


def solve_band(
    band: Tensor, weights: Tensor, above: Tail, below: Tail, budget: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of rows whose threshold lies between the two tails.

    Args:
        band: scores between the tails, descending, [rows, m]; m may be 0.
        weights: how often a score counts, 0 for padding, which comes last, [rows, m].
        above: the scores above the band.
        below: the scores below the band.
        budget: [rows].
        temperature: [rows].
    """
    curve = scan_band(band, weights, above, below, budget, temperature, scan)
    return root_of(curve, above.members - budget, temperature)


def root_of(curve: Curve, excess: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The threshold pair where a curve meets the budget; ``excess`` is what lies above, less it."""
    # b is at or below every score whose surplus is not positive: node ``upper`` is the last.
    zero = torch.zeros_like(excess)[:, None]
    upper = torch.searchsorted(curve.surplus.contiguous(), zero, right=True)

    def at(values: Tensor, node: Tensor) -> Tensor:
        return values.gather(-1, node)[:, 0]

    lower = upper + 1
    return interval_root(
        at(curve.upper_sums, upper),
        at(curve.lower_sums, lower),
        excess + at(curve.passed, upper),
        temperature,
        at(curve.nodes, upper),
        at(curve.nodes, lower),
    )


def scan_band(
    band: Tensor,
    weights: Tensor,
    above: Tail,
    below: Tail,
    budget: Tensor,
    temperature: Tensor,
    scan: Scan,
) -> Curve:
    """The budget curve at every score of a band, each of which counts as often as it weighs."""
    # Each tail enters the scan as one node that weighs as much as its sum.
    nodes = torch.cat((above.score[:, None], band, below.score[:, None]), -1)
    tail_sums = above.decayed_sum[:, None], below.decayed_sum[:, None]
    upper_sums, lower_sums = scan(
        nodes, torch.cat((tail_sums[0], weights, tail_sums[1]), -1), temperature
    )
    # What lies above score i is worth its count; score i is worth half of its own weight, and
    # stands in both sums.
    passed = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))
    count_over_budget = (above.members - budget)[:, None] + passed[:, :-1] + weights / 2
    surplus = count_over_budget + (lower_sums - upper_sums)[:, 1:-1] / 2
    surplus = torch.where(weights > 0, surplus, math.inf)
    return Curve(surplus, passed, nodes, upper_sums, lower_sums)


def scan(ordered: Tensor, weights: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix and suffix sums of the budget curve at every node, [rows, m] each.

        upper_i = sum_{j <= i} weight_j e^{-|r_j - r_i|/t}
        lower_i = sum_{j >= i} weight_j e^{-|r_j - r_i|/t}

    Both are the paper's affine recurrence x_i = w_i x_{i-1} + weight_i with the decay
    w_i = e^{-|r_i - r_{i-1}|/t}. ``ordered`` is finite and sorted, ``weights`` are not negative,
    both [rows, m]. The relative error is about log2(m) units in the last place, whatever the
    ratio of spread to t.
    """
    upper = _decayed_prefix_sums(ordered, weights, temperature[:, None])
    lower = _decayed_prefix_sums(ordered.flip(-1), weights.flip(-1), temperature[:, None])
    return upper, lower.flip(-1)


def _decayed_prefix_sums(nodes: Tensor, weights: Tensor, temperature: Tensor) -> Tensor:
    """Scan neighbours in pairs, the pairs recursively, then fill in the nodes between: O(m).

    The decay over a pair is taken from its two nodes, not as a product of the decays inside it:
    a product of a million factors near 1 would add up a million rounding errors.
    """
    if nodes.shape[-1] < 2:
        return weights.clone()
    first, second = nodes[:, 0::2], nodes[:, 1::2]
    pairs = second.shape[-1]
    decay_in_pair = torch.exp(-(second - first[:, :pairs]).abs() / temperature)
    pair_weights = weights[:, 1::2] + decay_in_pair * weights[:, 0 : 2 * pairs : 2]
    at_second = _decayed_prefix_sums(second, pair_weights, temperature)

    sums = weights.clone()
    sums[:, 1::2] = at_second
    between = first.shape[-1] - 1
    decay = torch.exp(-(first[:, 1:] - second[:, :between]).abs() / temperature)
    sums[:, 2::2] += decay * at_second[:, :between]
    return sums

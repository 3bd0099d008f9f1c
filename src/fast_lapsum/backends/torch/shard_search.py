"""Where the threshold of a row is looked for that is spread over many ranks.

All of this is computed from gathered numbers, the same on every rank: the same numbers give the
same bits. Measurements are [ranks, rows, ...]; those of ranks are added in the ranks' order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import shards
from ..common import max_temperature
from ..shards import COLUMNS
from .block_scan import scan
from .closed_form import laplace_cdf
from .float_order import cuts, next_float
from .sort_scan import Curve, Tail, root_of, scan_band

#: How far from where a random sample puts it the threshold may be: missed once in 10,000 rows.
DEVIATIONS = 4.0
#: Where the mass varies evenly between nodes, a band has room for this part of what the mass would
#: be off by if all scores between two nodes were at one of them. It may be off by half of that, for
#: scores that lie so on purpose, which a band after one that was missed has room for. Bands are
#: verified by the masses at their ends: one that is missed costs messages, one too wide another.
UNCERTAIN, AT_MOST = 0.25, 0.5


class Asked(NamedTuple):
    """What is asked of every row, [rows]."""

    budget: Tensor
    temperature: Tensor  # as it was given
    is_hard: Tensor  # in the hard limit, where a row is searched by counts
    is_usable: Tensor  # whether it is a temperature at all
    scale: Tensor  # a temperature that can be divided by: 1 where the row has none

    @classmethod
    def of(cls, budget: Tensor, temperature: Tensor, kept: torch.dtype) -> Asked:
        """Of rows whose thresholds are kept in this dtype."""
        is_hard = temperature < torch.finfo(kept).tiny
        is_usable = (temperature >= 0) & (temperature <= max_temperature(kept))
        scale = torch.where(is_usable & ~is_hard, temperature, 1.0)
        return cls(budget, temperature, is_hard, is_usable, scale)

    @property
    def target(self) -> Tensor:
        """The mass that is looked for: in the hard limit the rank of the boundary score."""
        rank = self.budget.ceil().clamp(min=1)
        return torch.where(self.is_hard, rank, self.budget).nan_to_num(nan=0.5)


class State(NamedTuple):
    """Where the search is, [rows]: the threshold is in [left, right), presumably in the band."""

    left: Tensor
    right: Tensor
    low: Tensor
    high: Tensor
    is_open: Tensor

    def pivots(self, count: int, dtype: torch.dtype) -> Tensor:
        """Where masses are to be measured, [rows, 3 + count].

        The number next to the band's low end tells scores that are tied there from those above;
        the cuts of the bracket are what ends the search, however the scores lie.
        """
        ends = torch.stack((self.low, next_float(self.low, dtype), self.high), -1)
        return torch.cat((ends, cuts(self.left, self.right, count, dtype)), -1)


class Nodes(NamedTuple):
    """Scores of all ranks in descending order, and how many each stands for; [rows, m]."""

    values: Tensor
    weights: Tensor

    @classmethod
    def of(cls, values: Tensor, weights: Tensor, filler: Tensor) -> Nodes:
        """Of what ranks sent, [ranks, rows, m]; where nothing is, ``filler`` without weight."""
        values, weights = (x.transpose(0, 1).flatten(1) for x in (values, weights))
        is_real = weights > 0
        values, order = values.masked_fill(~is_real, -math.inf).sort(-1, descending=True)
        weights = weights.gather(-1, order)
        return cls(torch.where(weights > 0, values, filler[:, None]), weights)


def first_state(sample: Tensor, lengths: Tensor, drawn: Tensor, asked: Asked) -> State:
    """Where the samples of all ranks, [ranks, rows, m], put the thresholds.

    ``lengths`` [ranks] is how many scores each has, ``drawn`` of how many its nodes are quantiles.
    """
    size, wide = sample.shape[-1], asked.budget.dtype
    values = sample.to(wide)
    weights = torch.where(values.isnan(), 0.0, _weights(lengths, size)[:, None])
    infinite = torch.where(values == math.inf, weights, 0.0).sum((0, 2))
    is_finite = values.isfinite()
    highest = finite_or_zero(values.masked_fill(~is_finite, -math.inf).amax((0, 2)))
    lowest = finite_or_zero(values.masked_fill(~is_finite, math.inf).amin((0, 2)))
    nothing = torch.zeros_like(highest)
    above, below = Tail(highest, nothing, infinite), Tail(lowest, nothing, nothing)
    weights = torch.where(is_finite, weights, 0.0)
    nodes = Nodes.of(values, weights, lowest)
    # A rank's part is off by what the scores between two quantiles may vary by. Where they are
    # quantiles of a random part of it, it is off by that part's deviation, too.
    between, spare = _uncertainty(lengths[:, None], values, is_finite, asked)
    curve = scan_band(*nodes, above, below, asked.target, asked.scale, scan)
    excess = infinite - asked.target
    p = _masks_at(values, root_of(curve, excess, asked.scale), asked)
    p = torch.where(is_finite, p, math.nan)  # [ranks, rows, m]
    mean = p.nanmean(-1).nan_to_num()
    variance = (p.square().nanmean(-1).nan_to_num() - mean.square()).clamp(min=0)
    variance = variance + 1 / lengths.clamp(min=1)[:, None]
    of_random = torch.where(drawn < lengths, lengths**2 / drawn.clamp(min=1), 0.0)[:, None]
    deviation = DEVIATIONS * (of_random * variance).sum(0).sqrt()
    left, right = torch.full_like(nothing, -math.inf), torch.full_like(nothing, math.inf)
    state = State(left, right, left, right, torch.ones_like(asked.is_hard))
    found = Found(nodes, curve, excess, asked, sample.dtype)
    # All rows of a call wait for one whose band is missed.
    part = AT_MOST if len(left) == 1 else 1.0
    spare = spare + deviation
    return found.band(state, between + spare, part * between + spare)


def _weights(count: Tensor, size: int) -> Tensor:
    """How many of ``count`` scores each of ``size`` nodes stands for, [..., size].

    For itself alone where they are few. Else there is a node at either end and others evenly in
    between: each has half of the scores between it and its neighbours.
    """
    step = ((count - 1) / (size - 1)).clamp(min=1)[..., None]
    place = torch.arange(size, device=count.device)
    is_end = (place == 0) | (place == size - 1)
    return torch.where(is_end, step / 2 + 0.5, step) * (count > 0)[..., None]


def _uncertainty(
    count: Tensor, values: Tensor, is_real: Tensor, asked: Asked
) -> tuple[Tensor, Tensor]:
    """How far the mass may be from what nodes [ranks, rows, m] say of so many scores, [rows] each.

    By the scores between two nodes, and by one score of each rank: places of nodes are whole.
    """
    size, varies = values.shape[-1], _variation(values, is_real, asked)
    is_sparse = count > size
    between = torch.where(is_sparse, (count - 1) / (size - 1), 0.0)
    return (between * varies).sum(0), torch.where(is_sparse, varies, 0.0).sum(0)


def _variation(values: Tensor, is_finite: Tensor, asked: Asked) -> Tensor:
    """How much p of the values [..., rows, m] can differ, wherever the threshold is; [..., rows].

    sigma((r - b) / t) over scores within d of each other differs most for b in the middle of them.
    """
    highest = values.masked_fill(~is_finite, -math.inf).amax(-1)
    lowest = values.masked_fill(~is_finite, math.inf).amin(-1)
    width = torch.where(highest >= lowest, highest / 2 - lowest / 2, 0.0)
    return torch.where(asked.is_hard, 1.0, -torch.expm1(-width / asked.scale))


def _masks_at(values: Tensor, pair: tuple[Tensor, Tensor], asked: Asked) -> Tensor:
    """p of values [..., rows, m] at guessed thresholds; 0 and 1 in the hard limit."""
    hi, lo = (x[:, None] for x in pair)
    soft = laplace_cdf(((values - hi) - lo) / asked.scale[:, None])
    ends = torch.where(values > hi, 1.0, 0.0)
    return torch.where(asked.is_hard[:, None], ends, soft)


class Seen:
    """The measurements of all ranks at one state, as one: each [rows] unless it says otherwise."""

    def __init__(self, columns: Tensor, nodes: Tensor, state: State, asked: Asked) -> None:
        self.columns, self.state, self.asked = columns, state, asked
        self.dtype, size = nodes.dtype, nodes.shape[-1]
        sums = columns[..., :COLUMNS].sum(0)
        self.nan_count = sums[:, shards.NAN_COUNT]
        self.infinite = sums[:, shards.INFINITE_COUNT]
        self.valid = sums[:, shards.VALID_COUNT]
        self.lowest = finite_or_zero(columns[..., shards.LOWEST].amin(0))
        self.highest = finite_or_zero(columns[..., shards.HIGHEST].amax(0))
        self.remaining = asked.target - self.infinite
        self.above = self._tail(shards.ABOVE_NEAREST, shards.ABOVE_SUM, 1.0)._replace(
            members=sums[:, shards.ABOVE_COUNT]
        )
        self.below = self._tail(shards.BELOW_NEAREST, shards.BELOW_SUM, -1.0)
        self.inside = columns[..., shards.INSIDE_COUNT]  # [ranks, rows]
        is_one_number = state.high <= next_float(state.low, self.dtype)
        self.is_complete = (self.inside <= size).all(0) | is_one_number
        # Scores that are all equal need no list: the first node stands for them.
        values = nodes.to(columns.dtype)
        weights = torch.where(values.isnan(), 0.0, _weights(self.inside, size))
        first = torch.arange(size, device=nodes.device) == 0
        alone = torch.where(first, self.inside[..., None], 0.0)
        self.weights = torch.where(is_one_number[:, None], alone, weights)  # [ranks, rows, m]
        self.values = torch.where(is_one_number[:, None], state.low[:, None], values)
        self.nodes = Nodes.of(self.values, self.weights, self.below.score)
        self.excess = self.above.members - self.remaining
        self.curve = scan_band(
            *self.nodes, self.above, self.below, self.remaining, asked.scale, scan
        )

    def _tail(self, nearest: int, decayed_sum: int, side: float) -> Tail:
        """The scores on one side of the band, relative to the nearest of all ranks."""
        of_ranks = self.columns[..., nearest]
        score = side * (side * of_ranks).amin(0)
        decay = torch.exp(side * (score - of_ranks) / self.asked.scale)
        sums = torch.where(of_ranks.isinf(), 0.0, self.columns[..., decayed_sum] * decay).sum(0)
        otherwise = self.highest if side > 0 else self.lowest
        return Tail(torch.where(score.isinf(), otherwise, score), sums, torch.zeros_like(sums))

    def narrowed(self, pivots: Tensor) -> State:
        """The bracket that the masses at the pivots [rows, p] leave.

        Rounding may leave none: then the mass is over the target at ``left`` and under it at
        ``right``, which is no higher. Masses fall, so both are the target but for rounding.
        """
        masses = self.columns[..., COLUMNS:].sum(0)
        counts, halves = masses.chunk(2, -1)
        halves = torch.where(self.asked.is_hard[:, None], 0.0, halves)
        surplus = (counts - self.remaining[:, None]) + halves
        left = torch.where(surplus >= 0, pivots, -math.inf).amax(-1)
        right = torch.where(surplus < 0, pivots, math.inf).amin(-1)
        state = self.state
        left, right = torch.maximum(left, state.left), torch.minimum(right, state.right)
        return state._replace(left=left, right=right)

    def next_state(self, bracket: State) -> State:
        """A band that presumably holds the threshold, from what is inside of this one."""
        given = (self.inside, self.values, self.values.isfinite(), self.asked)
        between, spare = _uncertainty(*given)
        found = Found(self.nodes, self.curve, self.excess, self.asked, self.dtype)
        # All of the bracket is measured after a band that was missed.
        was_missed = (self.state.low <= self.state.left) & (self.state.high >= self.state.right)
        part = torch.where(was_missed, AT_MOST, UNCERTAIN)
        return found.band(bracket, between + spare, part * between + spare)


class Found(NamedTuple):
    """The budget curve at nodes that stand for all scores, from which the next band follows."""

    nodes: Nodes
    curve: Curve
    excess: Tensor  # what lies above all nodes, less the target
    asked: Asked
    dtype: torch.dtype  # of the scores

    def band(self, bracket: State, margin: Tensor, less: Tensor) -> State:
        """The numbers on either side of the threshold whose masses differ from it by a margin.

        Nodes, or where the curve is known between them any numbers, by ``less``.
        """
        low, high = self._nodes_around(bracket, margin)
        number, is_known = self._crossing(less)
        low = torch.where(is_known, -_at_or_above(-number, self.dtype), low)
        number, is_known = self._crossing(-less)
        high = torch.where(is_known, _at_or_above(number, self.dtype), high)
        return _in_bracket(bracket, low, high, self.dtype)

    def _nodes_around(self, state: State, margin: Tensor) -> tuple[Tensor, Tensor]:
        nodes, curve, is_hard = self.nodes, self.curve, self.asked.is_hard
        by_count = curve.passed[:, 1:] + self.excess[:, None]
        by_count = torch.where(nodes.weights > 0, by_count, math.inf)
        surplus = torch.where(is_hard[:, None], by_count, curve.surplus)
        margin = margin[:, None]
        # Nodes descend and masses rise: first those beyond the band, last those below it.
        beyond = (surplus < -margin).sum(-1, keepdim=True)
        not_below = (surplus < margin).sum(-1, keepdim=True)
        padded = torch.cat((state.right[:, None], nodes.values, state.left[:, None]), -1)
        high = padded.gather(-1, beyond)[:, 0]
        has_low = not_below < (nodes.weights > 0).sum(-1, keepdim=True)
        low = torch.where(has_low, padded.gather(-1, not_below + 1), state.left[:, None])[:, 0]
        return low, high

    def _crossing(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        """Where the curve differs from the target by a margin, and whether that is known.

        It is if the nodes around are less than a temperature apart, so that the mass varies evenly.
        Without a margin the nodes are all the scores there are.
        """
        asked, curve = self.asked, self.curve
        surplus = curve.surplus - margin[:, None]
        place = (surplus <= 0).sum(-1, keepdim=True)
        last = (self.nodes.weights > 0).sum(-1, keepdim=True) - 1
        around = torch.cat((place - 1, place), -1).clamp(min=0).minimum(last.clamp(min=0))
        upper, lower = self.nodes.values.gather(-1, around).unbind(-1)
        hi, lo = root_of(curve._replace(surplus=surplus), self.excess - margin, asked.scale)
        is_known = ((place > 0) & (place <= last))[:, 0] & ~asked.is_hard & (margin != 0)
        is_known &= upper / 2 - lower / 2 < asked.scale / 2
        return torch.where(is_known, hi + lo, 0.0), is_known


def _at_or_above(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The least numbers of a dtype that are not below."""
    nearest = values.to(dtype).to(values.dtype)
    return torch.where(nearest < values, next_float(nearest, dtype), nearest)


def _in_bracket(state: State, low: Tensor, high: Tensor, dtype: torch.dtype) -> State:
    """The part of a band that is in the bracket, or all of the bracket if it is beside that."""
    is_beside = (low >= state.right) | (high < state.left)
    is_beside |= (high == state.left) & (low < high)
    low, high = torch.maximum(low, state.left), torch.minimum(high, state.right)
    # Both ends are one score where many are tied: the threshold is there, or next to it.
    high = torch.where(low < high, high, next_float(low, dtype))
    is_inside = (high <= state.right) & ~is_beside
    low, high = torch.where(is_inside, low, state.left), torch.where(is_inside, high, state.right)
    return state._replace(low=low, high=high)


def finite_or_zero(values: Tensor) -> Tensor:
    """An end of a row, or zero where it has no finite score."""
    return values.masked_fill(~values.isfinite(), 0.0)

"""Sums that decay from node to node, in plain torch: the one scan that ranks and sorts are made of.

With gaps g between neighbouring nodes, in temperatures,

    forward:   out_i = values_i + e^{-g_{i-1}} out_{i-1}
    reverse:   out_i = values_i + e^{-g_i} out_{i+1}

All of it is differentiable by torch, to any order, and under ``torch.func``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Even e^{-x/2} is 0 from here on.
_FARTHEST = 4096.0


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """The decayed sums at every node: gaps [rows, n - 1], values and result [rows, columns, n]."""
    if reverse:
        return _scan(gaps[:, None].flip(-1), values.flip(-1)).flip(-1)
    return _scan(gaps[:, None], values)


def _scan(gaps: Tensor, values: Tensor) -> Tensor:
    """Scan neighbours in pairs, the pairs recursively, then fill in the nodes between: O(n).

    The gap over a pair is a sum of gaps, whose exponential is taken once: a product of a million
    factors near 1 would add up a million rounding errors.
    """
    count = values.shape[-1]
    if count < 2:
        return values
    pairs = count // 2
    first, second = values[..., 0::2], values[..., 1::2]
    pair_values = second + torch.exp(-gaps[..., 0::2]) * first[..., :pairs]
    between = gaps[..., 1::2]
    at_second = _scan(between[..., : pairs - 1] + gaps[..., 2::2][..., : pairs - 1], pair_values)
    reached = torch.exp(-between) * at_second[..., : between.shape[-1]]
    at_first = torch.cat((first[..., :1], first[..., 1:] + reached), -1)
    woven = torch.stack((at_first[..., :pairs], at_second), -1).flatten(-2)
    return woven if count % 2 == 0 else torch.cat((woven, at_first[..., pairs:]), -1)


def distance(lower: Tensor, upper: Tensor, temperature: Tensor, tiny: float) -> Tensor:
    """(upper - lower) / t for lower <= upper: 0 for equal scores, infinite for an infinite score.

    Below ``tiny`` t is the hard limit, in which all distances are 0 or infinite. By halves, because
    a difference may be over the largest number. What has no derivative is kept out of the graph.
    So is what is so far that e^{-distance}, all that is made of it, has none: 1 / t^2 may overflow.
    """
    live = lower.isfinite() & upper.isfinite() & (temperature >= tiny)
    t = torch.where(temperature >= tiny, temperature, 1.0)
    half = torch.where(live, upper, 0.0) / 2 - torch.where(live, lower, 0.0) / 2
    found = half.detach() / t.detach() * 2
    is_near = found <= _FARTHEST
    settled = torch.where(live, found, torch.where(lower == upper, 0.0, math.inf).to(half.dtype))
    return torch.where(live & is_near, torch.where(is_near, half, 0.0) / t * 2, settled)

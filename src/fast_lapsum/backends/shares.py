"""q = softmax(-|u|), the share of each score in the slope of the mass, as torch operations.

Gradients are made of it. They have derivatives themselves, so all of this can be differentiated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Temperatures from the threshold to the nearest score beyond which a row with scores on both sides
#: has them weigh the same: its budget is the number of those above, to the last bit.
WIDE = 300.0


class Shares(NamedTuple):
    """What gradients need of every row; q is [..., n], the others [..., 1]."""

    q: Tensor  # 0 where no score takes part
    mean: Tensor  # <q, u>
    log_density: Tensor  # the logarithm of sum(phi), phi = e^-|u| / 2


def softmax(x: Tensor) -> Tensor:
    """Softmax along the last dimension; torch's adds numbers one by one, and is off by n eps."""
    if not x.shape[-1]:
        return x
    found = torch.exp(x - x.detach().amax(-1, keepdim=True))
    return found / found.sum(-1, keepdim=True)


def reached(half: Tensor, t: Tensor) -> Tensor:
    """Distances in temperatures of finite scores, from half of them: none is infinite.

    What is so far has no weight anyway, and is constant: derivatives would be infinite, times 0.
    """
    most = torch.finfo(half.dtype).max / 2**20  # sums of them are finite, too
    found = half.detach() / t.detach() * 2
    is_far = found.abs() > most
    near = torch.where(is_far, 0.0, half) / torch.where(is_far, 1.0, t) * 2
    return torch.where(is_far, found.clamp(-most, most), near)


def shares_of(r: Tensor, u: Tensor, live: Tensor, t: Tensor, looks: bool) -> Shares:
    """Of scores r [..., n] at distances u in temperatures; ``live`` are those that take part.

    Where the threshold b lies in a gap of many temperatures, both sides have half of q. That says
    more than u does: b is rounded, and in such a gap its rounding may be many temperatures. So each
    side's weights are relative to its own nearest score, and b follows from both sums. How such a q
    changes with k, by something of order e^|u|, is left out: it is taken for constant there.

    With ``looks`` the host looks whether there is such a row.
    """
    if not r.shape[-1]:
        rows = (*r.shape[:-1], 1)
        return Shares(torch.zeros_like(r), r.new_zeros(rows), r.new_full(rows, -math.inf))
    decay = torch.where(live, -u.abs(), -math.inf)
    decay = decay.masked_fill(~live.any(-1, keepdim=True), 0.0)
    sums = decay.logsumexp(-1, keepdim=True)
    is_wide = decay.detach().amax(-1, keepdim=True) < -WIDE
    if looks and not bool(is_wide.any()):
        q = softmax(decay).masked_fill(~live, 0.0)
        return Shares(q, (q * u).sum(-1, keepdim=True), sums - math.log(2))
    above = live & (u > 0)
    below = live & ~above
    is_wide = is_wide & above.any(-1, keepdim=True) & below.any(-1, keepdim=True)
    far = is_wide & live
    # Sums do not depend on the scores that they are relative to.
    least = r.detach().masked_fill(~above, math.inf).amin(-1, keepdim=True)
    most = r.detach().masked_fill(~below, -math.inf).amax(-1, keepdim=True)
    end = torch.where(far, torch.where(above, least, most), 0.0)
    signed = reached(torch.where(far, r, 0.0) / 2 - end / 2, t)
    away = torch.where(above, signed, -signed)  # not abs(), whose slope at 0 is 0
    near = torch.exp(-away)
    of_above, of_below = (
        torch.where(is_wide, torch.where(side, near, 0.0).sum(-1, keepdim=True), 1.0).log()
        for side in (above, below)
    )
    decay = torch.where(far, -away - torch.where(above, of_above, of_below), decay)
    q = softmax(decay).masked_fill(~live, 0.0)
    mean = (q * torch.where(far, signed, u)).sum(-1, keepdim=True)
    # Equal sums say by how much the nearest score above is farther away than that below.
    mean = mean + torch.where(is_wide, (of_above - of_below) / 2, 0.0)
    half_gap = reached(torch.where(is_wide, least / 2 - most / 2, 0.0) / 2, t)
    both = math.log(2) + (of_above + of_below) / 2 - half_gap
    return Shares(q, mean, torch.where(is_wide, both, sums) - math.log(2))


def inverse_density(log_density: Tensor) -> Tensor:
    """1 / sum(phi), finite: where it overflows it is only ever multiplied with zero."""
    largest = math.log(torch.finfo(log_density.dtype).max) - 10
    return torch.exp((-log_density).clamp(max=largest))

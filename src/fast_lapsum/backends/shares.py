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


def shares_of(r: Tensor, u: Tensor, live: Tensor, t: Tensor) -> Shares:
    """Of scores r [..., n] at distances u in temperatures; ``live`` are those that take part.

    Where the threshold b lies in a gap of many temperatures, both sides have half of q. That says
    more than u does: b is rounded, and in such a gap its rounding may be many temperatures. So each
    side's weights are relative to its own nearest score, and b follows from both sums.
    """
    if not r.shape[-1]:
        rows = (*r.shape[:-1], 1)
        return Shares(torch.zeros_like(r), r.new_zeros(rows), r.new_full(rows, -math.inf))
    decay = torch.where(live, -u.abs(), -math.inf)
    nothing = ~live.any(-1, keepdim=True)
    decay = decay.masked_fill(nothing, 0.0)
    is_above = live & (u > 0)
    is_below = live & ~is_above
    is_wide = is_above.any(-1, keepdim=True) & is_below.any(-1, keepdim=True)
    is_wide = is_wide & (decay.detach().amax(-1, keepdim=True) < -WIDE)
    far = is_wide & live
    # Sums do not depend on the scores that they are relative to.
    least = r.detach().masked_fill(~is_above, math.inf).amin(-1, keepdim=True)
    most = r.detach().masked_fill(~is_below, -math.inf).amax(-1, keepdim=True)
    nearest = torch.where(far, torch.where(is_above, least, most), 0.0)
    own = torch.where(far, r, 0.0)
    signed = (own / 2 - nearest / 2) / t * 2
    away = torch.where(is_above, signed, -signed)  # not abs(), whose slope at 0 is 0
    sums = [
        torch.where(is_wide, torch.where(one, -away, -math.inf), 0.0).logsumexp(-1, True)
        for one in (is_above, is_below)
    ]
    half = torch.exp(-away - torch.where(is_above, sums[0], sums[1])) / 2
    q = torch.where(is_wide, half, torch.softmax(decay, -1))
    q = torch.where(live, q, 0.0)
    aside = (sums[0] - sums[1]) / 2
    mean = (q * torch.where(is_wide, signed, u)).sum(-1, keepdim=True)
    mean = mean + torch.where(is_wide, aside, 0.0)
    return Shares(q, mean, decay.logsumexp(-1, keepdim=True) - math.log(2))


def inverse_density(log_density: Tensor) -> Tensor:
    """1 / sum(phi), finite: where it overflows it is only ever multiplied with zero."""
    largest = math.log(torch.finfo(log_density.dtype).max) - 10
    return torch.exp((-log_density).clamp(max=largest))

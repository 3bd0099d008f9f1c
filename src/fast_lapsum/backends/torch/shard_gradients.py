"""From all ranks' sums to what each needs for its gradients, and to those for k and t.

See backward.py for the formulas, and shards.py for the sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import is_hard
from ..shards import DECAYS, FIRST, FOURTH, MOMENT, SECOND, SHIFT, THIRD, Totals

#: Sums of e^{-(|u| - shift)}, which are brought to one shift.
_DECAYED = {
    "mask": (DECAYS, MOMENT, FIRST, SECOND),
    "log": (DECAYS, MOMENT, THIRD),
    "threshold": (DECAYS, MOMENT),
}


def total(
    sums: Tensor, temperature: Tensor, threshold: Tensor, output: str, kept: torch.dtype
) -> tuple[Totals, Tensor, Tensor]:
    """Of sums [ranks, rows, 7]: totals, and the gradients for budget and temperature, [rows]."""
    output = "mask" if output == "hard" else output
    hi = threshold.reshape(-1, 2)[:, 0]
    shift = sums[..., SHIFT].amin(0)
    decay = torch.exp(shift - sums[..., SHIFT]).masked_fill(sums[..., SHIFT].isinf(), 0.0)
    column = [
        (sums[..., i] * decay if i in _DECAYED[output] else sums[..., i]).sum(0)
        for i in range(sums.shape[-1])
    ]
    e = torch.where(column[DECAYS] > 0, column[DECAYS], 1.0)
    t = torch.where(is_hard(hi, temperature, kept) | hi.isnan(), 1.0, temperature)
    mean_u = column[MOMENT] / e
    first, second = column[FIRST], column[SECOND]
    # 1 / sum(phi), finite: where it overflows it is only ever multiplied with zero.
    most = math.log(torch.finfo(sums.dtype).max) - 10
    inverse_density = torch.exp((shift + torch.log(2 / e)).clamp(max=most))
    inverse_density = inverse_density.masked_fill(shift.isinf(), 0.0)
    if output == "threshold":
        level, d_budget = first, -first * t * inverse_density
        d_temperature = -first * mean_u
    elif output == "log":
        level, d_budget = first, column[THIRD] / e + column[FOURTH] * inverse_density
        d_temperature = -(second - first * mean_u) / t
    else:
        level, d_budget = first / e, first / e
        d_temperature = -(second - first * mean_u) * torch.exp(-shift) / 2 / t
    is_nan = hi.isnan()
    is_settled = is_hard(hi, temperature, kept)
    d_budget, d_temperature = (
        x.masked_fill(is_settled, 0.0).masked_fill(is_nan, math.nan)
        for x in (d_budget, d_temperature)
    )
    return Totals(shift, e, level), d_budget, d_temperature

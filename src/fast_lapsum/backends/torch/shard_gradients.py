"""From all ranks' sums to what each needs for its gradients, and to those for k and t.

See backward.py for the formulas, and shards.py for the sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def totals(sums: Tensor, output: str) -> Totals:
    """What ranks write gradients of scores from, of sums [ranks, rows, 7]."""
    shift, column = _added(sums, output, (DECAYS, FIRST))
    return _totals(shift, column, output)


def total(
    sums: Tensor, temperature: Tensor, threshold: Tensor, output: str, kept: torch.dtype
) -> tuple[Totals, Tensor, Tensor]:
    """Of sums [ranks, rows, 7]: totals, and the gradients for budget and temperature, [rows]."""
    hi = threshold.reshape(-1, 2)[:, 0]
    shift, column = _added(sums, output, range(sums.shape[-1]))
    found = _totals(shift, column, output)
    e = found.e
    t = torch.where(is_hard(hi, temperature, kept) | hi.isnan(), 1.0, temperature)
    mean_u = column[MOMENT] / e
    first, second = column[FIRST], column[SECOND]
    # 1 / sum(phi), finite: where it overflows it is only ever multiplied with zero.
    most = math.log(torch.finfo(sums.dtype).max) - 10
    inverse_density = torch.exp((shift + torch.log(2 / e)).clamp(max=most))
    inverse_density = inverse_density.masked_fill(shift.isinf(), 0.0)
    if output == "threshold":
        d_budget = -first * t * inverse_density
        d_temperature = -first * mean_u
    elif output == "log":
        d_budget = column[THIRD] / e + column[FOURTH] * inverse_density
        d_temperature = -(second - first * mean_u) / t
    else:
        d_budget = found.level
        d_temperature = -(second - first * mean_u) * torch.exp(-shift) / 2 / t
    is_nan = hi.isnan()
    is_settled = is_hard(hi, temperature, kept)
    d_budget, d_temperature = (
        x.masked_fill(is_settled, 0.0).masked_fill(is_nan, math.nan)
        for x in (d_budget, d_temperature)
    )
    return found, d_budget, d_temperature


def _added(sums: Tensor, output: str, columns: Iterable[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """The least shift, and columns of all ranks together, relative to it."""
    decayed = _DECAYED["mask" if output == "hard" else output]
    shift = sums[..., SHIFT].amin(0)
    decay = torch.exp(shift - sums[..., SHIFT]).masked_fill(sums[..., SHIFT].isinf(), 0.0)
    return shift, {
        i: (sums[..., i] * decay if i in decayed else sums[..., i]).sum(0) for i in columns
    }


def _totals(shift: Tensor, column: dict[int, Tensor], output: str) -> Totals:
    e = torch.where(column[DECAYS] > 0, column[DECAYS], 1.0)
    is_mean = output in ("mask", "hard")
    return Totals(shift, e, column[FIRST] / e if is_mean else column[FIRST])

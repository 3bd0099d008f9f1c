"""Euclidean projection onto the capped simplex: a ramp, shifted until it spends the budget.

W. Wang, C. Lu, "Projection onto the capped simplex", arXiv:1503.01002, 2015.

    p = argmin |p - s/t|^2  s.t.  0 <= p <= 1, sum_i p_i = k   so   p_i = clip(s_i/t - theta, 0, 1).

theta is bisected in the dtype of the scores; the Newton steps that follow solve the linear equation
of the piece it lies on, so it is exact up to rounding, and so is the budget, for any k in [0, n].
The gradient is that of the active set A = {0 < p_i < 1}: (g_i - mean_A g) / t inside, 0 outside.
Memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import implicit
from .protocol import Peer, check_budget


def capped_simplex(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> capped_simplex(torch.tensor([[0.0, 4.0, 2.0, 2.5]]), 2, 1.0)
    tensor([[0.0000, 1.0000, 0.2500, 0.7500]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    if k in (0, n):
        return scores * 0 + (k > 0)
    budget, scale = (k, temperature) if 2 * k <= n else (n - k, -temperature)
    u = implicit.solve(scores, budget, scale, curve=_ramp, slope=_slope, quantile=budget / n)
    mask = _ramp(u if scale > 0 else u.neg_().add_(1), u)
    return implicit.with_gradient(scores, mask, _slope(u, torch.empty_like(u)), temperature)


def _ramp(u: Tensor, out: Tensor) -> Tensor:
    return torch.clamp(u, 0, 1, out=out)


def _slope(u: Tensor, out: Tensor) -> Tensor:
    """1 inside the ramp, of u or of its clamped values."""
    return torch.gt(u, 0, out=out).mul_(u < 1)


PEER = Peer(
    name="Capped simplex",
    paper="Wang, Lu 2015, Projection onto the capped simplex, arXiv:1503.01002",
    function=capped_simplex,
    exact_budget=True,
    memory="O(n)",
    temperature="t divides the scores: the ramp from 0 to 1 is t wide.",
)

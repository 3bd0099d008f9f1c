"""The Limited Multi-Label projection: the logistic sigmoid, shifted until it spends the budget.

B. Amos, V. Koltun, J. Z. Kolter, "The Limited Multi-Label Projection Layer", arXiv:1906.08707,
2019. With the binary entropy H_b(p) = -sum_i p_i log p_i + (1 - p_i) log(1 - p_i),

    p = argmin -<s/t, p> - H_b(p)  s.t.  sum_i p_i = k      so      p_i = sigmoid(s_i/t + nu).

The paper brackets nu with many samples at a time; here it is bisected in the dtype of the scores,
which is less work, and three Newton steps follow. k may be any number in [0, n], and the budget is
exact up to rounding. The gradient is the implicit one with slopes p (1 - p). Memory O(n).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import implicit
from .protocol import Peer, check_budget


def lml(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> lml(torch.tensor([[0.0, 2.0]]), 1, 1.0)
    tensor([[0.2689, 0.7311]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    if k in (0, n):
        return scores * 0 + (k > 0)
    budget, scale = (k, temperature) if 2 * k <= n else (n - k, -temperature)
    quantile = math.log(budget) - math.log(n - budget)
    u = implicit.solve(scores, budget, scale, curve=_sigmoid, slope=_slope, quantile=quantile)
    mask = torch.sigmoid(u if scale > 0 else u.neg_())
    return implicit.with_gradient(scores, mask, u.neg_().sigmoid_().mul_(mask), temperature)


def _sigmoid(u: Tensor, out: Tensor) -> Tensor:
    return torch.sigmoid(u, out=out)


def _slope(u: Tensor, out: Tensor) -> Tensor:
    return torch.neg(u, out=out).sigmoid_().mul_(torch.sigmoid(u))


PEER = Peer(
    name="LML",
    paper="Amos, Koltun, Kolter 2019, The Limited Multi-Label Projection Layer, arXiv:1906.08707",
    function=lml,
    exact_budget=True,
    memory="O(n)",
    temperature="t divides the scores; the logistic sigmoid has tails like those of the Laplace "
    "CDF at the same t.",
)

"""SOFT top-k: entropic optimal transport of the scores to the two anchors "out" and "in".

Y. Xie, H. Dai, M. Chen, B. Dai, T. Zhao, H. Zha, W. Wei, T. Pfister, "Differentiable Top-k with
Optimal Transport", NeurIPS 2020. Every score x_i carries mass 1/n; the anchors y = (0, 1) receive
(1 - k/n, k/n). The plan minimises <C, G> + epsilon sum G (log G - 1) with C_ij = (x_i - y_j)^2, and
the mask is n times its column "in". The x are the scores moved and scaled to [0, 1] row by row, so
that the largest cost is 1. 200 Sinkhorn steps in the log domain:

    f_i = epsilon log(1/n)  - epsilon log sum_j exp((g_j - C_ij) / epsilon),
    g_j = epsilon log(nu_j) - epsilon log sum_i exp((f_i - C_ij) / epsilon).

The difference of the two costs is linear in x, so at convergence the mask is
sigmoid((s_i - b) / t), a logistic sigmoid with an exact budget, where epsilon = 2 t / (max - min):
that is how the temperature maps. The last step is on the anchors' side, so the mask sums to k even
before convergence; what is then off is the mask itself: too flat, or above 1 in places. It takes a
few times 1 / epsilon steps to converge: 200 do not suffice once t is about 1/1000 of the range.

The gradient is the paper's implicit one (its Schur complement is a number for two anchors), not
autograd through the steps: with p the mask, w = p (1 - p) and D the cost "in" minus the cost "out",

    dp_i = w_i (sum_j w_j dD_j / sum_j w_j - dD_i) / epsilon.

It assumes convergence. Memory O(n).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .protocol import Peer, check_budget

ITERATIONS = 200


class _Plan(torch.autograd.Function):
    """Costs [B, 2, n] ("out", "in") and epsilon [B, 1] -> n times the column "in" of the plan."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, epsilon: Tensor, k: float, iterations: int) -> Tensor:
        n = cost.shape[-1]
        kernel = -cost / epsilon[..., None]
        log_mass = torch.cat([cost.new_full((1,), _log(mass)) for mass in (n - k, k)])
        # Potentials in units of epsilon; every mass n times the paper's.
        anchors = torch.zeros_like(cost[..., 0])
        points = torch.zeros_like(cost[..., 0, :])
        for _ in range(iterations):
            points = -torch.logsumexp(anchors[..., None] + kernel, -2)
            anchors = log_mass - torch.logsumexp(points[..., None, :] + kernel, -1)
        mask = torch.exp(points + anchors[..., 1:] + kernel[..., 1, :])
        ctx.save_for_backward(mask, epsilon)
        return mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        mask, epsilon = ctx.saved_tensors
        weights = (mask * (1 - mask)).clamp(min=0)
        total = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(mask.dtype).tiny)
        mean = (weights * grad).sum(-1, keepdim=True) / total
        d_difference = -weights * (grad - mean) / epsilon
        return torch.stack((-d_difference, d_difference), -2), None, None, None


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def sinkhorn(
    scores: Tensor, k: float, temperature: float, *, iterations: int = ITERATIONS
) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> sinkhorn(torch.tensor([[0.0, 1.0]]), 1, 1.0)
    tensor([[0.3775, 0.6225]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    # The converged mask does not depend on where and how wide the unit interval is: no gradient.
    low, high = (x[..., None] for x in torch.aminmax(scores.detach(), dim=-1))
    width = torch.where(high > low, high - low, 1)
    x = (scores - low) / width
    cost = torch.stack((x**2, (x - 1) ** 2), -2)
    mask: Tensor = _Plan.apply(cost, 2 * temperature / width, k, iterations)  # type: ignore[no-untyped-call]
    return mask


PEER = Peer(
    name="SOFT top-k (Sinkhorn)",
    paper="Xie, Dai, Chen, Dai, Zhao, Zha, Wei, Pfister 2020, Differentiable Top-k with Optimal "
    "Transport, NeurIPS",
    function=sinkhorn,
    exact_budget=True,
    memory="O(n)",
    temperature="epsilon = 2 t / (max - min) per row, which makes the converged mask "
    "sigmoid((s - b) / t).",
)

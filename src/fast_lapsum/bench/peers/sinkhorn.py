"""SOFT top-k: entropic optimal transport of the scores to the two anchors "out" and "in".

Y. Xie, H. Dai, M. Chen, B. Dai, T. Zhao, H. Zha, W. Wei, T. Pfister, "Differentiable Top-k with
Optimal Transport", NeurIPS 2020. Every score x_i carries mass 1/n; the anchors y = (0, 1) receive
(1 - k/n, k/n). The plan minimises <C, G> + epsilon sum G (log G - 1) with C_ij = (x_i - y_j)^2, and
the mask is n times its column "in". The x are the scores moved and scaled to [0, 1] row by row, so
that the largest cost is 1. 200 Sinkhorn steps in the log domain:

    f_i = epsilon log(1/n)  - epsilon log sum_j exp((g_j - C_ij) / epsilon),
    g_j = epsilon log(nu_j) - epsilon log sum_i exp((f_i - C_ij) / epsilon).

Of two anchors only the difference d = (g_in - g_out) / epsilon matters, and with D the cost "in"
minus the cost "out", a step is a sigmoid and a number per row:

    q_i = sigmoid(d - D_i / epsilon),  Q = sum q_i,  d <- d + log(k / Q) - log((n - k) / (n - Q)).

The mask after it is q k / Q. These are the steps above, exactly: the same 200, and their results.

The difference of the two costs is linear in x, so at convergence the mask is
sigmoid((s_i - b) / t), a logistic sigmoid with an exact budget, where epsilon = 2 t / (max - min):
that is how the temperature maps. The last step is on the anchors' side, so the mask sums to k even
before convergence; what is then off is the mask itself: too flat, or above 1 in places. It takes a
few times 1 / epsilon steps to converge: 200 do not suffice once t is about 1/1000 of the range.

The gradient is the paper's implicit one (its Schur complement is a number for two anchors), not
autograd through the steps: with p the mask and w = p (1 - p),

    dp_i = w_i (sum_j w_j dD_j / sum_j w_j - dD_i) / epsilon.

It assumes convergence. Nothing of the steps is kept: memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import implicit
from .protocol import Peer, check_budget

ITERATIONS = 200


def sinkhorn(
    scores: Tensor, k: float, temperature: float, *, iterations: int = ITERATIONS
) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> sinkhorn(torch.tensor([[0.0, 1.0]]), 1, 1.0)
    tensor([[0.3775, 0.6225]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    if k in (0, n):
        return scores * 0 + (k > 0)
    mask = _mask(scores.detach(), k, temperature, iterations)
    # dD = -2 dx and epsilon = 2 t / (max - min): in the scores, the implicit gradient has 1 / t.
    return implicit.with_gradient(scores, mask, (1 - mask).mul_(mask).clamp_(min=0), temperature)


@torch.no_grad()
def _mask(scores: Tensor, k: float, temperature: float, iterations: int) -> Tensor:
    """The mask after so many steps. D / epsilon is (1 - 2 x) / epsilon = (middle - s) / t."""
    n = scores.shape[-1]
    low, high = torch.aminmax(scores, dim=-1, keepdim=True)
    # Sums of the smaller side: of "out", with the opposite signs, where k is over n / 2.
    budget, scale = (k, temperature) if 2 * k <= n else (n - k, -temperature)
    z = (scores - (low + high).div_(2)).div_(scale)
    d = torch.zeros_like(low)
    q = torch.empty_like(z)
    for _ in range(iterations):
        torch.add(z, d, out=q)
        total = q.sigmoid_().sum(-1, keepdim=True)
        # d goes from 0 to its limit on one side of it, so that neither sum is less than 1/2 (the
        # highest and the lowest score, at first) or than its budget (in the limit).
        rest = (n - total).clamp_(min=min(0.5, n - budget))
        d.add_((rest / total).mul_(budget / (n - budget)).log_())
    if scale > 0:
        return q.mul_(budget / total)
    return torch.rsub(q, 1).mul_(k / rest)


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

"""CoLT5's soft top-k: entropy-regularised selection by coordinate descent on the dual.

J. Ainslie, T. Lei, M. de Jong and others, "CoLT5: Faster Long-Range Transformers with Conditional
Computation", EMNLP 2023, after Y. Qian, J. Lee, S. M. K. Duddu and others, "Multi-Vector Retrieval
as Sparse Alignment", arXiv:2211.01267, 2022.

    p = argmax <s, p> + epsilon H(p)  s.t.  sum_i p_i = k, p_i <= 1      (H: Shannon entropy)

has the dual form p_i = exp((s_i + b_i + a) / epsilon). From b = 0, in turn, 50 times:

    a   = epsilon log k - epsilon log sum_i exp((s_i + b_i) / epsilon),
    b_i = min(-s_i - a, 0).

The last update is that of b, so no p_i is over 1, and the budget is met only in the limit: until
then the mask sums to less than k. Convergence slows down as more of the p_i saturate, and 50 steps
are far from enough for sharp masks. Any k in (0, n]. Autograd goes through the iterations. Memory
O(50 n).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .protocol import Peer, check_budget

ITERATIONS = 50


def colt5(scores: Tensor, k: float, temperature: float, *, iterations: int = ITERATIONS) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> colt5(torch.tensor([[0.0, 2.0]]), 1, 1.0)
    tensor([[0.1192, 0.8808]])
    """
    check_budget(k, scores.shape[-1])
    if k == 0:
        raise ValueError("k must be positive for this method, got k = 0")
    log_k = math.log(k)
    # In units of epsilon from here on.
    s = scores / temperature
    b = torch.zeros_like(s)
    for _ in range(iterations):
        a = log_k - torch.logsumexp(s + b, -1, keepdim=True)
        b = (-s - a).clamp(max=0)
    return torch.exp(s + b + a)


PEER = Peer(
    name="CoLT5 (coordinate descent)",
    paper="Ainslie, Lei, de Jong and others 2023, CoLT5: Faster Long-Range Transformers with "
    "Conditional Computation, EMNLP",
    function=colt5,
    exact_budget=False,
    memory="O(50 n)",
    temperature="epsilon = t, the weight of the entropy.",
)

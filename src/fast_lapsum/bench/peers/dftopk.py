"""DFTopK: a sigmoid around the middle of the k-th and the next largest score.

Y. Zhu, Z. Zhang, Y. Wang and others, "Differentiable Fast Top-K Selection for Large-Scale
Recommendation", arXiv:2510.11472, 2025:

    p_i = sigmoid((s_i - theta) / t),     theta = (s_(k) + s_(k+1)) / 2,

with s_(i) the i-th largest score. Two selections find theta; k must be whole, at least 1 and at
most n - 1. The budget is given up: the mask sums to k only as t goes to 0. Memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .protocol import Peer, whole_budget


def dftopk(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask along the last dimension.

    >>> dftopk(torch.tensor([0.0, 4.0, 2.0, 3.0]), 2, 1.0)
    tensor([0.0759, 0.8176, 0.3775, 0.6225])
    """
    n = scores.shape[-1]
    budget = whole_budget(k, n, least=1, most=n - 1)
    last_in = torch.kthvalue(scores, n - budget + 1).values
    first_out = torch.kthvalue(scores, n - budget).values
    return torch.sigmoid((scores - (last_in + first_out)[..., None] / 2) / temperature)


PEER = Peer(
    name="DFTopK",
    paper="Zhu, Zhang, Wang and others 2025, Differentiable Fast Top-K Selection for Large-Scale "
    "Recommendation, arXiv:2510.11472",
    function=dftopk,
    exact_budget=False,
    memory="O(n)",
    temperature="t divides the distances to the threshold, as ours does.",
)

"""SoftSort: the first k rows of a simpler relaxed permutation matrix.

S. Prillo, J. Eisenschlos, "SoftSort: A Continuous Relaxation for the argsort Operator", ICML 2020,
with the distance |x - y|:

    P_ij = softmax_j(-|sort(s)_i - s_j| / tau),     sort(s) in descending order,

and the mask is P_1 + ... + P_k; of a fractional k the last row counts for the fraction. tau is the
temperature.

Every row sums to 1, so the mask sums to k. The columns do not: a single entry may exceed 1. Only
the rows in use are formed: memory O(n k).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .protocol import Peer, check_budget


def softsort(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> softsort(torch.tensor([[0.0, 1.0]]), 1, 1.0)
    tensor([[0.2689, 0.7311]])
    """
    check_budget(k, scores.shape[-1])
    rows = math.ceil(k)
    largest = scores.sort(-1, descending=True).values[..., :rows]
    distances = (largest[..., :, None] - scores[..., None, :]).abs()
    permutation = torch.softmax(-distances / temperature, -1)
    before = torch.arange(rows, device=scores.device, dtype=scores.dtype)
    weights = (k - before).clamp(max=1)  # 1, except for the last row of a fractional k
    return (weights[:, None] * permutation).sum(-2)


PEER = Peer(
    name="SoftSort",
    paper="Prillo, Eisenschlos 2020, SoftSort: A Continuous Relaxation for the argsort Operator, "
    "ICML",
    function=softsort,
    exact_budget=True,
    memory="O(n k)",
    temperature="t is tau, which divides gaps between scores.",
)

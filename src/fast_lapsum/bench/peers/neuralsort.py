"""NeuralSort: the first k rows of a relaxed permutation matrix.

A. Grover, E. Wang, A. Zweig, S. Ermon, "Stochastic Optimization of Sorting Networks via Continuous
Relaxations", ICLR 2019. With A_jl = |s_j - s_l|, row i of the matrix that sorts in descending order
relaxes to

    P_i = softmax(((n + 1 - 2 i) s - A 1) / tau),     i = 1..n,

and the mask is P_1 + ... + P_k; of a fractional k the last row counts for the fraction. tau is the
temperature.

Every row sums to 1, so the mask sums to k. The columns do not: a single entry may exceed 1. The
matrix A makes memory O(n^2); of P only the rows in use are formed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .protocol import Peer, check_budget


def neuralsort(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> neuralsort(torch.tensor([[0.0, 1.0]]), 1, 1.0)
    tensor([[0.2689, 0.7311]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    ranks = torch.arange(1, math.ceil(k) + 1, device=scores.device, dtype=scores.dtype)
    distances = (scores[..., :, None] - scores[..., None, :]).abs().sum(-1)
    logits = (n + 1 - 2 * ranks)[:, None] * scores[..., None, :] - distances[..., None, :]
    permutation = torch.softmax(logits / temperature, -1)
    weights = (k + 1 - ranks).clamp(max=1)  # 1, except for the last row of a fractional k
    return (weights[:, None] * permutation).sum(-2)


PEER = Peer(
    name="NeuralSort",
    paper="Grover, Wang, Zweig, Ermon 2019, Stochastic Optimization of Sorting Networks via "
    "Continuous Relaxations, ICLR",
    function=neuralsort,
    exact_budget=True,
    memory="O(n^2)",
    temperature="t is tau, which divides sums of up to n gaps between scores: the same t is far "
    "sharper than ours.",
)

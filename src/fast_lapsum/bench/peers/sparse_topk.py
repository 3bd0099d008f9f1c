"""Sparse top-k: projection onto a permutahedron by isotonic regression, in two ways.

M. E. Sander, J. Puigcerver, J. Djolonga, G. Peyre, M. Blondel, "Fast, Differentiable and Sparse
Top-k: a Convex Analysis Perspective", ICML 2023, with the p-norm regulariser for p = 2. P(w) is the
convex hull of all orders of w = (1, ..., 1, 0, ..., 0) with k ones:

    p = argmax_{p in P(w)} <s, p> - t/2 |p|^2.

With z = s/t in descending order and y = z - w it is, in that order,

    p = z - v,     v = argmin_{v_1 >= v_2 >= ... >= v_n} |v - y|^2,

and v is the mean of y over each block of pooled scores. As y can be out of order only between
numbers k and k + 1, there is at most one block with more than one score, and p is w outside it. The
paper has two solvers:

- PAV, pool adjacent violators: grow that block, one score at a time, while a neighbour of the block
  is out of order with its mean. A serial loop over Python floats, row by row on the CPU, that
  visits only the block: about 0.1 us per pooled score, up to n of them at high temperatures. Exact.
- Dykstra: project in turn onto the orders of all pairs (1, 2), (3, 4), ... and of all pairs (2, 3),
  (4, 5), ..., with Dykstra's corrections, 500 times (the authors' default), vectorised, in the
  dtype of the scores. A block of m scores takes some m^2 of these steps, so that blocks of more
  than some tens of scores are not converged: the sum is still k, but the mask is too sharp.

Both are the same operator as the projection onto the capped simplex. k must be whole, in [0, n];
the sum is k up to rounding. The gradient is the Jacobian of the blocks, (g_i - mean_block g) / t
inside the block and 0 outside: exact for a converged mask. Memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import implicit
from .protocol import Peer, whole_budget

DYKSTRA_ITERATIONS = 500


def sparse_topk_pav(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by pool adjacent violators.

    >>> sparse_topk_pav(torch.tensor([[0.0, 4.0, 2.0, 2.5]]), 2, 1.0)
    tensor([[0.0000, 1.0000, 0.2500, 0.7500]])
    """
    budget = whole_budget(k, scores.shape[-1])
    order, z, w = _sorted_problem(scores.detach().double(), budget, temperature)
    y = z - w
    mask, block = w.clone(), torch.zeros_like(w)
    for row, values in enumerate(y.tolist()):
        start, stop = _pooled_block(values, budget)
        mean = y[row, start:stop].mean()
        mask[row, start:stop] = (z[row, start:stop] - mean).clamp(0, 1)
        block[row, start:stop] = 1
    return _unsorted(scores, order, mask, block, temperature)


def sparse_topk_dykstra(
    scores: Tensor, k: float, temperature: float, *, iterations: int = DYKSTRA_ITERATIONS
) -> Tensor:
    """The mask of every row of scores [B, n], by Dykstra's alternating projections.

    >>> sparse_topk_dykstra(torch.tensor([[0.0, 4.0, 2.0, 2.5]]), 2, 1.0)
    tensor([[0.0000, 1.0000, 0.2500, 0.7500]])
    """
    budget = whole_budget(k, scores.shape[-1])
    order, z, w = _sorted_problem(scores.detach(), budget, temperature)
    y = z - w
    v = y
    odd_correction, even_correction = torch.zeros_like(y), torch.zeros_like(y)
    for _ in range(iterations):
        moved = v + odd_correction
        v = _in_order_by_pairs(moved, 0)
        odd_correction = moved - v
        moved = v + even_correction
        v = _in_order_by_pairs(moved, 1)
        even_correction = moved - v
    rounding = 64 * torch.finfo(y.dtype).eps * (1 + y.abs())
    block = ((v - y).abs() > rounding).to(y.dtype)
    return _unsorted(scores, order, w - (v - y), block, temperature)


def _sorted_problem(
    scores: Tensor, budget: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The descending order, z counted from the k-th largest score, and w, each [B, n]."""
    ordered, order = scores.sort(-1, descending=True)
    last_in = max(budget - 1, 0)
    z = (ordered - ordered[:, last_in : last_in + 1]) / temperature
    w = torch.zeros_like(z)
    w[:, :budget] = 1
    return order, z, w


def _unsorted(
    scores: Tensor, order: Tensor, mask: Tensor, block: Tensor, temperature: float
) -> Tensor:
    mask, block = (torch.empty_like(x).scatter_(-1, order, x) for x in (mask, block))
    return implicit.with_gradient(scores, mask, block, temperature)


def _pooled_block(y: list[float], k: int) -> tuple[int, int]:
    """Start and stop of the one block of y, which descends but for the step from k - 1 to k."""
    n = len(y)
    if not 0 < k < n or y[k - 1] >= y[k]:
        return k, k
    start, stop = k - 1, k + 1
    total = y[k - 1] + y[k]
    while True:
        mean = total / (stop - start)
        if start > 0 and y[start - 1] < mean:
            start -= 1
            total += y[start]
        elif stop < n and y[stop] > mean:
            total += y[stop]
            stop += 1
        else:
            return start, stop


def _in_order_by_pairs(values: Tensor, offset: int) -> Tensor:
    """Projection onto v_i >= v_{i+1} for i = offset, offset + 2, ...: a pair or its mean."""
    pairs = (values.shape[-1] - offset) // 2
    first, second = (values[:, offset + j :: 2][:, :pairs] for j in (0, 1))
    violated, mean = first < second, (first + second) / 2
    result = values.clone()
    result[:, offset::2][:, :pairs] = torch.where(violated, mean, first)
    result[:, offset + 1 :: 2][:, :pairs] = torch.where(violated, mean, second)
    return result


_PAPER = (
    "Sander, Puigcerver, Djolonga, Peyre, Blondel 2023, Fast, Differentiable and Sparse Top-k: a "
    "Convex Analysis Perspective, ICML"
)

PEERS = (
    Peer(
        name="Sparse top-k (PAV)",
        paper=_PAPER,
        function=sparse_topk_pav,
        exact_budget=True,
        memory="O(n)",
        temperature="t is the strength of the regulariser: the ramp from 0 to 1 is t wide.",
    ),
    Peer(
        name="Sparse top-k (Dykstra)",
        paper=_PAPER,
        function=sparse_topk_dykstra,
        exact_budget=True,
        memory="O(n)",
        temperature="t is the strength of the regulariser: the ramp from 0 to 1 is t wide.",
        caveat="its 500 iterations (the authors' default) are far from converged on long rows "
        "(entries off by up to 0.5 at 20,000 scores), although their sum is right",
    ),
)

"""LapSum by bisection: the paper's baseline, this package's operator solved the slow way.

L. Struski, M. B. Bednarczyk, I. Podolak, J. Tabor, "LapSum - One Method to Differentiate Them All:
Ranking, Sorting and Top-k Selection", ICML 2025, in the pattern that "Fast LapSum" is measured
against:

    p_i = sigma((s_i - b) / t),  sum_i p_i = k      (sigma: the Laplace CDF),

where b takes 64 bisection steps, each of which sums all n terms again, and one closing sum. This is
``soft_topk`` with ``solver="bisect"``, which works in float64. Any k in [0, n]; the budget is exact
up to rounding; the gradient is the closed form. Memory O(n).
"""

from __future__ import annotations

from torch import Tensor

from fast_lapsum import soft_topk

from .protocol import Peer, check_budget


def bisection(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> import torch
    >>> bisection(torch.tensor([[0.0, 2.0]]), 1, 1.0)
    tensor([[0.1839, 0.8161]])
    """
    check_budget(k, scores.shape[-1])
    return soft_topk(scores, k, temperature, solver="bisect")


PEER = Peer(
    name="LapSum (bisection)",
    paper="Struski, Bednarczyk, Podolak, Tabor 2025, LapSum - One Method to Differentiate Them "
    "All: Ranking, Sorting and Top-k Selection, ICML",
    function=bisection,
    exact_budget=True,
    memory="O(n)",
    temperature="The same t.",
)

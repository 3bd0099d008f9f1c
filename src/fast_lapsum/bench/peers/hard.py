"""The yardsticks: hard masks from torch.topk and torch.sort.

Exactly k ones for the k largest scores (of tied ones, whichever torch takes), zeros elsewhere; k
must be whole. The temperature is ignored and there is no gradient. Memory O(n).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .protocol import Peer, whole_budget


def topk_mask(scores: Tensor, k: float, temperature: float = 0.0) -> Tensor:
    """The hard mask by selection.

    >>> topk_mask(torch.tensor([[0.0, 4.0, 2.0, 3.0]]), 2)
    tensor([[0., 1., 0., 1.]])
    """
    budget = whole_budget(k, scores.shape[-1])
    return _ones_at(torch.topk(scores.detach(), budget, -1, sorted=False).indices, scores)


def sort_mask(scores: Tensor, k: float, temperature: float = 0.0) -> Tensor:
    """The hard mask by sorting.

    >>> sort_mask(torch.tensor([[0.0, 4.0, 2.0, 3.0]]), 2)
    tensor([[0., 1., 0., 1.]])
    """
    budget = whole_budget(k, scores.shape[-1])
    order = torch.sort(scores.detach(), -1, descending=True).indices
    return _ones_at(order[..., :budget], scores)


def _ones_at(indices: Tensor, scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter_(-1, indices, 1.0)


PEERS = tuple(
    Peer(
        name=name,
        paper="PyTorch, no paper",
        function=function,
        exact_budget=True,
        memory="O(n)",
        temperature="There is none: the limit t = 0.",
        differentiable=False,
    )
    for name, function in (("torch.topk", topk_mask), ("torch.sort", sort_mask))
)

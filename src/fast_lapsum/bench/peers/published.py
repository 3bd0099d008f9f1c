"""Published packages, called through their own API where they are installed.

- entmax 1.3: ``budget_bisect(X, budget)`` is the projection of X onto the capped simplex (the peer
  "Capped simplex") by 50 bisection steps in the dtype of the scores.
- diffsort 0.2 (F. Petersen, C. Borgelt, H. Kuehne, O. Deussen, "Differentiable Sorting Networks",
  ICML 2021): ``DiffSortNet`` returns P [B, n, n] with sort(x) = x P, ascending; the mask is the sum
  of its last k columns. Each compared pair (x, y) is swapped softly, by sigmoid((y - x) / t).
- difftopk 0.2 (the same authors, "Differentiable Top-k Classification Learning", ICML 2022):
  ``DiffTopkNet`` returns those k columns alone, [B, n, k]. Without torch-sparse.

Both networks are bitonic where n is a power of two, else odd-even with n layers; they are built in
float32, in dense n x n matrices, once for each n. Their columns sum to 1, so the mask sums to k.

Left out: torchsort has soft ranks and soft sorted values and no mask; the projection behind them is
the peer "Sparse top-k (PAV)". SoftTorch (Python >= 3.12) reaches its soft indices by NeuralSort,
SoftSort or optimal transport, which are peers already, and SoftJAX is the same for JAX.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import Tensor

from .protocol import Peer, check_budget, whole_budget


def _needs(module: str, attribute: str) -> Callable[[], str | None]:
    """Whether the package is installed and has what is called here."""

    def reason() -> str | None:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (pip install {module})"
        if not hasattr(importlib.import_module(module), attribute):
            return f"the installed {module} has no {attribute}; a newer one has"
        return None

    return reason


def entmax_budget(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by entmax."""
    check_budget(k, scores.shape[-1])
    entmax = importlib.import_module("entmax")
    mask: Tensor = entmax.budget_bisect(scores / temperature, budget=k, dim=-1)
    return mask


def sorting_network(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by diffsort."""
    n = scores.shape[-1]
    budget = whole_budget(k, n, least=1)
    _, columns = _diffsort_net(n, temperature, str(scores.device))(scores.float())
    mask: Tensor = columns[:, :, n - budget :].sum(-1)
    return mask.to(scores.dtype)


def topk_network(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by difftopk."""
    n = scores.shape[-1]
    budget = whole_budget(k, n, least=1)
    _, columns = _difftopk_net(n, budget, temperature, str(scores.device))(scores.float())
    mask: Tensor = columns.sum(-1)
    return mask.to(scores.dtype)


@lru_cache(maxsize=4)
def _diffsort_net(n: int, temperature: float, device: str) -> Any:
    return importlib.import_module("diffsort").DiffSortNet(
        _network(n), n, device=device, steepness=1 / temperature, distribution="logistic"
    )


@lru_cache(maxsize=4)
def _difftopk_net(n: int, k: int, temperature: float, device: str) -> Any:
    return importlib.import_module("difftopk").DiffTopkNet(
        _network(n), n, k, device=device, steepness=1 / temperature, distribution="logistic"
    )


def _network(n: int) -> str:
    return "bitonic" if n & (n - 1) == 0 else "odd_even"


PEERS = (
    Peer(
        name="entmax (budget_bisect)",
        paper="Peters, Niculae, Martins 2019, Sparse Sequence-to-Sequence Models, ACL; the package "
        "entmax",
        function=entmax_budget,
        exact_budget=True,
        memory="O(n)",
        temperature="t divides the scores: the ramp from 0 to 1 is t wide.",
        available=_needs("entmax", "budget_bisect"),
    ),
    Peer(
        name="diffsort (sorting network)",
        paper="Petersen, Borgelt, Kuehne, Deussen 2021, Differentiable Sorting Networks for "
        "Scalable Sorting and Ranking Supervision, ICML; the package diffsort",
        function=sorting_network,
        exact_budget=True,
        memory="O(n^2)",
        temperature="The steepness of a soft swap is 1 / t.",
        available=_needs("diffsort", "DiffSortNet"),
    ),
    Peer(
        name="difftopk (top-k network)",
        paper="Petersen, Kuehne, Borgelt, Deussen 2022, Differentiable Top-k Classification "
        "Learning, ICML; the package difftopk",
        function=topk_network,
        exact_budget=True,
        memory="O(n^2)",
        temperature="The steepness of a soft swap is 1 / t.",
        available=_needs("difftopk", "DiffTopkNet"),
    ),
)

"""Published packages, called through their own API where they are installed.

- entmax 1.3: ``budget_bisect(X, budget)`` is the projection of X onto the capped simplex (the peer
  "Capped simplex") by 50 bisection steps in the dtype of the scores.
- diffsort 0.2 (F. Petersen, C. Borgelt, H. Kuehne, O. Deussen, "Differentiable Sorting Networks",
  ICML 2021): ``DiffSortNet`` returns P [B, n, n] with sort(x) = x P, ascending; the mask is the sum
  of its last k columns. Each compared pair (x, y) is swapped softly, by sigmoid((y - x) / t).
- difftopk 0.2 (the same authors, "Differentiable Top-k Classification Learning", ICML 2022):
  ``DiffTopkNet`` returns those k columns alone, [B, n, k]. Without torch-sparse.

Both networks are bitonic, in dense float32 matrices: some log2(n)^2 / 2 layers of 2 n^2 numbers,
built once for a size. Rows are padded to a power of two with scores so low that no soft swap sees
them; an odd-even network, the alternative for other n, has n layers. The columns of P sum to 1, so
the mask sums to k.

torchsort, softtorch and softjax are in ``published_sorting``.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .protocol import Peer, check_budget, whole_budget

#: In temperatures: a soft swap across it is hard, as e^-200 is 0 in float32.
PADDING_GAP = 200.0


#: Packages that are built against the torch that is there, so pip must not fetch another for it.
_BUILT_HERE = ("torchsort",)


def _needs(module: str, attribute: str) -> Callable[[], str | None]:
    """Whether the package is installed and has what is called here."""

    def reason() -> str | None:
        if importlib.util.find_spec(module) is None:
            option = "--no-build-isolation " if module in _BUILT_HERE else ""
            return f"{module} is not installed (pip install {option}{module})"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about dependencies of theirs
                package = importlib.import_module(module)
        except ImportError as error:
            return f"{module} is installed and cannot be imported: {error}"
        if not hasattr(package, attribute):
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
    padded = _padded(scores.float(), temperature)
    size = padded.shape[-1]
    _, columns = _diffsort_net(size, temperature, str(scores.device))(padded)
    mask: Tensor = columns[:, :n, size - budget :].sum(-1)
    return mask.to(scores.dtype)


def topk_network(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by difftopk."""
    n = scores.shape[-1]
    budget = whole_budget(k, n, least=1)
    padded = _padded(scores.float(), temperature)
    network = _difftopk_net(padded.shape[-1], budget, temperature, str(scores.device))
    _, columns = network(padded)
    mask: Tensor = columns[:, :n].sum(-1)
    return mask.to(scores.dtype)


def _padded(scores: Tensor, temperature: float) -> Tensor:
    """Scores [B, n] and others below them, together a power of two."""
    batch, n = scores.shape
    size = max(2, 1 << (n - 1).bit_length())
    lowest = scores.detach().amin(-1, keepdim=True) - PADDING_GAP * temperature
    return torch.cat((scores, lowest.expand(batch, size - n)), -1)


@lru_cache(maxsize=1)
def _diffsort_net(n: int, temperature: float, device: str) -> Any:
    return importlib.import_module("diffsort").DiffSortNet(
        "bitonic", n, device=device, steepness=1 / temperature, distribution="logistic"
    )


@lru_cache(maxsize=1)
def _difftopk_net(n: int, k: int, temperature: float, device: str) -> Any:
    return importlib.import_module("difftopk").DiffTopkNet(
        "bitonic", n, k, device=device, steepness=1 / temperature, distribution="logistic"
    )


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
        memory="O(n^2 log^2 n)",
        temperature="The steepness of a soft swap is 1 / t.",
        available=_needs("diffsort", "DiffSortNet"),
    ),
    Peer(
        name="difftopk (top-k network)",
        paper="Petersen, Kuehne, Borgelt, Deussen 2022, Differentiable Top-k Classification "
        "Learning, ICML; the package difftopk",
        function=topk_network,
        exact_budget=True,
        memory="O(n^2 log^2 n)",
        temperature="The steepness of a soft swap is 1 / t.",
        available=_needs("difftopk", "DiffTopkNet"),
    ),
)

"""The calls of ``fast-lapsum bench ranking``: ours, torch.sort, and packages where installed.

Packages rank and sort by other definitions: torchsort projects onto the permutahedron (Blondel and
others 2020), softtorch does that, too, or takes a softmax of all pairs (SoftSort).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_rank, soft_sort
from fast_lapsum.reference import laplace_cdf

from .gpu_timing import free_memory
from .parity import ParityError
from .peers.published import _needs

TORCH_SORT, RANK, SORT = "torch.sort", "soft_rank", "soft_sort"
#: Largest error of a float32 rank, relative to itself; of a mass, relative to n.
TOLERANCE = 2e-6
#: Scores of a row that are compared with sums over all pairs, and how many pairs at a time.
COMPARED, PAIRS = 8, 10_000_000


class Method(NamedTuple):
    """A function of scores and temperature that is differentiated, and what it may need."""

    function: Callable[[Tensor, float], Tensor]
    #: The call of ours that is to be faster; none for our own and for torch.sort.
    rival: str = ""
    available: Callable[[], str | None] = lambda: None
    #: Whether matrices of all pairs are made, and how many are there at a time.
    matrices: int = 0

    def obstacle(self, scores: Tensor) -> str | None:
        """Why it cannot be measured: it is not installed, or needs more memory than there is."""
        reason = self.available()
        if reason is not None or not self.matrices:
            return reason
        needed = self.matrices * scores.numel() * scores.shape[-1] * scores.element_size()
        free = _free(scores.device)
        if free is None or needed <= free:
            return None
        return f"out of memory: needs {needed / 2**30:,.0f} GiB, {free / 2**30:,.0f} GiB are free"


def _free(device: torch.device) -> int | None:
    if device.type != "cpu":
        return free_memory(device)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # a system that does not tell
        return None


def _rows(scores: Tensor) -> Tensor:
    return scores.reshape(-1, scores.shape[-1])


def _torchsort(name: str) -> Callable[[Tensor, float], Tensor]:
    def call(scores: Tensor, temperature: float) -> Tensor:
        function: Any = getattr(importlib.import_module("torchsort"), name)
        found: Tensor = function(_rows(scores), regularization_strength=temperature)
        return found.view(scores.shape)

    return call


def _softtorch(name: str, method: str) -> Callable[[Tensor, float], Tensor]:
    def call(scores: Tensor, temperature: float) -> Tensor:
        function: Any = getattr(importlib.import_module("softtorch"), name)
        settings = {"method": method, "standardize": False, "descending": False}
        settings |= {"return_indices": False} if name == "sort" else {}
        found = function(scores, dim=-1, softness=temperature, **settings)
        found = found if isinstance(found, Tensor) else found[0]
        return found.view(scores.shape)

    return call


METHODS: dict[str, Method] = {
    TORCH_SORT: Method(lambda scores, _: torch.sort(scores, -1).values),
    RANK: Method(soft_rank),
    SORT: Method(soft_sort),
    "torchsort rank": Method(_torchsort("soft_rank"), RANK, _needs("torchsort", "soft_rank")),
    "torchsort sort": Method(_torchsort("soft_sort"), SORT, _needs("torchsort", "soft_sort")),
    "softtorch rank (projection)": Method(
        _softtorch("rank", "fast_soft_sort"), RANK, _needs("softtorch", "rank")
    ),
    "softtorch sort (projection)": Method(
        _softtorch("sort", "fast_soft_sort"), SORT, _needs("softtorch", "sort")
    ),
    "softtorch rank (softsort)": Method(
        _softtorch("rank", "softsort"), RANK, _needs("softtorch", "rank"), matrices=4
    ),
    "softtorch sort (softsort)": Method(
        _softtorch("sort", "softsort"), SORT, _needs("softtorch", "sort"), matrices=4
    ),
}


def check(scores: Tensor, temperature: float) -> dict[str, float]:
    """Errors of some ranks, sorted scores and gradients of the first row; ParityError if large."""
    row = _rows(scores)[0].detach().requires_grad_()
    n = len(row)
    some = torch.arange(0, n, max(1, n // COMPARED), device=row.device)[:COMPARED]
    ranks, b = soft_rank(row, temperature), soft_sort(row, temperature)
    weights = torch.cos(torch.arange(n, device=row.device, dtype=row.dtype))
    (gradient,) = torch.autograd.grad(ranks, row, weights)
    wanted, size = torch.zeros_like(some, dtype=torch.float64), 0.0
    masses, slopes = torch.zeros_like(wanted), torch.zeros_like(wanted)
    for part in range(0, n, PAIRS // COMPARED):
        others = row.detach()[part : part + PAIRS // COMPARED].double()
        u = (row.detach()[some].double()[:, None] - others) / temperature
        wanted += laplace_cdf(u).sum(-1)
        masses += laplace_cdf((b.detach()[some].double()[:, None] - others) / temperature).sum(-1)
        near = torch.exp(-u.abs()) / 2 / temperature
        apart = weights[some].double()[:, None] - weights[part : part + len(others)].double()
        slopes += (near * apart).sum(-1)
        size += float(near.sum(-1).max())
    errors = {
        "rank_error": float(((ranks[some].detach() - 0.5 - wanted) / (wanted + 0.5)).abs().max()),
        "mass_error": float((masses - (some + 0.5)).abs().max() / n),
        "gradient_error": float((gradient[some] - slopes).abs().max() / size),
    }
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise ParityError(f"{name} is {error:.3g}, expected at most {TOLERANCE:.3g}, n = {n}")
    return errors

"""Exact-budget differentiable top-k: a soft mask whose mass is exactly k, at any scale."""

import importlib
from typing import TYPE_CHECKING

from .functional import lapsum, log_soft_topk, soft_topk, threshold
from .ranking import soft_argsort, soft_quantile, soft_rank, soft_sort, spearman
from .selection import hard_topk_mask, sample_topk, select_topk

if TYPE_CHECKING:
    from . import losses, nn, prune

__version__ = "0.1.0"

__all__ = [
    "hard_topk_mask",
    "lapsum",
    "log_soft_topk",
    "losses",
    "nn",
    "prune",
    "sample_topk",
    "select_topk",
    "soft_argsort",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "spearman",
    "threshold",
]


def __getattr__(name: str) -> object:
    """Layers are loaded by whoever uses them, so that the functions alone are quick to import."""
    if name in ("losses", "nn", "prune"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

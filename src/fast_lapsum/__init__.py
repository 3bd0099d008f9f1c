"""Exact-budget differentiable top-k: a soft mask whose mass is exactly k, at any scale."""

__version__ = "0.2.0"  # before what asks for it

import importlib
from typing import TYPE_CHECKING

from .functional import lapsum, log_soft_topk, soft_topk, threshold
from .many import soft_topk_list
from .selection import hard_topk_mask, sample_topk, select_topk

if TYPE_CHECKING:
    from . import losses, nn, prune
    from .ranking import soft_argsort, soft_quantile, soft_rank, soft_sort, spearman

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
    "soft_topk_list",
    "spearman",
    "threshold",
]


def __getattr__(name: str) -> object:
    """Layers and ranks are loaded by whoever uses them: the masks alone are quick to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("losses", "nn", "prune"):
        return importlib.import_module(f".{name}", __name__)
    globals()[name] = found = getattr(importlib.import_module(".ranking", __name__), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *(name for name in __all__ if name not in globals())]

"""Exact-budget differentiable top-k: a soft mask whose mass is exactly k, at any scale."""

from . import losses, nn, prune
from .functional import lapsum, log_soft_topk, soft_topk, threshold
from .selection import hard_topk_mask, sample_topk, select_topk

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
    "soft_topk",
    "threshold",
]

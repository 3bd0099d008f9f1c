"""Exact-budget differentiable top-k: a soft mask whose mass is exactly k, at any scale."""

from . import nn
from .functional import lapsum, log_soft_topk, soft_topk, threshold
from .many import soft_topk_list
from .selection import hard_topk_mask, sample_topk, select_topk

__version__ = "0.1.0"

__all__ = [
    "hard_topk_mask",
    "lapsum",
    "log_soft_topk",
    "nn",
    "sample_topk",
    "select_topk",
    "soft_topk",
    "soft_topk_list",
    "threshold",
]

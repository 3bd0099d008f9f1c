"""The entries for sorted rows: the Triton kernels."""

from ..common import order_rows_by_torch as order_rows
from .ranking_launch import (
    decayed_sums,
    rank_rows,
    rank_rows_backward,
    threshold_rows,
    threshold_rows_backward,
)

__all__ = [
    "decayed_sums",
    "order_rows",
    "rank_rows",
    "rank_rows_backward",
    "threshold_rows",
    "threshold_rows_backward",
]

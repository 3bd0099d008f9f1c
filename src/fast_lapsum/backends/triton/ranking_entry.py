"""The entries for sorted rows: the Triton kernels."""

from .ranking_launch import (
    decayed_sums,
    rank_rows,
    rank_rows_backward,
    threshold_rows,
    threshold_rows_backward,
)

__all__ = [
    "decayed_sums",
    "rank_rows",
    "rank_rows_backward",
    "threshold_rows",
    "threshold_rows_backward",
]

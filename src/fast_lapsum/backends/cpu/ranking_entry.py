"""The entries for sorted rows: the C++ kernel."""

from .kernel import supports
from .ranking_kernel import (
    decayed_sums,
    order_rows,
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
    "supports",
    "threshold_rows",
    "threshold_rows_backward",
]

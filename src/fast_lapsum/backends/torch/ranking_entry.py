"""The entries for sorted rows: plain torch, on any device, and the formulas that it is made of."""

from ..common import order_rows_by_torch as order_rows
from .decay_scan import decayed_sums
from .ranking import (
    Nodes,
    Thresholds,
    nodes_of,
    rank_rows,
    rank_rows_backward,
    ranks_in_order,
    threshold_rows,
    threshold_rows_backward,
    thresholds_in_order,
    without_answer,
)

__all__ = [
    "Nodes",
    "Thresholds",
    "decayed_sums",
    "nodes_of",
    "order_rows",
    "rank_rows",
    "rank_rows_backward",
    "ranks_in_order",
    "threshold_rows",
    "threshold_rows_backward",
    "thresholds_in_order",
    "without_answer",
]

"""The entries of a backend (see common.py): the Triton kernels, which loader.py finds."""

from .launch import backward, forward, supports
from .many_launch import list_backward, list_forward
from .ragged_launch import ragged_backward, ragged_forward
from .selection_launch import sample, select, select_backward

__all__ = [
    "backward",
    "forward",
    "list_backward",
    "list_forward",
    "ragged_backward",
    "ragged_forward",
    "sample",
    "select",
    "select_backward",
    "supports",
]

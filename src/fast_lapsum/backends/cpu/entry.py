"""The entries of a backend (see common.py): the C++ kernel."""

from .kernel import backward, forward, supports
from .list_kernel import list_backward, list_forward
from .ragged_kernel import ragged_backward, ragged_forward
from .selection_kernel import sample, select, select_backward

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

"""The entries of a backend (see common.py): plain torch, on any device."""

from .backward import backward
from .forward import forward, supports
from .many import list_backward, list_forward
from .ragged import ragged_backward, ragged_forward
from .selection import sample, select, select_backward

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

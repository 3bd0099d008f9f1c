"""The six entries of a backend (see common.py): the Triton kernels, which loader.py finds."""

from .launch import backward, forward, supports
from .selection_launch import sample, select, select_backward

__all__ = ["backward", "forward", "sample", "select", "select_backward", "supports"]

"""The six entries of a backend (see common.py): the C++ kernel."""

from .kernel import backward, forward, supports
from .selection_kernel import sample, select, select_backward

__all__ = ["backward", "forward", "sample", "select", "select_backward", "supports"]

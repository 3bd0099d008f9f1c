"""The six entries of a backend (see common.py): plain torch, on any device."""

from .backward import backward
from .forward import forward, supports
from .selection import sample, select, select_backward

__all__ = ["backward", "forward", "sample", "select", "select_backward", "supports"]

"""The entries for rows of several lengths, and for many tensors (see common.py): Triton."""

from .many_launch import list_backward, list_forward
from .ragged_launch import ragged_backward, ragged_forward

__all__ = ["list_backward", "list_forward", "ragged_backward", "ragged_forward"]

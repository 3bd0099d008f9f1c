"""The entries for rows of several lengths and many tensors (see common.py): the C++ kernel."""

from .list_kernel import list_backward, list_forward
from .ragged_kernel import ragged_backward, ragged_forward

__all__ = ["list_backward", "list_forward", "ragged_backward", "ragged_forward"]

"""The order of floating-point numbers, in which a bracket of any width has few halvings."""

from __future__ import annotations

import torch
from torch import Tensor


def middle_float(left: Tensor, right: Tensor) -> Tensor:
    """The number with as many floats below it, down to left, as above it, up to right.

    It lies between left and right wherever they are not neighbours, and is right where they are.
    Infinities count as the floats beyond the largest one, both zeros as one number.
    """
    integer = torch.int64 if left.dtype == torch.float64 else torch.int32
    below, above = _to_order(left, integer), _to_order(right, integer)
    # Half of the sum, rounded up; the sum itself would overflow.
    return _from_order((below | above) - ((below ^ above) >> 1), left.dtype)


def _to_order(value: Tensor, integer: torch.dtype) -> Tensor:
    bits = value.contiguous().view(integer)
    return torch.where(bits < 0, torch.iinfo(integer).min - bits, bits)


def _from_order(order: Tensor, dtype: torch.dtype) -> Tensor:
    bits = torch.where(order < 0, torch.iinfo(order.dtype).min - order, order)
    return bits.view(dtype)

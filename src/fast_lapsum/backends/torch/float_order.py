"""The order of floating-point numbers, in which a bracket of any width has few halvings."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Differences of orders up to this many can be multiplied by any number of cuts.
_EXACT = 2**53


def middle_float(left: Tensor, right: Tensor) -> Tensor:
    """The number with as many floats below it, down to left, as above it, up to right.

    It lies between left and right wherever they are not neighbours, and is right where they are.
    Infinities count as the floats beyond the largest one, both zeros as one number.
    """
    integer = _INTEGERS[left.dtype.itemsize]
    below, above = _to_order(left, integer), _to_order(right, integer)
    # Half of the sum, rounded up; the sum itself would overflow.
    return _from_order((below | above) - ((below ^ above) >> 1), left.dtype)


def order_of(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The place of numbers among all of ``dtype``, as int64; they are such numbers."""
    return _to_order(values.to(dtype), _INTEGERS[dtype.itemsize]).to(torch.int64)


def at_order(order: Tensor, dtype: torch.dtype, out_dtype: torch.dtype) -> Tensor:
    """The way back, into another dtype."""
    return _from_order(order.to(_INTEGERS[dtype.itemsize]), dtype).to(out_dtype)


def next_float(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The next number of ``dtype`` above each, and infinity after itself."""
    last = order_of(torch.full_like(values, torch.inf), dtype)
    return at_order(torch.minimum(order_of(values, dtype) + 1, last), dtype, values.dtype)


def cuts(left: Tensor, right: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """``count`` numbers of ``dtype`` that cut [left, right) into parts of as many numbers each.

    [..., count]; where there are fewer numbers some are repeated, left among them.
    """
    below, above = order_of(left, dtype)[..., None], order_of(right, dtype)[..., None]
    index = torch.arange(1, count + 1, device=left.device)
    difference = above - below
    # Over 2^63 the difference is not a number of int64, and its halves are.
    half = (above >> 1) - (below >> 1)
    wide = half // (count + 1) * 2 * index
    steps = torch.where(half > _EXACT // 2, wide, difference * index // (count + 1))
    return at_order(below + steps, dtype, left.dtype)


def _to_order(value: Tensor, integer: torch.dtype) -> Tensor:
    bits = value.contiguous().view(integer)
    return torch.where(bits < 0, torch.iinfo(integer).min - bits, bits)


def _from_order(order: Tensor, dtype: torch.dtype) -> Tensor:
    bits = torch.where(order < 0, torch.iinfo(order.dtype).min - order, order)
    return bits.view(dtype)

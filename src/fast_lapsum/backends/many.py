"""Many tensors as one row: their dtypes, and their scores as vectors where they lie."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .common import compute_dtype


def kept_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """The dtype in which the threshold of all is kept: that of the widest."""
    return compute_dtype(functools.reduce(torch.promote_types, (x.dtype for x in tensors)))


def out_dtype_of(tensor: Tensor, widen: bool) -> torch.dtype:
    """What is written of a tensor: its dtype, or with ``widen`` float32 in place of 16 bits."""
    return torch.float32 if widen and tensor.dtype.itemsize == 2 else tensor.dtype


def as_vector(tensor: Tensor, in_order: bool = False) -> Tensor:
    """All scores of a tensor as one vector without gaps: as they lie in memory, if they fill it.

    Others are copied: those with gaps or overlaps, and with ``in_order`` those whose memory has
    another order than their indices.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    if not in_order and _fills_memory(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1).contiguous()


def _fills_memory(tensor: Tensor) -> bool:
    """Whether the strides are those of a contiguous tensor whose dimensions were permuted."""
    expected = 1
    sizes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def matched_vectors(
    tensors: Sequence[Tensor], others: Sequence[Tensor], in_order: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Both as vectors in one order: that of memory where both have it, else that of indices."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for tensor, other in zip(tensors, others, strict=True):
        own = in_order or tensor.stride() != other.stride()
        found[0].append(as_vector(tensor, own))
        found[1].append(as_vector(other, own))
    return found

"""Checks of what says where rows of several lengths lie: offsets, lengths, nested tensors.

Nothing here looks at the numbers inside a tensor, as in ``_arguments.py``.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._arguments import check_mask, check_scores
from .backends.segments import takes_part

_WHOLE = (torch.int32, torch.int64)


class Jagged(NamedTuple):
    """What a nested tensor of jagged layout is made of."""

    values: Tensor
    offsets: Tensor
    lengths: Tensor | None
    max_length: int | None


def take_apart(scores: Any) -> Jagged:
    """A nested tensor of jagged layout as its values and where its rows are."""
    if scores.layout != torch.jagged:
        raise TypeError(
            "scores must be a dense tensor or a nested one of layout torch.jagged, got a nested "
            f"tensor of layout {scores.layout}"
        )
    if scores.dim() != 2:
        raise ValueError(
            "scores must have two dimensions, rows and their scores, where they are a nested "
            f"tensor, got {scores.dim()} dimensions"
        )
    known = getattr(scores, "_maybe_max_seqlen", None)  # None where nobody has asked the device
    return Jagged(scores.values(), scores.offsets(), scores.lengths(), known)


def put_together(values: Tensor, like: Jagged) -> Tensor:
    """Values as a nested tensor with the rows of another."""
    return torch.nested.nested_tensor_from_jagged(
        values, like.offsets, lengths=like.lengths, max_seqlen=like.max_length
    )


def check_cu_seqlens(cu_seqlens: Tensor, scores: Tensor, dim: object) -> None:
    """N + 1 offsets of segments, on the device of the scores, which are one vector."""
    _check_whole("cu_seqlens", cu_seqlens, scores)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        raise ValueError(
            "cu_seqlens must have one dimension, of one entry more than there are segments, got "
            f"shape {tuple(cu_seqlens.shape)}"
        )
    if scores.dim() != 1:
        raise ValueError(
            "scores must have one dimension with cu_seqlens, all segments one after the other, "
            f"got shape {tuple(scores.shape)}"
        )
    if dim not in (-1, 0):
        raise ValueError(f"dim must be left out with cu_seqlens, got dim={dim}")


def check_lengths(lengths: Tensor, scores: Tensor, rows_shape: torch.Size) -> Tensor:
    """How many scores of each row take part, as many numbers as there are rows."""
    _check_whole("lengths", lengths, scores)
    if lengths.shape != rows_shape:
        try:
            return lengths.expand(rows_shape)
        except RuntimeError:
            raise ValueError(
                f"lengths must broadcast to the shape of scores without dim, {tuple(rows_shape)}, "
                f"got shape {tuple(lengths.shape)}"
            ) from None
    return lengths


def mask_of_lengths(lengths: Tensor, scores: Tensor, dim: object, mask: Tensor | None) -> Tensor:
    """Which scores are before their row's length along one dimension, and in the mask."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"dim must be an int with lengths, got {type(dim).__name__}")
    along = check_scores(scores, dim)
    shape = torch.Size(size for i, size in enumerate(scores.shape) if i != along)
    kept = takes_part(scores.movedim(along, -1), check_lengths(lengths, scores, shape))
    kept = kept.movedim(-1, along)
    return kept if mask is None else kept & check_mask(mask, scores)


def check_max_seqlen(max_seqlen: object) -> int | None:
    """A number that no segment is longer than, if one is known."""
    if max_seqlen is None or isinstance(max_seqlen, torch.SymInt):
        return max_seqlen  # type: ignore[return-value]
    number = None
    if not isinstance(max_seqlen, (bool, Tensor)):
        with contextlib.suppress(TypeError):
            number = operator.index(max_seqlen)  # type: ignore[arg-type]
    if number is None:
        raise TypeError(
            "max_seqlen must be a whole number, in the host's memory, or None, got "
            f"{type(max_seqlen).__name__}"
        )
    if number < 0:
        raise ValueError(f"max_seqlen must be at least 0, got max_seqlen={number}")
    return number


def _check_whole(name: str, value: object, scores: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in _WHOLE:
        raise TypeError(
            f"{name} must be int32 or int64, got {str(value.dtype).removeprefix('torch.')}"
        )
    if value.device != scores.device:
        raise ValueError(
            f"{name} must be on the device of scores ({scores.device}), got {value.device}"
        )

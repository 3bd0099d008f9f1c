"""Process groups as layers have them: whether one can be used, and sums over its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._collectives import name_of
from .._sharded_sums import sum_over_ranks
from ..backends.common import row_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def check_process_group(group: object) -> None:
    """An error for what is no group of this rank's, under the name that layers give it."""
    try:
        name_of(group)
    except (RuntimeError, TypeError, ValueError) as error:  # which all begin with "group"
        raise type(error)(f"process_{error}") from None


def sums(values: tuple[float | Tensor, ...], like: Tensor, group: ProcessGroup) -> list[Tensor]:
    """Sums over the ranks of a group, of numbers and tensors that all have the last one's shape.

    In float64, on the device of ``like``; the same bits on all ranks.
    """
    # Products: a tensor made of a number would be a constant to a compiler, which would add up
    # those of all ranks when it makes a graph.
    one = like.new_ones((), dtype=row_dtype(like))
    own = [one * value for value in values]
    packed = torch.stack([value.expand_as(own[-1]) for value in own])
    return list(sum_over_ranks(packed, name_of(group)).unbind())

"""The selected dimensions brought last, and the way back."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moved(NamedTuple):
    """Several dimensions that were made the last one: how to get them back."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def back(self, out: Tensor) -> Tensor:
        """A tensor with rows last in the dimensions that the scores had."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return out.reshape(*out.shape[:-1], *self.sizes).permute(inverse)


def move_dims(
    scores: Tensor, mask: Tensor | None, dims: int | tuple[int, ...]
) -> tuple[Tensor, Tensor | None, Moved | int]:
    """Scores and mask with the selected dimensions as the last one, and the way back.

    One dimension is a view, and several are where their strides make them one.
    """
    if isinstance(dims, int):
        return scores.movedim(dims, -1), None if mask is None else mask.movedim(dims, -1), dims
    order = (*(dim for dim in range(scores.dim()) if dim not in dims), *dims)
    first = len(order) - len(dims)
    moved = Moved(tuple(scores.shape[dim] for dim in dims), order)
    mask = None if mask is None else mask.permute(order).flatten(first)
    return scores.permute(order).flatten(first), mask, moved

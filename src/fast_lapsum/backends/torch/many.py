"""One budget over many tensors in plain torch: they are copied into one row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common import row_dtype
from ..many import kept_dtype, out_dtype_of
from .backward import backward
from .forward import forward


def list_forward(
    tensors: Sequence[Tensor],
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    largest: bool,
    output: str,
    widen: bool,
) -> list[Tensor]:
    """One output for each tensor, none for "threshold", and last the threshold pair."""
    joined = join(tensors, kept_dtype(tensors))
    out, pair = forward(
        *(joined, budget, budget_number, temperature, temperature_number, None, None, largest),
        *(output, row_dtype(joined)),
    )
    if output == "threshold":
        return [pair]
    return [*part(out, tensors, [out_dtype_of(x, widen) for x in tensors]), pair]


def list_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> list[Tensor]:
    """A gradient for each tensor, and with ``per_row`` those for budget and temperature."""
    joined = join(tensors, kept_dtype(tensors))
    grad = grads[0] if output == "threshold" else join(grads, row_dtype(joined))
    out, *of_row = backward(
        *(grad, joined, temperature, temperature_number, None, threshold, largest, output),
        per_row,
    )
    return [
        *part(out, tensors, [x.dtype for x in tensors]),
        *(found for found in of_row if found is not None),
    ]


def join(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All scores as one row."""
    return torch.cat([x.reshape(-1).to(dtype) for x in tensors])


def part(row: Tensor, like: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The way back, with the strides of the tensors."""
    pieces = row.split_with_sizes([x.numel() for x in like])
    return [
        torch.empty_like(x, dtype=dtype).copy_(piece.view(x.shape))
        for x, dtype, piece in zip(like, dtypes, pieces, strict=True)
    ]

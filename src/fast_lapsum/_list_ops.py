"""The operators of one budget over many tensors as PyTorch sees them.

All scores of all tensors are one row, in the order of the list. Tensors may have several dtypes;
the threshold is that of the widest. Outputs come in the dtypes of their tensors, or with ``widen``
in float32 where those have 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._ops import backend_for, register
from ._ragged_ops import ragged_entry
from .backends.common import row_dtype
from .backends.many import kept_dtype, out_dtype_of
from .backends.torch import entry as plain

LIST_TOPK = (
    "(Tensor[] tensors, Tensor? budget, Scalar budget_number, Tensor? temperature,"
    " Scalar temperature_number, bool largest, str output, bool widen) -> Tensor[]"
)
LIST_TOPK_BACKWARD = (
    "(Tensor[] grads, Tensor[] tensors, Tensor? temperature, Scalar temperature_number,"
    " Tensor threshold, bool largest, str output, bool per_row) -> Tensor[]"
)


def _backend(tensors: Sequence[Tensor], grads: Sequence[Tensor] = ()) -> Any:
    """The entries of the fastest backend that takes all of these tensors."""
    backend = backend_for(tensors[0])
    is_whole = all(backend.supports(x) for x in (*tensors, *grads))
    return ragged_entry(backend if is_whole else plain)


def list_topk(
    tensors: Sequence[Tensor],
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    largest: bool,
    output: str,
    widen: bool,
) -> list[Tensor]:
    """One output for each tensor (none for "threshold"), and last the threshold pair [2]."""
    return _backend(tensors).list_forward(  # type: ignore[no-any-return]
        *(tensors, budget, budget_number, temperature, temperature_number, largest, output, widen)
    )


def list_topk_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> list[Tensor]:
    """A gradient for each tensor, and with ``per_row`` last those for budget and temperature.

    ``grads`` has one of each tensor's shape, or a single number for the threshold's gradient.
    """
    return _backend(tensors, grads).list_backward(  # type: ignore[no-any-return]
        *(grads, tensors, temperature, temperature_number, threshold, largest, output, per_row)
    )


def _fake_list_topk(
    tensors: Sequence[Tensor],
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    largest: bool,
    output: str,
    widen: bool,
) -> list[Tensor]:
    pair = tensors[0].new_empty((2,), dtype=kept_dtype(tensors))
    if output == "threshold":
        return [pair]
    return [*(torch.empty_like(x, dtype=out_dtype_of(x, widen)) for x in tensors), pair]


def _fake_list_topk_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> list[Tensor]:
    of_row = (tensors[0].new_empty((), dtype=row_dtype(tensors[0])) for _ in range(2))
    return [*(torch.empty_like(x) for x in tensors), *(of_row if per_row else ())]


register("list_topk", LIST_TOPK, list_topk, _fake_list_topk)
register(
    "list_topk_backward",
    LIST_TOPK_BACKWARD,
    list_topk_backward,
    _fake_list_topk_backward,
)

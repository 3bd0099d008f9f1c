"""The C++ kernel on many tensors that are one row: tables of addresses, sizes and dtypes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from ..common import DTYPES, check_budget_fits_list
from ..many import as_vector, kept_dtype, matched_vectors, out_dtype_of
from .kernel import call, flags_of, pack_call, per_row_gradients

#: What struct ListCall of call.hpp has beside a Call.
_TABLES = struct.Struct("=8q")


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
    pair = tensors[0].new_empty((2,), dtype=kept_dtype(tensors))
    in_order = output == "hard"  # the earliest of tied scores
    if output == "threshold":
        outs, vectors, targets = [], [as_vector(x) for x in tensors], None
    else:
        outs = [torch.empty_like(x, dtype=out_dtype_of(x, widen)) for x in tensors]
        vectors, targets = matched_vectors(tensors, outs, in_order)
    limit = _call(
        *("lapsum_list_forward", vectors, None, targets, flags_of(largest, output)),
        *(_number(budget, budget_number), _number(temperature, temperature_number)),
        (pair, None, None),
    )
    if limit >= 0 and budget is None:
        check_budget_fits_list(tensors, largest, budget_number)
    _copy_back(outs, targets)
    return [*outs, pair]


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
    outs = [torch.empty_like(x) for x in tensors]
    of_row = per_row_gradients(threshold, (), per_row)
    # Scores, gradients and results in one order, each.
    in_order = any(
        x.stride() != out.stride() or (output != "threshold" and x.stride() != g.stride())
        for x, out, g in zip(tensors, outs, grads if output != "threshold" else outs, strict=True)
    )
    vectors, targets = matched_vectors(tensors, outs, in_order)
    upstream = grads[0] if output == "threshold" else [as_vector(g, in_order) for g in grads]
    _call(
        *("lapsum_list_backward", vectors, upstream, targets, flags_of(largest, output)),
        *(0.0, _number(temperature, temperature_number)),
        (threshold.contiguous(), *of_row),
    )
    _copy_back(outs, targets)
    return [*outs, *(x for x in of_row if x is not None)]


def _number(value: Tensor | None, number: float) -> float:
    """The one budget or temperature, which lies in the host's memory anyway."""
    return number if value is None else float(value)


def _copy_back(outs: Sequence[Tensor], targets: Sequence[Tensor] | None) -> None:
    """Results of tensors whose memory is not what was written."""
    for out, target in zip(outs, targets or (), strict=True):
        if out.data_ptr() != target.data_ptr():
            out.copy_(target.view(out.shape))


def _call(
    name: str,
    vectors: Sequence[Tensor],
    grads: Sequence[Tensor] | Tensor | None,
    outs: Sequence[Tensor] | None,
    flags: tuple[int, int, int, int],
    budget: float,
    temperature: float,
    of_row: tuple[Tensor | None, ...],
) -> int:
    pair = of_row[0]
    assert pair is not None
    sizes = _column([x.numel() for x in vectors])
    tables = [sizes, *_table(vectors)]
    tables += _table(None if isinstance(grads, Tensor) else grads)
    tables += _table(outs)
    dtype = DTYPES[pair.dtype]
    of_grad = DTYPES[grads.dtype] if isinstance(grads, Tensor) else dtype
    fields = [0] * 28
    if isinstance(grads, Tensor):  # one number
        fields[20:24] = (grads.data_ptr(), 0, 0, 0)
    pointers = [0 if x is None else x.data_ptr() for x in (*of_row, None)]
    shape = (1, 1, int(sizes.sum()))
    head = (dtype, dtype, of_grad)
    record = pack_call(head, shape, flags, fields, (budget, temperature), pointers)
    addresses = [0 if x is None else x.data_ptr() for x in tables]
    return call(name, record + _TABLES.pack(len(vectors), *addresses))


def _table(vectors: Sequence[Tensor] | None) -> tuple[Tensor | None, Tensor | None]:
    """Addresses and dtypes."""
    if vectors is None:
        return None, None
    return _column([x.data_ptr() for x in vectors]), _column([DTYPES[x.dtype] for x in vectors])


def _column(numbers: list[int]) -> Tensor:
    """As the kernel reads them."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")

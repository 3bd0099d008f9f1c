"""The C++ kernel on rows of several lengths: offsets and lengths go to it as tables of int64."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from ..common import DTYPES, OUTPUTS, compute_dtype
from ..segments import Bounds, bounds_of, check_budget_fits, rows_shape
from .kernel import as_double, call, flags_of, pack_call, per_row_gradients, records

#: What struct RaggedCall of call.hpp has beside a Call.
_TABLES = struct.Struct("=2q")


def ragged_forward(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What ``output`` says, and threshold pairs. A budget given as a number must fit every row."""
    is_written = output != "threshold"
    bounds = None if offsets is None else bounds_of(scores, offsets, lengths)
    out = scores.new_empty((0,), dtype=out_dtype)
    if is_written:
        nothing = -math.inf if output == "log" else 0.0
        out = _outside(torch.empty_like(scores, dtype=out_dtype), bounds, nothing)
    shape = (*rows_shape(scores, offsets, lengths), 2)
    threshold = scores.new_empty(shape, dtype=compute_dtype(scores.dtype))
    head = (DTYPES[scores.dtype], DTYPES[out_dtype], 0)
    budgets, temperatures, starts = map(as_double, (budget, temperature, warm_start))
    tensors = (scores, mask, budgets, temperatures, starts, None, out if is_written else None)
    limit = _call(
        *("lapsum_ragged_forward", head, flags_of(largest, output), tensors),
        *((budget_number, temperature_number), (threshold, None, None, None), bounds, lengths),
    )
    if limit >= 0 and budget is None:
        check_budget_fits(scores, offsets, lengths, mask, largest, budget_number)
    return out, threshold


def ragged_backward(
    grad: Tensor,
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``output`` for scores, and with ``per_row`` for budget and temperature."""
    bounds = None if offsets is None else bounds_of(scores, offsets, lengths)
    out = _outside(torch.empty_like(scores), bounds, 0.0)
    rows = rows_shape(scores, offsets, lengths)
    d_budget, d_temperature = per_row_gradients(scores, rows, per_row)
    dtype = DTYPES[scores.dtype]
    tensors = (scores, mask, None, as_double(temperature), None, grad, out)
    head = (dtype, dtype, DTYPES[grad.dtype])
    per_row_tensors = (threshold.contiguous(), d_budget, d_temperature, None)
    _call(
        *("lapsum_ragged_backward", head, flags_of(largest, output), tensors),
        *((0.0, temperature_number), per_row_tensors, bounds, lengths),
    )
    return out, d_budget, d_temperature


def _outside(out: Tensor, bounds: Bounds | None, nothing: float) -> Tensor:
    """The output with ``nothing`` outside of all segments."""
    if bounds is None:
        return out
    starts, lengths = bounds
    if not starts.shape[0] or not torch.equal(starts[:-1] + lengths[:-1], starts[1:]):
        return out.fill_(nothing)  # there are holes between them
    out[: int(starts[0])] = nothing
    out[int(starts[-1] + lengths[-1]) :] = nothing
    return out


def _call(
    name: str,
    head: tuple[int, int, int],
    flags: tuple[int, int, int, int],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, float],
    per_row: tuple[Tensor | None, ...],
    bounds: Bounds | None,
    lengths: Tensor | None,
) -> int:
    """Segments are outer rows without a stride; rows of one size are those of any call."""
    scores = tensors[0]
    assert scores is not None
    if bounds is None:
        assert lengths is not None
        table = lengths.to(torch.int64).clamp(0, scores.shape[-1]).contiguous()
        return max(
            (
                call(name, record + _TABLES.pack(0, table.data_ptr() + 8 * first_row))
                for record, first_row in records(head, flags, tensors, numbers, per_row)
            ),
            default=-1,
        )
    starts, counts = (table.contiguous() for table in bounds)
    if not starts.shape[0]:
        return -1
    fields: list[int] = []
    for place, tensor in enumerate(tensors):
        if tensor is None:
            fields += (0, 0, 0, 0)
        elif place in (2, 3, 4) or (place == 5 and flags[1] == OUTPUTS["threshold"]):
            fields += (tensor.data_ptr(), tensor.stride(0), 0, 0)  # one number per row
        else:
            fields += (tensor.data_ptr(), 0, 0, tensor.stride(0))
    pointers = [0 if x is None else x.data_ptr() for x in per_row]
    shape = (starts.shape[0], 1, scores.shape[0])
    record = pack_call(head, shape, flags, fields, numbers, pointers)
    return call(name, record + _TABLES.pack(starts.data_ptr(), counts.data_ptr()))

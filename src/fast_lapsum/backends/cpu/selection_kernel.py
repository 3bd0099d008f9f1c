"""Calls the compiled kernel for whole scores: places and weights of the selected, random masks."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ..common import DTYPES, check_budget_fits, compute_dtype
from . import kernel

#: What SelectCall of call.hpp has after its Call: count, sorted, indices, values.
_SELECTION = struct.Struct("=4q")
#: What SampleCall has after its Call: the uniform numbers.
_START = struct.Struct("=q")


def select(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the k selected scores, their weights, and threshold pairs."""
    rows = scores.shape[:-1]
    indices = scores.new_empty((*rows, k), dtype=torch.int64)
    weights = scores.new_empty((*rows, k), dtype=out_dtype)
    threshold = scores.new_empty((*rows, 2), dtype=compute_dtype(scores.dtype))
    head = (DTYPES[scores.dtype], DTYPES[out_dtype], 0)
    tensors = (scores, mask, None, kernel.as_double(temperature), None, None, None)
    numbers = (float(k), temperature_number)
    flags = kernel.flags_of(largest)
    for record, first_row in kernel.records(
        head, flags, tensors, numbers, (threshold, None, None, None)
    ):
        places = _selection(k, is_sorted, indices, weights, first_row)
        kernel.call("lapsum_select", record + places)
    return indices, weights, threshold


def select_backward(
    grad: Tensor,
    indices: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the weights for scores, and with ``per_row`` for temperature."""
    out = torch.empty_like(scores)
    _, d_temperature = kernel.per_row_gradients(scores, scores.shape[:-1], per_row)
    grad, indices, threshold = grad.contiguous(), indices.contiguous(), threshold.contiguous()
    dtype = DTYPES[scores.dtype]
    head = (dtype, dtype, DTYPES[grad.dtype])
    tensors = (scores, mask, None, kernel.as_double(temperature), None, None, out)
    per_row_tensors = (threshold, None, d_temperature, None)
    flags, numbers = kernel.flags_of(largest), (0.0, temperature_number)
    for record, first_row in kernel.records(head, flags, tensors, numbers, per_row_tensors):
        places = _selection(grad.shape[-1], False, indices, grad, first_row)
        kernel.call("lapsum_select_backward", record + places)
    return out, d_temperature


def sample(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    start: Tensor,
    largest: bool,
    out_dtype: torch.dtype,
) -> Tensor:
    """Random masks of exactly k ones. A budget given as a number must fit every row."""
    out = torch.empty_like(scores, dtype=out_dtype)
    start = start.to(torch.float64).contiguous()
    head = (DTYPES[scores.dtype], DTYPES[out_dtype], 0)
    per_row = (kernel.as_double(budget), kernel.as_double(temperature))
    tensors = (scores, mask, *per_row, None, None, out)
    flags, numbers = kernel.flags_of(largest), (budget_number, temperature_number)
    limits = []
    for record, first_row in kernel.records(head, flags, tensors, numbers, (None,) * 4):
        at = _START.pack(start.data_ptr() + first_row * start.element_size())
        limits.append(kernel.call("lapsum_sample", record + at))
    if budget is None and max(limits, default=-1) >= 0:
        check_budget_fits(scores, mask, largest, budget_number)
    return out


def _selection(k: int, is_sorted: bool, indices: Tensor, values: Tensor, first_row: int) -> bytes:
    at = first_row * k
    return _SELECTION.pack(
        k,
        is_sorted,
        indices.data_ptr() + at * indices.element_size(),
        values.data_ptr() + at * values.element_size(),
    )

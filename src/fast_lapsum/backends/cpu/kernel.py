"""Calls the compiled kernel: describes tensors by pointer and stride, copies nothing."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from ..common import DTYPES, OUTPUTS, check_budget_fits, compute_dtype
from ..layout import groups
from . import loader

#: struct Call of call.hpp: 10 integers, 7 tensors (pointer and 3 strides), 2 numbers, 4 pointers.
_CALL = struct.Struct("=10q28q2d4q")
_NO_TENSOR = (0, 0, 0, 0)
_NO_TENSORS = 5 * _NO_TENSOR
#: No row is read more often than this.
MAX_PASSES = 64

_library = loader.library()
if _library is not None and _library.lapsum_call_size() != _CALL.size:
    raise ImportError(
        f"the compiled kernel at {loader.status().path} is from another version of fast-lapsum: "
        f"its call record has {_library.lapsum_call_size()} bytes, expected {_CALL.size}; reinstall"
    )


def supports(tensor: Tensor) -> bool:
    """Whether the kernel is there and can read this tensor."""
    if _library is None:
        if tensor.is_cpu:
            loader.hint_at_building()
        return False
    return tensor.is_cpu and tensor.dtype in DTYPES


def forward(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    passes: Tensor | None = None,
    most_passes: int = MAX_PASSES,
) -> tuple[Tensor, Tensor]:
    """What ``output`` says, and threshold pairs. A budget given as a number must fit every row.

    ``passes`` (int64, one per row) receives how often each row was read; ``most_passes`` limits the
    iteration before the last resort, a sort.
    """
    assert _library is not None
    shape, dtype = scores.shape, scores.dtype
    if output == "threshold":
        out = scores.new_empty((0,), dtype=out_dtype)
        threshold = scores.new_empty((*shape[:-1], 2), dtype=compute_dtype(dtype))
    elif out_dtype is dtype and dtype.itemsize > 2:  # two short ways to the same tensors
        out, threshold = torch.empty_like(scores), scores.new_empty((*shape[:-1], 2))
    else:
        out = torch.empty_like(scores, dtype=out_dtype)
        threshold = scores.new_empty((*shape[:-1], 2), dtype=compute_dtype(dtype))
    head = (DTYPES[dtype], DTYPES[out_dtype], 0)
    flags = flags_of(largest, output, most_passes)
    if budget is temperature is mask is warm_start is passes is None and scores.is_contiguous():
        n = shape[-1]
        row_count = 1 if len(shape) == 1 else math.prod(shape[:-1])
        at = (scores.data_ptr(), n, 0, 1)
        to = _NO_TENSOR if output == "threshold" else (out.data_ptr(), n, 0, 1)
        pointers = (budget_number, temperature_number, threshold.data_ptr(), 0, 0, 0)
        record = _CALL.pack(*head, row_count, 1, n, *flags, *at, *_NO_TENSORS, *to, *pointers)
        limit = call("lapsum_forward", record)
    else:
        budget, temperature, warm_start = map(as_double, (budget, temperature, warm_start))
        written = None if output == "threshold" else out
        tensors = (scores, mask, budget, temperature, warm_start, None, written)
        numbers = (budget_number, temperature_number)
        per_row_tensors = (threshold, None, None, passes)
        made = records(head, flags, tensors, numbers, per_row_tensors)
        limit = max((call("lapsum_forward", x[0]) for x in made), default=-1)
    if limit >= 0 and budget is None:
        check_budget_fits(scores, mask, largest, budget_number)
    return out, threshold


def backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``output`` for scores, and with ``per_row`` for budget and temperature.

    ``grad`` has the shape of scores, without the last dimension for the gradient of the threshold.
    """
    assert _library is not None
    out = torch.empty_like(scores)
    threshold = threshold.contiguous()
    d_budget, d_temperature = per_row_gradients(scores, scores.shape[:-1], per_row)
    dtype = DTYPES[scores.dtype]
    head = (dtype, dtype, DTYPES[grad.dtype])
    flags = flags_of(largest, output)
    is_contiguous = scores.is_contiguous() and grad.is_contiguous()
    if temperature is mask is d_budget is None and is_contiguous:
        shape = scores.shape
        n = shape[-1]
        row_count = 1 if len(shape) == 1 else math.prod(shape[:-1])
        at = (scores.data_ptr(), n, 0, 1, *_NO_TENSORS[4:])
        of_grad = (1, 0, 0) if output == "threshold" else (n, 0, 1)
        to = (grad.data_ptr(), *of_grad, out.data_ptr(), n, 0, 1)
        pointers = (0.0, temperature_number, threshold.data_ptr(), 0, 0, 0)
        call("lapsum_backward", _CALL.pack(*head, row_count, 1, n, *flags, *at, *to, *pointers))
    else:
        tensors = (scores, mask, None, as_double(temperature), None, grad, out)
        per_row_tensors = (threshold, d_budget, d_temperature, None)
        numbers = (0.0, temperature_number)
        for record, _ in records(head, flags, tensors, numbers, per_row_tensors):
            call("lapsum_backward", record)
    return out, d_budget, d_temperature


def call(name: str, record: bytes) -> int:
    """What a function of the kernel returns, unless it ran out of memory (kOutOfMemory)."""
    assert _library is not None
    result = int(getattr(_library, name)(record))
    if result == -2:
        raise MemoryError("the fast-lapsum kernel could not get the memory that it works in")
    return result


def per_row_gradients(
    scores: Tensor, rows_shape: tuple[int, ...], wanted: bool
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """What gradients of budgets and temperatures are written to, whatever the default device is."""
    if not wanted:
        return None, None
    d_budget = scores.new_empty(rows_shape, dtype=torch.float64)
    return d_budget, torch.empty_like(d_budget)


def as_double(values: Tensor | None) -> Tensor | None:
    """Per-row values as the kernel reads them; the public functions pass nothing else."""
    return None if values is None else values.to(torch.float64)


def flags_of(
    largest: bool, output: str = "mask", most_passes: int = MAX_PASSES
) -> tuple[int, int, int, int]:
    """The flags of a call record; the kernel decides how many threads a call is worth."""
    return largest, OUTPUTS[output], torch.get_num_threads(), most_passes


def records(
    head: tuple[int, int, int],
    flags: tuple[int, int, int, int],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, float],
    per_row: tuple[Tensor | None, ...],
) -> Iterator[tuple[bytes, int]]:
    """One call record per group of rows that two strides describe, and its first row's number.

    Nearly always it is just one.
    """
    scores = tensors[0]
    assert scores is not None
    shape = scores.shape
    for offsets, first_row, outer, inner, strides in groups(tensors):
        fields: list[int] = []
        for tensor, offset, pair in zip(tensors, offsets, strides, strict=True):
            if tensor is None:
                fields += _NO_TENSOR
                continue
            along = tensor.stride(-1) if tensor.dim() == len(shape) else 0
            fields += (tensor.data_ptr() + offset * tensor.element_size(), *pair, along)
        pointers = [
            0 if x is None else x.data_ptr() + first_row * x.element_size() * (2 if i == 0 else 1)
            for i, x in enumerate(per_row)
        ]
        yield (
            pack_call(head, (outer, inner, shape[-1]), flags, fields, numbers, pointers),
            first_row,
        )


def pack_call(
    head: tuple[int, int, int],
    shape: tuple[int, int, int],
    flags: tuple[int, int, int, int],
    fields: list[int],
    numbers: tuple[float, float],
    pointers: list[int],
) -> bytes:
    """A call record; ``fields`` are address and strides of each tensor."""
    return _CALL.pack(*head, *shape, *flags, *fields, *numbers, *pointers)

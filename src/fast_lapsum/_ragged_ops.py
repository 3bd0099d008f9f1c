"""The operators of rows of several lengths as PyTorch sees them.

As in ``_ops.py``, with rows that ``offsets`` and ``lengths`` describe (``backends/segments.py``).
``max_length`` is a number that no row is longer than, where the caller knows one: the host knows no
other, and does not wait for the device to tell.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ._ops import backend_for, register
from .backends.common import compute_dtype, row_dtype
from .backends.segments import rows_shape
from .backends.torch import ragged_entry as plain

_ROWS = "Tensor scores, Tensor? offsets, Tensor? lengths, SymInt? max_length,"
RAGGED_TOPK = (
    f"({_ROWS} Tensor? budget, Scalar budget_number, Tensor? temperature,"
    " Scalar temperature_number, Tensor? mask, Tensor? warm_start, bool largest, str output,"
    " ScalarType out_dtype, str solver) -> (Tensor, Tensor)"
)
RAGGED_TOPK_BACKWARD = (
    f"(Tensor grad, {_ROWS} Tensor? temperature, Scalar temperature_number, Tensor? mask,"
    " Tensor threshold, bool largest, str output, bool per_row) -> Tensor[]"
)


def ragged_entry(backend: Any) -> Any:
    """The entries of a backend for rows of several lengths and many tensors."""
    return import_module(".ragged_entry", backend.__package__)


def ragged_topk(
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
    solver: str,
) -> tuple[Tensor, Tensor]:
    """The output in ``out_dtype`` and threshold pairs [..., 2]; 0 (log: -inf) outside of rows."""
    given = (
        *(scores, offsets, lengths, max_length, budget, budget_number, temperature),
        *(temperature_number, mask, warm_start, largest, output, out_dtype),
    )
    if solver == "auto":
        return ragged_entry(backend_for(scores)).ragged_forward(*given)  # type: ignore[no-any-return]
    return plain.ragged_forward(*given, solver)


def ragged_topk_backward(
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
    """Gradients for scores (in their dtype), and with ``per_row`` for budget and temperature."""
    return ragged_entry(backend_for(scores, grad)).ragged_backward(  # type: ignore[no-any-return]
        *(grad, scores, offsets, lengths, max_length, temperature, temperature_number, mask),
        *(threshold, largest, output, per_row),
    )


def _ragged_topk_backward_tensors(*args: Any) -> list[Tensor]:
    """The same as an operator must have it: a list of what was asked for."""
    return [found for found in ragged_topk_backward(*args) if found is not None]


def _fake_ragged_topk(
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
    solver: str,
) -> tuple[Tensor, Tensor]:
    rows = rows_shape(scores, offsets, lengths)
    threshold = scores.new_empty((*rows, 2), dtype=compute_dtype(scores.dtype))
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype), threshold
    return torch.empty_like(scores, dtype=out_dtype), threshold


def _fake_ragged_topk_backward(
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
) -> list[Tensor]:
    rows = rows_shape(scores, offsets, lengths)
    of_rows = (scores.new_empty(rows, dtype=row_dtype(scores)) for _ in range(2))
    return [torch.empty_like(scores), *(of_rows if per_row else ())]


register("ragged_topk", RAGGED_TOPK, ragged_topk, _fake_ragged_topk)
register(
    "ragged_topk_backward",
    RAGGED_TOPK_BACKWARD,
    _ragged_topk_backward_tensors,
    _fake_ragged_topk_backward,
)

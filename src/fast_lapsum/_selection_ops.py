"""The operators of whole scores as PyTorch sees them: a selection, its gradient, a random mask.

As in ``_ops.py`` rows lie along the last dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._ops import Dims, backend_for, batch_first, register
from .backends.common import compute_dtype, row_dtype

SELECT_TOPK = (
    "(Tensor scores, SymInt k, Tensor? temperature, Scalar temperature_number, Tensor? mask,"
    " bool largest, bool sorted, ScalarType out_dtype) -> (Tensor, Tensor, Tensor)"
)
SELECT_TOPK_BACKWARD = (
    "(Tensor grad, Tensor indices, Tensor scores, Tensor? temperature, Scalar temperature_number,"
    " Tensor? mask, Tensor threshold, bool largest, bool per_row) -> Tensor[]"
)
SAMPLE_TOPK = (
    "(Tensor scores, Tensor? budget, Scalar budget_number, Tensor? temperature,"
    " Scalar temperature_number, Tensor? mask, Tensor start, bool largest, ScalarType out_dtype)"
    " -> Tensor"
)


def select_topk(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places and weights of the k selected scores, [..., k], and threshold pairs [..., 2].

    A row of m < k valid scores has m of them, all of weight 1, then -1 with weight 0. A row without
    an answer has -1 with NaN.
    """
    return backend_for(scores).select(  # type: ignore[no-any-return]
        scores, k, temperature, temperature_number, mask, largest, is_sorted, out_dtype
    )


def select_topk_backward(
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
    """Gradients for scores (in their dtype), and with ``per_row`` for temperature."""
    return backend_for(scores, grad).select_backward(  # type: ignore[no-any-return]
        *(grad, indices, scores, temperature, temperature_number),
        *(mask, threshold, largest, per_row),
    )


def sample_topk(
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
    """Random mask of exactly k ones, in ``out_dtype``.

    Score i is taken where the running sum of p passes one of start, start + 1, ..., start + k - 1,
    with ``start`` in [0, 1) for each row.
    """
    return backend_for(scores).sample(  # type: ignore[no-any-return]
        *(scores, budget, budget_number, temperature, temperature_number),
        *(mask, start, largest, out_dtype),
    )


def _select_topk_backward_tensors(*args: Any) -> list[Tensor]:
    """The same as an operator must have it: a list of what was asked for."""
    return [found for found in select_topk_backward(*args) if found is not None]


def _fake_select_topk(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = scores.shape[:-1]
    return (
        scores.new_empty((*rows, k), dtype=torch.int64),
        scores.new_empty((*rows, k), dtype=out_dtype),
        scores.new_empty((*rows, 2), dtype=compute_dtype(scores.dtype)),
    )


def _fake_sample_topk(
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
    return torch.empty_like(scores, dtype=out_dtype)


def _fake_select_topk_backward(
    grad: Tensor,
    indices: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
) -> list[Tensor]:
    d_scores = torch.empty_like(scores)
    if not per_row:
        return [d_scores]
    return [d_scores, scores.new_empty(scores.shape[:-1], dtype=row_dtype(scores))]


def _vmap_select_topk(name: str, info: Any, in_dims: Dims, *args: Any) -> tuple[Any, Any]:
    scores, temperature, mask = batch_first(info.batch_size, in_dims, args, (0, 2, 4))
    out = getattr(torch.ops.fast_lapsum, name)(
        scores, args[1], temperature, args[3], mask, *args[5:]
    )
    return out, (0, 0, 0)


def _vmap_select_topk_backward(name: str, info: Any, in_dims: Dims, *args: Any) -> tuple[Any, Any]:
    grad, indices, scores, temperature, mask, threshold = batch_first(
        info.batch_size, in_dims, args, (0, 1, 2, 3, 5, 6)
    )
    out = getattr(torch.ops.fast_lapsum, name)(
        grad, indices, scores, temperature, args[4], mask, threshold, *args[7:]
    )
    return out, [0] * len(out)


def _vmap_sample_topk(name: str, info: Any, in_dims: Dims, *args: Any) -> tuple[Any, Any]:
    scores, budget, temperature, mask, start = batch_first(
        info.batch_size, in_dims, args, (0, 1, 3, 5, 6)
    )
    out = getattr(torch.ops.fast_lapsum, name)(
        scores, budget, args[2], temperature, args[4], mask, start, *args[7:]
    )
    return out, 0


register("select_topk", SELECT_TOPK, select_topk, _fake_select_topk, _vmap_select_topk)
register("sample_topk", SAMPLE_TOPK, sample_topk, _fake_sample_topk, _vmap_sample_topk)
register(
    "select_topk_backward",
    SELECT_TOPK_BACKWARD,
    _select_topk_backward_tensors,
    _fake_select_topk_backward,
    _vmap_select_topk_backward,
)

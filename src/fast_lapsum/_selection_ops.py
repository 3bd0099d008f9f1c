"""The operators of whole scores as PyTorch sees them: a selection, its gradient, a random mask.

As in ``_ops.py`` rows lie along the last dimension. A backend without a kernel for one of them
composes it of masks, which takes more readings and memory but nothing from the device to the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._ops import Dims, batch_first, per_row_values, register, row_dtype
from .backends.triton import loader
from .cpu import kernel, selection_kernel
from .solvers.backend import compute_dtype, mask_at

gpu: Any = loader.selection()

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
    if kernel.supports(scores):
        return selection_kernel.select(
            scores, k, temperature, temperature_number, mask, largest, is_sorted, out_dtype
        )
    if gpu is not None and _ops.gpu.supports(scores):
        indices, weights, threshold = gpu.select(
            scores, k, temperature, temperature_number, mask, largest, out_dtype
        )
        if is_sorted:
            picked = scores.gather(-1, indices.clamp(min=0)) if k else scores[..., :0]
            picked = (picked if largest else -picked).masked_fill(indices < 0, -math.inf)
            order = picked.argsort(dim=-1, descending=True, stable=True)
            indices, weights = indices.gather(-1, order), weights.gather(-1, order)
        return indices, weights, threshold
    valid = scores != (-math.inf if largest else math.inf)
    valid = valid if mask is None else valid & mask
    budget = valid.sum(-1).clamp(max=k).to(row_dtype(scores))
    temperatures = per_row_values(temperature, temperature_number, scores)
    hard, threshold = _ops.soft_topk(
        *(scores, budget, 0.0, temperatures, 1.0, mask, None, largest),
        *("hard", scores.dtype, "auto"),
    )
    chosen = hard == 1
    places = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    # What is not chosen goes to a place of its own, which is cut off.
    to = torch.where(chosen, chosen.cumsum(-1) - 1, k)
    indices = torch.full((*scores.shape[:-1], k + 1), -1, device=scores.device)
    indices = indices.scatter(-1, to, places)[..., :k]
    picked = scores.gather(-1, indices.clamp(min=0)) if k else scores[..., :0]
    picked = picked if largest else -picked
    if is_sorted:
        order = picked.masked_fill(indices < 0, -math.inf)
        order = order.argsort(dim=-1, descending=True, stable=True)
        indices, picked = indices.gather(-1, order), picked.gather(-1, order)
    weights = mask_at(picked, threshold, temperatures, compute_dtype(scores.dtype))
    weights = torch.where((indices < 0) & ~weights.isnan(), 0.0, weights)
    return indices.contiguous(), weights.to(out_dtype), threshold


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
    if kernel.supports(scores) and kernel.supports(grad):
        return selection_kernel.select_backward(
            *(grad, indices, scores, temperature, temperature_number),
            *(mask, threshold, largest, per_row),
        )
    spread = spread_over_rows(grad, indices, scores)
    d_scores, _, d_temperature = _ops.soft_topk_backward(
        spread, scores, temperature, temperature_number, mask, threshold, largest, "mask", per_row
    )
    return d_scores, d_temperature


def spread_over_rows(values: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
    """Values at their places in rows like those of scores, 0 elsewhere."""
    values = values.masked_fill(indices < 0, 0.0)  # left over: nothing is added to the first
    return values.new_zeros(scores.shape).scatter_add(-1, indices.clamp(min=0), values)


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
    if kernel.supports(scores):
        return selection_kernel.sample(
            *(scores, budget, budget_number, temperature, temperature_number),
            *(mask, start, largest, out_dtype),
        )
    if gpu is not None and _ops.gpu.supports(scores):
        return gpu.sample(  # type: ignore[no-any-return]
            *(scores, budget, budget_number, temperature, temperature_number),
            *(mask, start, largest, out_dtype),
        )
    wide = row_dtype(scores)
    p, _ = _ops.soft_topk(
        *(scores, budget, budget_number, temperature, temperature_number, mask, None, largest),
        *("mask", wide, "auto"),
    )
    budgets = per_row_values(budget, budget_number, scores)[..., None]
    passed = p.cumsum(-1)
    passed = passed * (budgets / passed[..., -1:])  # the last sum is k itself
    whole = passed.floor()
    steps = whole + (passed - whole > start[..., None].to(wide))  # how many of start + j it passed
    drawn = torch.diff(steps, dim=-1, prepend=torch.zeros_like(steps[..., :1])).clamp(0, 1)
    # Rounding of the running sum may miss one in a billion: the hard mask of drawn + p is drawn
    # itself when it holds k ones, and makes up for the odd one with the likeliest score otherwise.
    drawn = torch.where(p < 1, drawn, 1.0)
    rank = torch.where(p.isnan() | (p > 0), drawn + p, -math.inf)
    return _ops.soft_topk(
        *(rank, budgets[..., 0], 0.0, None, 0.0, None, None, True, "hard", out_dtype, "auto")
    )[0]


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

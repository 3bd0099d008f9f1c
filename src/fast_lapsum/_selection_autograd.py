"""The autograd functions of a selection: its weights have the mask's gradient at their places.

As in ``_autograd.py``: :class:`SelectTopK` is the eager and compiled path, and under ``torch.func``
transforms and forward-mode AD :class:`TransformableSelectTopK` takes its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops, _selection_ops
from ._autograd import is_plain
from ._derivatives import NO_GRADIENTS, Row, Settings, mask_jvp, mask_vjp, transforms_active
from .backends.common import spread_over_rows


def select_topk(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    mask: Tensor | None,
    is_sorted: bool,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Places of the k selected scores of each row, and their weights, differentiable."""
    if transforms_active():
        indices, weights, _ = TransformableSelectTopK.apply(  # type: ignore[no-untyped-call]
            scores, temperature, mask, k, is_sorted, *settings
        )
        return indices, weights
    return SelectTopK.apply(scores, temperature, mask, k, is_sorted, settings)  # type: ignore[no-any-return,no-untyped-call]


def _call_operator(
    scores: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    k: int,
    is_sorted: bool,
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    operator: Any = _selection_ops.select_topk
    if not is_plain(scores):
        operator = _ops.operator("select_topk", settings.temperature_number)
    return operator(  # type: ignore[no-any-return]
        scores,
        k,
        temperature,
        settings.temperature_number,
        mask,
        settings.largest,
        is_sorted,
        settings.out_dtype,
    )


class SelectTopK(torch.autograd.Function):
    """See :func:`select_topk`; the gradient takes places and weights, and spreads nothing out."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        temperature: Tensor | None,
        mask: Tensor | None,
        k: int,
        is_sorted: bool,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        indices, weights, pair = _call_operator(scores, temperature, mask, k, is_sorted, settings)
        ctx.save_for_backward(scores, temperature, mask, pair, indices)
        ctx.settings = settings
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)
        return indices, weights

    @staticmethod
    def backward(ctx: Any, _: None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None
        scores, temperature, mask, pair, indices = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled():
            row = Row(scores, None, temperature, mask, pair, settings)
            spread = spread_over_rows(grad, indices, scores)
            for_scores, _none, for_temperature = row.for_inputs(mask_vjp(row, spread))
            return for_scores, for_temperature, None, None, None, None
        operator: Any = _selection_ops.select_topk_backward
        if not is_plain(grad, scores):
            operator = _ops.operator("select_topk_backward", settings.temperature_number)
            if not torch.compiler.is_compiling() and grad._is_zerotensor():
                grad = torch.zeros(grad.shape, dtype=grad.dtype, device=scores.device)
        found = operator(
            grad,
            indices,
            scores,
            temperature,
            settings.temperature_number,
            mask,
            pair,
            settings.largest,
            ctx.needs_input_grad[1],
        )
        return found[0], found[1] if ctx.needs_input_grad[1] else None, None, None, None, None


class TransformableSelectTopK(torch.autograd.Function):
    """The same function for ``torch.func`` transforms and forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        temperature: Tensor | None,
        mask: Tensor | None,
        k: int,
        is_sorted: bool,
        budget_number: float,
        temperature_number: float,
        largest: bool,
        output: str,
        out_dtype: torch.dtype,
        solver: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings = Settings(budget_number, temperature_number, largest, output, out_dtype, solver)
        return _call_operator(scores, temperature, mask, k, is_sorted, settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        indices, _, pair = output
        kept = (*inputs[:3], pair, indices)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.settings = Settings(*inputs[5:])
        ctx.mark_non_differentiable(indices, pair)

    @staticmethod
    def _row(ctx: Any) -> tuple[Row, Tensor, Tensor]:
        scores, temperature, mask, pair, indices = ctx.saved_tensors
        return Row(scores, None, temperature, mask, pair, ctx.settings), scores, indices

    @staticmethod
    def backward(ctx: Any, _: Tensor, grad: Tensor, __: Tensor) -> tuple[Tensor | None, ...]:
        row, scores, indices = TransformableSelectTopK._row(ctx)
        spread = spread_over_rows(grad, indices, scores)
        d_scores, _none, d_temperature = row.for_inputs(mask_vjp(row, spread))
        return d_scores, d_temperature, None, None, None, *NO_GRADIENTS

    @staticmethod
    def jvp(
        ctx: Any, d_scores: Tensor | None, d_temperature: Tensor | None, *_: None
    ) -> tuple[None, Tensor, None]:
        row, _scores, indices = TransformableSelectTopK._row(ctx)
        tangent = mask_jvp(row, d_scores, None, d_temperature)
        if indices.shape[-1]:
            tangent = tangent.gather(-1, indices.clamp(min=0))
            tangent = torch.where((indices < 0) & ~tangent.isnan(), 0.0, tangent)
        else:
            tangent = tangent[..., :0]
        return None, tangent.to(ctx.settings.out_dtype), None

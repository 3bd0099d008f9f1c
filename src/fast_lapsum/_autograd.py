"""The autograd functions: the fast ones, and their counterparts for what they cannot do.

:class:`SoftTopK` and :class:`TensorSoftTopK` (mask, hard mask and log p) and :class:`Threshold` are
the eager and compiled path, in the old style, whose bookkeeping is the cheapest: forward and
backward are one operator call each. Under ``torch.func`` transforms and forward-mode AD
:class:`TransformableSoftTopK` takes their place. Derivatives of derivatives are those of
``_derivatives.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._derivatives import (
    NO_GRADIENTS,
    Gradients,
    Row,
    Settings,
    log_mask_jvp,
    log_mask_vjp,
    mask_jvp,
    mask_vjp,
    save_inputs,
    threshold_offset,
    threshold_vjp,
    transforms_active,
)
from ._ops import is_plain as is_plain
from .backends.common import compute_dtype


def soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
    with_threshold: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the settings ask for along the last dimension, differentiable; pairs if wanted."""
    if transforms_active():
        return TransformableSoftTopK.apply(  # type: ignore[no-any-return,no-untyped-call]
            scores, budget, temperature, mask, warm_start, *settings
        )
    inputs = (scores, budget, temperature, mask, warm_start)
    if not with_threshold and budget is temperature is mask is warm_start is None:
        return SoftTopK.apply(scores, settings), None  # type: ignore[no-untyped-call]
    if with_threshold:
        return TensorSoftTopK.apply(*inputs, settings, True)  # type: ignore[no-any-return,no-untyped-call]
    return TensorSoftTopK.apply(*inputs, settings, False), None  # type: ignore[no-untyped-call]


def threshold(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
) -> Tensor:
    """b of every row in the caller's sense, differentiable."""
    if not transforms_active():
        return Threshold.apply(  # type: ignore[no-any-return,no-untyped-call]
            scores, budget, temperature, mask, warm_start, settings
        )
    _, pair = TransformableSoftTopK.apply(  # type: ignore[no-untyped-call]
        *(None if x is None else x.detach() for x in (scores, budget, temperature)),
        *(mask, warm_start),
        *settings,
    )
    offset = threshold_offset(scores, budget, temperature, mask, pair, settings)
    pair = torch.stack((pair[..., 0], offset), -1)
    return threshold_value(pair, scores.dtype, temperature, settings)


def threshold_value(
    pair: Tensor, dtype: torch.dtype, temperature: Tensor | None, settings: Settings
) -> Tensor:
    """b in the caller's sense: hi + lo, or hi alone where lo is the share of a tied score."""
    hi, lo = pair.unbind(-1)
    tiny = torch.finfo(compute_dtype(dtype)).tiny
    if isinstance(settings.temperature_number, Tensor):  # in the host's memory
        temperature = settings.temperature_number.to(pair.device)
    if temperature is not None:
        b = torch.where(temperature.detach() < tiny, hi, hi + lo)
    else:
        is_hard = settings.temperature_number < tiny
        b = hi.clone() if is_hard else hi + lo  # a hi of +inf stays what it is
    return b if settings.largest else -b


def call_operator(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """What the settings ask for, and threshold pairs, without a graph."""
    k, t = settings.budget_number, settings.temperature_number
    operator: Any = _ops.soft_topk if is_plain(scores) else _ops.operator("soft_topk", k, t)
    return operator(  # type: ignore[no-any-return]
        scores,
        budget,
        k,
        temperature,
        t,
        mask,
        warm_start,
        settings.largest,
        settings.output,
        settings.out_dtype,
        settings.solver,
    )


def call_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of what the settings ask for, without a graph."""
    operator: Any = _ops.soft_topk_backward
    if not is_plain(grad, scores):
        operator = _ops.operator("soft_topk_backward", settings.temperature_number)
        # One without memory, which forward mode makes.
        if not torch.compiler.is_compiling() and grad._is_zerotensor():
            grad = torch.zeros(grad.shape, dtype=grad.dtype, device=scores.device)
    found = operator(
        grad,
        scores,
        temperature,
        settings.temperature_number,
        mask,
        threshold,
        settings.largest,
        settings.output,
        per_row,
    )
    return (found[0], found[1], found[2]) if per_row else (found[0], None, None)


def _vjp(row: Row, grad: Tensor, settings: Settings) -> Gradients:
    """The gradients in torch operations, which have derivatives themselves."""
    return (log_mask_vjp if settings.output == "log" else mask_vjp)(row, grad)


class TensorSoftTopK(torch.autograd.Function):
    """The general call: any of budget, temperature, mask and warm start may be a tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        settings: Settings,
        with_threshold: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        out, threshold = call_operator(scores, budget, temperature, mask, warm_start, settings)
        ctx.save_for_backward(scores, budget, temperature, mask, threshold)
        ctx.settings = settings
        ctx.set_materialize_grads(False)  # no zeros for the threshold, which has no gradient
        if not with_threshold:
            return out
        ctx.mark_non_differentiable(threshold)
        return out, threshold

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None, None
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled():
            row = Row(scores, budget, temperature, mask, threshold, settings)
            return (*row.for_inputs(_vjp(row, grad, settings)), None, None, None, None)
        d_scores, d_budget, d_temperature = call_backward(
            grad, scores, temperature, mask, threshold, settings, any(ctx.needs_input_grad[1:3])
        )
        return (
            d_scores,
            d_budget if ctx.needs_input_grad[1] else None,
            d_temperature if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
            None,
        )


class SoftTopK(torch.autograd.Function):
    """The plain call, numbers for k and temperature: autograd charges for every argument."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, settings: Settings) -> Tensor:
        out, threshold = call_operator(scores, None, None, None, None, settings)
        ctx.save_for_backward(scores, threshold)
        ctx.settings = settings
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, threshold = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled():
            row = Row(scores, None, None, None, threshold, settings)
            return row.for_inputs(_vjp(row, grad, settings))[0], None
        return call_backward(grad, scores, None, None, threshold, settings, False)[0], None


class TransformableSoftTopK(torch.autograd.Function):
    """The same function for ``torch.func`` transforms and forward-mode AD.

    The settings come one by one, by name: compilers miscount what comes behind a star.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        budget_number: float,
        temperature_number: float,
        largest: bool,
        output: str,
        out_dtype: torch.dtype,
        solver: str,
    ) -> tuple[Tensor, Tensor]:
        settings = Settings(budget_number, temperature_number, largest, output, out_dtype, solver)
        return call_operator(scores, budget, temperature, mask, warm_start, settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        save_inputs(ctx, (*inputs[:4], output[1], *inputs[5:]))
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(_vjp(row, grad, ctx.settings)), None, None, *NO_GRADIENTS)

    @staticmethod
    def jvp(
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> tuple[Tensor, None]:
        jvp = log_mask_jvp if ctx.settings.output == "log" else mask_jvp
        tangent = jvp(Row.of(ctx), d_scores, d_budget, d_temperature)
        return tangent.to(ctx.settings.out_dtype), None


class Threshold(torch.autograd.Function):
    """b of every row in the caller's sense; nothing of the scores' size is written."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        _, pair = call_operator(scores, budget, temperature, mask, warm_start, settings)
        ctx.save_for_backward(scores, budget, temperature, mask, pair)
        ctx.settings = settings
        return threshold_value(pair, scores.dtype, temperature, settings)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, budget, temperature, mask, pair = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled():
            row = Row(scores, budget, temperature, mask, pair, settings)
            return (*row.for_inputs(threshold_vjp(row, row.side * grad)), None, None, None)
        d_scores, d_budget, d_temperature = call_backward(
            grad, scores, temperature, mask, pair, settings, any(ctx.needs_input_grad[1:3])
        )
        return (
            d_scores,
            d_budget if ctx.needs_input_grad[1] else None,
            d_temperature if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )

"""The autograd functions: the fast one, and its counterparts for what it cannot do.

:class:`SoftTopK` and :class:`TensorSoftTopK` are the eager and compiled path, in the old style,
whose bookkeeping is the cheapest: forward and backward are one operator call each. Under
``torch.func`` transforms and forward-mode AD :class:`TransformableSoftTopK` takes their place.
Derivatives of derivatives are those of ``_derivatives.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._derivatives import (
    NO_GRADIENTS,
    Row,
    Settings,
    log_mask,
    log_mask_jvp,
    log_mask_vjp,
    mask_jvp,
    mask_vjp,
    save_inputs,
    transforms_active,
)

_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_storage = torch._C._has_storage
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
    with_threshold: bool,
) -> tuple[Tensor, Tensor | None]:
    """Mask of the rows along the last dimension, differentiable, and threshold pairs if wanted."""
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


def log_soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
) -> Tensor:
    """log p for known threshold pairs, differentiable."""
    inputs = (scores, budget, temperature, mask, threshold)
    if transforms_active():
        return TransformableLogSoftTopK.apply(*inputs, *settings)  # type: ignore[no-any-return,no-untyped-call]
    return LogSoftTopK.apply(*inputs, settings)  # type: ignore[no-any-return,no-untyped-call]


def _is_plain(*tensors: Tensor) -> bool:
    """Nothing is watching the operators, so that a call need not go through the dispatcher."""
    if torch.compiler.is_compiling() or _dispatch_modes() or _functorch_active():
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES or tensor.is_neg():
            return False
        if not _has_storage(tensor) or tensor.is_meta or tensor._is_zerotensor():
            return False
    return True


def _call_operator(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    operator = _ops.soft_topk if _is_plain(scores) else torch.ops.fast_lapsum.soft_topk
    return operator(
        scores,
        budget,
        settings.budget_number,
        temperature,
        settings.temperature_number,
        mask,
        warm_start,
        settings.largest,
        settings.hard,
        settings.out_dtype,
        settings.solver,
    )


def _call_backward(
    grad: Tensor,
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    operator = _ops.soft_topk_backward
    if not _is_plain(grad, scores):
        operator = torch.ops.fast_lapsum.soft_topk_backward
        if not torch.compiler.is_compiling() and grad._is_zerotensor():
            grad = torch.zeros_like(scores)  # one without memory, which forward mode makes
    return operator(
        grad,
        scores,
        temperature,
        settings.temperature_number,
        mask,
        threshold,
        settings.largest,
        budget is not None or temperature is not None,
    )


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
        out, threshold = _call_operator(scores, budget, temperature, mask, warm_start, settings)
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
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            row = Row(scores, budget, temperature, mask, threshold, settings)
            return (*row.for_inputs(mask_vjp(row, grad)), None, None, None, None)
        d_scores, d_budget, d_temperature = _call_backward(
            grad, scores, budget, temperature, mask, threshold, settings
        )
        return (
            d_scores,
            None if budget is None else d_budget,
            None if temperature is None else d_temperature,
            None,
            None,
            None,
            None,
        )


class SoftTopK(torch.autograd.Function):
    """The plain call, numbers for k and temperature: autograd charges for every argument."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, settings: Settings) -> Tensor:
        out, threshold = _call_operator(scores, None, None, None, None, settings)
        ctx.save_for_backward(scores, threshold)
        ctx.settings = settings
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, threshold = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            row = Row(scores, None, None, None, threshold, settings)
            return row.for_inputs(mask_vjp(row, grad))[0], None
        return _call_backward(grad, scores, None, None, None, threshold, settings)[0], None


class TransformableSoftTopK(torch.autograd.Function):
    """The same function for ``torch.func`` transforms and forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        *fields: Any,
    ) -> tuple[Tensor, Tensor]:
        return _call_operator(scores, budget, temperature, mask, warm_start, Settings(*fields))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        save_inputs(ctx, (*inputs[:4], output[1], *inputs[5:]))
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(mask_vjp(row, grad)), None, None, *NO_GRADIENTS)

    @staticmethod
    def jvp(
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> tuple[Tensor, None]:
        tangent = mask_jvp(Row.of(ctx), d_scores, d_budget, d_temperature)
        return tangent.to(ctx.settings.out_dtype), None


class LogSoftTopK(torch.autograd.Function):
    """log p for a threshold that is known; its gradients need no p, which may have underflowed."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        settings: Settings,
    ) -> Tensor:
        ctx.save_for_backward(scores, budget, temperature, mask, threshold)
        ctx.settings = settings
        return log_mask(scores, budget, temperature, mask, threshold, settings)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(log_mask_vjp(row, grad)), None, None, None)


class TransformableLogSoftTopK(torch.autograd.Function):
    """The same for ``torch.func`` transforms and forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        *fields: Any,
    ) -> Tensor:
        return log_mask(scores, budget, temperature, mask, threshold, Settings(*fields))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(log_mask_vjp(row, grad)), None, None, *NO_GRADIENTS)

    @staticmethod
    def jvp(
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> Tensor:
        tangent = log_mask_jvp(Row.of(ctx), d_scores, d_budget, d_temperature)
        return tangent.to(ctx.settings.out_dtype)

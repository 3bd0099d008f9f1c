"""The autograd functions of rows that are spread over a process group.

Forward and backward are one operator call each, and both communicate: every rank must take part in
both. The loss is the sum of all ranks' losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ops, _sharded_ops
from ._autograd import is_plain, threshold_value
from ._derivatives import Settings, transforms_active


def soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    settings: Settings,
    group: str,
) -> tuple[Tensor, Tensor]:
    """This rank's part of what the settings ask for, differentiable, and threshold pairs."""
    _refuse_transforms()
    return ShardedTopK.apply(  # type: ignore[no-any-return,no-untyped-call]
        scores, budget, temperature, mask, settings, group
    )


def threshold(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    settings: Settings,
    group: str,
) -> Tensor:
    """b of every row in the caller's sense, differentiable."""
    _refuse_transforms()
    return ShardedThreshold.apply(  # type: ignore[no-any-return,no-untyped-call]
        scores, budget, temperature, mask, settings, group
    )


def _refuse_transforms() -> None:
    if transforms_active():
        raise NotImplementedError(
            "torch.func transforms and forward-mode derivatives cannot be taken of a call with "
            "group: use backward() or torch.autograd.grad"
        )


def _call_operator(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    settings: Settings,
    group: str,
) -> tuple[Tensor, Tensor]:
    k, t = settings.budget_number, settings.temperature_number
    operator: Any = _sharded_ops.sharded_topk
    if not is_plain(scores):
        operator = _ops.operator("sharded_topk", k, t)
    return operator(  # type: ignore[no-any-return]
        *(scores, budget, k, temperature, t, mask),
        *(settings.largest, settings.output, settings.out_dtype, group),
    )


def _call_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients for scores, budget and temperature, as far as they are wanted."""
    scores, temperature, mask, pair = ctx.saved_tensors
    settings, needed = ctx.settings, ctx.needs_input_grad
    operator: Any = _sharded_ops.sharded_topk_backward
    if not is_plain(grad, scores):
        operator = _ops.operator("sharded_topk_backward", settings.temperature_number)
    with torch.no_grad():
        found = operator(
            *(grad, scores, temperature, settings.temperature_number, mask, pair),
            *(settings.largest, settings.output, any(needed[1:3]), ctx.group),
        )
    of_rows = (found[1], found[2]) if any(needed[1:3]) else (None, None)
    wanted = [
        one if need else None for one, need in zip((found[0], *of_rows), needed, strict=False)
    ]
    if torch.is_grad_enabled():
        inputs = [x for x in (grad, scores, temperature) if x is not None]
        wanted = [None if x is None else OnlyOnce.apply(x, *inputs) for x in wanted]  # type: ignore[no-untyped-call]
    return (*wanted, None, None, None)


class ShardedTopK(torch.autograd.Function):
    """Mask, hard mask and log p."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        settings: Settings,
        group: str,
    ) -> tuple[Tensor, Tensor]:
        out, pair = _call_operator(scores, budget, temperature, mask, settings, group)
        ctx.save_for_backward(scores, temperature, mask, pair)
        ctx.settings, ctx.group = settings, group
        ctx.mark_non_differentiable(pair)
        return out, pair

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return _call_backward(ctx, grad)


class ShardedThreshold(torch.autograd.Function):
    """b of every row, of which each rank has its own gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        settings: Settings,
        group: str,
    ) -> Tensor:
        _, pair = _call_operator(scores, budget, temperature, mask, settings, group)
        ctx.save_for_backward(scores, temperature, mask, pair)
        ctx.settings, ctx.group = settings, group
        return threshold_value(pair, scores.dtype, temperature, settings)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _call_backward(ctx, grad)


class OnlyOnce(torch.autograd.Function):
    """A gradient that says, when it is to be differentiated itself, that it cannot be."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        raise NotImplementedError(
            "second derivatives of a call with group are not implemented: its gradient is a "
            "constant for autograd; derive a call without group on gathered scores instead"
        )

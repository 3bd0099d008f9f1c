"""Autograd of gated activations: the function of graphs, and the gradient in torch operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _activation_ops
from ._autograd import call_backward, is_plain, soft_topk
from ._derivatives import Row, Settings, mask_vjp


class GatedActivation(torch.autograd.Function):
    """One operator each way; derivatives of derivatives in torch operations."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor,
        temperature: Tensor,
        threshold: Tensor,
        settings: Settings,
        keeps_gate: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = (scores, budget, temperature, threshold, settings.output, settings.out_dtype)
        operator: Any = _activation_ops.gated_activation
        if not is_plain(scores):
            operator = torch.ops.fast_lapsum.gated_activation.default
        out, count, best, pair, kept = operator(*given, keeps_gate)
        ctx.save_for_backward(scores, budget, temperature, best, pair, kept)
        ctx.settings, ctx.keeps_gate = settings, keeps_gate
        ctx.mark_non_differentiable(count, best)
        ctx.set_materialize_grads(False)
        return out, count, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        nothing = (None, None, None, None, None)
        if grad is None:
            return None, *nothing
        scores, budget, temperature, best, pair, kept = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled():
            return gradient_in_parts(grad, scores, budget, temperature, pair, settings), *nothing
        operator: Any = _activation_ops.gated_activation_backward
        if not is_plain(grad, scores):
            operator = torch.ops.fast_lapsum.gated_activation_backward.default
        given = (grad, scores, temperature, best, pair, kept, settings.output, ctx.keeps_gate)
        return operator(*given), *nothing


def gradient_in_parts(
    grad: Tensor,
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    pair: Tensor,
    settings: Settings,
) -> Tensor:
    """The same gradient in operations of torch, which have derivatives themselves."""
    gate = soft_topk(scores, budget, temperature, None, None, settings, False)[0]  # once more
    relu = torch.relu(scores)
    of_gate = (grad * relu).to(gate.dtype)
    if torch.is_grad_enabled():
        row = Row(scores, budget, temperature, None, pair, settings)
        through_gate = row.for_inputs(mask_vjp(row, of_gate))[0]
    else:
        through_gate = call_backward(of_gate, scores, temperature, None, pair, settings, False)[0]
    assert through_gate is not None
    of_scores: Tensor = torch.ops.aten.threshold_backward((grad * gate).to(grad.dtype), relu, 0)
    return of_scores + through_gate

"""The autograd functions of soft ranks and sorts: one operator forward, one backward.

They have the gradient of the scores. A temperature that needs one, ``torch.func`` and derivatives
of derivatives go by the formulas of ``_ranking_formulas.py``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import _ranking_formulas as formulas
from . import _ranking_ops as operators
from ._autograd import is_plain
from ._derivatives import transforms_active


def soft_rank(scores: Tensor, temperature: Tensor, mask: Tensor | None, descending: bool) -> Tensor:
    """Soft ranks along the last dimension, differentiable; one temperature for each row."""
    if temperature.requires_grad or transforms_active():
        return formulas.soft_rank(scores, temperature, mask, descending)
    return SoftRank.apply(scores, temperature, mask, descending)  # type: ignore[no-any-return,no-untyped-call]


def soft_thresholds(
    scores: Tensor, temperature: Tensor, masses: Tensor | None, descending: bool
) -> Tensor:
    """b at every mass along the last dimension, differentiable; without masses those of a sort."""
    if temperature.requires_grad or transforms_active():
        return formulas.soft_thresholds(scores, temperature, masses, descending)
    return SoftThresholds.apply(scores, temperature, masses, descending)  # type: ignore[no-any-return,no-untyped-call]


def _operator(name: str, *tensors: Tensor) -> Any:
    """The operator's function itself where nothing is watching."""
    return getattr(operators if is_plain(*tensors) else torch.ops.fast_lapsum, name)


class SoftRank(torch.autograd.Function):
    """See :func:`soft_rank`."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, temperature: Tensor, mask: Tensor | None, descending: bool
    ) -> Tensor:
        call = _operator("soft_rank", scores)
        ranks, ordered, order = call(scores, temperature, mask, descending)
        ctx.save_for_backward(scores, temperature, mask, ordered, order)
        ctx.descending = descending
        return ranks  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, temperature, mask, ordered, order = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = functools.partial(formulas.soft_rank, mask=mask, descending=ctx.descending)
            return formulas.gradients(formula, scores, temperature, grad), None, None, None
        call = _operator("soft_rank_backward", grad, ordered)
        found = call(grad, ordered, order, temperature, mask, ctx.descending)
        return found.to(scores.dtype), None, None, None


class SoftThresholds(torch.autograd.Function):
    """See :func:`soft_thresholds`."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, temperature: Tensor, masses: Tensor | None, descending: bool
    ) -> Tensor:
        call = _operator("soft_thresholds", scores)
        b, *kept = call(scores, temperature, masses, descending)
        ctx.save_for_backward(scores, temperature, masses, *kept)
        ctx.descending = descending
        return b  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, temperature, masses, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = functools.partial(
                formulas.soft_thresholds, masses=masses, descending=ctx.descending
            )
            return formulas.gradients(formula, scores, temperature, grad), None, None, None
        call = _operator("soft_thresholds_backward", grad, scores)
        found = call(grad, *kept, temperature, ctx.descending)
        return found.to(scores.dtype).view(scores.shape), None, None, None

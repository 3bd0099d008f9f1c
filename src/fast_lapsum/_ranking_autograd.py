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


def soft_rank(
    scores: Tensor, temperature: Tensor | float, mask: Tensor | None, descending: bool
) -> Tensor:
    """Soft ranks along the last dimension, differentiable; a temperature for each row, or one."""
    if _is_learned(temperature) or transforms_active():
        return formulas.soft_rank(scores, temperature, mask, descending)
    return SoftRank.apply(scores, temperature, mask, descending)  # type: ignore[no-any-return,no-untyped-call]


def soft_thresholds(
    scores: Tensor, temperature: Tensor | float, masses: Tensor | None, descending: bool
) -> Tensor:
    """b at every mass along the last dimension, differentiable; without masses those of a sort."""
    if _is_learned(temperature) or transforms_active():
        return formulas.soft_thresholds(scores, temperature, masses, descending)
    return SoftThresholds.apply(scores, temperature, masses, descending)  # type: ignore[no-any-return,no-untyped-call]


def _is_learned(temperature: Tensor | float) -> bool:
    return isinstance(temperature, Tensor) and temperature.requires_grad


def _both(temperature: Tensor | float) -> tuple[Tensor | None, float]:
    """As operators have it: a tensor, or a number."""
    return (temperature, 0.0) if isinstance(temperature, Tensor) else (None, temperature)


def _operator(name: str, *tensors: Tensor) -> Any:
    """The operator's function itself where nothing is watching."""
    return getattr(operators if is_plain(*tensors) else torch.ops.fast_lapsum, name)


class SoftRank(torch.autograd.Function):
    """See :func:`soft_rank`."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, temperature: Tensor | float, mask: Tensor | None, descending: bool
    ) -> Tensor:
        call, t = _operator("soft_rank", scores), _both(temperature)
        ranks, ordered, order = call(scores, *t, mask, descending)
        ctx.save_for_backward(scores, t[0], mask, ordered, order)
        ctx.temperature_number, ctx.descending = t[1], descending
        return ranks  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, temperature, mask, ordered, order = ctx.saved_tensors
        number = ctx.temperature_number
        if torch.is_grad_enabled():
            t = number if temperature is None else temperature
            formula = functools.partial(formulas.soft_rank, mask=mask, descending=ctx.descending)
            return formulas.gradients(formula, scores, t, grad), None, None, None
        call = _operator("soft_rank_backward", grad, ordered)
        found = call(grad, ordered, order, temperature, number, mask, ctx.descending)
        return found.to(scores.dtype), None, None, None


class SoftThresholds(torch.autograd.Function):
    """See :func:`soft_thresholds`."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        temperature: Tensor | float,
        masses: Tensor | None,
        descending: bool,
    ) -> Tensor:
        call, t = _operator("soft_thresholds", scores), _both(temperature)
        b, *kept = call(scores, *t, masses, descending)
        ctx.save_for_backward(scores, t[0], masses, *kept)
        ctx.temperature_number, ctx.descending = t[1], descending
        return b  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, temperature, masses, *kept = ctx.saved_tensors
        number = ctx.temperature_number
        if torch.is_grad_enabled():
            t = number if temperature is None else temperature
            formula = functools.partial(
                formulas.soft_thresholds, masses=masses, descending=ctx.descending
            )
            return formulas.gradients(formula, scores, t, grad), None, None, None
        call = _operator("soft_thresholds_backward", grad, scores)
        found = call(grad, *kept, temperature, number, ctx.descending)
        return found.to(scores.dtype).view(scores.shape), None, None, None

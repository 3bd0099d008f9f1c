"""The autograd function of one budget over many tensors.

As in ``_autograd.py``: forward and backward are one operator call each. Derivatives of derivatives,
``torch.func`` transforms and forward-mode AD join the tensors into one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _autograd, _list_ops, _ops
from ._autograd import is_plain
from ._derivatives import Row, Settings, mask_vjp, transforms_active
from .backends.many import kept_dtype, out_dtype_of


def soft_topk_list(
    tensors: Sequence[Tensor],
    budget: Tensor | None,
    temperature: Tensor | None,
    settings: Settings,
    widen: bool,
) -> tuple[list[Tensor], Tensor]:
    """A mask for each tensor, differentiable, and the threshold pair of all."""
    if transforms_active():
        joined = join(tensors)
        dense = settings._replace(out_dtype=joined.dtype)
        out, pair = _autograd.soft_topk(joined, budget, temperature, None, None, dense, True)
        assert pair is not None
        return part(out, tensors, [out_dtype_of(x, widen) for x in tensors]), pair
    *masks, pair = ListTopK.apply(budget, temperature, settings, widen, *tensors)  # type: ignore[no-untyped-call]
    return masks, pair


def join(tensors: Sequence[Tensor]) -> Tensor:
    """All scores as one row, in the dtype that its threshold is kept in."""
    dtype = kept_dtype(tensors)
    return torch.cat([x.reshape(-1).to(dtype) for x in tensors])


def part(row: Tensor, like: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The way back."""
    pieces = row.split_with_sizes([x.numel() for x in like])
    return [
        piece.reshape(x.shape).to(dtype)
        for x, dtype, piece in zip(like, dtypes, pieces, strict=True)
    ]


class ListTopK(torch.autograd.Function):
    """Masks of many tensors with one budget."""

    @staticmethod
    def forward(
        ctx: Any,
        budget: Tensor | None,
        temperature: Tensor | None,
        settings: Settings,
        widen: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        k, t = settings.budget_number, settings.temperature_number
        operator: Any = _list_ops.list_topk
        if not is_plain(*tensors):
            operator = _ops.operator("list_topk", k, t)
        given = (budget, k, temperature, t, settings.largest, settings.output, widen)
        found = operator(list(tensors), *given)
        ctx.save_for_backward(budget, temperature, found[-1], *tensors)
        ctx.settings = settings
        ctx.mark_non_differentiable(found[-1])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        budget, temperature, pair, *tensors = ctx.saved_tensors
        settings, upstream = ctx.settings, list(grads[:-1])
        if torch.is_grad_enabled():
            row = Row(join(tensors), budget, temperature, None, pair, settings)
            grad = torch.cat([g.reshape(-1).to(row.u.dtype) for g in upstream])
            d_row, d_budget, d_temperature = row.for_inputs(mask_vjp(row, grad))
            assert d_row is not None
            parts = part(d_row, tensors, [x.dtype for x in tensors])
            return d_budget, d_temperature, None, None, *parts
        per_row = any(ctx.needs_input_grad[:2])
        operator: Any = _list_ops.list_topk_backward
        if not is_plain(*upstream, *tensors):
            operator = _ops.operator("list_topk_backward", settings.temperature_number)
        found = operator(
            *(upstream, tensors, temperature, settings.temperature_number, pair),
            *(settings.largest, settings.output, per_row),
        )
        of_row = found[len(tensors) :] if per_row else (None, None)
        return (
            of_row[0] if ctx.needs_input_grad[0] else None,
            of_row[1] if ctx.needs_input_grad[1] else None,
            None,
            None,
            *found[: len(tensors)],
        )

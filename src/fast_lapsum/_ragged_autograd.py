"""The autograd functions of rows of several lengths: forward by one operator call, backward by one.

As in ``_autograd.py``. Derivatives of derivatives, ``torch.func`` transforms and forward-mode AD
take rows of one size: segments are copied into them, each as long as the longest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _autograd, _ops, _ragged_ops
from ._autograd import is_plain, threshold_value
from ._derivatives import Row, Settings, log_mask_vjp, mask_vjp, threshold_vjp, transforms_active
from .backends.segments import Padding, bounds_of, takes_part, values_of


class Segments(NamedTuple):
    """Where rows of several lengths lie (``backends/segments.py``)."""

    offsets: Tensor | None
    lengths: Tensor | None
    max_length: int | None


class Longer(NamedTuple):
    """Segments that are longer than was said, and which values are theirs."""

    segments: Tensor
    values: Tensor


class _Dense(NamedTuple):
    """Rows of one size, and which of their scores take part."""

    scores: Tensor
    mask: Tensor
    inside: Tensor
    padding: Padding | None
    longer: Longer | None = None

    def rows(self, values: Tensor) -> Tensor:
        return values if self.padding is None else self.padding.rows(values)

    def back(self, rows: Tensor, total: int, fill: float = 0.0) -> Tensor:
        """What was computed of rows, where the scores lie; ``fill`` where there is no row."""
        if self.padding is None:
            return torch.where(self.inside, rows, fill)
        found = self.padding.values(rows, total, fill)
        return found if self.longer is None else found.masked_fill(self.longer.values, math.nan)


def _dense(scores: Tensor, mask: Tensor | None, segments: Segments) -> _Dense:
    offsets, lengths, max_length = segments
    if offsets is None:
        assert lengths is not None
        inside = takes_part(scores, lengths)
        return _Dense(scores, inside if mask is None else inside & mask, inside, None)
    bounds = bounds_of(scores, offsets, lengths)
    if max_length is None:  # the one place that looks, and waits for a GPU
        max_length = int(bounds.lengths.max()) if bounds.lengths.numel() else 0
    padding = Padding.of(bounds, max_length)
    inside = padding.inside
    keep = inside if mask is None else inside & padding.rows(mask)
    # A segment that is longer than was said has no answer.
    is_longer = bounds.lengths > max_length
    rows = torch.where(is_longer[:, None], math.nan, padding.rows(scores))
    longer = Longer(is_longer, values_of(bounds, is_longer, scores.shape[-1]))
    return _Dense(rows, keep | is_longer[:, None], inside, padding, longer)


def soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
    segments: Segments,
    with_threshold: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the settings ask for of every row, differentiable; pairs if wanted."""
    if transforms_active():
        dense = _dense(scores, mask, segments)
        out, pair = _autograd.soft_topk(
            dense.scores, budget, temperature, dense.mask, warm_start, settings, with_threshold
        )
        nothing = -math.inf if settings.output == "log" else 0.0
        return dense.back(out, scores.shape[-1], nothing), pair
    inputs = (scores, budget, temperature, mask, warm_start, *segments[:2])
    given = (segments.max_length, settings, with_threshold)
    if with_threshold:
        return RaggedTopK.apply(*inputs, *given)  # type: ignore[no-any-return,no-untyped-call]
    return RaggedTopK.apply(*inputs, *given), None  # type: ignore[no-untyped-call]


def threshold(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
    segments: Segments,
) -> Tensor:
    """b of every row in the caller's sense, differentiable."""
    if transforms_active():
        dense = _dense(scores, mask, segments)
        return _autograd.threshold(
            dense.scores, budget, temperature, dense.mask, warm_start, settings
        )
    inputs = (scores, budget, temperature, mask, warm_start, *segments[:2])
    return RaggedThreshold.apply(*inputs, segments.max_length, settings)  # type: ignore[no-any-return,no-untyped-call]


def _call_operator(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
    segments: Segments,
) -> tuple[Tensor, Tensor]:
    k, t = settings.budget_number, settings.temperature_number
    operator: Any = _ragged_ops.ragged_topk
    if not is_plain(scores):
        operator = _ops.operator("ragged_topk", k, t)
    return operator(  # type: ignore[no-any-return]
        *(scores, *segments, budget, k, temperature, t, mask, warm_start),
        *(settings.largest, settings.output, settings.out_dtype, settings.solver),
    )


def _call_backward(
    ctx: Any, grad: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    scores, _, temperature, mask, pair, offsets, lengths = ctx.saved_tensors
    settings, per_row = ctx.settings, any(needs[1:3])
    operator: Any = _ragged_ops.ragged_topk_backward
    if not is_plain(grad, scores):
        operator = _ops.operator("ragged_topk_backward", settings.temperature_number)
        if not torch.compiler.is_compiling() and grad._is_zerotensor():
            grad = torch.zeros(grad.shape, dtype=grad.dtype, device=scores.device)
    found = operator(
        *(grad, scores, offsets, lengths, ctx.max_length, temperature),
        *(settings.temperature_number, mask, pair, settings.largest, settings.output, per_row),
    )
    return (
        found[0],
        found[1] if needs[1] else None,
        found[2] if needs[2] else None,
    )


def _differentiable(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients in torch operations, which have derivatives themselves."""
    scores, budget, temperature, mask, pair, offsets, lengths = ctx.saved_tensors
    settings = ctx.settings
    dense = _dense(scores, mask, Segments(offsets, lengths, ctx.max_length))
    if dense.longer is not None:
        pair = pair.masked_fill(dense.longer.segments[:, None], math.nan)
    row = Row(dense.scores, budget, temperature, dense.mask, pair, settings)
    if settings.output == "threshold":
        found = threshold_vjp(row, row.side * grad)
    else:
        found = (log_mask_vjp if settings.output == "log" else mask_vjp)(row, dense.rows(grad))
    d_scores, *d_rows = row.for_inputs(found)
    assert d_scores is not None
    return (dense.back(d_scores, scores.shape[-1]), *d_rows)


class RaggedTopK(torch.autograd.Function):
    """Mask, hard mask or log p of rows of several lengths."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        offsets: Tensor | None,
        lengths: Tensor | None,
        max_length: int | None,
        settings: Settings,
        with_threshold: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        segments = Segments(offsets, lengths, max_length)
        out, pair = _call_operator(
            scores, budget, temperature, mask, warm_start, settings, segments
        )
        ctx.save_for_backward(scores, budget, temperature, mask, pair, offsets, lengths)
        ctx.settings, ctx.max_length = settings, max_length
        ctx.set_materialize_grads(False)  # no zeros for the threshold, which has no gradient
        if not with_threshold:
            return out
        ctx.mark_non_differentiable(pair)
        return out, pair

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 10
        if torch.is_grad_enabled():
            return (*_differentiable(ctx, grad), *(None,) * 7)
        return (*_call_backward(ctx, grad, ctx.needs_input_grad), *(None,) * 7)


class RaggedThreshold(torch.autograd.Function):
    """b of rows of several lengths, in the caller's sense."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        offsets: Tensor | None,
        lengths: Tensor | None,
        max_length: int | None,
        settings: Settings,
    ) -> Tensor:
        segments = Segments(offsets, lengths, max_length)
        _, pair = _call_operator(scores, budget, temperature, mask, warm_start, settings, segments)
        ctx.save_for_backward(scores, budget, temperature, mask, pair, offsets, lengths)
        ctx.settings, ctx.max_length = settings, max_length
        return threshold_value(pair, scores.dtype, temperature, settings)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return (*_differentiable(ctx, grad), *(None,) * 6)
        return (*_call_backward(ctx, grad, ctx.needs_input_grad), *(None,) * 6)

"""Soft ranks and thresholds as differentiable formulas, for what their operators cannot do.

They serve the temperature's gradient, derivatives of derivatives, and ``torch.func``. Every one is
made of torch's operations and of one scan, whose derivative is the scan in the other direction:
with out = sums(gaps, values) and w = the reversed sums of the gradient of out,

    d values = w,        d gap between nodes i - 1 and i = -(out_i - values_i) w_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _ranking_ops
from ._autograd import is_plain
from ._derivatives import transforms_active
from .backends.common import compute_dtype, order_rows_by_torch, per_row_tensor, row_dtype
from .backends.torch import ranking_entry as plain


class DecayedSums(torch.autograd.Function):
    """The scan as an operator call, in both directions of differentiation."""

    @staticmethod
    def forward(ctx: Any, gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
        operator: Any = _ranking_ops.decayed_sums
        if not is_plain(gaps, values):
            operator = torch.ops.fast_lapsum.decayed_sums
        out: Tensor = operator(gaps, values, reverse)
        ctx.save_for_backward(gaps, values, out)
        ctx.reverse = reverse
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gaps, values, out = ctx.saved_tensors
        reverse = ctx.reverse
        back = decayed_sums(gaps, grad, not reverse)
        arrived = (out - values) * back  # what came over the gap, and what goes on with it
        d_gaps = -(arrived[..., :-1] if reverse else arrived[..., 1:]).sum(1)
        return d_gaps, back, None


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """The scan, by the kernels; under ``torch.func`` in torch's own operations."""
    if transforms_active():
        return plain.decayed_sums(gaps, values, reverse)
    return DecayedSums.apply(gaps, values, reverse)  # type: ignore[no-any-return,no-untyped-call]


def sorted_nodes(
    scores: Tensor, temperature: Tensor | float, mask: Tensor | None, descending: bool
) -> tuple[plain.Nodes, Tensor]:
    """Sorted rows with their sums, [rows, n], in the widest dtype, and where the scores were."""
    given = _ranking_ops.masked_rows(scores, mask)
    ordered, order = order_rows_by_torch(given, descending)
    rows = math.prod(scores.shape[:-1]), scores.shape[-1]
    ordered, order = ordered.reshape(rows).to(row_dtype(scores)), order.reshape(rows)
    t = per_row_tensor(temperature, scores).reshape(-1)
    return plain.nodes_of(ordered, t, compute_dtype(scores.dtype), decayed_sums), order


def soft_rank(
    scores: Tensor, temperature: Tensor | float, mask: Tensor | None, descending: bool
) -> Tensor:
    """Soft ranks in the shape of the scores."""
    if not scores.numel():
        return _empty(scores, temperature, scores.shape)
    nodes, order = sorted_nodes(scores, temperature, mask, descending)
    ranks = spoil(plain.ranks_in_order(nodes), nodes, mask is not None)
    placed = torch.zeros_like(ranks).scatter(-1, order, ranks)
    return placed.to(compute_dtype(scores.dtype)).view(scores.shape)


def soft_thresholds(
    scores: Tensor, temperature: Tensor | float, masses: Tensor | None, descending: bool
) -> Tensor:
    """b at every mass, [..., m]; without masses those of a sort."""
    if not scores.numel():
        m = scores.shape[-1] if masses is None else len(masses)
        return _empty(scores, temperature, (*scores.shape[:-1], m))
    nodes, _ = sorted_nodes(scores, temperature, None, descending)
    if masses is None:
        index = torch.arange(scores.shape[-1], dtype=nodes.scores.dtype, device=scores.device)
        masses = index + 0.5
    b = spoil(plain.thresholds_in_order(nodes, masses[None]).b, nodes)
    b = -b if descending else b
    return b.to(compute_dtype(scores.dtype)).view(*scores.shape[:-1], len(masses))


def _empty(scores: Tensor, temperature: Tensor | float, shape: tuple[int, ...]) -> Tensor:
    """A result without numbers, as a function of both."""
    dtype = compute_dtype(scores.dtype)
    return scores.new_zeros(shape, dtype=dtype) + nothing_of(scores, temperature).to(dtype)


def nothing_of(scores: Tensor, temperature: Tensor | float) -> Tensor:
    """0 as a function of both, with derivatives of 0, whatever they hold."""
    nothing = scores.reshape(-1)[:0].square().sum()
    if isinstance(temperature, Tensor):
        nothing = nothing + temperature.reshape(-1)[:0].square().sum()
    return nothing


def spoil(values: Tensor, nodes: plain.Nodes, is_masked: bool = False) -> Tensor:
    """NaN in the rows without an answer, in the gradient, too."""
    is_bad = plain.without_answer(nodes.scores, nodes.temperature[:, 0], is_masked, nodes.kept)
    bad = torch.where(is_bad, nodes.scores, 0.0) * torch.where(is_bad, math.nan, 0.0)
    return values + bad.sum(-1).view(-1, *(1,) * (values.dim() - 1))


def gradients(
    formula: Callable[..., Tensor], scores: Tensor, temperature: Tensor | float, grad: Tensor
) -> Tensor:
    """The gradient of a formula for the scores, as a part of the graph of all three."""
    with torch.enable_grad():
        out = formula(scores, temperature)
        found = torch.autograd.grad(out, scores, grad.to(out.dtype), create_graph=True)
    return found[0]

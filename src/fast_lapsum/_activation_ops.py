"""The operators of gated activations as PyTorch sees them: ReLU of what a mask lets through.

As in ``_ops.py`` rows lie along the last dimension. Budgets and temperatures are tensors of one
value per row, as a graph has them; those of a hard mask are whole. ``output`` is "mask" or "hard".
What is kept for backward is the gate or, for one row of a hard mask, its boundary instead: a score,
and the last index at which one that equals it is let through.
"""

from __future__ import annotations

import functools
import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from . import _ops
from .backends.triton import loader

GATED_ACTIVATION = (
    "(Tensor scores, Tensor budget, Tensor temperature, Tensor threshold, str output,"
    " ScalarType gate_dtype, bool keeps_gate)"
    " -> (Tensor activations, Tensor count, Tensor best, Tensor pair, Tensor kept)"
)
GATED_ACTIVATION_BACKWARD = (
    "(Tensor grad, Tensor scores, Tensor temperature, Tensor best, Tensor pair, Tensor kept,"
    " str output, bool keeps_gate) -> Tensor"
)


def kernels_for(scores: Tensor) -> Any:
    """The kernels for these scores, or None: contiguous ones of a GPU, not float64."""
    if not scores.is_cuda or scores.dtype.itemsize > 4 or not scores.is_contiguous():
        return None
    backend = loader.entry()
    return None if backend is None or not backend.supports(scores) else _triton()


@functools.cache
def _triton() -> Any:
    return import_module(".backends.triton.activation_entry", __package__)


def gated_activation(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    threshold: Tensor,
    output: str,
    gate_dtype: torch.dtype,
    keeps_gate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """relu(scores) * gate, how many scores exceed the threshold, and the best with a gate below 1.

    Then threshold pairs [..., 2] of the soft mask, and what is kept of the gate.
    """
    kernels = kernels_for(scores) if scores.numel() else None
    if kernels is not None and not keeps_gate:
        found = kernels.gated_forward(scores, budget, temperature, threshold)
        if found is not None:
            out, counts, best, boundary, pair = found
            return out, counts.sum(), best.amax(), pair, boundary
    numbers = (scores, budget, 0.0, temperature, 1.0)
    gate, pair = _ops.soft_topk(*numbers, None, None, True, output, gate_dtype, "auto")
    if kernels is not None:
        out, counts, best = kernels.activate(scores, gate, threshold)
        count, best = counts.sum(), best.amax()
    else:
        out = torch.relu(scores) * gate.to(scores.dtype)
        # One dimension at least, or the threshold would be rounded to the dtype of the scores.
        count = torch.count_nonzero(scores > threshold.reshape(1))
        best = best_left_out(scores, gate)
    return out, count, best, pair, gate if keeps_gate else _boundary(scores, gate)


def gated_activation_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    best: Tensor,
    pair: Tensor,
    kept: Tensor,
    output: str,
    keeps_gate: bool,
) -> Tensor:
    """The whole gradient for the scores, through the ReLU and through the gate."""
    kernels = kernels_for(scores) if scores.numel() else None
    if kernels is not None:
        of_gate = (kept, best if output == "hard" else None) if keeps_gate else (None, None)
        boundary = None if keeps_gate else kept
        given = (grad.contiguous(), scores, *of_gate, temperature, 1.0, pair, boundary)
        return kernels.gated_backward(*given)  # type: ignore[no-any-return]
    gate = kept if keeps_gate else _gate(scores, kept)
    relu = torch.relu(scores)
    to_gate = (grad * relu).to(gate.dtype)
    given = (to_gate, scores, temperature, 1.0, None, pair, True, output, False)
    through_gate = _ops.soft_topk_backward(*given)[0]
    of_scores: Tensor = torch.ops.aten.threshold_backward((grad * gate).to(grad.dtype), relu, 0)
    return of_scores + through_gate


def best_left_out(scores: Tensor, gate: Tensor) -> Tensor:
    """The best score whose gate is below 1; -inf if there is none, and of no scores."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    left = scores.to(dtype).masked_fill(gate == 1, -math.inf)
    # A graph may not know whether there are any.
    return torch.cat((left.reshape(-1), left.new_full((1,), -math.inf))).amax()


def _boundary(scores: Tensor, gate: Tensor) -> Tensor:
    """What the kernels keep of the hard gate of one row, which they have without the gate."""
    least = scores.double().masked_fill(gate != 1, math.inf).amin()
    is_last = (gate == 1) & (scores == least.reshape(1))
    index = torch.arange(1, scores.numel() + 1, device=scores.device)
    last = (index * is_last).amax() - 1
    return torch.stack((least.masked_fill(gate.isnan().any(), math.nan), last.double()))


def _gate(scores: Tensor, boundary: Tensor) -> Tensor:
    """The gate of such a boundary."""
    least, last = boundary[:1], boundary[1:]
    index = torch.arange(scores.numel(), device=scores.device)
    taken = (scores > least) | ((scores == least) & (index <= last))
    return taken.to(scores.dtype).masked_fill(least.isnan(), math.nan)


def _fake_gated_activation(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    threshold: Tensor,
    output: str,
    gate_dtype: torch.dtype,
    keeps_gate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    new, wide = scores.new_empty, torch.promote_types(scores.dtype, torch.float32)
    gate = torch.empty_like(scores, dtype=gate_dtype)
    return (
        torch.empty_like(scores),
        new((), dtype=torch.int64),
        new((), dtype=wide),
        new((*scores.shape[:-1], 2), dtype=wide),
        gate if keeps_gate else new((2,), dtype=torch.float64),
    )


def _fake_gated_activation_backward(grad: Tensor, scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores)


for _name, _schema, _function, _fake in (
    ("gated_activation", GATED_ACTIVATION, gated_activation, _fake_gated_activation),
    (
        "gated_activation_backward",
        GATED_ACTIVATION_BACKWARD,
        gated_activation_backward,
        _fake_gated_activation_backward,
    ),
):
    torch.library.define(f"{_ops.NAMESPACE}::{_name}", _schema)
    torch.library.impl(f"{_ops.NAMESPACE}::{_name}", "default", _function)
    torch.library.register_fake(f"{_ops.NAMESPACE}::{_name}", _fake)
del _name, _schema, _function, _fake

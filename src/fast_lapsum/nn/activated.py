"""ReLU of what a hard gate lets through, in one pass on a GPU."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _activation_traced
from .._activation_autograd import gradient_in_parts
from .._autograd import call_operator, is_plain
from .._call import prepare
from .._derivatives import Settings, transforms_active
from ..backends.triton import loader
from .running_threshold import RunningThreshold, is_computed_again

#: Where graphs have the operators of ``_activation_ops.py``; elsewhere a compiler does as well.
_DEVICES_WITH_KERNELS = ("cuda",)


class Activated(NamedTuple):
    """Activations; in parts, how many scores exceed a threshold, and the best that are left out."""

    activations: Tensor
    counts: Tensor
    best_left_out: Tensor


def has_kernel(scores: Tensor, threshold: Tensor) -> bool:
    """Whether a kernel takes these scores: eagerly, contiguous ones of a GPU, not float64."""
    # The number of scores is asked for last: in a graph it may be unknown, and a trace records it.
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if not scores.is_cuda or is_traced or transforms_active() or not is_plain(scores):
        return False
    backend = loader.entry()
    if backend is None or not backend.supports(scores) or not scores.is_contiguous():
        return False
    is_small = scores.dtype.itemsize <= 4 and threshold.dtype == torch.float32
    is_one = threshold.device == scores.device and threshold.dim() == 0
    return is_small and is_one and scores.numel() > 0


def has_operator(
    scores: Tensor, threshold: Tensor, k: float | Tensor, temperature: float | Tensor
) -> bool:
    """Whether a graph takes these scores to the kernels: those of a GPU, of values not learned."""
    if scores.device.type not in _DEVICES_WITH_KERNELS:
        return False
    if type(scores) not in (Tensor, Parameter):  # such as a DTensor, which has its own way
        return False
    if not (isinstance(k, Tensor) and isinstance(temperature, Tensor)):
        return False
    is_small = scores.dtype.itemsize <= 4 and threshold.dtype == torch.float32
    is_one = threshold.device == scores.device and threshold.dim() == 0
    is_learned = k.requires_grad or temperature.requires_grad
    return is_small and is_one and not is_learned


def activated(scores: Tensor, gate: Tensor, threshold: Tensor) -> Activated:
    """relu(scores) * gate, differentiable, and what a threshold's update asks of the scores."""
    found = _Activated.apply(scores, gate.contiguous(), threshold)  # type: ignore[no-untyped-call]
    return Activated(*found)


def gated(
    scores: Tensor,
    k: float | Tensor,
    temperature: float | Tensor,
    dim: int | None,
    hard: bool,
    threshold: Tensor,
) -> Activated:
    """The same with the mask of the scores as their gate, of numbers for k and temperature.

    Both parts of the gradient are written as one, and what the gate receives is never in memory. In
    a graph both are tensors, and the numbers of all parts are one.
    """
    if isinstance(k, Tensor) and isinstance(temperature, Tensor):
        given = (scores, k, temperature, threshold, dim, hard)
        return Activated(*_activation_traced.gated_activation(*given))
    call = prepare(scores, k, temperature, dim, True, None, "hard" if hard else "mask")
    found = _Gated.apply(call.scores, call.settings, threshold)  # type: ignore[no-untyped-call]
    return Activated(call.restore(found[0]), *found[1:])


def update(running: RunningThreshold, found: Activated, budget: float, setting: float) -> None:
    """Let a threshold take such a batch into account, of which some are wanted, and not all."""
    if is_computed_again():
        return
    running.forget(setting)
    state = (running.threshold, running.mean_miss, running.mean_size, running.mean_distance)
    _kernels().move(
        *(found.counts, found.best_left_out, (*state, running.num_batches)),
        *(float(budget), running.momentum or 0.0),
    )
    for written in (*state, running.num_batches):
        if not written.is_inference():
            torch.autograd.graph.increment_version(written)  # which a kernel does not


@functools.cache
def _kernels() -> Any:
    return import_module("..backends.triton.activation_entry", __package__)


class _Activated(torch.autograd.Function):
    """One launch each way; derivatives of derivatives in torch operations."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, gate: Tensor, threshold: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, counts, best = _kernels().activate(scores, gate, threshold)
        ctx.save_for_backward(scores, gate)
        ctx.mark_non_differentiable(counts, best)
        ctx.set_materialize_grads(False)
        return out, counts, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        scores, gate = ctx.saved_tensors
        if torch.is_grad_enabled() or transforms_active() or not is_plain(grad, scores):
            relu = torch.relu(scores)
            d_scores = torch.ops.aten.threshold_backward((grad * gate).to(grad.dtype), relu, 0)
            return d_scores, (grad * relu).to(gate.dtype), None
        with_gate = ctx.needs_input_grad[1]
        found = _kernels().activate_backward(grad.contiguous(), scores, gate, with_gate)
        return (*found, None)


class _Gated(torch.autograd.Function):
    """The mask and what it lets through; backward one launch, or two of long rows."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, settings: Settings, threshold: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        whole = None
        if settings.output == "hard":
            k, t = settings.budget_number, settings.temperature_number
            whole = _kernels().gated_forward(scores, k, t, threshold)
        if whole is not None:
            out, counts, best, boundary, pair = whole
            ctx.save_for_backward(scores, pair, None, None, boundary)
        else:
            gate, pair = call_operator(scores, None, None, None, None, settings)
            out, counts, best = _kernels().activate(scores, gate, threshold)
            known = best if settings.output == "hard" else None
            ctx.save_for_backward(scores, pair, gate, known, None)
        ctx.settings = settings
        ctx.mark_non_differentiable(counts, best)
        ctx.set_materialize_grads(False)
        return out, counts, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        scores, pair, gate, best, boundary = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled() or transforms_active() or not is_plain(grad, scores):
            return gradient_in_parts(grad, scores, None, None, pair, settings), None, None
        t = settings.temperature_number
        given = (grad.contiguous(), scores, gate, best, None, t, pair, boundary)
        return _kernels().gated_backward(*given), None, None

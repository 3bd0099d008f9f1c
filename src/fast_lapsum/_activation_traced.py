"""Gated activations as a compiler sees them: one operator, taken apart by it (see ``_traced.py``).

An eager call has numbers for k and temperature, and its own way to the same kernels. A graph has
tensors, and the operators of ``_activation_ops.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import __version__, _activation_ops
from ._activation_autograd import GatedActivation
from ._call import Call, prepare
from ._derivatives import transforms_active
from ._traced import define

_CALL = (
    "(Tensor scores, Tensor k, Tensor temperature, Tensor threshold, int[]? dim, bool hard)"
    " -> (Tensor activations, Tensor count, Tensor best)"
)


def gated_activation(
    scores: Tensor, k: Tensor, temperature: Tensor, threshold: Tensor, dim: int | None, hard: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """relu(scores) times their mask, how many scores exceed a threshold, and the best left out.

    Differentiable in the scores alone; the best is of use where one hard mask is all there is.
    """
    dims = None if dim is None else [dim]
    given = (scores, k, temperature, threshold, dims, hard)
    return torch.ops.fast_lapsum.call_gated_activation(*given, __version__)  # type: ignore[no-any-return]


def _call_gated_activation(
    scores: Tensor,
    k: Tensor,
    temperature: Tensor,
    threshold: Tensor,
    dim: list[int] | None,
    hard: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    output = "hard" if hard else "mask"
    call = prepare(scores, k.detach(), temperature.detach(), dim, True, None, output)
    kernels = _activation_ops.kernels_for(call.scores)
    if kernels is None or transforms_active():
        out, count, best = _in_parts(call, threshold)
    else:
        is_one = hard and call.scores.dim() == 1
        keeps_gate = not (is_one and _is_over(call.scores.shape[-1], kernels.LONGEST_WITH_GATE))
        given = (call.scores, call.budget, call.temperature, threshold, call.settings, keeps_gate)
        out, count, best = GatedActivation.apply(*given)  # type: ignore[no-untyped-call]
    return call.restore(out), count, best


def _in_parts(call: Call, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In operations that a compiler makes kernels of."""
    gate, scores = call.write(), call.scores.detach()
    out = torch.relu(call.scores) * gate.to(scores.dtype)
    # One dimension at least, or the threshold would be rounded to the dtype of the scores.
    count = torch.count_nonzero(scores > threshold.reshape(1))
    return out, count, _activation_ops.best_left_out(scores, gate.detach())


def _is_over(length: Any, longest: int) -> bool:
    """Whether a length is over another.

    One that may change parts a compiler's graphs: short batches have one of their own. A graph that
    is exported, which is alone, and older versions of torch ask that all it may be are.
    """
    if isinstance(length, int):
        return length > longest
    from torch.fx.experimental import symbolic_shapes

    guarded = getattr(symbolic_shapes, "guard_or_false", None)
    if guarded is None or torch.compiler.is_exporting():
        guarded = symbolic_shapes.statically_known_true
    return bool(guarded(length > longest))


define("call_gated_activation", _CALL, _call_gated_activation)

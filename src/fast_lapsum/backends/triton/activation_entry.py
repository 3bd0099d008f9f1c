"""The entries of gated activations: from contiguous tensors of one shape to launches."""

from __future__ import annotations

import torch
from torch import Tensor

from .activation import activate_scores, activate_scores_backward, move_threshold
from .device import on_device
from .step_launch import launch_named
from .steps import Step

for _kernel in (activate_scores, activate_scores_backward, move_threshold):  # see steps.py
    getattr(_kernel, "cache_key", None)
del _kernel

#: Scores that a program has at a time, sixteen for each of its threads.
BLOCK = 2048
#: Programs that share the scores, several for each place on a device: each leaves two numbers.
MOST_PROGRAMS = 4096
#: Of their numbers, so many are read at a time.
LANES = 1024
_OPTIONS = {"num_warps": 4}


def activate(scores: Tensor, gate: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """relu(scores) * gate in the dtype of the scores, and of each program two numbers.

    How many scores exceed the threshold, and the best score whose gate is not 1.
    """
    out = torch.empty_like(scores)
    n = scores.numel()
    programs = max(1, min(-(-n // BLOCK), MOST_PROGRAMS))
    counts = torch.empty(programs, dtype=torch.int64, device=scores.device)
    best = torch.empty(programs, dtype=torch.float32, device=scores.device)
    with on_device(scores):
        launch_named(
            scores.device,
            ("activate", programs),
            lambda: [Step(activate_scores, programs, (), {"BLOCK": BLOCK}, _OPTIONS)],
            (scores, gate, threshold, out, counts, best, n),
        )
    return out, counts, best


def activate_backward(
    grad: Tensor, scores: Tensor, gate: Tensor, with_gate: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients for scores and, if wanted, for the gate."""
    d_scores = torch.empty_like(scores)
    d_gate = torch.empty_like(gate) if with_gate else None
    n = scores.numel()
    programs = max(1, -(-n // BLOCK))
    with on_device(scores):
        launch_named(
            scores.device,
            ("activate_backward", programs),
            lambda: [Step(activate_scores_backward, programs, (), {"BLOCK": BLOCK}, _OPTIONS)],
            (grad, scores, gate, d_scores, d_gate, n),
        )
    return d_scores, d_gate


def move(
    counts: Tensor, best: Tensor, state: tuple[Tensor, ...], budget: float, momentum: float
) -> None:
    """One step of a running threshold, written to its state.

    Args:
        counts: of each program, how many scores exceed the threshold.
        best: of each program, the best score that is left out.
        state: threshold, means of misses, of their sizes and of distances, and number of batches.
        budget: how many scores should exceed the threshold.
        momentum: the least weight of a batch.
    """
    with on_device(counts):
        launch_named(
            counts.device,
            ("move",),
            lambda: [Step(move_threshold, 1, (), {"LANES": LANES}, _OPTIONS)],
            (counts, best, counts.numel(), *state, budget, momentum),
        )

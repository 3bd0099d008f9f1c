"""The demonstration: one exact soft top-k over many scores, timed beside what it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .timing import Timing, measure

REPEATS = 9


class Demo(NamedTuple):
    """What the demonstration found."""

    scores: Tensor
    budget_error: float
    gradient_sum: float
    scores_with_gradient: int
    timings: dict[str, Timing]


def run(
    n: int,
    k: float,
    temperature: float,
    device: torch.device,
    seed: int,
    report: Callable[[str], None] = lambda step: None,
) -> Demo:
    """Select k of n Gaussian scores softly, forward and backward, and time it beside its peers."""
    report(f"drawing {n:,} scores")
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator).to(device)
    weights = torch.randn(n, generator=generator).to(device)

    report("soft_topk, forward and backward")
    leaf = scores.clone().requires_grad_()
    mask = soft_topk(leaf, k, temperature)
    (gradient,) = torch.autograd.grad(mask, leaf, weights)
    budget_error = float(mask.detach().double().sum() - k)

    def softmax() -> Tensor:
        return torch.softmax(leaf, -1)

    def ours() -> Tensor:
        return soft_topk(leaf, k, temperature)

    timings = measure(
        {
            "soft_topk": lambda: soft_topk(scores, k, temperature),
            "soft_topk, with backward": lambda: torch.autograd.grad(ours(), leaf, weights),
            "torch.softmax": lambda: torch.softmax(scores, -1),
            "torch.softmax, with backward": lambda: torch.autograd.grad(softmax(), leaf, weights),
            "torch.topk": lambda: torch.topk(scores, max(int(k), 1)),
            "torch.sort": lambda: torch.sort(scores),
        },
        repeats=REPEATS,
        device=device,
        report=lambda name: report(f"timing {name}"),
    )
    return Demo(
        scores=scores,
        budget_error=budget_error,
        gradient_sum=float(gradient.double().sum()),
        scores_with_gradient=int(gradient.count_nonzero()),
        timings=timings,
    )

"""σ-zero: descent on a smooth count of changed coordinates (Cinà et al., ICLR 2025).

"σ-zero: Gradient-based Optimization of ℓ0-norm Adversarial Examples", arXiv 2402.01879. With n
coordinates, Algorithm 1 goes down

    max(margin, 0) + [not fooled] + 1/n sum_i δ_i² / (δ_i² + σ)

by Adam on the gradient divided by its largest entry, clips δ to valid colours, and sets to zero all
coordinates under a threshold τ, which grows by t η while the picture fools and shrinks by t η while
it does not. η falls from its start to a tenth of it along a cosine.

Defaults: η = 1, σ = 1e-3, τ = 0.3, t = 0.01, as in the paper and its code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..protocol import Attack, Result
from .search import Search, margin, searching

PAPER = "Cinà et al. 2025, arXiv 2402.01879"
_STEPS = 1000  # the paper's long runs; its short ones have 100
_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8  # of Adam


class Settings(NamedTuple):
    """The paper's four numbers."""

    step: float = 1.0
    sigma: float = 1e-3
    threshold: float = 0.3
    threshold_step: float = 0.01


def smooth_count_gradient(change: Tensor, sigma: float) -> Tensor:
    """The gradient of 1/n sum δ² / (δ² + σ): 2 σ δ / (n (δ² + σ)²)."""
    return change.mul(2 * sigma / change.numel()) / change.square().add_(sigma).square_()


def adapted_threshold(threshold: float, fooled: bool, step: float) -> float:
    """τ after a step: up where the picture fools, down where not, within [0, 1]."""
    return min(1.0, max(0.0, threshold + (step if fooled else -step)))


def cosine_step(start: float, index: int, total: int) -> float:
    """η of step ``index``: from ``start`` down to a tenth of it."""
    least = start / 10
    return least + (start - least) * (1 + math.cos(math.pi * index / total)) / 2


def attack(settings: Settings | None = None) -> Attack:
    """σ-zero with these settings."""
    chosen = settings or Settings()
    return searching("sigma-zero", PAPER, _STEPS, lambda search, _: _descend(search, chosen))


def _descend(search: Search, settings: Settings) -> Result:
    image = search.image
    change, first, second = (torch.zeros_like(image) for _ in range(3))
    threshold = settings.threshold
    total = search.planned
    index = 0
    while index < total and search.allows():
        trial = search.try_change(
            change, lambda logits: margin(logits, search.label, search.target).clamp(min=0)
        )
        gradient = trial.gradient.add_(smooth_count_gradient(change, settings.sigma))
        gradient.div_(gradient.abs().max().clamp_(min=1e-12))
        _adam(change, gradient, first, second, cosine_step(settings.step, index, total), index + 1)
        change.add_(image).clamp_(0, 1).sub_(image)
        index += 1
        # As the paper's code does, τ moves by the step size that comes next.
        moved = settings.threshold_step * cosine_step(settings.step, index, total)
        threshold = adapted_threshold(threshold, trial.won, moved)
        change.masked_fill_(change.abs() < threshold, 0)
    return search.result({"threshold": threshold, "settings": settings._asdict()})


def _adam(
    change: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: float, count: int
) -> None:
    """One step of Adam in place."""
    first.mul_(_FIRST_DECAY).add_(gradient, alpha=1 - _FIRST_DECAY)
    second.mul_(_SECOND_DECAY).addcmul_(gradient, gradient, value=1 - _SECOND_DECAY)
    size = second.div(1 - _SECOND_DECAY**count).sqrt_().add_(_EPSILON)
    change.addcdiv_(first, size, value=-step / (1 - _FIRST_DECAY**count))

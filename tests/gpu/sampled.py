"""Rows whose samples lie: the places that the kernels sample hold nothing like the other scores."""

from __future__ import annotations

import torch
from torch import Tensor


def places(n: int, sample: int, run: int) -> Tensor:
    """The indices that a sample of a row of n scores is made of, in runs of so many."""
    stretch = n // (sample // run)
    number = torch.arange(sample)
    runs = number // run
    within = (((runs * 2654435761) & 0xFFFFFFFF) * stretch) >> 32
    return (runs * stretch + within) // run * run + number % run


def deceive(scores: Tensor, sample: int, run: int, value: float) -> None:
    """Move the sampled scores of all rows far away, in place."""
    at = places(scores.shape[-1], sample, run).to(scores.device)
    scores[..., at] = value + scores[..., at] / 16

"""Scores and cotangents, the same for every method that is measured at a size."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

#: Longer rows are drawn on the device itself: too long to be drawn on the CPU and copied.
LONGEST_FROM_CPU = 10_000_000


class Inputs(NamedTuple):
    """Standard normal float32 tensors, [1, n] each."""

    scores: Tensor
    #: What gradients are taken against.
    cotangent: Tensor


@lru_cache(maxsize=1)
def normal_inputs(device: str, n: int, seed: int) -> Inputs:
    """Equal numbers on every device up to ``LONGEST_FROM_CPU``; only the last ones are kept.

    >>> normal_inputs("cpu", 3, 0).scores.shape
    torch.Size([1, 3])
    """
    source = "cpu" if n <= LONGEST_FROM_CPU else device
    generator = torch.Generator(source).manual_seed(seed)
    scores, cotangent = (torch.randn(1, n, generator=generator, device=source) for _ in range(2))
    return Inputs(scores.to(device), cotangent.to(device))

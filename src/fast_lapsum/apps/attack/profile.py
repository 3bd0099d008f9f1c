"""The operator's share of a step: timed apart, on the scores that an attack ended with."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .protocol import Result

_REPEATS = 20


class Profile(NamedTuple):
    """Seconds of a step of the attack, and of the operator forward and backward."""

    step: float
    operator: float

    @property
    def share(self) -> float:
        """Of the step."""
        return self.operator / self.step

    def sentence(self) -> str:
        """For people.

        >>> Profile(0.1, 0.005).sentence()
        'profile: a step takes 100.00 ms, the operator 5.00 ms forward and backward, 5.0%'
        """
        return (
            f"profile: a step takes {1e3 * self.step:.2f} ms, the operator"
            f" {1e3 * self.operator:.2f} ms forward and backward, {self.share:.1%}"
        )


def profile(result: Result) -> Profile | None:
    """None for attacks that have no scores, and so no operator."""
    scores, k, t = (result.extra.get(name) for name in ("scores", "k", "t"))
    if not isinstance(scores, Tensor) or not isinstance(k, float) or not isinstance(t, float):
        return None
    flat = scores.detach().flatten().requires_grad_()
    upstream = torch.ones_like(flat)
    times = []
    for _ in range(_REPEATS):
        _wait(flat.device)
        start = time.perf_counter()
        torch.autograd.grad(soft_topk(flat, k, t), flat, upstream)
        _wait(flat.device)
        times.append(time.perf_counter() - start)
    return Profile(result.seconds / max(1, result.steps), median(times))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""The operator's share of a step: the steps timed as they come, the operator timed apart."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .protocol import Progress, ProgressHook, Result

_WARM_UP = 3
_REPEATS = 20


class Profile(NamedTuple):
    """Seconds of a step of the attack, and of the operator forward and backward."""

    step: float
    operator: float

    @property
    def share(self) -> float:
        """Of the step."""
        return self.operator / self.step

    def record(self) -> dict[str, float]:
        """For a file."""
        return {
            "step_seconds": self.step,
            "operator_seconds": self.operator,
            "share": self.share,
        }

    def sentence(self) -> str:
        """For people.

        >>> Profile(0.1, 0.005).sentence()
        'profile: a step takes 100.00 ms, the operator 5.00 ms forward and backward, 5.0%'
        """
        return (
            f"profile: a step takes {1e3 * self.step:.2f} ms, the operator"
            f" {1e3 * self.operator:.2f} ms forward and backward, {self.share:.1%}"
        )


class StepClock:
    """A progress hook that passes on what it is told, and times what lies between.

    What the other hook takes, a display for one, is no part of a step; nor is what comes before the
    first report: loading, compilation, the attack's own start.
    """

    def __init__(self, hook: ProgressHook) -> None:
        self.seconds: list[float] = []
        self._hook = hook
        self._left: float | None = None

    def __call__(self, said: Progress) -> None:
        """A step is done."""
        now = time.perf_counter()
        if self._left is not None:
            self.seconds.append(now - self._left)
        self._hook(said)
        self._left = time.perf_counter()


def has_operator(result: Result) -> bool:
    """Whether the attack has scores, a budget and a temperature, and so an operator."""
    return isinstance(result.extra.get("scores"), Tensor) and all(
        isinstance(result.extra.get(name), float) for name in ("k", "t")
    )


def profile(result: Result, steps: list[float], mask: Tensor | None = None) -> Profile:
    """The median of ``steps``, and of the operator on what the attack ended with."""
    return Profile(median(steps), operator_seconds(result, mask))


def operator_seconds(result: Result, mask: Tensor | None = None) -> float:
    """Median seconds of the operator forward and backward, called as in a step.

    k and t are tensors, and only pixels of ``mask`` [H, W] may be chosen. The gradients are those
    by scores, k and t: what the paper's recipe takes. Ours takes those by k and t only, and no step
    waits for its device after every call, so for ours this is an upper bound, but for caches that
    the classifier empties in a step.
    """
    extra = result.extra
    scores, k, t = extra["scores"], extra["k"], extra["t"]
    assert isinstance(scores, Tensor)
    flat = scores.detach().flatten().requires_grad_()
    budgets = [flat.new_tensor(value).requires_grad_() for value in (k, t)]
    allowed = None if mask is None else mask.flatten()
    # Not all the same: p always sums to k, so that such a gradient is zero.
    upstream = torch.linspace(-1, 1, len(flat), dtype=flat.dtype, device=flat.device)
    times = []
    for _ in range(_WARM_UP + _REPEATS):
        _wait(flat.device)
        start = time.perf_counter()
        chosen = soft_topk(flat, *budgets, mask=allowed)
        torch.autograd.grad(chosen, (flat, *budgets), upstream)
        _wait(flat.device)
        times.append(time.perf_counter() - start)
    return median(times[_WARM_UP:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

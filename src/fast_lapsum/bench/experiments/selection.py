"""One method at one size: whether it can run, whether its answer is sane, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..experiment import COMPILE_SECONDS, Settings, Unavailable, patience
from ..methods import METHODS, OURS
from ..peers.protocol import Peer

TEMPERATURE = 1.0
#: How far our own mass may be from k, relative to k.
BUDGET_TOLERANCE = 1e-6
#: Scores that move together change no mask: our gradient adds up to 0, relative to its size.
GRADIENT_SUM_TOLERANCE = 1e-5

#: Methods whose memory torch's allocator does not see, as it is JAX's.
UNSEEN_MEMORY = frozenset({"softjax (softsort)"})

Result = TypeVar("Result")

FORWARD = "forward"
FORWARD_BACKWARD = "forward+backward"


class SanityError(RuntimeError):
    """An answer that no time or error may be reported for."""


def sixteenth(n: int) -> int:
    """The whole budget nearest below n/16, and at least 1: every method can take it.

    >>> sixteenth(10), sixteenth(1000)
    (1, 62)
    """
    return max(1, n // 16)


def usable(name: str, passes: str = FORWARD) -> Peer:
    """The method, or :class:`Unavailable` with the reason why it has no such row."""
    method = METHODS[name]
    if passes == FORWARD_BACKWARD and not method.differentiable:
        raise Unavailable("not differentiable")
    reason = method.available()
    if reason is not None:
        raise Unavailable(reason)
    return method


def method_patience(name: str, settings: Settings) -> float:
    """What a first call may take beyond the limit: ours compiles on a GPU, JAX anywhere."""
    if name == OURS.name:
        return patience(settings)
    return COMPILE_SECONDS if METHODS[name].compiles else 0.0


def first_call(call: Callable[[], Result]) -> Result:
    """What ``call`` returns; :class:`Unavailable` where a package lacks a part for this device."""
    try:
        return call()
    except ImportError as error:
        raise Unavailable(str(error)) from error


def mass_of(method: Peer, mask: Tensor, scores: Tensor, k: float) -> float:
    """The sum of a mask in float64; SanityError for a mask that cannot be meant.

    Peers answer for their own budgets; ours must be met.
    """
    if mask.shape != scores.shape:
        raise SanityError(
            f"{method.name} returned a mask of shape {tuple(mask.shape)}, expected "
            f"{tuple(scores.shape)}"
        )
    mass = float(mask.sum(dtype=torch.float64))
    # One infinite or undefined entry makes the sum so, and no copy of a long row is needed.
    if not abs(mass) < float("inf"):
        raise SanityError(f"{method.name} returned a mask that adds up to {mass}, not a number")
    if method.name == OURS.name and not abs(mass - k) <= BUDGET_TOLERANCE * k:
        raise SanityError(
            f"{method.name} returned a mask of mass {mass}, expected k = {k} within "
            f"{BUDGET_TOLERANCE:g} of it"
        )
    return mass


def check_gradient(method: Peer, gradient: Tensor, scores: Tensor) -> None:
    """SanityError for a gradient that cannot be meant."""
    if gradient.shape != scores.shape:
        raise SanityError(
            f"{method.name} returned a gradient of shape {tuple(gradient.shape)}, expected "
            f"{tuple(scores.shape)}"
        )
    total = float(gradient.sum(dtype=torch.float64))
    if not abs(total) < float("inf"):
        raise SanityError(f"{method.name} returned a gradient that adds up to {total}")
    if method.name == OURS.name:
        size = float(torch.linalg.vector_norm(gradient, 1, dtype=torch.float64))
        if not abs(total) <= GRADIENT_SUM_TOLERANCE * size:
            raise SanityError(
                f"{method.name} returned a gradient that adds up to {total:g}, expected 0 within "
                f"{GRADIENT_SUM_TOLERANCE:g} of its 1-norm {size:g}"
            )


def checked_call(
    method: Peer, scores: Tensor, cotangent: Tensor, k: int, passes: str
) -> tuple[Callable[[], tuple[Tensor, ...]], int | None]:
    """What is to be timed, called and checked once, and that call's peak memory on a GPU.

    The peak is in bytes beyond scores and cotangent, by torch's allocator; None where it is blind.
    """
    if passes == FORWARD_BACKWARD:
        leaf = scores.detach().requires_grad_()

        def call() -> tuple[Tensor, ...]:
            mask = method.function(leaf, k, TEMPERATURE)
            return mask, *torch.autograd.grad(mask, leaf, cotangent)
    else:

        def call() -> tuple[Tensor, ...]:
            return (method.function(scores, k, TEMPERATURE),)

    is_seen = scores.is_cuda and method.name not in UNSEEN_MEMORY
    before = 0
    if is_seen:
        torch.cuda.reset_peak_memory_stats(scores.device)
        before = torch.cuda.memory_allocated(scores.device)
    mask, *gradients = first_call(call)
    peak = torch.cuda.max_memory_allocated(scores.device) - before if is_seen else None
    mass_of(method, mask.detach(), scores, k)
    for gradient in gradients:
        check_gradient(method, gradient, scores)
    return call, peak

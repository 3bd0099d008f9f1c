"""The coder's differentiable building blocks, each usable on its own.

The fifth, straight-through selection of exactly k, is ``fast_lapsum.soft_topk(..., hard=True)``.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor


def anneal(step: int, steps: int, start: float = 1.0, end: float = 0.05) -> float:
    """Temperature of a step: geometric from ``start`` at the first to ``end`` at the last.

    Example:
        >>> [round(anneal(step, 3), 4) for step in range(3)]
        [1.0, 0.2236, 0.05]
    """
    if steps < 1 or not 0 <= step < steps:
        raise ValueError(f"step must be in 0 ... steps - 1, got step={step}, steps={steps}")
    if not (start > 0 and end > 0):
        raise ValueError(f"start and end must be positive, got start={start}, end={end}")
    return start * math.pow(end / start, step / max(steps - 1, 1))


def bounded(amplitude: Tensor, weight: Tensor) -> Tensor:
    """c tanh(w): a value inside (-c, c) whose gradient never dies as a hard clip's would.

    Example:
        >>> bounded(torch.tensor(2.0), torch.tensor([0.0, 50.0]))
        tensor([0., 2.])
    """
    return amplitude * torch.tanh(weight)


def step_size(amplitude: Tensor, bits: Tensor) -> Tensor:
    """Width 2 |c| 2^-b of one of the 2^b cells that cover [-c, c], differentiable in both.

    Example:
        >>> step_size(torch.tensor(8.0), torch.tensor(3.0))
        tensor(2.)
    """
    return 2 * amplitude.abs() * torch.exp2(-bits)


def dither_quantise(
    value: Tensor, step_size: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """The value with the error of a quantiser, as noise: v + s (U - 1/2), U uniform in [0, 1).

    With subtractive dither the error of rounding to a grid of width s is this noise exactly. Unlike
    rounding it has gradients: 1 in the value, and in the step size (so in amplitude and bit depth)
    the noise itself.

    Example:
        >>> noisy = dither_quantise(torch.zeros(1000), torch.tensor(0.5))
        >>> bool((noisy.abs() <= 0.25).all())
        True
    """
    noise = torch.rand(value.shape, generator=generator, dtype=value.dtype, device=value.device)
    return value + step_size * (noise - 0.5)


@overload
def address_bits(count: Tensor, places: float | Tensor) -> Tensor: ...
@overload
def address_bits(count: float, places: float) -> float: ...
def address_bits(count: float | Tensor, places: float | Tensor) -> float | Tensor:
    """log2 C(places, count), the bits that name which ``count`` of ``places`` are on.

    Through lgamma, so that soft counts have a rate and a gradient; whole counts have the exact
    value. Tensors should be float64: the logarithms of large factorials nearly cancel.

    Example:
        >>> round(address_bits(2, 4), 6)
        2.584963
        >>> count = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        >>> address_bits(count, 4).backward()
        >>> abs(float(count.grad)) < 1e-12  # the maximum is in the middle
        True
    """
    if isinstance(count, Tensor) or isinstance(places, Tensor):
        like = count if isinstance(count, Tensor) else places
        assert isinstance(like, Tensor)
        count, places = (torch.as_tensor(number).to(like) for number in (count, places))
        nats = torch.lgamma(places + 1) - torch.lgamma(count + 1)
        return (nats - torch.lgamma(places - count + 1)) / math.log(2)
    if not 0 <= count <= places:
        raise ValueError(f"count must be in 0 ... places, got count={count}, places={places}")
    return (
        math.lgamma(places + 1) - math.lgamma(count + 1) - math.lgamma(places - count + 1)
    ) / math.log(2)

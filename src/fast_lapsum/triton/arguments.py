"""From tensors to what a launch is given: addresses, strides, numbers, scratch memory."""

from __future__ import annotations

import functools
import struct
from collections.abc import Hashable

import torch
from torch import Tensor

from .._layout import Group


def parts(like: Tensor, *sizes: tuple[int, torch.dtype]) -> tuple[Tensor, list[Tensor]]:
    """One allocation and its parts, each as aligned as Triton wants it."""
    ends = [0]
    for count, dtype in sizes:
        ends.append(ends[-1] + -(-count * dtype.itemsize // 256) * 256)
    whole = torch.empty(ends[-1], dtype=torch.uint8, device=like.device)
    return whole, [
        whole[start : start + count * dtype.itemsize].view(dtype)
        for start, (count, dtype) in zip(ends, sizes, strict=False)
    ]


def key_of(
    kind: str,
    n: int,
    group: Group,
    strides: list[list[int]],
    layout: Hashable,
    largest: bool,
    device: int | None,
) -> tuple[Hashable, ...]:
    """All that decides how the kernels of a call are compiled and with what numbers launched."""
    flat = tuple(stride for some in strides for stride in some)
    rows = (group.outer, group.inner)
    return (kind, n, rows, flat, layout, largest, device)


@functools.cache
def cores_of(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels of one call may come up while the one before still runs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def pair(number: float) -> tuple[float, float]:
    """A float64 as the sum of two float32, which is what a kernel can be given."""
    hi = _as_float32(number)
    return hi, number - hi


def fitting(
    values: Tensor | None, number: float, scores: Tensor, *, exactly: bool = False
) -> tuple[Tensor | None, float]:
    """Numbers that two float32 cannot hold become a tensor.

    They hold 48 digits of 53. A budget is to be met ``exactly``; a temperature that is off by so
    little moves p by as much as the rounding of u does, and is spared a launch.
    """
    if values is None and number:
        fits = 1e-25 < abs(number) < 1e38
        if not fits or (exactly and sum(map(_as_float32, pair(number))) != number):
            return scores.new_full((), number).expand(scores.shape[:-1]), 0.0
    return values, number


def _as_float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


def view(tensor: Tensor | None, offset: int) -> Tensor | None:
    if tensor is None or not offset:
        return tensor
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def along(tensor: Tensor | None, n: int) -> int:
    return 1 if tensor is None or n < 2 else tensor.stride(-1)

"""Colour transforms: pictures of bytes to float planes for training, integer planes to bytes.

``rgb`` takes 128 off each channel. ``opponent`` also rotates them, by an orthonormal matrix that
the code carries: the principal axes of the picture's colour edges, so that the first plane holds
most of them. Errors in the planes are errors in RGB of the same size: training measures them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from .code import FRACTION_BITS, MATRIX_BITS
from .tiles import tiles

Samples = npt.NDArray[np.int32 | np.int64]


def find_matrix(picture: npt.NDArray[np.uint8]) -> tuple[int, ...]:
    """The 3 x 3 matrix from planes to RGB: principal axes of differences between neighbours.

    Differences of 4 x 4 averages, because finer ones are not coded at low rates.
    """
    planes = F.avg_pool2d(to_planes(picture, (), torch.device("cpu")), 4, ceil_mode=True).double()
    across = (planes[:, :, 1:] - planes[:, :, :-1]).flatten(1)
    down = (planes[:, 1:] - planes[:, :-1]).flatten(1)
    edges = torch.cat([across, down], 1)
    # A little grey makes the axes of colourless pictures unique.
    spread = edges @ edges.T + torch.ones(3, 3, dtype=torch.float64)
    axes = torch.linalg.eigh(spread).eigenvectors.flip(1)
    axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
    return tuple(int(entry) for entry in (axes * 2**MATRIX_BITS).round().flatten())


def to_planes(
    picture: npt.NDArray[np.uint8], matrix: tuple[int, ...], device: torch.device
) -> Tensor:
    """Float32 planes [C, H, W] of a picture [H, W, C]; ``matrix`` is () for RGB."""
    planes = torch.from_numpy(np.ascontiguousarray(picture)).to(device).permute(2, 0, 1)
    planes = planes.to(torch.float32) - 128.0
    if matrix:
        # Orthonormal to 2^-14: the transpose is the inverse.
        rotation = torch.tensor(matrix, device=device).view(3, 3).T / 2**MATRIX_BITS
        planes = (rotation @ planes.flatten(1)).view_as(planes)
    return planes.contiguous()


def to_picture(planes: Sequence[Samples], matrix: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The picture [H, W, C] of C planes [H, W] in fixed point. Integers only."""
    height, width = planes[0].shape
    picture = np.empty((height, width, len(planes)), dtype=np.uint8)
    rows = np.array(matrix, dtype=np.int64).reshape(-1, 3)
    for tile in tiles(height, width):
        parts = [plane[tile].astype(np.int64) for plane in planes]
        if matrix:
            one, two, three = parts
            parts = [a * one + b * two + c * three for a, b, c in rows]
        for plane, part in enumerate(parts):
            picture[(*tile, plane)] = _to_bytes(part, MATRIX_BITS if matrix else 0)
    return picture


def _to_bytes(samples: npt.NDArray[np.int64], extra_bits: int) -> npt.NDArray[np.int64]:
    """Fixed point with so many bits more to 0 ... 255, in place."""
    bits = FRACTION_BITS + extra_bits
    samples += 1 << (bits - 1)
    samples >>= bits
    samples += 128
    return samples.clip(0, 255, out=samples)


def psnr(picture: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of two pictures of bytes in dB, infinite where they are equal."""
    difference = picture.astype(np.int32) - other
    error = float(np.mean(np.square(difference, dtype=np.int64), dtype=np.float64))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)

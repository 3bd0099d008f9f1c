"""Colour transforms: pictures of bytes to float planes for training, integer planes to bytes.

``rgb`` takes 128 off each channel. ``opponent`` also rotates them, by an orthonormal matrix that
the code carries: the principal axes of the picture's colour edges, so that the first plane holds
most of them. Errors in the planes are errors in RGB of the same size: training measures them there.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from .code import FRACTION_BITS, MATRIX_BITS


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


def to_picture(planes: npt.NDArray[np.int64], matrix: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The picture [H, W, C] of planes [C, H, W] in fixed point. Integers only."""
    bits = FRACTION_BITS
    if matrix:
        rows = np.array(matrix, dtype=np.int64).reshape(3, 3)
        first, second, third = planes
        planes = np.stack([a * first + b * second + c * third for a, b, c in rows])
        bits += MATRIX_BITS
    rounded = ((planes + (1 << (bits - 1))) >> bits) + 128
    return np.ascontiguousarray(rounded.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def psnr(picture: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of two pictures of bytes in dB, infinite where they are equal."""
    difference = picture.astype(np.int32) - other
    error = float(np.mean(np.square(difference, dtype=np.int64), dtype=np.float64))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)

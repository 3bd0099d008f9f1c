"""MS-SSIM: multi-scale structural similarity (Wang, Simoncelli and Bovik, 2003).

Contrast and structure are compared at five scales and luminance at the coarsest, with an 11 x 11
Gaussian of standard deviation 1.5 that stays inside the picture; a scale is the average of 2 x 2
pixels of the one before. Colour: red, green and blue are compared each on its own, and the three
results averaged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of the scales, fine to coarse: the paper's."""
WINDOW = 11
_DEVIATION = 1.5
_LUMINANCE, _CONTRAST = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def scales_of(height: int, width: int) -> int:
    """As many of the five scales as have room for a window; their weights are made to sum to 1.

    >>> scales_of(1536, 2048), scales_of(64, 64), scales_of(5, 100)
    (5, 3, 1)
    """
    short, scales = min(height, width), 1
    while scales < len(WEIGHTS) and short // 2 >= WINDOW:
        short, scales = short // 2, scales + 1
    return scales


def ms_ssim(picture: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Similarity of two pictures of bytes [H, W, C], 1 where they are equal.

    Small pictures have fewer scales (:func:`scales_of`), and one with a side below 11 gets a window
    of that side.
    """
    if picture.shape != other.shape:
        raise ValueError(
            f"pictures must have one shape, got {list(picture.shape)} and {list(other.shape)}"
        )
    channels = (torch.from_numpy(one.transpose(2, 0, 1).copy()) for one in (picture, other))
    found = [_channel(*pair) for pair in zip(*channels, strict=True)]
    return sum(found) / len(found)


def _channel(first: Tensor, second: Tensor) -> float:
    height, width = first.shape
    scales = scales_of(height, width)
    pair = torch.stack([first, second]).to(torch.float32)
    weights = torch.tensor(WEIGHTS[:scales], dtype=torch.float64)
    weights /= weights.sum()
    factors = []
    for scale in range(scales):
        if scale:
            pair = F.avg_pool2d(pair[None], 2)[0]
        luminance, contrast = _compared(pair)
        # Opposite structures count as none: a negative number has no root.
        factors.append(max(0.0, contrast if scale < scales - 1 else luminance))
    similarity = float(torch.prod(torch.tensor(factors, dtype=torch.float64) ** weights))
    return min(1.0, similarity)  # sums of windows that are rounded may pass it by 1e-9


def _compared(pair: Tensor) -> tuple[float, float]:
    """Means of (luminance times contrast and structure) and of contrast and structure alone."""
    # Around the middle of the range: squares of smaller numbers lose less to rounding.
    first, second = pair - 128.0
    maps = torch.stack([first, second, first * first, second * second, first * second])
    mean_1, mean_2, square_1, square_2, product = _blurred(maps)
    variances = square_1 - mean_1 * mean_1 + square_2 - mean_2 * mean_2
    covariance = product - mean_1 * mean_2
    contrast = (2 * covariance + _CONTRAST) / (variances + _CONTRAST)
    mean_1, mean_2 = mean_1 + 128.0, mean_2 + 128.0
    luminance = (2 * mean_1 * mean_2 + _LUMINANCE) / (mean_1**2 + mean_2**2 + _LUMINANCE)
    return (
        float((luminance * contrast).mean(dtype=torch.float64)),
        float(contrast.mean(dtype=torch.float64)),
    )


def _blurred(maps: Tensor) -> Tensor:
    """Gaussian averages of ``maps`` [N, H, W] where the window fits.

    As sums of shifted maps, which is many times as fast as a convolution of a single channel.
    """
    for axis in (1, 2):
        size = min(WINDOW, maps.shape[axis])
        places = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
        window = torch.exp(-places.square() / (2 * _DEVIATION**2))
        length = maps.shape[axis] - size + 1
        weights = (window / window.sum()).tolist()
        total = maps.narrow(axis, 0, length) * weights[0]
        for first in range(1, size):
            total.add_(maps.narrow(axis, first, length), alpha=weights[first])
        maps = total
    return maps

"""The paper's dictionary: square blocks of every size 2^h, summed coarse to fine.

R_l = up(R_{l-1}) + D_l with nearest-neighbour upsampling, so that the sum over all levels costs
4/3 of the finest. ``sums`` is the adjoint: what each block sees of a picture.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def synthesise(levels: list[Tensor]) -> Tensor:
    """The picture [C, H, W] of the levels' blocks [C, h, w], coarse to fine."""
    picture = levels[0]
    for level in levels[1:]:
        planes, height, width = level.shape
        if height == 2 * picture.shape[1] and width == 2 * picture.shape[2]:
            cells = level.view(planes, height // 2, 2, width // 2, 2)
            picture = (cells + picture[:, :, None, :, None]).view(planes, height, width)
        else:
            picture = level + _enlarged(picture)[:, :height, :width]
    return picture


def sums(picture: Tensor, count: int) -> list[Tensor]:
    """Sum of the picture [C, H, W] over each block of ``count`` levels, coarse to fine."""
    levels = [picture]
    for _ in range(count - 1):
        levels.append(F.avg_pool2d(levels[-1][None], 2, ceil_mode=True, divisor_override=1)[0])
    return levels[::-1]


def _enlarged(picture: Tensor) -> Tensor:
    planes, height, width = picture.shape
    cells = picture[:, :, None, :, None].expand(planes, height, 2, width, 2)
    return cells.reshape(planes, 2 * height, 2 * width)

"""The antialiased resize of pictures, on a GPU as two matrix products.

The backward pass of ``F.interpolate(antialias=True)`` on CUDA is slow and adds with atomics, so
that two runs differ in their last bits. The resize is linear in rows and columns: products with two
small matrices do the same, fast, and the same every time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

#: Pictures of eight shapes; a matrix is a few MB.
_KEPT = 16
#: Columns of the identity that are resized at a time, so that it stays small for huge pictures.
_BLOCK = 1024


class Resizing:
    """Bilinear and antialiased as ``F.interpolate`` does it; keeps the latest matrices."""

    def __init__(self) -> None:
        self._matrices: OrderedDict[tuple[int, int, torch.device, torch.dtype], Tensor]
        self._matrices = OrderedDict()

    def __call__(self, images: Tensor, size: Sequence[int]) -> Tensor:
        """Pictures [N, C, H, W] at ``size`` (height, width); on a CPU F.interpolate is faster."""
        if suits_products(images.device, images.dtype):
            return self.by_products(images, size)
        return interpolated(images, size)

    def by_products(self, images: Tensor, size: Sequence[int]) -> Tensor:
        """The same map as rows @ images @ columns.T, in the order that costs less."""
        (height, width), (tall, wide) = images.shape[-2:], size
        rows = self._matrix(height, tall, images)
        columns = self._matrix(width, wide, images).mT
        planes = images.flatten(0, 1)
        rows = rows.expand(len(planes), -1, -1)  # `@` would copy the pictures turned
        with torch.autocast(images.device.type, enabled=False):  # it would round to half precision
            if tall * width * (height + wide) <= height * wide * (width + tall):
                planes = torch.bmm(rows, planes) @ columns
            else:
                planes = torch.bmm(rows, planes @ columns)
        return planes.view(*images.shape[:2], tall, wide)

    def _matrix(self, inside: int, outside: int, like: Tensor) -> Tensor:
        key = (inside, outside, like.device, like.dtype)
        found = self._matrices.pop(key, None)
        if found is None:
            found = matrix(inside, outside, like.dtype).to(like.device)
        self._matrices[key] = found
        if len(self._matrices) > _KEPT:
            self._matrices.popitem(last=False)
        return found


def interpolated(images: Tensor, size: Sequence[int]) -> Tensor:
    """The resize that everything here is."""
    return F.interpolate(
        images, size=list(size), mode="bilinear", antialias=True, align_corners=False
    )


def matrix(inside: int, outside: int, dtype: torch.dtype) -> Tensor:
    """The weights [outside, inside] of the resize of one side: what it makes of the identity.

    >>> matrix(4, 2, torch.float64)
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]], dtype=torch.float64)
    """
    # Not as a tensor of inference mode: a later backward pass could not use it.
    with torch.inference_mode(False), torch.no_grad():
        blocks = []
        for first in range(0, inside, _BLOCK):
            block = torch.zeros(inside, min(_BLOCK, inside - first), dtype=dtype)
            block.diagonal(-first).fill_(1)
            blocks.append(interpolated(block[None, None], (outside, block.shape[1]))[0, 0])
        return torch.cat(blocks, 1)


def suits_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products are faster there and as exact; half precision stays as it was."""
    return (
        device.type == "cuda"
        and dtype in (torch.float32, torch.float64)
        and (dtype == torch.float64 or products_are_exact())
    )


def products_are_exact() -> bool:
    """Whether float32 products on CUDA are of float32, as by default, and not of TF32.

    TF32 keeps 10 bits: whoever turned it on for a model did not mean the pictures.
    """
    products = torch.backends.cuda.matmul
    found = getattr(products, "fp32_precision", None)  # torch < 2.9 has only allow_tf32
    return not products.allow_tf32 if found is None else found in ("none", "ieee")

"""Rows described by two strides, whole or in slabs, are the rows of the tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fast_lapsum._layout import groups, slabs

SHAPES = ((5,), (3, 5), (2, 3, 5), (2, 1, 3, 4, 5))


def _rows(x: Tensor, most_rows: int) -> Tensor:
    """The rows of x, read by offset and stride."""
    found = torch.full((max(x[..., 0].numel(), 1), x.shape[-1]), -1.0)
    for group in groups((x, None)):
        for slab in slabs(group, most_rows):
            assert slab.outer * slab.inner <= max(most_rows, slab.inner)
            view = x.as_strided(
                (slab.outer, slab.inner, x.shape[-1]),
                (*slab.strides[0], x.stride(-1)),
                x.storage_offset() + slab.offsets[0],
            )
            last = slab.first_row + slab.outer * slab.inner
            found[slab.first_row : last] = view.reshape(-1, x.shape[-1])
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("most_rows", [1, 2, 4, 100])
def test_slabs_cover_every_row_once(shape: tuple[int, ...], most_rows: int) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for layout in (x, x.flip(-1).contiguous(), x.movedim(0, -1), x[..., 1:], x.expand(2, *shape)):
        assert torch.equal(_rows(layout, most_rows), layout.reshape(-1, layout.shape[-1]))


def test_no_rows_is_no_group() -> None:
    assert list(groups((torch.empty(0, 5),))) == []

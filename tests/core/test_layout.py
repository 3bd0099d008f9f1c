"""Rows described by two strides are the rows of the tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fast_lapsum.backends.layout import groups

SHAPES = ((5,), (3, 5), (2, 3, 5), (2, 1, 3, 4, 5))


def _rows(x: Tensor) -> Tensor:
    """The rows of x, read by offset and stride."""
    found = torch.full((max(x[..., 0].numel(), 1), x.shape[-1]), -1.0)
    for group in groups((x, None)):
        view = x.as_strided(
            (group.outer, group.inner, x.shape[-1]),
            (*group.strides[0], x.stride(-1)),
            x.storage_offset() + group.offsets[0],
        )
        last = group.first_row + group.outer * group.inner
        assert (found[group.first_row : last] == -1).all()
        found[group.first_row : last] = view.reshape(-1, x.shape[-1])
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_groups_cover_every_row_once(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for layout in (x, x.flip(-1).contiguous(), x.movedim(0, -1), x[..., 1:], x.expand(2, *shape)):
        assert torch.equal(_rows(layout), layout.reshape(-1, layout.shape[-1]))


def test_no_rows_is_no_group() -> None:
    assert list(groups((torch.empty(0, 5),))) == []

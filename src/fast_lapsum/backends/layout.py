"""Where rows lie: any strides as groups of rows that two strides describe.

Kernels read rows through pointers and copy nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor


class Group(NamedTuple):
    """Rows that two strides per tensor describe: row (i, j) of ``outer`` x ``inner`` rows."""

    offsets: list[int]  # of each tensor's first row, in elements
    first_row: int
    outer: int
    inner: int
    strides: list[tuple[int, int]]  # of each tensor over (outer, inner), in elements


def groups(tensors: tuple[Tensor | None, ...]) -> Iterator[Group]:
    """The rows of the first tensor, its last dimension left out; nearly always one group.

    The other tensors have the same dimensions, the last one perhaps left out. Adjacent dimensions
    are merged where every tensor allows it, and leading dimensions that fit neither stride loop.
    """
    scores = tensors[0]
    assert scores is not None
    if math.prod(scores.shape[:-1]) == 0:
        return
    dims: list[tuple[int, list[int]]] = []  # (size, stride of each tensor), outermost first
    for dim, size in enumerate(scores.shape[:-1]):
        if size == 1:
            continue
        strides = [0 if x is None else x.stride(dim) for x in tensors]
        if dims and all(a == b * size for a, b in zip(dims[-1][1], strides, strict=True)):
            dims[-1] = (dims[-1][0] * size, strides)
        else:
            dims.append((size, strides))
    nothing = [0] * len(tensors)
    if len(dims) == 1:
        dims.append((1, nothing))
    while len(dims) < 2:
        dims.insert(0, (1, nothing))
    (outer, outer_strides), (inner, inner_strides) = dims[-2:]
    pairs = list(zip(outer_strides, inner_strides, strict=True))
    leading = dims[:-2]
    for number in range(math.prod(size for size, _ in leading)):
        offsets, rest = list(nothing), number
        for size, strides in reversed(leading):
            rest, index = divmod(rest, size)
            offsets = [o + index * s for o, s in zip(offsets, strides, strict=True)]
        yield Group(offsets, number * outer * inner, outer, inner, pairs)

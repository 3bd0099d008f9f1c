"""Where rows of several lengths lie, and how long they are, as kernels read it; see segments.py."""

from __future__ import annotations

import triton
import triton.language as tl

from .views import coordinates


@triton.jit
def length_of(call, row, row_count, offsets, lengths):
    """How many scores rows have, int64, none of them outside of the values."""
    row = tl.minimum(row, row_count - 1)
    if offsets is None:
        return tl.minimum(tl.maximum(tl.load(lengths + row).to(tl.int64), 0), call.n)
    else:
        start = start_of(call, row, row_count, offsets)
        if lengths is None:
            end = tl.minimum(tl.maximum(tl.load(offsets + row + 1).to(tl.int64), 0), call.n)
            return tl.maximum(end - start, 0)
        else:
            return tl.minimum(tl.maximum(tl.load(lengths + row).to(tl.int64), 0), call.n - start)


@triton.jit
def start_of(call, row, row_count, offsets):
    """Where segments begin."""
    row = tl.minimum(row, row_count - 1)
    return tl.minimum(tl.maximum(tl.load(offsets + row).to(tl.int64), 0), call.n)


@triton.jit
def places_of(call, row, row_count, offsets):
    """Coordinates of rows in what has one number for each, and in what has one for each score.

    Segments have their first score in the place of an outer row.
    """
    outer, inner = coordinates(call, row, row_count)
    if offsets is None:
        return outer, inner, outer, inner
    else:
        start = start_of(call, row, row_count, offsets)
        return outer, inner, start, tl.zeros_like(start)


@triton.jit
def rows_to_see(
    call, first, row_count, offsets, lengths, LOWEST: tl.constexpr, SCANNED: tl.constexpr
):
    """SCANNED, or 0 where none of them is as long as that: one look instead of many."""
    seen = SCANNED
    if SCANNED > 1:
        row = first + tl.arange(0, SCANNED)
        length = length_of(call, row, row_count, offsets, lengths)
        seen = tl.where(tl.max(length, 0) >= LOWEST, SCANNED, 0)
    return seen

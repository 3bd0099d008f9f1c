"""The first thing that ranks tell each other: a sample of their part of every row."""

from __future__ import annotations

import triton
import triton.language as tl

from .shard_read import scores_at
from .views import coordinates


@triton.jit
def _store_header(header, length, drawn, kind, rows):
    """The numbers before a sample, of which a GPU's are four: see backends/shards.py."""
    number = tl.arange(0, 8)
    value = tl.where(number == 0, length, tl.where(number == 1, drawn, 0)).to(tl.float64)
    value = tl.where(number == 2, kind, tl.where(number == 3, rows, value))
    tl.store(header + number, value, mask=number < 6)


@triton.jit(do_not_specialize=["row_count", "drawn", "width", "kind", "rows"])
def sample_rows(
    call,
    row_count,
    out,
    header,
    drawn,
    width,
    kind,
    rows,
    LARGEST: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """``drawn`` scores of each row, one out of each of as many stretches, and NaN up to ``width``.

    The place in a stretch differs from one to the next: a period of the scores must not be the
    sample's.
    """
    blocks = (width + (LANES - 1)) // LANES
    row = (tl.program_id(0) // blocks).to(tl.int64)
    number = (tl.program_id(0) % blocks).to(tl.int64) * LANES + tl.arange(0, LANES)
    outer, inner = coordinates(call, row, row_count)
    n = tl.zeros((), tl.int64) + call.n
    parts = tl.maximum(tl.zeros((), tl.int64) + drawn, 1)
    first = number * n // parts
    stretch = (number + 1) * n // parts - first
    within = tl.umulhi(number.to(tl.uint32) * 2654435761, stretch.to(tl.uint32))
    index = first + within.to(tl.int64)
    is_drawn = number < drawn
    r = scores_at(call, outer, inner, index, is_drawn, LARGEST, COMPUTE)
    r = tl.where(is_drawn, r, float("nan"))
    tl.store(out + row * width + number, r.to(out.dtype.element_ty), mask=number < width)
    if tl.program_id(0) == 0:
        _store_header(header, n, drawn, kind, rows)


@triton.jit(do_not_specialize=["drawn", "size"])
def pick_nodes(ordered, nodes, drawn, size, LANES: tl.constexpr):
    """``size`` of a row's ``drawn`` scores, which are sorted, the first and the last among them."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, LANES).to(tl.int64)
    place = number * (drawn - 1) // (size - 1)
    is_node = number < size
    r = tl.load(ordered + row * drawn + place, mask=is_node, other=0.0)
    tl.store(nodes + row * size + number, r, mask=is_node)

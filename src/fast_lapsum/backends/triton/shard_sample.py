"""The first thing that ranks tell each other: a sample of their part of every row.

Programs sort what they have drawn, in blocks. The place of a score among all is then known by
searches in the other blocks, and nothing more is sorted.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import _float_at, _place_of
from .shard_read import scores_at
from .team import await_last, begin_next
from .views import coordinates


@triton.jit
def _store_header(header, length, drawn, kind, rows):
    """The numbers before a sample, of which a GPU's are four: see backends/shards.py."""
    number = tl.arange(0, 8)
    value = tl.where(number == 0, length, tl.where(number == 1, drawn, 0)).to(tl.float64)
    value = tl.where(number == 2, kind, tl.where(number == 3, rows, value))
    tl.store(header + number, value, mask=number < 6)


@triton.jit
def _none(COMPUTE: tl.constexpr):
    """The place of nothing, behind those of all floats."""
    if COMPUTE == tl.float64:
        return tl.full((), -(2**63), tl.int64)
    else:
        return tl.full((), -(2**31), tl.int32)


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
    SORTED: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """``drawn`` scores of each row, one out of each of as many stretches, and NaN up to ``width``.

    The place in a stretch differs from one to the next: a period of the scores must not be the
    sample's. If they are SORTED, each block of LANES by itself, what is written are their places
    among all floats, NaN first and nothing last.
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
    if SORTED:
        order = tl.where(r == r, _place_of(r), _none(COMPUTE) ^ -1)
        order = tl.where(is_drawn, order, _none(COMPUTE))
        tl.store(out + row * width + number, tl.sort(order, descending=True))
    else:
        tl.store(out + row * width + number, r.to(out.dtype.element_ty), mask=number < width)
    if tl.program_id(0) == 0:
        _store_header(header, n, drawn, kind, rows)


@triton.jit(do_not_specialize=["drawn", "size", "blocks"])
def pick_nodes(
    ordered,
    nodes,
    drawn,
    size,
    blocks,
    OWN: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """``size`` of a row's ``drawn`` scores, the first and the last among them, descending.

    Scores are in sorted blocks of LANES, and each program looks where OWN of them are among all.
    """
    await_last(OVERLAP)
    begin_next(OVERLAP)
    parts = blocks * (LANES // OWN)
    row = (tl.program_id(0) // parts).to(tl.int64)
    own = (tl.program_id(0) % parts) * OWN + tl.arange(0, OWN)
    first = ordered + row * blocks * LANES
    order = tl.load(first + own)
    block = tl.arange(0, BLOCK_LANES)[None, :]
    is_block = block < blocks
    # Equal scores are in the order of their blocks.
    least = order[:, None] - (block < (own // LANES)[:, None]).to(order.dtype)
    before = tl.zeros((OWN, BLOCK_LANES), tl.int32)
    step = tl.zeros((), tl.int32) + LANES // 2
    while step > 0:
        at = first + (block * LANES + before + (step - 1))
        before += tl.where(tl.load(at, mask=is_block, other=0) > least, step, 0)
        step = step // 2
    at = first + (block * LANES + before)
    before += (tl.load(at, mask=is_block, other=0) > least).to(tl.int32)
    is_other = is_block & (block != (own // LANES)[:, None])
    place = (own % LANES + tl.sum(tl.where(is_other, before, 0), 1)).to(tl.int64)
    # The first node from there on, if it stands there.
    number = (place * (size - 1) + (drawn - 2)) // (drawn - 1)
    is_node = (order > _none(COMPUTE)) & (number * (drawn - 1) // (size - 1) == place)
    r = _float_at(order, COMPUTE).to(nodes.dtype.element_ty)
    tl.store(nodes + row * size + number, r, mask=is_node)

"""Hard masks of many tensors: the boundary score is known, and of those that equal it the earliest
in the list are taken, as many as the budget has left.

    count_many        a part: how many scores are over the boundary, and how many equal it
    write_hard_many   a part: the mask, by what the parts before it have
"""

from __future__ import annotations

import triton
import triton.language as tl

from .many import OUT, OUT_DTYPE, PAIR, added, part_of, read, scores_of, store_part
from .team import await_last, begin_next
from .views import budget_of


@triton.jit(do_not_specialize=["count"])
def count_many(
    table,
    count,
    state,
    counts,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    begin_next(OVERLAP)
    await_last(OVERLAP)
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    scores = scores_of(row)
    boundary = tl.load(state + PAIR + tl.zeros((1,), tl.int64)).to(COMPUTE)
    over = tl.zeros((BLOCK,), tl.int32)
    equal = over
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        r = read(scores, first + index, index < n, LARGEST, KINDS, COMPUTE)
        over += (r > boundary).to(tl.int32)
        equal += ((r == boundary) & (index < n)).to(tl.int32)
    parts = tl.num_programs(0).to(tl.int64)
    tl.store(counts + part, tl.sum(over, 0).to(tl.float64))
    tl.store(counts + parts + part, tl.sum(equal, 0).to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def write_hard_many(
    call,
    table,
    count,
    state,
    counts,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    await_last(OVERLAP)
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    scores = scores_of(row)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    zero = tl.zeros((1,), tl.int64)
    boundary = tl.load(state + PAIR + zero).to(COMPUTE)
    parts = tl.num_programs(0).to(tl.int64)
    over = added(counts, parts, parts, 0, "sum")
    left = budget_of(call, zero, zero) - over - added(counts, parts, part, 1, "sum")
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        r = read(scores, first + index, index < n, LARGEST, KINDS, COMPUTE)
        is_equal = ((r == boundary) & (index < n)).to(tl.int32)
        is_taken = (is_equal != 0) & (tl.cumsum(is_equal, 0).to(tl.float64) <= left)
        p = tl.where((r > boundary) | is_taken, 1.0, 0.0)
        p = tl.where(boundary == boundary, p, float("nan"))
        store_part(out, out_kind, first + index, index < n, p, OUT_KINDS)
        left -= tl.sum(is_equal, 0).to(tl.float64)

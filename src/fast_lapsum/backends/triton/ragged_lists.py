"""Which rows are of which class of lengths: lists of row numbers, made before anything else.

So a launch for a class has no more programs than a device holds at a time, none of which looks at
rows of other classes. Each begins with a row of its own and takes further ones as they come, until
the list is at its end. Which program takes a row changes nothing in its bits.

A row's place in the list of its class is the number of such rows before it. Blocks of rows are
counted in a launch of their own where there are several; then each block has its places by adding
up the counts of those before.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .ragged_rows import length_of
from .team import await_last, begin_next

#: The most classes that a plan may have, a power of two; rows of a block, and blocks whose counts
#: are added up at a time.
CLASSES = tl.constexpr(8)
BLOCK = tl.constexpr(4096)
_ADDED = tl.constexpr(128)
#: The numbers before the lists: where each ends, and how many rows of it programs have taken beside
#: those they began with. The lists follow one upon the other.
HEAD = tl.constexpr(16)


@triton.jit
def _class_of(call, row, row_count, offsets, lengths, BOUNDS: tl.constexpr):
    """The classes of rows, [BLOCK]; CLASSES where there is no row.

    BOUNDS is the sum of the longest lengths of all classes but the last, each a power of two.
    """
    length = length_of(call, row, row_count, offsets, lengths)
    number = tl.zeros_like(length).to(tl.int32)
    for power in tl.static_range(31):
        if (BOUNDS >> power) % 2 == 1:
            number += (length > (1 << power)).to(tl.int32)
    return tl.where(row < row_count, number, CLASSES)


@triton.jit
def _ones(number, WORD: tl.constexpr):
    """Rows as numbers to add up: a word has the counts of four classes, each in 16 bits."""
    one = tl.full(number.shape, 1, tl.int64) << (number % 4 * 16)
    return tl.where(number // 4 == WORD, one, 0)


@triton.jit
def _count(number, first, second):
    """Of sums of all four, for each class its own."""
    return (tl.where(number < 4, first, second) >> (number % 4 * 16)) & 0xFFFF


@triton.jit(do_not_specialize=["row_count"])
def count_rows(
    call,
    row_count,
    offsets,
    lengths,
    lists,
    counts,
    BOUNDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """How many rows of a block are of each class."""
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    of_row = _class_of(call, row, row_count, offsets, lengths, BOUNDS)
    number = tl.arange(0, CLASSES)
    found = _count(number, tl.sum(_ones(of_row, 0), 0), tl.sum(_ones(of_row, 1), 0))
    tl.store(counts + tl.program_id(0) * CLASSES + number, found)
    if tl.program_id(0) == 0:
        await_last(OVERLAP)


@triton.jit(do_not_specialize=["row_count"])
def list_rows(
    call,
    row_count,
    offsets,
    lengths,
    lists,
    counts,
    BOUNDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The numbers of a block's rows in the lists of their classes, and where each list ends."""
    program = tl.program_id(0)
    row = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    of_row = _class_of(call, row, row_count, offsets, lengths, BOUNDS)
    first, second = _ones(of_row, 0), _ones(of_row, 1)
    number = tl.arange(0, CLASSES)
    before = tl.zeros((CLASSES,), tl.int64)
    total = before
    if counts is None:
        total += _count(number, tl.sum(first, 0), tl.sum(second, 0))
    else:
        await_last(OVERLAP)
        for added in range(0, tl.num_programs(0), _ADDED):
            block = added + tl.arange(0, _ADDED)[None, :]
            place = counts + block * CLASSES + number[:, None]
            found = tl.load(place, mask=block < tl.num_programs(0), other=0).to(tl.int64)
            total += tl.sum(found, 1)
            before += tl.sum(tl.where(block < program, found, 0), 1)
    end = tl.cumsum(total, 0)
    place = _count(of_row, tl.cumsum(first, 0), tl.cumsum(second, 0)) - 1
    for i in tl.static_range(CLASSES):
        begin = tl.sum(tl.where(number == i, end - total + before, 0), 0)
        place += tl.where(of_row == i, begin, 0)
    tl.store(lists + HEAD + place, row, mask=row < row_count)
    if program == 0:
        tl.store(lists + number, end)
        tl.store(lists + CLASSES + number, tl.zeros((CLASSES,), tl.int64))
        await_last(OVERLAP)


@triton.jit
def list_of(lists, row_count, CLASS: tl.constexpr):
    """Where the list of a class begins and ends; without lists all rows are of one class.

    Who reads this need not have waited for the launch that made the lists, because the first of
    those that read them has. What it left is in the cache that all cores share.
    """
    begin = tl.zeros((), tl.int64)
    if lists is None:
        return begin, begin + row_count
    else:
        if CLASS > 0:
            begin += tl.load(lists + (CLASS - 1), cache_modifier=".cg")
        return begin, tl.load(lists + CLASS, cache_modifier=".cg").to(tl.int64)


@triton.jit
def rows_at(lists, place, end, row_count, ROWS: tl.constexpr):
    """The numbers of ROWS rows of a list, int64; ``row_count`` where it has ended."""
    place = place + tl.arange(0, ROWS)
    if lists is None:
        return place
    else:
        row = tl.load(lists + HEAD + place, mask=place < end, other=0, cache_modifier=".cg")
        return tl.where(place < end, row.to(tl.int64), row_count)


@triton.jit
def next_place(lists, begin, place, CLASS: tl.constexpr, ROWS: tl.constexpr):
    """Where in the list of its class a program goes on."""
    begun = tl.num_programs(0).to(tl.int64) * ROWS
    if lists is None:
        return place + begun
    else:
        taken = tl.atomic_add(lists + (CLASSES + CLASS), ROWS, sem="relaxed")
        return begin + begun + taken

"""Writing the results: of parts in registers, of parts that are read again, and pairs.

OUTPUT is what is written: the "mask", a "hard" one, the mask's "log", or the "threshold" alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import any_output, are_plain, hard_mask, hard_mask_to, plain_output
from .numbers import any_row
from .passes import parts_of, read_part, read_parts
from .team import my_chunks
from .views import across, exist, part_indices, store_values


@triton.jit
def store_pair(threshold, row, hi, lo, is_row):
    tl.store(threshold + 2 * row, hi, mask=is_row)
    tl.store(threshold + 2 * row + 1, lo, mask=is_row)


@triton.jit
def _written(source, first, part, is_row):
    """The indices of a part, and which of them are to be written."""
    index = part_indices(first, part, source.REPEATS, source.LANES, source.WIDTH)
    written = across(is_row)
    if source.PADDED:
        written = written & exist(index, source.call.n, source.WIDTH)
    return index, written


@triton.jit
def write_held(
    source, r, first, out, is_row, k, t, pair, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr
):
    """What is written of plain rows, of which parts are in registers."""
    for part in tl.static_range(source.PARTS):
        index, written = _written(source, first, part, is_row)
        p = plain_output(r[part], pair, k, t, OUTPUT, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)


@triton.jit
def write_read(
    source,
    first,
    parts,
    out,
    is_row,
    k,
    t,
    pair,
    cut,
    OUTPUT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The same of any rows, of parts that are read again.

    Scores that equal the boundary are taken up to the index ``cut``; where that is None parts are
    all of a row, and such scores are counted.
    """
    earlier = 0.0 * k
    for part in range(parts):
        r = read_part(source, first, part, COMPUTE)
        index, written = _written(source, first, part, is_row)
        if OUTPUT == "hard":
            if cut is None:
                p, ties = hard_mask(r, k, pair.hi, k - pair.above - earlier, COMPUTE)
                earlier += ties.to(tl.float64)
            else:
                p = hard_mask_to(r, k, pair.hi, index <= across(cut), COMPUTE)
        else:
            p = any_output(r, pair, t, OUTPUT, COMPUTE)
        store_values(out, source.outer, source.inner, index, written, p, source.WIDTH)


@triton.jit
def _write_plain_chunks(source, out, k, t, pair, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """A member's part of a plain row, from its end: what was read last is still at hand."""
    BLOCK: tl.constexpr = source.PARTS * source.REPEATS * source.LANES * source.WIDTH
    own, end, step = my_chunks(source.team)
    for chunk in range(own, end, step):
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        last = tl.minimum(first + source.length, source.call.n)
        blocks = (last - first + (BLOCK - 1)) // BLOCK
        for block in range(blocks):
            start = first + (blocks - 1 - block) * BLOCK
            r = read_parts(source, start, COMPUTE)
            write_held(source, r, start, out, source.outer >= 0, k, t, pair, OUTPUT, COMPUTE)


@triton.jit
def write_any_chunks(source, out, k, t, pair, cut, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """A member's part of any row."""
    own, end, step = my_chunks(source.team)
    for chunk in range(own, end, step):
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        write_read(
            *(source, first, parts_of(source, chunk), out, source.outer >= 0),
            *(k, t, pair, cut, OUTPUT, COMPUTE),
        )


@triton.jit
def write_row(source, out, k, t, pair, cut, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """A member's part of what is written of a row."""
    if any_row(~are_plain(pair, k, t, OUTPUT, COMPUTE)):
        write_any_chunks(source, out, k, t, pair, cut, OUTPUT, COMPUTE)
    else:
        _write_plain_chunks(source, out, k, t, pair, OUTPUT, COMPUTE)

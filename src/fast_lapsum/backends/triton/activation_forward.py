"""Activations of a long row, written in the place of its hard mask, which is never in memory.

The way of large batches with one budget; the other way is activation.py.

The launches before are those of shared_rows.py, which leave the boundary of the mask. Scores are
read once more and activations written: 8 bytes per float32 score, and no mask to keep for backward.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .team import await_last, read_note, words_of
from .views import across, budget_of, exist, load_scores, part_indices, store_values

#: An index over all there are, which a float64 holds.
EVERY = tl.constexpr(2.0**62)


@triton.jit
def is_chosen(r, index, start, boundary, last, BLOCK: tl.constexpr):
    """Of scores from ``start`` on those over a boundary, and that equal it up to an index.

    Indices are compared by how far they are from the start, in half the registers.
    """
    local = (index - start).to(tl.int32)
    local_last = tl.minimum(tl.maximum(last - start, -1), BLOCK).to(tl.int32)
    is_early = local <= across(local_last)
    return (r > across(boundary)) | ((r == across(boundary)) & is_early)


@triton.jit(do_not_specialize=["pieces"])
def write_activations(
    call,
    out,
    words,
    threshold,
    counts,
    best,
    boundary,
    pieces,
    length,
    WRITTEN: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """relu(r) g, and of each program how many r exceed a threshold, and its best r of g = 0.

    The boundary is written, too: a score, and the last index at which one that equals it is taken.
    """
    await_last(OVERLAP)
    piece = tl.program_id(0)
    zero = tl.zeros((1,), tl.int64)
    row_words = words_of(words, 0, CHUNK_LANES)
    k = budget_of(call, zero, zero)
    hi = read_note(row_words, 3, CHUNK_LANES).to(COMPUTE)
    hi = tl.where(k == tl.floor(k), hi, float("nan"))  # only a whole budget has a hard mask
    share = read_note(row_words, 4, CHUNK_LANES)
    # As are_plain and plain_output of mask.py have it: all that are tied, or nothing.
    takes_all = (share == 1) & (hi != float("inf"))
    last_taken = tl.where(takes_all, EVERY, read_note(row_words, 5, CHUNK_LANES))
    last_taken = tl.where(k > 0, last_taken, -1.0)
    least = tl.where((k > 0) | (hi != hi), hi, float("inf"))
    if piece == 0:
        tl.store(boundary + zero, least.to(tl.float64))
        tl.store(boundary + 1 + zero, last_taken)
    last = last_taken.to(tl.int64)
    b = tl.load(threshold)
    count = tl.zeros((1, LANES), tl.int32)
    top = tl.full((1, LANES), float("-inf"), COMPUTE)
    BLOCK: tl.constexpr = WRITTEN * LANES * WIDTH
    first = (tl.zeros((), tl.int64) + piece) * length
    end = tl.minimum(first + length, call.n)
    blocks = (end - first + (BLOCK - 1)) // BLOCK
    for block in range(blocks):
        # From the end: what was read last is still at hand.
        start = first + (blocks - 1 - block) * BLOCK
        index = part_indices(start, 0, WRITTEN, LANES, WIDTH)
        inside = exist(index, end, WIDTH)
        r = load_scores(call, zero, zero, index, inside, True, WIDTH, COMPUTE)
        is_taken = is_chosen(r, index, start, least, last, BLOCK)
        g = tl.where(across(least != least), float("nan"), is_taken.to(COMPUTE))
        activation = tl.where(r <= 0, 0.0, r) * g  # a NaN is not at most 0, and stays
        store_values(out, zero, zero, index, inside, activation, WIDTH)
        count += tl.sum(tl.sum((r > b).to(tl.int32), 3), 0)
        left_out = tl.where(is_taken, float("-inf"), r)
        top = tl.maximum(top, tl.max(tl.max(left_out, 3), 0))
    tl.store(counts + piece + zero, tl.sum(count, 1).to(tl.int64))
    tl.store(best + piece + zero, tl.where(least != least, float("nan"), tl.max(top, 1)))

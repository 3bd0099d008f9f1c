"""Whole scores of rows whose threshold pair is known: where a hard mask has its ones, and random
masks of exactly k.

A row is read in parts, in the order of its scores, by one program or in chunks by several. Those
have left what their chunks add up to in a launch before: whole numbers, whose sums are the same in
any order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import any_mask, running_sums
from .numbers import any_row
from .views import (
    across,
    budget_of,
    coordinates,
    exist,
    load_scores,
    load_values,
    part_indices,
    row_start,
    store_values,
    temperature_of,
)

#: Places that are filled at a time where a row has fewer scores than asked for.
FILLED = tl.constexpr(512)


@triton.jit
def _of_rows(values):
    """The sum of every row."""
    return tl.sum(tl.sum(tl.sum(values, 3), 0), 1)


@triton.jit
def _span(call, chunks, length, row_count, ROWS: tl.constexpr):
    """Rows of a program, their coordinates, its chunk, and where that begins and ends."""
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks * ROWS + tl.arange(0, ROWS)
    outer, inner = coordinates(call, row, row_count)
    chunk = program % chunks
    first = chunk * length
    return row, outer, inner, chunk, first, tl.minimum(first + length, call.n)


@triton.jit
def _before(sums, row, chunk, chunks, LANES: tl.constexpr):
    """What the chunks before this one add up to, and all of them."""
    lane = tl.arange(0, LANES)[None, :]
    every = tl.load(sums + row[:, None] * chunks + lane, mask=lane < chunks, other=0)
    return tl.sum(tl.where(lane < chunk, every, 0), 1), tl.sum(every, 1)


@triton.jit(do_not_specialize=["row_count", "chunks"])
def count_chosen(
    call,
    row_count,
    chosen,
    sums,
    chunks,
    length,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """How many ones each chunk of a hard mask has."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, 1)
    count = tl.zeros((1,), tl.int64)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        q = load_values(chosen, outer, inner, index, exist(index, call.n, WIDTH), WIDTH)
        count += _of_rows((q == 1).to(tl.int32))
    tl.store(sums + row * chunks + chunk, count)


@triton.jit(do_not_specialize=["row_count", "chunks"])
def place_chosen(
    call,
    row_count,
    chosen,
    threshold,
    indices,
    weights,
    sums,
    chunks,
    length,
    k,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Where a hard mask has its ones, [row_count, k], and the soft mask's p there.

    Places left over are -1 with weight 0, or NaN in a row without an answer.
    """
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, ROWS)
    is_row = row < row_count
    t = temperature_of(call, outer, inner)
    pair = threshold + 2 * tl.minimum(row, row_count - 1)
    hi, lo = tl.load(pair), tl.load(pair + 1)
    before = tl.zeros((ROWS,), tl.int64)
    if sums is not None:
        before, _ = _before(sums, row, chunk, chunks, CHUNK_LANES)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH) & across(is_row)
        is_chosen = (load_values(chosen, outer, inner, index, inside, WIDTH) == 1) & inside
        count = _of_rows(is_chosen.to(tl.int32))
        if any_row(count > 0):
            r = load_scores(call, outer, inner, index, is_chosen, LARGEST, WIDTH, COMPUTE)
            number = across(before) + running_sums(is_chosen.to(tl.int32))
            place = across(row * k - 1) + number
            is_stored = is_chosen & (number <= k)  # whatever the mask is, nothing else is written
            tl.store(indices + place, index + 0 * place, mask=is_stored)
            p = any_mask(r, hi, lo, t, COMPUTE).to(weights.dtype.element_ty)
            tl.store(weights + place, p, mask=is_stored)
        before += count
    if chunk == chunks - 1:
        if any_row(is_row & (before < k)):
            nothing = tl.where(hi != hi, float("nan"), 0.0)[:, None]
            for start in range(tl.min(before, 0) // FILLED * FILLED, k, FILLED):
                free = start + tl.arange(0, FILLED)[None, :]
                is_free = (free >= before[:, None]) & (free < k) & is_row[:, None]
                place = row[:, None] * k + free
                tl.store(indices + place, 0 * place - 1, mask=is_free)
                filled = nothing + tl.zeros((ROWS, FILLED), COMPUTE)
                tl.store(weights + place, filled.to(weights.dtype.element_ty), mask=is_free)


@triton.jit
def _ticks(r, hi, lo, t, inside, DIGITS: tl.constexpr, COMPUTE: tl.constexpr):
    """p as a whole number out of 2^DIGITS, and what is missing from all where there is some."""
    p = any_mask(r, hi, lo, t, COMPUTE).to(tl.float64)
    one = tl.full((), 1 << DIGITS, tl.int64)
    ticks = tl.where(inside & (p == p), p * one.to(tl.float64) + 0.5, 0.0).to(tl.int64)
    ticks = tl.minimum(ticks, one)
    return ticks, tl.where(ticks > 0, one - ticks, 0)


@triton.jit(do_not_specialize=["row_count", "chunks"])
def sum_ticks(
    call,
    row_count,
    threshold,
    sums,
    chunks,
    length,
    LARGEST: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DIGITS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What the ticks of each chunk add up to, and what is missing; those of all rows follow."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, 1)
    t = temperature_of(call, outer, inner)
    hi, lo = tl.load(threshold + 2 * row), tl.load(threshold + 2 * row + 1)
    total = tl.zeros((1,), tl.int64)
    room = total
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        ticks, missing = _ticks(r, hi, lo, t, inside, DIGITS, COMPUTE)
        total += _of_rows(ticks)
        room += _of_rows(missing)
    tl.store(sums + row * chunks + chunk, total)
    tl.store(sums + (row_count + row) * chunks + chunk, room)


@triton.jit
def _passed(x, g, total, room, excess, start, DIGITS: tl.constexpr):
    """How many of start, start + 1, ... a running sum x has passed, in ticks.

    All ticks may add up to a little more or less than the budget. What is too much is taken off in
    proportion to x, and what is missing is added in proportion to what scores are short of one, g:
    then no score is worth more than one, and the last sum is the budget itself.
    """
    is_over = excess >= 0
    size = tl.abs(excess)
    whole = tl.where(is_over, total, room)
    base = tl.where(is_over, x, g)
    part = base.to(tl.float64) * (size.to(tl.float64) / tl.maximum(whole, 1).to(tl.float64))
    moved = tl.where(base >= whole, size, tl.minimum(part.to(tl.int64), size))
    moved = x - tl.where(is_over, moved, -moved)
    return (moved - start - 1 + tl.full((), 1 << DIGITS, tl.int64)) >> DIGITS


@triton.jit(do_not_specialize=["row_count", "chunks"])
def draw_rows(
    call,
    row_count,
    threshold,
    starts,
    out,
    sums,
    chunks,
    length,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    DIGITS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Random masks of exactly k ones: score i is one with probability p_i (systematic sampling)."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, ROWS)
    is_row = row < row_count
    t = temperature_of(call, outer, inner)
    k = budget_of(call, outer, inner)
    pair = threshold + 2 * tl.minimum(row, row_count - 1)
    hi, lo = tl.load(pair), tl.load(pair + 1)
    one = tl.full((), 1 << DIGITS, tl.int64)
    start = tl.load(row_start(starts, outer, inner)).to(tl.float64) * one.to(tl.float64)
    start = tl.minimum(start.to(tl.int64), one - 1)
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    parts = (last - first + (BLOCK - 1)) // BLOCK
    before = tl.zeros((ROWS,), tl.int64)
    before_room = before
    total = before
    room = before
    if sums is not None:
        before, total = _before(sums, row, chunk, chunks, CHUNK_LANES)
        before_room, room = _before(sums + row_count * chunks, row, chunk, chunks, CHUNK_LANES)
    else:
        for part in range(parts):
            index = part_indices(first, part, REPEATS, LANES, WIDTH)
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
            ticks, missing = _ticks(r, hi, lo, t, inside, DIGITS, COMPUTE)
            total += _of_rows(ticks)
            room += _of_rows(missing)
    is_answered = (hi == hi) & (k == tl.floor(k))
    excess = total - tl.where(is_answered, k, 0.0).to(tl.int64) * one
    for part in range(parts):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        ticks, missing = _ticks(r, hi, lo, t, inside, DIGITS, COMPUTE)
        x = across(before) + running_sums(ticks)
        g = across(before_room) + running_sums(missing)
        given = (across(total), across(room), across(excess), across(start))
        passed = _passed(x, g, *given, DIGITS) - _passed(x - ticks, g - missing, *given, DIGITS)
        drawn = tl.where(across(is_answered), passed.to(COMPUTE), float("nan"))
        store_values(out, outer, inner, index, inside & across(is_row), drawn, WIDTH)
        before += _of_rows(ticks)
        before_room += _of_rows(missing)

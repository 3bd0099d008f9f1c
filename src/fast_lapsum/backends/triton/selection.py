"""Whole scores of rows whose threshold pair is known: where a hard mask has its ones, and random
masks of exactly k.

A row is read in parts, in the order of its scores, by one program or in chunks by several. Those
have left what their chunks add up to in a launch before: whole numbers, whose sums are the same in
any order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mask import any_mask, is_in_limit, running_sums, soft_tails
from .numbers import any_row, exponent_scale
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

#: By how much of e^-|u| / 2 a score's p is raised where scores are drawn: more than a sum in the
#: solver is off by, and much more, should that not do.
RAISED_LITTLE = tl.constexpr(2.0**-18)
RAISED_MORE = tl.constexpr(2.0**-9)
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
    indices,
    sums,
    chunks,
    length,
    k,
    ROWS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
):
    """Where a hard mask has its ones, [row_count, k]; places left over are -1."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, ROWS)
    is_row = row < row_count
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
            number = across(before) + running_sums(is_chosen.to(tl.int32))
            place = across(row * k - 1) + number
            is_stored = is_chosen & (number <= k)  # whatever the mask is, nothing else is written
            tl.store(indices + place, index + 0 * place, mask=is_stored)
        before += count
    if chunk == chunks - 1:
        if any_row(is_row & (before < k)):
            for start in range(tl.min(before, 0) // FILLED * FILLED, k, FILLED):
                free = start + tl.arange(0, FILLED)[None, :]
                is_free = (free >= before[:, None]) & (free < k) & is_row[:, None]
                place = row[:, None] * k + free
                tl.store(indices + place, 0 * place - 1, mask=is_free)


@triton.jit(do_not_specialize=["row_count", "parts"])
def weigh_chosen(
    call,
    row_count,
    threshold,
    indices,
    weights,
    k,
    parts,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The soft mask's p at the selected scores, 0 in places left over, NaN without an answer."""
    program = tl.program_id(0).to(tl.int64)
    row = program // parts * ROWS + tl.arange(0, ROWS)
    outer, inner = coordinates(call, row, row_count)
    t = temperature_of(call, outer, inner)
    pair = threshold + 2 * tl.minimum(row, row_count - 1)
    hi, lo = tl.load(pair), tl.load(pair + 1)
    number = part_indices(program % parts * LANES, 0, 1, LANES, 1)
    place = across(row * k) + number
    is_place = (number < k) & across(row < row_count)
    index = tl.load(indices + place, mask=is_place, other=-1)
    is_chosen = index >= 0
    r = load_scores(call, outer, inner, index, is_chosen, LARGEST, 1, COMPUTE)
    p = tl.where(is_chosen, any_mask(r, hi, lo, t, COMPUTE), 0.0)
    p = tl.where(across(hi != hi), float("nan"), p)
    tl.store(weights + place, p.to(weights.dtype.element_ty), mask=is_place)


@triton.jit
def _ticks(r, hi, lo, t, inside, RAISED: tl.constexpr, DIGITS: tl.constexpr, COMPUTE: tl.constexpr):
    """p as a whole number out of 2^DIGITS, RAISED by that part of what it can be raised by.

    What is missing from 1 is rounded, not p: it may be much smaller than p's last digit.
    """
    is_limit = is_in_limit(hi, t, COMPUTE)
    inverse = exponent_scale(tl.where(is_limit, 1.0, t), COMPUTE)
    is_above, e = soft_tails(r, hi, lo, inverse)
    is_above = tl.where(across(is_limit), r > across(hi), is_above)
    share = tl.where(r == across(hi), across(tl.minimum(lo, 1.0)), 0.0)
    e = tl.where(across(is_limit), tl.where(is_above, 0.0, share), e)
    e = tl.where(r == float("-inf"), 0.0, e)
    e = e.to(tl.float64) * tl.where(is_above, 1 - RAISED, 1 + RAISED)
    one = tl.full((), 1 << DIGITS, tl.int64)
    ticks = tl.where(e == e, e * one.to(tl.float64) + 0.5, 0.0).to(tl.int64)
    ticks = tl.minimum(tl.where(is_above, one - ticks, ticks), one)
    return tl.where(inside & across(hi == hi), ticks, 0)


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
    """What the ticks of each chunk add up to, raised a little; those raised more follow."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, 1)
    t = temperature_of(call, outer, inner)
    hi, lo = tl.load(threshold + 2 * row), tl.load(threshold + 2 * row + 1)
    total, more = _sum_ticks(
        *(call, outer, inner, hi, lo, t, first, last, RAISED_LITTLE, RAISED_MORE),
        *(LARGEST, REPEATS, LANES, WIDTH, DIGITS, COMPUTE),
    )
    tl.store(sums + row * chunks + chunk, total)
    tl.store(sums + (row_count + row) * chunks + chunk, more)


@triton.jit
def _sum_ticks(
    call,
    outer,
    inner,
    hi,
    lo,
    t,
    first,
    last,
    RAISED: tl.constexpr,
    MORE: tl.constexpr,
    LARGEST: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DIGITS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The ticks of some scores, raised as RAISED and as MORE says, or 0 where that is None."""
    ROWS: tl.constexpr = hi.shape[0]
    total = tl.zeros((ROWS, LANES), tl.int64)
    more = total
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        ticks = _ticks(r, hi, lo, t, inside, RAISED, DIGITS, COMPUTE)
        total += tl.sum(tl.sum(ticks, 3), 0)
        if MORE is not None:
            ticks = _ticks(r, hi, lo, t, inside, MORE, DIGITS, COMPUTE)
            more += tl.sum(tl.sum(ticks, 3), 0)
    return tl.sum(total, 1), tl.sum(more, 1)


@triton.jit
def _is_drawn(x, ticks, start, step, per_step, k):
    """Whether one of start, start + step, ..., k of them, is among a score's ticks, which end at x.

    The last of them before x is found by a quotient that may be off by one.
    """
    last = x - 1 - start
    number = tl.minimum((last.to(tl.float64) * per_step).to(tl.int64), k - 1)
    passed = last - number * step
    passed = tl.where(passed < 0, passed + step, passed)
    passed = tl.where((passed >= step) & (number < k - 1), passed - step, passed)
    return (last >= 0) & (passed < ticks)


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
    """Random masks of exactly k ones: score i is one with probability p_i (systematic sampling).

    Whole numbers make k exact. The ticks of all scores add up to k of 2^DIGITS or a little more, as
    p is raised by so little that no number of draws would show it; so k numbers that are 2^DIGITS
    or more apart are all among them, and no score, which has 2^DIGITS at most, has two.
    """
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, ROWS)
    is_row = row < row_count
    t = temperature_of(call, outer, inner)
    budget = budget_of(call, outer, inner)
    pair = threshold + 2 * tl.minimum(row, row_count - 1)
    hi, lo = tl.load(pair), tl.load(pair + 1)
    before = tl.zeros((ROWS,), tl.int64)
    is_answered = (hi == hi) & (budget == tl.floor(budget))
    k = tl.where(is_answered, budget, 0.0).to(tl.int64)
    needed = k * tl.full((), 1 << DIGITS, tl.int64)
    if sums is not None:
        before, total = _before(sums, row, chunk, chunks, CHUNK_LANES)
    else:
        total, _ = _sum_ticks(
            *(call, outer, inner, hi, lo, t, first, last, RAISED_LITTLE, None),
            *(LARGEST, REPEATS, LANES, WIDTH, DIGITS, COMPUTE),
        )
    is_short = total < needed  # by what sums in the solver were rounded
    if any_row(is_short):
        before_more, more = before, total
        if sums is not None:
            before_more, more = _before(sums + row_count * chunks, row, chunk, chunks, CHUNK_LANES)
        else:
            more, _ = _sum_ticks(
                *(call, outer, inner, hi, lo, t, first, last, RAISED_MORE, None),
                *(LARGEST, REPEATS, LANES, WIDTH, DIGITS, COMPUTE),
            )
        total = tl.where(is_short, more, total)
        before = tl.where(is_short, before_more, before)
    step = tl.maximum(total // tl.maximum(k, 1), 1)
    per_step = 1 / step.to(tl.float64)
    start = tl.load(row_start(starts, outer, inner)).to(tl.float64) * step.to(tl.float64)
    start = tl.minimum(start.to(tl.int64), step - 1)
    given = (across(start), across(step), across(per_step), across(k))
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        ticks = _ticks(r, hi, lo, t, inside, RAISED_LITTLE, DIGITS, COMPUTE)
        if any_row(is_short):
            raised = _ticks(r, hi, lo, t, inside, RAISED_MORE, DIGITS, COMPUTE)
            ticks = tl.where(across(is_short), raised, ticks)
        x = across(before) + running_sums(ticks)
        is_drawn = _is_drawn(x, ticks, *given) & across(k > 0)
        drawn = tl.where(across(is_answered), is_drawn.to(COMPUTE), float("nan"))
        store_values(out, outer, inner, index, inside & across(is_row), drawn, WIDTH)
        before += _of_rows(ticks)

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

#: Digits of p as a whole number of ticks.
MOST_DIGITS = tl.constexpr(50)
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
def _whole(k):
    """What 1 is in ticks: a power of two, as large as 62 bits for k of them allow."""
    exponent = ((tl.maximum(k, 1.0).to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1022
    return tl.full((1,), 1, tl.int64) << tl.minimum(61 - exponent, MOST_DIGITS)


@triton.jit
def _ticks(r, hi, lo, t, one, inside, MORE: tl.constexpr, COMPUTE: tl.constexpr):
    """p in ticks, raised a little, and which scores have 1, or so nearly that no tick is missing.

    What is missing from 1 is rounded, not p: it may be much smaller than p's last digit. MORE: p is
    raised more, and rounded up, so that the sum cannot be short of what p add up to.
    """
    is_limit = is_in_limit(hi, t, COMPUTE)
    inverse = exponent_scale(tl.where(is_limit, 1.0, t), COMPUTE)
    is_above, e = soft_tails(r, hi, lo, inverse)
    is_taken = (r > across(hi)) | ((r == across(hi)) & across(lo == 1))
    is_above = tl.where(across(is_limit), is_taken, is_above) & (r > float("-inf"))
    share = tl.where(r == across(hi), across(tl.minimum(lo, 1.0)), 0.0)
    e = tl.where(across(is_limit), tl.where(is_above, 0.0, share), e)
    e = tl.where((e == e) & (r > float("-inf")), e, 0.0)
    RAISED: tl.constexpr = RAISED_MORE if MORE else RAISED_LITTLE
    ticks = e.to(tl.float64) * tl.where(is_above, 1 - RAISED, 1 + RAISED)
    ticks = ticks * across(one).to(tl.float64)
    if MORE:
        ticks = tl.where(is_above, tl.floor(ticks), tl.ceil(ticks)).to(tl.int64)
    else:
        ticks = (ticks + 0.5).to(tl.int64)
    is_here = inside & across(hi == hi)
    is_certain = is_here & is_above & (ticks == 0)
    ticks = tl.where(is_above, across(one) - ticks, tl.minimum(ticks, across(one) - 1))
    return tl.where(is_here & (~is_certain), ticks, 0), is_certain


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
    COMPUTE: tl.constexpr,
):
    """What the ticks of each chunk add up to, and how many scores are certain; then raised more."""
    row, outer, inner, chunk, first, last = _span(call, chunks, length, row_count, 1)
    t = temperature_of(call, outer, inner)
    hi, lo = tl.load(threshold + 2 * row), tl.load(threshold + 2 * row + 1)
    one = _whole(budget_of(call, outer, inner))
    found = _sum_ticks(
        *(call, outer, inner, hi, lo, t, one, first, last, True, True),
        *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
    )
    for i in tl.static_range(4):
        tl.store(sums + (i * row_count + row) * chunks + chunk, found[i])


@triton.jit
def _sum_ticks(
    call,
    outer,
    inner,
    hi,
    lo,
    t,
    one,
    first,
    last,
    LITTLE: tl.constexpr,
    MORE: tl.constexpr,
    LARGEST: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The ticks of some scores and how many of them are certain, raised a LITTLE, and MORE."""
    ROWS: tl.constexpr = hi.shape[0]
    total = tl.zeros((ROWS, LANES), tl.int64)
    certain, total_more, certain_more = total, total, total
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        if LITTLE:
            ticks, is_certain = _ticks(r, hi, lo, t, one, inside, False, COMPUTE)
            total += tl.sum(tl.sum(ticks, 3), 0)
            certain += tl.sum(tl.sum(is_certain.to(tl.int64), 3), 0)
        if MORE:
            ticks, is_certain = _ticks(r, hi, lo, t, one, inside, True, COMPUTE)
            total_more += tl.sum(tl.sum(ticks, 3), 0)
            certain_more += tl.sum(tl.sum(is_certain.to(tl.int64), 3), 0)
    return tl.sum(total, 1), tl.sum(certain, 1), tl.sum(total_more, 1), tl.sum(certain_more, 1)


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
    COMPUTE: tl.constexpr,
):
    """Random masks of exactly k ones: score i is one with probability p_i (systematic sampling).

    Whole numbers make k exact. Certain scores are drawn. The ticks of all others add up to what is
    left of the budget or a little more, as p is raised; so as many numbers that are 1 or more apart
    are all among them, and no score, which has less than 1, has two.
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
    one = _whole(budget)
    given = (call, outer, inner, hi, lo, t, one, first, last)
    if sums is not None:
        before, total = _before(sums, row, chunk, chunks, CHUNK_LANES)
        _, certain = _before(sums + row_count * chunks, row, chunk, chunks, CHUNK_LANES)
    else:
        total, certain, _, _ = _sum_ticks(
            *given, True, False, LARGEST, REPEATS, LANES, WIDTH, COMPUTE
        )
    is_short = total < (k - certain) * one  # by what sums in the solver, and ticks, were rounded
    if any_row(is_short):
        before_more, more, certain_more = before, total, certain
        if sums is not None:
            more_sums = sums + 2 * row_count * chunks
            before_more, more = _before(more_sums, row, chunk, chunks, CHUNK_LANES)
            more_sums += row_count * chunks
            _, certain_more = _before(more_sums, row, chunk, chunks, CHUNK_LANES)
        else:
            _, _, more, certain_more = _sum_ticks(
                *given, False, True, LARGEST, REPEATS, LANES, WIDTH, COMPUTE
            )
        total = tl.where(is_short, more, total)
        certain = tl.where(is_short, certain_more, certain)
        before = tl.where(is_short, before_more, before)
    k = tl.maximum(k - certain, 0)
    step = tl.maximum(total // tl.maximum(k, 1), 1)
    per_step = 1 / step.to(tl.float64)
    start = tl.load(row_start(starts, outer, inner)).to(tl.float64) * step.to(tl.float64)
    start = tl.minimum(start.to(tl.int64), step - 1)
    steps = (across(start), across(step), across(per_step), across(k))
    BLOCK: tl.constexpr = REPEATS * LANES * WIDTH
    for part in range((last - first + (BLOCK - 1)) // BLOCK):
        index = part_indices(first, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        ticks, is_certain = _ticks(r, hi, lo, t, one, inside, False, COMPUTE)
        if any_row(is_short):
            raised, is_sure = _ticks(r, hi, lo, t, one, inside, True, COMPUTE)
            ticks = tl.where(across(is_short), raised, ticks)
            is_certain = tl.where(across(is_short), is_sure, is_certain)
        x = across(before) + running_sums(ticks)
        is_drawn = is_certain | (_is_drawn(x, ticks, *steps) & across(k > 0))
        drawn = tl.where(across(is_answered), is_drawn.to(COMPUTE), float("nan"))
        store_values(out, outer, inner, index, inside & across(is_row), drawn, WIDTH)
        before += _of_rows(ticks)

"""The kernels of sorted rows: ranks, masses, thresholds and their gradients, by scans in both ways.

Nodes are the scores of a row, s_0 <= s_1 <= ..., NaN last. Between neighbours lies a gap, in binary
orders: (s_i - s_{i-1}) log2(e) / t, exactly 0 for equal scores. Up and down the row go

    up_i = value_i + 2^{-gap before i} up_{i-1},   down_i = value_i + 2^{-gap after i} down_{i+1}.

A program has a tile of whole rows, or a chunk of one. Of rows in chunks every chunk first leaves
its gaps and sums (``total_chunks``), and its scan starts with what the others send it
(``scan_chunks``). All kernels of a call are told the same. Gaps are added and one exponential is
taken of the sum, so that long products do not round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import HOTTEST, largest_finite, smallest_normal

#: What is computed: ranks; M with L and U; the gradient of thresholds; sums over given gaps; and,
#: with two sums for each node, the gradient of ranks and sums over thresholds in one gap of scores.
RANK = tl.constexpr(0)
MASS = tl.constexpr(1)
SPREAD = tl.constexpr(2)
SUMS = tl.constexpr(3)
RANK_GRADIENT = tl.constexpr(4)
SEGMENTS = tl.constexpr(5)
#: Past so many binary orders nothing is left of a sum, in float64 either.
VANISHING = tl.constexpr(1100.0)
LOG2E = tl.constexpr(1.4426950408889634)
#: Chunks that are looked at together.
CHUNK_LANES = tl.constexpr(256)


@triton.jit
def _follow(gap, total, then_gap, then_total):
    """Sums of one stretch of nodes after another."""
    return gap + then_gap, total * tl.exp2(-then_gap) + then_total


@triton.jit
def _follow_both(gap, first, second, then_gap, then_first, then_second):
    """The same for two sums."""
    decay = tl.exp2(-then_gap)
    return gap + then_gap, first * decay + then_first, second * decay + then_second


@triton.jit
def _keep_start(is_start, value, then_is_start, then_value):
    """The value of the last start at or before a node."""
    return is_start | then_is_start, tl.where(then_is_start != 0, then_value, value)


@triton.jit
def _has_answer(ordered, at_row, n, t, MASKED: tl.constexpr, COMPUTE: tl.constexpr, inside):
    """Rows without a NaN, whose temperature is one."""
    seen = tl.load(ordered + at_row * n + (0 if MASKED else n - 1), mask=inside, other=0.0)
    return (seen == seen) & (t >= 0) & (t <= largest_finite(COMPUTE) / HOTTEST)


@triton.jit
def temperature_of(temperature, t_head, t_rest, row, inside):
    """One for each row, in float64, or the number that is the sum of two float32."""
    if temperature is None:
        return row.to(tl.float64) * 0 + t_head + t_rest
    else:
        return tl.load(temperature + row, mask=inside, other=1.0)


@triton.jit
def _scale(t, COMPUTE: tl.constexpr):
    """Twice log2(e) / t, because gaps are taken by halves; infinite in the hard limit."""
    is_hard = t < smallest_normal(COMPUTE)
    return tl.where(is_hard, float("inf"), 2 * LOG2E / tl.where(is_hard, 1.0, t)).to(COMPUTE)


@triton.jit
def _score_gap(low, high, scale):
    """From one score up to the next; infinite to a NaN, and from infinity."""
    gap = (high * 0.5 - low * 0.5) * scale
    gap = tl.where(gap == gap, gap, float("inf"))
    return tl.where(low == high, 0.0, gap)


@triton.jit
def _gaps(
    nodes, at_row, at, n, inside, scale,
    MODE: tl.constexpr, REVERSE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The node itself, and the gaps before and after it; infinite at the ends of a row."""
    has_before = inside & (at > 0)
    has_after = inside & (at < n - 1)
    if MODE == SUMS:  # whose gaps are given, n - 1 of them
        start = nodes + at_row * (n - 1) + at
        before = tl.load(start - 1, mask=has_before, other=float("inf")) * LOG2E
        after = tl.load(start, mask=has_after, other=float("inf")) * LOG2E
        return before, before, after
    else:
        start = nodes + at_row * n + at
        here = tl.load(start, mask=inside, other=0)
        before = tl.load(start - 1, mask=has_before, other=0)
        after = tl.load(start + 1, mask=has_after, other=0)
        if MODE == SEGMENTS:  # counts: those that are equal are one segment
            infinite = tl.zeros(at.shape, COMPUTE) + float("inf")
            to_before = tl.where(has_before & (here == before), 0.0, infinite)
            to_after = tl.where(has_after & (here == after), 0.0, infinite)
        else:
            to_before = tl.where(has_before, _score_gap(before, here, scale), float("inf"))
            to_after = tl.where(has_after, _score_gap(here, after, scale), float("inf"))
        return here, to_before, to_after


@triton.jit
def _values(
    here, order, first, second, third, at_row, at, n, inside,
    MODE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """What nodes send up, what they send down, and the second thing that they send both ways."""
    spot = at_row * n + at
    nothing = tl.zeros(at.shape, COMPUTE)
    if MODE <= MASS:
        ones = tl.where(inside, 1.0, nothing)
        return ones, ones, nothing
    elif MODE == RANK_GRADIENT:
        ones = tl.where(inside, 1.0, nothing)
        place = tl.load(order + spot, mask=inside, other=0)
        is_finite = inside & (tl.abs(here) <= largest_finite(COMPUTE))
        grad = tl.load(first + at_row * n + place, mask=is_finite, other=0.0)
        return ones, ones, grad
    elif MODE == SPREAD:
        return (
            tl.load(second + spot, mask=inside, other=0.0),
            tl.load(first + spot, mask=inside, other=0.0),
            nothing,
        )
    elif MODE == SEGMENTS:
        grad = tl.load(first + spot, mask=inside, other=0.0)
        low = grad * tl.load(second + spot, mask=inside, other=0.0)
        return low, nothing, grad * tl.load(third + spot, mask=inside, other=0.0)
    else:
        values = tl.load(first + spot, mask=inside, other=0.0)
        return values, values, nothing


@triton.jit
def total_chunks(
    nodes, order, temperature, t_head, t_rest, first, second, third, totals, out, more, most,
    n, row_count, chunks, total_count, columns, width,
    MODE: tl.constexpr, REVERSE: tl.constexpr, LENGTH: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Gaps and sums of every chunk: six numbers each, [6, rows, chunks]."""
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    chunk = program % chunks
    at = chunk * LENGTH + tl.arange(0, LENGTH)
    inside = at < n
    scale = tl.zeros((), COMPUTE)
    if MODE != SUMS and MODE != SEGMENTS:
        t = temperature_of(temperature, t_head, t_rest, row, row < row_count)
        scale = _scale(t, COMPUTE)
    node_row = row // columns
    here, to_before, to_after = _gaps(nodes, node_row, at, n, inside, scale, MODE, REVERSE, COMPUTE)
    up, down, both = _values(here, order, first, second, third, row, at, n, inside, MODE, COMPUTE)
    # From the chunk's first node to each, and from each to its last.
    is_last = (at == n - 1) | (at == chunk * LENGTH + LENGTH - 1)
    from_first = tl.cumsum(tl.where((at == chunk * LENGTH) | (at >= n), 0.0, to_before), 0)
    to_last = tl.cumsum(tl.where(is_last | (at >= n), 0.0, to_after), 0, reverse=True)
    arriving = tl.where(inside, tl.exp2(-to_last), 0.0)
    leaving = tl.where(inside, tl.exp2(-from_first), 0.0)
    into = totals + program
    tl.store(into, tl.sum(tl.where(inside, to_before, 0.0), 0))
    tl.store(into + total_count, tl.sum(tl.where(inside, to_after, 0.0), 0))
    tl.store(into + 2 * total_count, tl.sum(up * arriving, 0))
    tl.store(into + 3 * total_count, tl.sum(down * leaving, 0))
    tl.store(into + 4 * total_count, tl.sum(both * arriving, 0))
    tl.store(into + 5 * total_count, tl.sum(both * leaving, 0))


@triton.jit
def _sent_up(gaps, sums, others, row_start, chunk, COMPUTE: tl.constexpr):
    """What the chunks before this one send to the last node of the one before it, of both sums.

    ``others`` may be None.
    """
    total = tl.zeros((), COMPUTE)
    other = total
    far = total
    end = chunk
    while (end > 0) & (far < VANISHING):
        lane = end - CHUNK_LANES + tl.arange(0, CHUNK_LANES)
        is_there = lane >= 0
        start = row_start + lane
        gap = tl.load(gaps + start + 1, mask=is_there & (lane < end - 1), other=0.0)
        decay = tl.exp2(-(tl.cumsum(gap, 0, reverse=True) + far))
        total += tl.sum(tl.load(sums + start, mask=is_there, other=0.0) * decay, 0)
        if others is not None:
            other += tl.sum(tl.load(others + start, mask=is_there, other=0.0) * decay, 0)
        far += tl.sum(tl.load(gaps + start, mask=is_there, other=0.0), 0)
        end -= CHUNK_LANES
    return total, other


@triton.jit
def _sent_down(gaps, sums, others, row_start, chunk, chunks, COMPUTE: tl.constexpr):
    """What the chunks after this one send to the first node of the one after it."""
    total = tl.zeros((), COMPUTE)
    other = total
    far = total
    begin = chunk + 1
    while (begin < chunks) & (far < VANISHING):
        lane = begin + tl.arange(0, CHUNK_LANES)
        is_there = lane < chunks
        start = row_start + lane
        gap = tl.load(gaps + start - 1, mask=is_there & (lane > begin), other=0.0)
        decay = tl.exp2(-(tl.cumsum(gap, 0) + far))
        total += tl.sum(tl.load(sums + start, mask=is_there, other=0.0) * decay, 0)
        if others is not None:
            other += tl.sum(tl.load(others + start, mask=is_there, other=0.0) * decay, 0)
        far += tl.sum(tl.load(gaps + start, mask=is_there, other=0.0), 0)
        begin += CHUNK_LANES
    return total, other


@triton.jit
def scan_chunks(
    nodes, order, temperature, t_head, t_rest, first, second, third, totals, out, more, most,
    n, row_count, chunks, total_count, columns, width,
    MODE: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, LENGTH: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The scans of whole rows, or with SHARED of a chunk of one, and what MODE makes of them."""
    program = tl.program_id(0)
    tile = program // chunks
    chunk = program % chunks
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    is_row = row < row_count
    at = chunk * LENGTH + tl.arange(0, LENGTH)[None, :]
    inside = is_row & (at < n)
    scale = tl.zeros((ROWS, 1), COMPUTE)
    t = tl.zeros((ROWS, 1), tl.float64)
    if MODE != SUMS and MODE != SEGMENTS:
        t = temperature_of(temperature, t_head, t_rest, row, is_row)
        scale = _scale(t, COMPUTE)
    node_row = row // columns
    here, to_before, to_after = _gaps(nodes, node_row, at, n, inside, scale, MODE, REVERSE, COMPUTE)
    up, down, both = _values(here, order, first, second, third, row, at, n, inside, MODE, COMPUTE)
    up_both = both
    down_both = both
    if MODE >= RANK_GRADIENT:
        gap_up, up, up_both = tl.associative_scan((to_before, up, both), 1, _follow_both)
    elif not REVERSE:
        gap_up, up = tl.associative_scan((to_before, up), 1, _follow)
    if MODE == RANK_GRADIENT:
        gap_down, down, down_both = tl.associative_scan(
            (to_after, down, both), 1, _follow_both, reverse=True
        )
    elif MODE != SEGMENTS and (MODE != SUMS or REVERSE):
        gap_down, down = tl.associative_scan((to_after, down), 1, _follow, reverse=True)
    if SHARED:  # ROWS is 1
        start = tile.to(tl.int64) * chunks
        if not REVERSE:
            others = totals + 4 * total_count if MODE >= RANK_GRADIENT else None
            sent, other = _sent_up(totals, totals + 2 * total_count, others, start, chunk, COMPUTE)
            came = tl.exp2(-gap_up)
            up += came * sent
            up_both += came * other
        if MODE != SEGMENTS and (MODE != SUMS or REVERSE):
            gaps = totals + total_count
            sums = totals + 3 * total_count
            others = totals + 5 * total_count if MODE == RANK_GRADIENT else None
            sent, other = _sent_down(gaps, sums, others, start, chunk, chunks, COMPUTE)
            came = tl.exp2(-gap_down)
            down += came * sent
            down_both += came * other
    spot = row * n + at
    if MODE == SUMS:
        tl.store(out + spot, down if REVERSE else up, mask=inside)
    elif MODE == SEGMENTS:  # `width` scores a row; the last threshold of a segment has its sums
        following = tl.load(nodes + spot + 1, mask=inside & (at < n - 1), other=-1)
        is_end = inside & (here != following)
        tl.store(out + row * width + here - 1, up, mask=is_end & (here > 0))
        tl.store(more + row * width + here, up_both, mask=is_end & (here < width))
    elif MODE == MASS:
        if out.dtype.element_ty == tl.int32:  # of 1/2, 3/2, ... the first that is above the mass
            tl.store(out + spot, at + 1 + tl.floor(0.5 * (down - up)).to(tl.int32), mask=inside)
        else:  # the middle of the row's masses needs more digits than float32 has
            masses = (at + 0.5) + 0.5 * (down.to(tl.float64) - up.to(tl.float64))
            tl.store(out + spot, masses, mask=inside)
        tl.store(more + spot, up, mask=inside)
        tl.store(most + spot, down, mask=inside)
    else:
        good = _has_answer(nodes, row, n, t, MASKED, COMPUTE, is_row)
        if MODE == RANK:
            found = (at + 1).to(COMPUTE) + 0.5 * (down - up)
            found = tl.where(good & (here == here), found, float("nan"))
            if SHARED:  # place_ranks does the rest
                tl.store(more + spot, found, mask=inside)
            else:
                before = tl.load(nodes + spot - 1, mask=inside & (at > 0), other=float("nan"))
                starts = (here != before).to(tl.int32)
                _, found = tl.associative_scan((starts, found), 1, _keep_start)
                place = tl.load(order + spot, mask=inside, other=0)
                tl.store(out + row * n + place, found, mask=inside)
        else:
            if MODE == RANK_GRADIENT:
                found = (both * (up + down) - (up_both + down_both)) * 0.5
                is_soft = t >= smallest_normal(COMPUTE)
                found = found / tl.where(is_soft, t, 1.0).to(COMPUTE)
                is_live = (tl.abs(here) <= largest_finite(COMPUTE)) & is_soft
                found = tl.where(is_live, found, 0.0)
            else:
                found = up + down
            found = tl.where(good, found, float("nan"))
            place = tl.load(order + spot, mask=inside, other=0)
            tl.store(out + row * n + place, found, mask=inside)


@triton.jit
def place_ranks(
    nodes, order, temperature, t_head, t_rest, first, second, third, totals, out, ranks, most,
    n, row_count, chunks, total_count, columns, width,
    LENGTH: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Ranks to where the scores were; tied scores have that of the first of them."""
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    begin = (program % chunks) * LENGTH
    at = begin + tl.arange(0, LENGTH)
    inside = at < n
    nodes += row * n
    ranks += row * n
    here = tl.load(nodes + at, mask=inside, other=0.0)
    before = tl.load(nodes + at - 1, mask=inside & (at > 0), other=float("nan"))
    first = tl.associative_scan(tl.where(here != before, at, -1), 0, _later)
    low = begin * 0
    high = begin * 0
    wanted = tl.load(nodes + begin)
    if begin > 0:
        if tl.load(nodes + begin - 1) == wanted:  # ties that began in an earlier chunk
            high = begin
    while low < high:
        middle = low + (high - low) // 2
        is_below = tl.load(nodes + middle) < wanted
        low = tl.where(is_below, middle + 1, low)
        high = tl.where(is_below, high, middle)
    rank = tl.load(ranks + tl.where(first < 0, low, first), mask=inside, other=0.0)
    place = tl.load(order + row * n + at, mask=inside, other=0)
    tl.store(out + row * n + place, rank, mask=inside)


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)

"""A rank's part of masks and gradients, once all ranks know the thresholds; see gradients.py.

Every program takes a piece of a row. Of scores that are tied with the boundary of a hard mask the
first ones are taken: where there are more of them on this rank than it may take, they are counted
by pieces before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .gradients import (
    Gradients,
    load_upstream,
    score_gradient,
    sum_count,
    threshold_of,
    weighted_sums,
)
from .mask import _any_log, any_mask, hard_mask, is_in_limit, soft_mask, ties_in
from .numbers import LN2, any_row
from .views import across, coordinates, exist, load_scores, part_indices, store_values

#: Columns of the sums for gradients: see backends/shards.py.
GRADIENT_COLUMNS = tl.constexpr(7)


class Found(NamedTuple):
    """What is known of rows, [rows] each: the fields of Answers and the temperature."""

    hi: Any
    lo: Any
    log_share: Any
    is_used_up: Any
    boundary: Any
    quota: Any
    is_far: Any
    ties: Any
    temperature: Any


class Pair(NamedTuple):
    """A row's threshold, as the masks of mask.py want it; shape [1]."""

    hi: Any
    lo: Any
    is_spent: Any
    log_share: Any


@triton.jit
def _is_cut(found, row):
    """Whether a rank takes some of its tied scores, and not all."""
    quota = tl.load(found.quota + row)
    return (quota > 0) & (quota < tl.load(found.ties + row))


@triton.jit(do_not_specialize=["row_count", "pieces"])
def count_ties(
    call,
    row_count,
    found,
    counts,
    pieces,
    LARGEST: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """How many scores of a piece are tied with the boundary, of rows for which that matters."""
    row_number = (tl.program_id(0) // pieces).to(tl.int64)
    if _is_cut(found, row_number):
        row = tl.zeros((1,), tl.int64) + row_number
        piece = (tl.program_id(0) % pieces).to(tl.int64)
        outer, inner = coordinates(call, row, row_count)
        boundary = tl.load(found.boundary + row).to(COMPUTE)
        tied = tl.zeros((1,), tl.int32)
        for part in range(PARTS):
            index = part_indices(
                piece * (PARTS * REPEATS * LANES * WIDTH), part, REPEATS, LANES, WIDTH
            )
            inside = exist(index, call.n, WIDTH)
            r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
            tied += ties_in(r, boundary)
        tl.store(counts + tl.program_id(0) + tl.arange(0, 1), tied)


@triton.jit
def _earlier(counts, first, piece, PIECE_LANES: tl.constexpr):
    """How many tied scores there are in the pieces of a row before this one, shape [1]."""
    number = tl.arange(0, PIECE_LANES)
    before = tl.load(counts + first + number, mask=number < piece, other=0)
    return tl.sum(before.to(tl.int64), 0).to(tl.float64) + tl.zeros((1,), tl.float64)


@triton.jit
def _write_parts(
    call,
    outer,
    inner,
    start,
    out,
    pair,
    t,
    KIND: tl.constexpr,
    PARTS: tl.constexpr,
    LARGEST: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The parts of a piece. KIND is "hard", "log", or how a mask is taken.

    That of a "soft" row is plain, and "any" row may be in the hard limit or without an answer. If
    the threshold is "far" from most scores their masses are small and add up to the budget: every
    digit counts. A hard pair is the boundary, and for how many that equal it there is room.
    """
    room = pair.lo
    for part in range(PARTS):
        index = part_indices(start, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        if KIND == "hard":
            one = tl.full((1,), 1.0, tl.float64)
            p, ties = hard_mask(r, one, pair.hi, room, COMPUTE)
            room -= ties.to(tl.float64)
        elif KIND == "log":
            p = _any_log(r, pair, t, COMPUTE)
        elif KIND == "any":
            p = any_mask(r, pair.hi, pair.lo, t, COMPUTE)
        elif KIND == "far":
            p = soft_mask(r.to(tl.float64), pair.hi, pair.lo, t, tl.float64).to(COMPUTE)
        else:
            p = soft_mask(r, pair.hi, pair.lo, t, COMPUTE)
        store_values(out, outer, inner, index, inside, p, WIDTH)


@triton.jit(do_not_specialize=["row_count", "pieces"])
def write_pieces(
    call,
    row_count,
    found,
    out,
    counts,
    pieces,
    OUTPUT: tl.constexpr,
    LARGEST: tl.constexpr,
    PIECE_LANES: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A piece of what OUTPUT says: the mask, a hard one, or the mask's logarithm.

    From the end of a row: what was read last is still at hand.
    """
    row_number = (tl.program_id(0) // pieces).to(tl.int64)
    row = tl.zeros((1,), tl.int64) + row_number
    piece = pieces - 1 - tl.program_id(0) % pieces
    outer, inner = coordinates(call, row, row_count)
    start = piece.to(tl.int64) * (PARTS * REPEATS * LANES * WIDTH)
    t = tl.load(found.temperature + row)
    hi, lo = tl.load(found.hi + row), tl.load(found.lo + row)
    if OUTPUT == "hard":
        boundary = tl.load(found.boundary + row).to(COMPUTE)
        room = tl.load(found.quota + row)
        if _is_cut(found, row_number):
            room -= _earlier(counts, row_number * pieces, piece, PIECE_LANES)
        pair = Pair(boundary, room, room > 0, boundary)
        _write_parts(
            *(call, outer, inner, start, out, pair, t, "hard", PARTS),
            *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
        )
    elif OUTPUT == "log":
        is_spent = tl.load(found.is_used_up + row) != 0
        share = tl.load(found.log_share + row).to(COMPUTE)
        pair = Pair(hi.to(COMPUTE), lo.to(COMPUTE), is_spent, share)
        _write_parts(
            *(call, outer, inner, start, out, pair, t, "log", PARTS),
            *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
        )
    else:
        narrow = Pair(hi.to(COMPUTE), lo.to(COMPUTE), hi != hi, hi)
        wide = Pair(hi, lo, hi != hi, hi)
        if any_row(is_in_limit(hi, t, COMPUTE) | (hi != hi)):
            _write_parts(
                *(call, outer, inner, start, out, narrow, t, "any", PARTS),
                *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
            )
        elif tl.load(found.is_far + row_number) != 0:
            _write_parts(
                *(call, outer, inner, start, out, wide, t, "far", PARTS),
                *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
            )
        else:
            _write_parts(
                *(call, outer, inner, start, out, narrow, t, "soft", PARTS),
                *(LARGEST, REPEATS, LANES, WIDTH, COMPUTE),
            )


@triton.jit
def _added(place, is_part, factor, is_live, OUTPUT: tl.constexpr):
    """The sums of all programs, those of weights relative to one shift."""
    total = ()
    for i in tl.static_range(sum_count(OUTPUT, True)):
        own = tl.load(place + 1 + i, mask=is_part, other=0.0)
        if i < weighted_sums(OUTPUT, True):
            own = own * factor
        total = total + (tl.where(is_live, tl.sum(own, 0), 0.0),)  # type: ignore[assignment]
    return total


@triton.jit
def _put(to, column, value):
    tl.store(to + column + tl.arange(0, 1), value)


@triton.jit(do_not_specialize=["row_count", "programs"])
def add_gradient_sums(
    call,
    row_count,
    grad,
    threshold,
    parts,
    sums,
    programs,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    SUM_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A rank's sums for the gradients of a row, from those of its programs, in their order.

    Theirs are of 2^-|v| (see gradients.py), and exponents of a rank's are natural.
    """
    row = tl.zeros((1,), tl.int64) + tl.program_id(0)
    outer, inner = coordinates(call, row, row_count)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    number = tl.arange(0, SUM_LANES)
    is_part = number < programs
    place = parts + (row * programs + number) * GRADIENT_COLUMNS
    shifts = tl.load(place, mask=is_part, other=float("inf"))
    shift = tl.min(shifts, 0)
    is_live = ~(rows.is_limit | (rows.hi != rows.hi)) & (shift < float("inf"))
    factor = tl.where(shifts < float("inf"), tl.exp2(shift - shifts), 0.0)
    nothing = tl.zeros((1,), tl.float64)
    total = _added(place, is_part, factor, is_live, OUTPUT)
    to = sums + tl.program_id(0).to(tl.int64) * GRADIENT_COLUMNS
    _put(to, 0, tl.where(is_live, shift * LN2, float("inf")))
    _put(to, 1, total[0])
    if OUTPUT == "mask":  # w, g w, w v, g w v
        _put(to, 2, total[2] * LN2)
        _put(to, 3, total[1])
        _put(to, 4, total[3] * LN2)
        _put(to, 5, nothing)
        _put(to, 6, nothing)
    elif OUTPUT == "log":  # w, w v, g w / p above; a, a v, g below
        _put(to, 2, total[1] * LN2)
        _put(to, 3, total[3])
        _put(to, 4, total[4] * LN2)
        _put(to, 5, total[2])
        _put(to, 6, total[5])
    else:  # w, w v
        g = tl.load(grad.start + outer * grad.outer + inner * grad.inner).to(tl.float64)
        _put(to, 2, total[1] * LN2)
        _put(to, 3, g if LARGEST else -g)
        _put(to, 4, nothing)
        _put(to, 5, nothing)
        _put(to, 6, nothing)


@triton.jit(do_not_specialize=["row_count", "pieces"])
def write_gradient_pieces(
    call,
    row_count,
    grad,
    threshold,
    shift,
    e,
    level,
    out,
    pieces,
    OUTPUT: tl.constexpr,
    LARGEST: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The gradient for a piece of a row's scores, from the totals of whole rows."""
    row_number = (tl.program_id(0) // pieces).to(tl.int64)
    row = tl.zeros((1,), tl.int64) + row_number
    outer, inner = coordinates(call, row, row_count)
    rows = threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE)
    mean = tl.load(level + row)
    least = tl.load(shift + row)
    if OUTPUT != "mask":
        mean = mean / tl.load(e + row)
    if OUTPUT == "threshold" and not LARGEST:
        mean = -mean
    least = tl.where(least < float("inf"), least * (1 / LN2), 0.0)
    of_row = Gradients(mean, least, mean, mean)
    start = (tl.program_id(0) % pieces).to(tl.int64) * (PARTS * REPEATS * LANES * WIDTH)
    for part in range(PARTS):
        index = part_indices(start, part, REPEATS, LANES, WIDTH)
        inside = exist(index, call.n, WIDTH)
        r = load_scores(call, outer, inner, index, inside, LARGEST, WIDTH, COMPUTE)
        g, _ = load_upstream(grad, outer, inner, index, inside, r, WIDTH, OUTPUT)
        d = score_gradient(r, g, of_row, rows, LARGEST, OUTPUT, COMPUTE)
        store_values(out, outer, inner, index, inside & across(row >= 0), d, WIDTH)

"""The search for the thresholds of rows that are spread over ranks, on what they have told.

backends/torch/shard_search.py and shard_solve.py are the same for any device, with the reasons. One
program takes a row, and adds up what ranks said in one order: all ranks make the same bits of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import SATURATION, largest_finite, log_quotient
from .shard_curve import (
    AT_MOST,
    UNCERTAIN,
    band_of,
    curve_of,
    node_at,
    nodes_under,
    root_of,
    weight_above,
)
from .shard_nodes import (
    asked_of,
    counts_of,
    load_nodes,
    nodes_of,
    number_of,
    one_number,
    said,
    step_of,
    weight_of,
)
from .shard_order import cuts_of, next_number
from .shard_read import decay
from .team import await_last, begin_next

#: How far from where a random sample puts it the threshold may be: missed once in 10,000 rows.
DEVIATIONS = tl.constexpr(4.0)
#: Numbers before a sample, and columns of a measurement: see backends/shards.py.
LENGTH, DRAWN = tl.constexpr(0), tl.constexpr(1)
NAN_COUNT, INFINITE_COUNT, VALID_COUNT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOWEST, HIGHEST, ABOVE_COUNT = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
ABOVE_NEAREST, ABOVE_SUM, INSIDE_COUNT = tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)
BELOW_NEAREST, BELOW_SUM, COLUMNS = tl.constexpr(9), tl.constexpr(10), tl.constexpr(11)


@triton.jit
def _finite_or_zero(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def _of_all(
    messages,
    search,
    row,
    rows,
    first,
    SHAPE: tl.constexpr,
    IS_SAMPLE: tl.constexpr,
    NAME: tl.constexpr,
):
    """Some ranks from the ``first`` on, [RANKS]: number, which exist, how many scores each has.

    And their nodes, which of them have a weight, [RANKS, SIZE_LANES], and whether all scores are
    one number. SHAPE is both. What is said of several ranks at a time is waited for once.
    """
    rank = (tl.zeros((), tl.int64) + first) + tl.arange(0, SHAPE[0])
    is_rank = rank < messages.ranks
    count = counts_of(messages, row, rank, is_rank, IS_SAMPLE)
    number = tl.arange(0, SHAPE[1])[None, :]
    is_node = is_rank[:, None] & (number < messages.size)
    low, is_one = one_number(search, row, rows, IS_SAMPLE, NAME)
    sent = load_nodes(messages, row, rank[:, None], number, is_node)
    value, is_real = said(sent, number, is_node, count[:, None], low, is_one, IS_SAMPLE, NAME)
    return rank, is_rank, count, value, is_real, is_one


@triton.jit
def _ends_of(value, is_real):
    """The least and the greatest of the nodes of each rank, float64."""
    least = tl.min(tl.where(is_real, value, float("inf")), 1)
    most = tl.max(tl.where(is_real, value, float("-inf")), 1)
    return least.to(tl.float64), most.to(tl.float64)


@triton.jit
def _variation(least, most, asked):
    """How much p of values between two can differ: most for a threshold amidst them."""
    width = tl.where(most >= least, most * 0.5 - least * 0.5, 0.0)
    return tl.where(asked.is_hard, 1.0, 1 - tl.exp2(-width * asked.inverse))


@triton.jit
def _write_state(
    search,
    row,
    rows,
    cuts,
    left,
    right,
    low,
    high,
    is_open,
    CUT_LANES: tl.constexpr,
    NAME: tl.constexpr,
):
    """Where the search goes on; rows that are done have an empty band."""
    low, high = tl.where(is_open, low, 0.0), tl.where(is_open, high, 0.0)
    tl.store(search.state + row, left)
    tl.store(search.state + rows + row, right)
    tl.store(search.state + 2 * rows + row, low)
    tl.store(search.state + 3 * rows + row, high)
    tl.store(search.is_open + row, is_open.to(tl.int32))
    number = tl.arange(0, CUT_LANES)
    index = tl.minimum(tl.maximum(number - 2, 1), cuts).to(tl.int64)
    pivot = cuts_of(left, right, index, cuts, NAME)
    pivot = tl.where(number == 0, low, pivot)
    pivot = tl.where(number == 1, next_number(low, NAME), pivot)
    pivot = tl.where(number == 2, high, pivot)
    tl.store(search.pivots + row * (3 + cuts) + number, pivot, mask=number < 3 + cuts)


@triton.jit
def _store_solved(search, row, rows, hi, lo, log_share, is_used_up, wanted, valid, has_nan):
    to = search.solved + row
    tl.store(to, hi)
    tl.store(to + rows, lo)
    tl.store(to + 2 * rows, log_share)
    tl.store(to + 3 * rows, is_used_up)
    tl.store(to + 4 * rows, wanted)
    tl.store(to + 5 * rows, valid)
    tl.store(to + 6 * rows, has_nan)


@triton.jit(do_not_specialize=["rows", "cuts"])
def begin_rows(
    messages,
    search,
    rows,
    cuts,
    RANKS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
    NAME: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Where the samples of all ranks put the thresholds, of which nothing else is known yet."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    asked = asked_of(search, row, COMPUTE)
    unknown = tl.full((), float("nan"), tl.float64)
    _store_solved(search, row, rows, unknown, unknown, unknown, unknown, unknown, unknown, unknown)
    nothing = tl.zeros((), tl.float64)
    infinite, between, spare = nothing, nothing, nothing
    most, least = nothing - float("inf"), nothing + float("inf")
    for first in range(0, messages.ranks, RANKS):
        rank, is_rank, length, value, is_real, _ = _of_all(
            messages, search, row, rows, first, (RANKS, SIZE_LANES), True, NAME
        )
        tl.store(search.ties + rank * rows + row, 0.0 * length, mask=is_rank)
        number = tl.arange(0, SIZE_LANES)[None, :]
        weight = weight_of(length[:, None], number, messages.size)
        infinite += tl.sum(tl.sum(tl.where(value == float("inf"), weight, 0.0), 1), 0)
        low, high = _ends_of(value, is_real)
        most, least = tl.maximum(most, tl.max(high, 0)), tl.minimum(least, tl.min(low, 0))
        # The scores between two quantiles may be anywhere there.
        varies = tl.where(length > messages.size, _variation(low, high, asked), 0.0)
        between += tl.sum(step_of(length, messages.size) * varies, 0)
        spare += tl.sum(varies, 0)
    most, least = _finite_or_zero(most), _finite_or_zero(least)
    nodes = nodes_of(search, row, rows, messages.ranks * messages.size)
    excess = infinite - asked.target
    curve = curve_of(nodes, most, nothing, least, nothing, excess, asked.inverse, BLOCKS)
    hi, lo = root_of(curve, asked.scale, asked.inverse)
    # Quantiles of a random part are off by that part's deviation, too.
    near = hi.to(COMPUTE)
    rest = ((hi - near.to(tl.float64)) + lo).to(COMPUTE)
    inverse = asked.inverse.to(COMPUTE)
    deviation = nothing
    for first in range(0, messages.ranks, RANKS):
        rank, is_rank, length, value, is_real, _ = _of_all(
            messages, search, row, rows, first, (RANKS, SIZE_LANES), True, NAME
        )
        drawn = tl.load(number_of(messages, rank, row, DRAWN), mask=is_rank, other=0.0)
        # An estimate: what the scores are computed in will do.
        v = ((value - near) - rest) * inverse
        half = tl.exp2(-tl.abs(v)) * 0.5
        p = tl.where(v > 0, 1 - half, half)
        p = tl.where(asked.is_hard, tl.where(value > near, 1.0, 0.0), p)
        is_known = is_real & (p == p)
        p = tl.where(is_known, p, 0.0)
        known = tl.maximum(tl.sum(is_known.to(tl.int32), 1).to(tl.float64), 1.0)
        part = 1 / known
        mean = tl.sum(p, 1).to(tl.float64) * part
        variance = tl.maximum(tl.sum(p * p, 1).to(tl.float64) * part - mean * mean, 0.0)
        variance += 1 / tl.maximum(length, 1.0)
        own = length * length / tl.maximum(drawn, 1.0) * variance
        deviation += tl.sum(tl.where(drawn < length, own, 0.0), 0)
    spare += tl.sqrt(deviation) * DEVIATIONS
    left, right = nothing - float("inf"), nothing + float("inf")
    # All rows of a call wait for one whose band is missed.
    less = between * tl.where(rows == 1, AT_MOST, 1.0) + spare
    low, high = band_of(curve, left, right, between + spare, less, asked, NAME)
    _write_state(search, row, rows, cuts, left, right, low, high, left < right, CUT_LANES, NAME)


@triton.jit
def _of_ranks(messages, row, column, nothing, RANK_LANES: tl.constexpr):
    """A number of a measurement, of every rank."""
    rank = tl.arange(0, RANK_LANES)
    place = number_of(messages, rank.to(tl.int64), row, column)
    return tl.load(place, mask=rank < messages.ranks, other=nothing)


@triton.jit
def _outer(messages, row, nearest, sums, end, otherwise, inverse, RANK_LANES: tl.constexpr):
    """The scores on one side of the band, relative to the nearest of all ranks."""
    scores = _of_ranks(messages, row, nearest, end, RANK_LANES)
    best = tl.min(scores, 0) if end > 0 else tl.max(scores, 0)
    own = _of_ranks(messages, row, sums, 0.0, RANK_LANES)
    is_there = tl.abs(scores) < float("inf")
    total = tl.sum(tl.where(is_there, own * decay(best, scores, inverse), 0.0), 0)
    return tl.where(tl.abs(best) < float("inf"), best, otherwise), total


@triton.jit
def _narrowed(
    messages,
    search,
    row,
    rows,
    cuts,
    remaining,
    asked,
    RANKS: tl.constexpr,
    CUT_LANES: tl.constexpr,
):
    """The bracket that the masses at the pivots leave.

    Rounding may leave none: then the mass is over the target at the first number and under it at
    the second, which is no higher. Masses fall, so both are the target but for rounding.
    """
    number = tl.arange(0, CUT_LANES)
    count = 3 + cuts
    is_pivot = number < count
    counts = tl.zeros((CUT_LANES,), tl.float64)
    halves = counts
    for first in range(0, messages.ranks, RANKS):
        rank = (tl.zeros((), tl.int64) + first) + tl.arange(0, RANKS)[:, None]
        place = number_of(messages, rank, row, COLUMNS) + number[None, :]
        is_said = (rank < messages.ranks) & is_pivot[None, :]
        counts += tl.sum(tl.load(place, mask=is_said, other=0.0), 0)
        halves += tl.sum(tl.load(place + count, mask=is_said, other=0.0), 0)
    # NaN where a rank does not know it.
    surplus = (counts - remaining) + tl.where(asked.is_hard, 0.0, halves)
    surplus = tl.where(is_pivot, surplus, float("nan"))
    pivot = tl.load(search.pivots + row * count + number, mask=is_pivot, other=0.0)
    left = tl.max(tl.where(surplus >= 0, pivot, float("-inf")), 0)
    right = tl.min(tl.where(surplus < 0, pivot, float("inf")), 0)
    left = tl.maximum(left, tl.load(search.state + row))
    return left, tl.minimum(right, tl.load(search.state + rows + row))


@triton.jit
def _hard_boundary(
    messages,
    search,
    row,
    rows,
    curve,
    asked,
    counted,
    RANKS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    NAME: tl.constexpr,
):
    """In the hard limit: the first score up to which there are as many as its rank says.

    Returned are also what of the budget is left for scores that are tied with it, and how many
    those are. ``counted`` are the scores above all nodes.
    """
    before = nodes_under(curve, 0.0, asked.is_hard, False)
    boundary = node_at(curve, tl.minimum(before, curve.nodes.count - 1))
    over = counted + weight_above(curve, boundary)
    tied = tl.zeros((), tl.float64)
    for first in range(0, messages.ranks, RANKS):
        rank, is_rank, count, value, is_real, is_one = _of_all(
            messages, search, row, rows, first, (RANKS, SIZE_LANES), False, NAME
        )
        is_tied = is_real & (value.to(tl.float64) == boundary)
        each = tl.where(is_one, count, step_of(count, messages.size))
        ties = tl.sum(is_tied.to(tl.int32), 1).to(tl.float64) * each
        tl.store(search.ties + rank * rows + row, ties, mask=is_rank)
        tied += tl.sum(ties, 0)
    return boundary, asked.budget - over, tl.maximum(tied, 1.0)


@triton.jit
def _renormalised(place, offset, COMPUTE: tl.constexpr):
    """All that the kept dtype can hold of a threshold in the first number, exactly."""
    limit = largest_finite(COMPUTE)
    rounded = tl.minimum(tl.maximum(place + offset, -limit), limit)
    rounded = tl.where(place + offset == place + offset, rounded, float("nan"))
    rounded = rounded.to(COMPUTE).to(tl.float64)
    return rounded, (place - rounded) + offset


@triton.jit(do_not_specialize=["rows", "cuts"])
def advance_rows(
    messages,
    search,
    rows,
    cuts,
    RANKS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    RANK_LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
    NAME: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The thresholds of rows that these measurements decide, and where the others' may be."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    if tl.load(search.is_open + row) != 0:
        asked = asked_of(search, row, COMPUTE)
        low, high = tl.load(search.state + 2 * rows + row), tl.load(search.state + 3 * rows + row)
        nans = tl.sum(_of_ranks(messages, row, NAN_COUNT, 0.0, RANK_LANES), 0)
        infinite_of = _of_ranks(messages, row, INFINITE_COUNT, 0.0, RANK_LANES)
        infinite = tl.sum(infinite_of, 0)
        valid = tl.sum(_of_ranks(messages, row, VALID_COUNT, 0.0, RANK_LANES), 0)
        counted = tl.sum(_of_ranks(messages, row, ABOVE_COUNT, 0.0, RANK_LANES), 0)
        inside = _of_ranks(messages, row, INSIDE_COUNT, 0.0, RANK_LANES)
        end = float("inf")
        least = tl.min(_of_ranks(messages, row, LOWEST, end, RANK_LANES), 0)
        most = tl.max(_of_ranks(messages, row, HIGHEST, -end, RANK_LANES), 0)
        least, most = _finite_or_zero(least), _finite_or_zero(most)
        target_left = asked.target - infinite
        # All of the bracket is measured after a band that was missed.
        was_missed = low <= tl.load(search.state + row)
        was_missed &= high >= tl.load(search.state + rows + row)
        left, right = _narrowed(
            messages, search, row, rows, cuts, target_left, asked, RANKS, CUT_LANES
        )
        # Rows that counts and ends decide.
        budget, finite = asked.budget, valid - infinite
        remaining = budget - infinite
        is_answerable = (budget >= 0) & (budget <= valid) & asked.is_usable & (nans == 0)
        is_shared = tl.where(asked.is_hard, target_left <= 0, remaining < 0)
        is_whole = remaining == finite
        is_soft_end = ~asked.is_hard & ((remaining == 0) | is_whole)
        is_settled = ~is_answerable | is_shared | is_soft_end | (finite == 0)
        if is_settled:
            edge = tl.minimum(asked.temperature * SATURATION, largest_finite(COMPUTE) / 2)
            edge = tl.where(asked.is_hard, 0.0, edge)
            hi = tl.where(is_whole, least, most)
            lo = tl.where(finite == 0, 0.0, tl.where(is_whole, -edge, edge))
            sharing = tl.maximum(infinite, 1.0)
            hi, lo = tl.where(is_shared, end, hi), tl.where(is_shared, budget / sharing, lo)
            hi = tl.where(is_answerable, hi, float("nan"))
            lo = tl.where(is_answerable, lo, float("nan"))
            _store_solved(
                *(search, row, rows, hi, lo, log_quotient(budget, sharing, tl.float64)),
                (remaining == 0).to(tl.float64),
                tl.where(is_shared, budget, 0.0),
                *(valid, (nans > 0).to(tl.float64)),
            )
            rank = tl.arange(0, RANK_LANES)
            tl.store(
                search.ties + rank.to(tl.int64) * rows + row,
                tl.where(is_shared, infinite_of, 0.0),
                mask=rank < messages.ranks,
            )
            _write_state(
                search, row, rows, cuts, left, right, low, high, low != low, CUT_LANES, NAME
            )
        else:
            above, above_sum = _outer(
                messages, row, ABOVE_NEAREST, ABOVE_SUM, end, most, asked.inverse, RANK_LANES
            )
            below, below_sum = _outer(
                messages, row, BELOW_NEAREST, BELOW_SUM, -end, least, asked.inverse, RANK_LANES
            )
            curve = curve_of(
                *(nodes_of(search, row, rows, messages.ranks * messages.size), above, above_sum),
                *(below, below_sum, counted - target_left, asked.inverse, BLOCKS),
            )
            is_one = high <= next_number(low, NAME)
            is_complete = (tl.max(inside, 0) <= messages.size) | is_one
            is_torn = left >= right  # by rounding: whole counts, of a hard mask, agree
            is_solved = is_torn | (is_complete & (left >= low) & (right <= high))
            if is_solved:
                if asked.is_hard:
                    hi, part, tied = _hard_boundary(
                        *(messages, search, row, rows, curve, asked, counted + infinite),
                        *(RANKS, SIZE_LANES, NAME),
                    )
                    lo = part / tied
                    log_share = log_quotient(part, tied, tl.float64)
                else:
                    place, offset = root_of(curve, asked.scale, asked.inverse)
                    hi, lo = _renormalised(place, offset, COMPUTE)
                    hi, lo = tl.where(is_torn, left, hi), tl.where(is_torn, 0.0, lo)
                    part, log_share = 0.0 * valid, 0.0 * valid
                none = 0.0 * valid
                _store_solved(search, row, rows, hi, lo, log_share, none, part, valid, none)
                _write_state(
                    search, row, rows, cuts, left, right, low, high, low != low, CUT_LANES, NAME
                )
            else:
                # Scores for which others stand are between the first and the last of them.
                between, spare = 0.0 * valid, 0.0 * valid
                for first in range(0, messages.ranks, RANKS):
                    _, _, own, value, is_real, _ = _of_all(
                        messages, search, row, rows, first, (RANKS, SIZE_LANES), False, NAME
                    )
                    bottom, top = _ends_of(value, is_real)
                    varies = _variation(bottom, top, asked)
                    varies = tl.where(own > messages.size, varies, 0.0)
                    between += tl.sum(step_of(own, messages.size) * varies, 0)
                    spare += tl.sum(varies, 0)
                less = between * tl.where(was_missed, AT_MOST, UNCERTAIN) + spare
                low, high = band_of(curve, left, right, between + spare, less, asked, NAME)
                _write_state(
                    search, row, rows, cuts, left, right, low, high, low <= high, CUT_LANES, NAME
                )

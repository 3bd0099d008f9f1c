"""The threshold of many tensors by halving, where no band held it: all scores in every pass.

The root is between two neighbouring floats at the end, and the closed form of the interval between
the scores next to them is exact. It takes as many readings as floats have bits; ties and the oddest
scores take no more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .many import IS_OPEN, PAIR, part_of, read, scores_of, survey_of
from .numbers import (
    any_row,
    as_finite,
    exponent_scale,
    float_before,
    hypotenuse,
    middle_float,
    prior_bracket,
    smallest_normal,
)
from .rank import Ranks
from .solve import corners, tie_share
from .team import Team, await_last, begin_next, collect, field_of, leave
from .views import budget_of, temperature_of

MOST_HALVINGS = tl.constexpr(80)


@triton.jit
def _pass(
    table,
    count,
    parts,
    team,
    b,
    inverse,
    crossings,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """N>, number equal, S<, S> and the nearest scores below and above b, shape [1], float64."""
    above = tl.zeros((1,), tl.float64)
    equal = above
    below = above
    higher = above
    nearest_below = above - float("inf")
    nearest_above = above + float("inf")
    for number in range(team.member, parts, team.size):
        row, first, n = part_of(table, count, tl.zeros((), tl.int64) + number, PART, STEPS)
        scores = scores_of(row)
        for block in range((n + (BLOCK - 1)) // BLOCK):
            index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
            r = read(scores, first + index, index < n, LARGEST, KINDS, COMPUTE)
            e = tl.exp2(tl.abs(r - b) * (-inverse)).to(tl.float64)
            is_above = r > b
            is_below = r < b
            above += tl.sum(is_above.to(tl.float64), 0)
            equal += tl.sum((r == b).to(tl.float64), 0)
            below += tl.sum(tl.where(is_below, e, 0.0), 0)
            higher += tl.sum(tl.where(is_above, e, 0.0), 0)
            under = tl.where(is_below, r, float("-inf")).to(tl.float64)
            over = tl.where(is_above, r, float("inf")).to(tl.float64)
            nearest_below = tl.maximum(nearest_below, tl.max(under, 0))
            nearest_above = tl.minimum(nearest_above, tl.min(over, 0))
    found = (above, equal, below, higher, nearest_below, nearest_above)
    leave(found, team, team.member, crossings, CHUNK_LANES)
    collected = collect(team, crossings, 6, CHUNK_LANES)
    sums = ()
    for i in tl.static_range(4):
        one = field_of(collected, i, 0.0, team, CHUNK_LANES)
        sums = sums + (tl.sum(one, 0) + tl.zeros((1,), tl.float64),)  # type: ignore[assignment]
    under = tl.max(field_of(collected, 4, float("-inf"), team, CHUNK_LANES), 0)
    over = tl.min(field_of(collected, 5, float("inf"), team, CHUNK_LANES), 0)
    zero = tl.zeros((1,), tl.float64)
    return sums, zero + under, zero + over, crossings + 1


@triton.jit
def _excess(sums, k):
    """How much mass there is over the budget."""
    above, equal, below, higher = sums
    return above - k + 0.5 * (equal + below - higher)


@triton.jit
def _between(lower, upper, sum_below, sum_above, excess, t, COMPUTE: tl.constexpr):
    """The pair between two neighbouring scores, infinite where there is none; in float64."""
    has_below = lower > float("-inf")
    has_above = upper < float("inf")
    half_gap = 0.5 * upper - 0.5 * lower
    coupling = tl.sqrt(sum_above) * tl.sqrt(sum_below) * tl.exp(-half_gap / t)
    coupling = tl.where(has_below & has_above, coupling, 0.0)
    root = hypotenuse(excess, coupling)
    from_above = -t * tl.log(sum_above / (root + excess))
    from_below = t * tl.log(sum_below / (root - excess))
    off_middle = 0.5 * t * tl.log(sum_above / sum_below)
    is_lower = (excess < 0) | ((excess == 0) & (off_middle > 0))
    balanced = tl.where(is_lower, half_gap, -half_gap) - off_middle
    offset = tl.where(excess > 0, from_above, tl.where(excess < 0, from_below, balanced))
    anchor = tl.where(is_lower, lower, upper)
    hi = as_finite((anchor + offset).to(COMPUTE), COMPUTE)
    return hi, ((anchor - hi.to(tl.float64)) + offset).to(COMPUTE)


@triton.jit(do_not_specialize=["count", "parts", "size"])
def search_many(
    call,
    table,
    count,
    total,
    parts,
    state,
    summaries,
    words,
    size,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair by halving, by one team; nothing is done where it is known."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    if any_row(tl.load(state + IS_OPEN + zero) != 0):
        member = tl.program_id(0)
        team = Team(words, member, size, size)
        crossings = tl.zeros((), tl.int32)
        k = budget_of(call, zero, zero)
        t = temperature_of(call, zero, zero)
        is_hard = t < smallest_normal(COMPUTE)
        survey = survey_of(summaries, parts, total, COMPUTE)
        t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t)
        inverse = exponent_scale(t_soft, COMPUTE)
        share = tl.minimum(tl.maximum(k - survey.infinite, 0.0), survey.finite)
        t_bracket = tl.where(is_hard, 0.0, t)
        left, right = prior_bracket(
            survey.lowest, survey.highest, share, survey.finite, t_bracket, COMPUTE
        )
        left = as_finite(tl.where(is_hard, float_before(survey.lowest, COMPUTE), left), COMPUTE)
        right = as_finite(tl.where(is_hard, survey.highest, right), COMPUTE)
        rank = tl.ceil(k) - 0.5
        middle = middle_float(left, right, COMPUTE)
        halvings = 0
        while any_row((left < middle) & (middle < right)) & (halvings < MOST_HALVINGS):
            halvings += 1
            sums, _, _, crossings = _pass(
                *(table, count, parts, team, middle, inverse, crossings),
                *(PART, BLOCK, STEPS, LARGEST, KINDS, CHUNK_LANES, COMPUTE),
            )
            is_left = tl.where(is_hard, sums[0] >= rank, _excess(sums, k) >= 0)
            left = tl.where(is_left, middle, left)
            right = tl.where(is_left, right, middle)
            middle = middle_float(left, right, COMPUTE)
        at_left, under, over_left, crossings = _pass(
            *(table, count, parts, team, left, inverse, crossings),
            *(PART, BLOCK, STEPS, LARGEST, KINDS, CHUNK_LANES, COMPUTE),
        )
        at_right, under_right, over, crossings = _pass(
            *(table, count, parts, team, right, inverse, crossings),
            *(PART, BLOCK, STEPS, LARGEST, KINDS, CHUNK_LANES, COMPUTE),
        )
        ranks = Ranks(left, right, at_left[0], at_right[0], is_hard)
        # Between both, or beyond one that is the last of all floats.
        is_below = _excess(at_left, k) < 0
        is_above = _excess(at_right, k) > 0
        has_left = at_left[1] > 0
        has_right = at_right[1] > 0
        lower = tl.where(has_left & (~is_below), left.to(tl.float64), under)
        lower = tl.where(is_above, tl.where(has_right, right.to(tl.float64), under_right), lower)
        upper = tl.where(has_right & (~is_above), right.to(tl.float64), over)
        upper = tl.where(is_below, tl.where(has_left, left.to(tl.float64), over_left), upper)
        near = as_finite(lower.to(COMPUTE), COMPUTE)
        at_lower, _, _, crossings = _pass(
            *(table, count, parts, team, near, inverse, crossings),
            *(PART, BLOCK, STEPS, LARGEST, KINDS, CHUNK_LANES, COMPUTE),
        )
        near = as_finite(upper.to(COMPUTE), COMPUTE)
        at_upper, _, _, crossings = _pass(
            *(table, count, parts, team, near, inverse, crossings),
            *(PART, BLOCK, STEPS, LARGEST, KINDS, CHUNK_LANES, COMPUTE),
        )
        # Where there is none, scores at the last of all floats are not above.
        count_above = at_upper[0] + tl.where(upper < float("inf"), at_upper[1], 0.0)
        hi, lo = _between(
            *(lower, upper, at_lower[1] + at_lower[2], at_upper[1] + at_upper[3]),
            *(count_above - k, t_soft, COMPUTE),
        )
        hi = tl.where(is_hard, right, hi)
        lo = tl.where(is_hard, tie_share(k, ranks, COMPUTE), lo)
        settled = corners(survey, k, t, is_hard, COMPUTE)
        hi = tl.where(settled.is_live, hi, settled.hi)
        lo = tl.where(settled.is_live, lo, settled.lo)
        hi = tl.where(settled.is_answered, hi, float("nan"))
        lo = tl.where(settled.is_answered, lo, float("nan"))
        if member == 0:
            tl.store(state + PAIR + zero, hi.to(tl.float64))
            tl.store(state + PAIR + 1 + zero, lo.to(tl.float64))

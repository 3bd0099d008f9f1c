"""Where the threshold of a long row may be, from a sample that every program reads for itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import any_row, exponent_scale, pick, prior_bracket, smallest_normal
from .passes import Source, measure
from .root import Row, approach, bracket_of, iterate
from .solve import guess_of, survey_rows
from .views import load_scores, part_indices, row_start

#: The ends of a band are so many standard deviations of the sample's count from the middle.
DEVIATIONS = tl.constexpr(4.0)
#: Scores that so large a part of the sample equals are counted and not listed.
MANY = tl.constexpr(1 / 32)


class Place(NamedTuple):
    """The threshold is near ``middle``, and all but certainly between the ends."""

    low: Any
    middle: Any
    high: Any
    point: Any  # a score near there that many others equal, or NaN


@triton.jit
def _roots(source, row, bracket, guess, is_live, COMPUTE: tl.constexpr):
    """Thresholds of several budgets in one sample."""
    nobody = tl.zeros((), tl.int32)
    trial, bracket, _ = approach(
        source, row, bracket, guess.b, guess.error, is_live, None, nobody, COMPUTE
    )
    b = trial.b + tl.where(trial.is_exact, trial.step, 0.0)
    is_open = is_live & (~trial.is_exact)
    if any_row(is_open):
        found, _ = iterate(source, row, bracket, trial, is_open, nobody, COMPUTE)
        is_stepped = (~row.is_hard) & (tl.abs(found.step) < float("inf"))
        b = tl.where(is_open, found.b + tl.where(is_stepped, found.step, 0.0), b)
    return b


@triton.jit
def _common_score(source, middle, inverse, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """The score next to the middle that most others equal, if many do; NaN if not."""
    nobody = tl.zeros((), tl.int32)
    near, _ = measure(source, middle, inverse, nobody, COMPUTE)
    below = tl.where(near.equal_count > 0, middle, near.nearest_below)
    trial = tl.where(tl.arange(0, 2) == 0, below, near.nearest_above)
    trial = tl.where(tl.abs(trial) < float("inf"), trial, middle)
    totals, _ = measure(source, trial, inverse + 0 * trial, nobody, COMPUTE)
    equal = totals.equal_count
    most = tl.max(equal, 0)
    point = tl.max(tl.where(equal == most, trial, float("-inf")), 0)
    return tl.where(most >= MANY * SAMPLE, point, float("nan")) + tl.zeros((1,), COMPUTE)


@triton.jit
def _place(source, origin, k, t, is_hard, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """The :class:`Place` of one row's threshold, from the sample that ``source`` is."""
    survey, mean, square = survey_rows(source, origin, SAMPLE, COMPUTE)
    finite = survey.finite
    share = tl.minimum(tl.maximum(k * SAMPLE / source.call.n - survey.infinite, 0.0), finite)
    spread = DEVIATIONS * tl.sqrt(share * (1 - share / tl.maximum(finite, 1.0))) + 1
    # Two budgets at once, more than the row's share and less. Where an end is left open, its budget
    # is the share.
    is_low = tl.arange(0, 2) == 0
    has_end = tl.where(is_low, share + spread < finite - 0.5, share - spread > 0.5)
    wanted = share + tl.where(has_end, tl.where(is_low, spread, -spread), 0.0)
    wanted = tl.minimum(tl.maximum(wanted, 0.25), finite - 0.25)
    wanted = tl.where(is_hard, tl.ceil(wanted) - 0.5, wanted)
    target = wanted + survey.infinite
    t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t)
    inverse = exponent_scale(t_soft, COMPUTE)
    t_soft += 0 * wanted
    count = (finite + survey.infinite).to(COMPUTE)
    is_each_hard = is_hard & (is_low | (~is_low))
    row = Row(target, t_soft.to(COMPUTE), exponent_scale(t_soft, COMPUTE), count, is_each_hard)
    t_bracket = tl.where(is_hard, 0.0, t)
    left, right = prior_bracket(survey.lowest, survey.highest, wanted, finite, t_bracket, COMPUTE)
    bracket = bracket_of(left, right, count, target.to(COMPUTE))
    start = tl.zeros_like(left) + float("nan")
    guess = guess_of(survey, origin, mean, square, target, t_soft, start, is_each_hard, COMPUTE)
    is_live = (finite > 1) & (is_low | (~is_low))
    b = _roots(source, row, bracket, guess, is_live, COMPUTE)
    b = tl.where(is_live & (tl.abs(b) < float("inf")), b, origin)
    low = pick(b, 0)
    high = pick(b, 1)
    middle = 0.5 * low + 0.5 * high
    has_low = pick(has_end.to(COMPUTE), 0) * finite > 1
    has_high = pick(has_end.to(COMPUTE), 1) * finite > 1
    middle = tl.where(has_low, tl.where(has_high, middle, high), low)
    point = _common_score(source, middle, inverse, SAMPLE, COMPUTE)
    low = tl.where(has_low, tl.minimum(low, middle), float("-inf"))
    high = tl.where(has_high, tl.maximum(high, middle), float("inf"))
    return Place(low, middle, high, point)


@triton.jit
def sample_place(
    call,
    outer,
    inner,
    k,
    t,
    is_hard,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The :class:`Place` of one row's threshold.

    One score out of every stretch of n / SAMPLE, at a place that differs from stretch to stretch: a
    period of the scores must not be that of the sample.
    """
    n = tl.zeros((), tl.int64) + call.n
    stretch = n // SAMPLE
    number = part_indices(0, 0, SAMPLE // LANES, LANES, 1)
    index = number * stretch + (number * 2654435761 >> 8) % stretch
    r = load_scores(call, outer, inner, index, None, LARGEST, 1, COMPUTE)
    r = tl.where(r == r, r, float("-inf"))
    origin = tl.load(row_start(call.scores, outer, inner)).to(COMPUTE)
    origin = tl.where(tl.abs(origin) < float("inf"), origin, 0.0)
    return _place(
        Source(
            (r,),
            0,
            call,
            outer,
            inner,
            None,
            0,
            None,
            False,
            False,
            LARGEST,
            1,
            SAMPLE // LANES,
            LANES,
            1,
            1,
        ),
        *(origin if LARGEST else -origin, k, t, is_hard, SAMPLE, COMPUTE),
    )

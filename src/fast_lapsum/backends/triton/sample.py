"""Where the threshold of a long row may be, from a sample that every program reads for itself."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import exponent_scale, prior_bracket, smallest_normal
from .passes import Source
from .root import Row, approach, bracket_of
from .solve import guess_of, survey_rows
from .views import load_scores, part_indices


@triton.jit
def _sample_root(source, origin, k, t, is_hard, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """b of a row, from the sample that ``source`` is, and its standard error."""
    survey, mean, square = survey_rows(source, origin, SAMPLE, COMPUTE)
    finite = survey.finite
    part = k * SAMPLE / source.call.n - survey.infinite
    share = tl.minimum(tl.maximum(part, 0.25), finite - 0.25)
    target = share + survey.infinite
    t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t)
    count = (finite + survey.infinite).to(COMPUTE)
    row = Row(target, t_soft.to(COMPUTE), exponent_scale(t_soft, COMPUTE), count, is_hard)
    t_bracket = tl.where(is_hard, 0.0, t)
    left, right = prior_bracket(survey.lowest, survey.highest, share, finite, t_bracket, COMPUTE)
    bracket = bracket_of(left, right, count, target.to(COMPUTE))
    start = tl.zeros_like(origin) + float("nan")
    guess = guess_of(survey, origin, mean, square, target, t, start, is_hard, COMPUTE)
    is_live = finite > 1
    meetings = tl.zeros((), tl.int32)
    trial, _, _ = approach(
        source, row, bracket, guess.b, guess.error, is_live, None, meetings, COMPUTE
    )
    b = trial.b + tl.where(trial.is_exact, trial.step, 0.0)
    spread = tl.sqrt(tl.maximum(tl.minimum(share, finite - share), 0.5).to(COMPUTE))
    return b, spread / trial.slope


@triton.jit
def sample_guess(
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
    """b of one row, and its standard error; infinite or NaN where the sample tells nothing.

    One score out of every stretch of n / SAMPLE, at a place that differs from stretch to stretch: a
    period of the scores must not be that of the sample.
    """
    n = tl.zeros((), tl.int64) + call.n
    stretch = n // SAMPLE
    number = part_indices(0, 0, SAMPLE // LANES, LANES, 1)
    index = number * stretch + (number * 2654435761 >> 8) % stretch
    r = load_scores(call, outer, inner, index, None, LARGEST, 1, COMPUTE)
    r = tl.where(r == r, r, float("-inf"))
    origin = tl.max(tl.max(tl.max(tl.where(number == 0, r, float("-inf")), 3), 0), 1)
    origin = tl.where(tl.abs(origin) < float("inf"), origin, 0.0)
    return _sample_root(
        Source(
            (r,),
            0,
            call,
            outer,
            inner,
            None,
            1,
            True,
            False,
            False,
            LARGEST,
            1,
            SAMPLE // LANES,
            LANES,
            1,
            1,
        ),
        *(origin, k, t, is_hard, SAMPLE, COMPUTE),
    )

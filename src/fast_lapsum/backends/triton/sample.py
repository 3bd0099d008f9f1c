"""Where the threshold of a long row may be, from a sample of its scores.

A program that takes a row alone samples it itself; a row of several programs is sampled by a launch
before theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import any_row, as_finite, exponent_scale, pick, prior_bracket, smallest_normal
from .pass_kinds import constexpr_function
from .passes import Source, look_at, measure
from .rank import Ranks, near_rank, search_rank
from .root import MOST_STEPS, Row, approach, bracket_of, iterate
from .solve import Guess, guess_of, survey_rows
from .views import first_score, load_scores, part_indices

#: The ends of a band are so many standard deviations of the sample's count from the share of the
#: budget, give or take a few: that they are found at once counts more than where they are.
DEVIATIONS = tl.constexpr(4.0)
SLACK = tl.constexpr(1.5)
#: What is found quickly will do between so many of them.
NEAREST = tl.constexpr(2.0)
FARTHEST = tl.constexpr(8.0)
#: A guess is looked for with so many deviations to spare.
GUESS_SLACK = tl.constexpr(0.25)
#: The temperature that suits all, in standard deviations of the scores, and the looks it takes.
SMOOTH = tl.constexpr(0.1)
QUICK_STEPS = tl.constexpr(4)
#: A score counts as common if one out of so many equals it.
MANY = tl.constexpr(32)


class Place(NamedTuple):
    """The threshold is all but certainly between the ends.

    ``point`` is a score there that many others equal, if one was seen; else NaN.
    """

    low: Any
    high: Any
    point: Any


@triton.jit
def _aim(origin, wanted, slack, t, is_hard, found, COMPUTE: tl.constexpr):
    """What is looked for where ``wanted`` of a sample's finite scores are taken, and from where.

    ``found`` is what a survey found. Shapes are [1], or that of several budgets.
    """
    survey, mean, square = found
    finite = survey.finite
    wanted = tl.minimum(tl.maximum(wanted, 0.25), finite - 0.25)
    wanted = tl.where(is_hard, tl.ceil(wanted) - 0.5, wanted)
    target = wanted + survey.infinite
    t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t) + 0 * wanted
    count = (finite + survey.infinite).to(COMPUTE)
    is_each_hard = is_hard & (wanted == wanted)
    inverse = exponent_scale(t_soft, COMPUTE)
    row = Row(target, t_soft.to(COMPUTE), inverse, count, is_each_hard, slack.to(COMPUTE))
    t_bracket = tl.where(is_hard, 0.0, t)
    left, right = prior_bracket(survey.lowest, survey.highest, wanted, finite, t_bracket, COMPUTE)
    bracket = bracket_of(left, right, count, target.to(COMPUTE))
    start = tl.zeros_like(left) + float("nan")
    guess = guess_of(survey, origin, mean, square, target, t_soft, start, is_each_hard, COMPUTE)
    return row, bracket, guess


@triton.jit
def _smooth(mean, square):
    """The temperature that suits all."""
    return tl.sqrt(tl.maximum(square - mean * mean, 0.0)).to(tl.float64) * SMOOTH


@triton.jit
def _near_roots(source, origin, wanted, slack, t, found, is_live, COMPUTE: tl.constexpr):
    """Where about they are taken, whatever t is, and how dense the scores are there.

    A few looks at a temperature that suits all find that.
    """
    _, mean, square = found
    t_smooth = tl.maximum(_smooth(mean, square), tl.maximum(t, smallest_normal(COMPUTE)))
    row, bracket, guess = _aim(origin, wanted, slack, t_smooth, t != t, found, COMPUTE)
    nobody = tl.zeros((), tl.int32)
    trial, _, _ = approach(
        *(source, row, bracket, guess.b, guess.error, is_live, None, nobody, QUICK_STEPS, COMPUTE)
    )
    density = tl.maximum(trial.tails, 1.0) / (2 * t_smooth.to(COMPUTE))
    return tl.where(tl.abs(trial.b) < float("inf"), trial.b, origin), density


@triton.jit
def _roots(source, origin, wanted, slack, t, is_hard, found, is_live, COMPUTE: tl.constexpr):
    """Where they are taken, give or take some slack of them."""
    nobody = tl.zeros((), tl.int32)
    row, bracket, guess = _aim(origin, wanted, slack, t, is_hard, found, COMPUTE)
    infinite = found[0].infinite + 0 * row.k
    right = as_finite(bracket.right, COMPUTE)
    ranks = Ranks(bracket.left, right, found[0].finite + infinite, infinite, is_live)
    trial, bracket, _ = approach(
        *(source, row, bracket, guess.b, guess.error, is_live, None, nobody, MOST_STEPS, COMPUTE)
    )
    b = trial.b
    is_open = is_live & (~trial.is_exact)
    if any_row(is_open):
        is_sought = is_open & trial.is_far
        if any_row(is_sought):
            aim, error, among = guess
            ranks, _ = search_rank(
                source, row, ranks, aim, error, among + 0 * aim, is_sought, nobody, False, COMPUTE
            )
            b = tl.where(is_sought, near_rank(ranks), b)
        is_soft = is_open & (~row.is_hard)
        if any_row(is_soft):
            root, _ = iterate(source, row, bracket, b, is_soft, nobody, COMPUTE)
            is_stepped = tl.abs(root.step) < float("inf")
            b = tl.where(is_soft, root.b + tl.where(is_stepped, root.step, 0.0), b)
    return tl.where(tl.abs(b) < float("inf"), b, origin)


@triton.jit
def _share_of(survey, square, mean, k, n, t, is_hard, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """How many of a sample's finite scores a budget is for, and the standard deviation of that."""
    finite = survey.finite.to(COMPUTE)
    part = (tl.zeros((), COMPUTE) + SAMPLE) / n
    share = tl.maximum(k.to(COMPUTE) * part - survey.infinite.to(COMPUTE), 0.0)
    share = tl.minimum(share, finite)
    # That of a count, or of masses whose slope is 1 / 2t at most: the smaller one bounds it.
    deviation = tl.sqrt(share * (1 - share / SAMPLE))
    of_masses = 0.5 * tl.sqrt(finite * tl.maximum(square - mean * mean, 0.0)) / t.to(COMPUTE)
    is_less = (of_masses < deviation) & (square < float("inf")) & (~is_hard)
    deviation = tl.where(is_less, of_masses, deviation) + 0.5
    return share.to(tl.float64), deviation.to(tl.float64)


@triton.jit
def _guess(source, origin, k, t, is_hard, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """The :class:`Guess` at one row's threshold that the sample ``source`` allows."""
    found = survey_rows(source, origin, SAMPLE, COMPUTE)
    survey, mean, square = found
    share, deviation = _share_of(
        survey, square, mean, k, source.call.n, t, is_hard, SAMPLE, COMPUTE
    )
    is_live = survey.finite > 1
    b, density = _near_roots(
        source, origin, share, deviation * GUESS_SLACK, t, found, is_live, COMPUTE
    )
    return Guess(tl.where(is_live, b, origin), deviation.to(COMPUTE) / density, origin)


@triton.jit
def _common_score(source, low, high, inverse, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """The first or last score of a band in the sample, if many others equal it; NaN if not."""
    nobody = tl.zeros((), tl.int32)
    is_low = tl.arange(0, 2) == 0
    end = as_finite(tl.where(is_low, low, high), COMPUTE)
    inverse += 0 * end
    near, _ = measure(source, end, inverse, nobody, COMPUTE)
    inner = tl.where(is_low, near.nearest_above, near.nearest_below)
    inner = tl.where((near.equal_count > 0) | (tl.abs(inner) == float("inf")), end, inner)
    totals, _ = measure(source, inner, inverse, nobody, COMPUTE)
    most = tl.max(totals.equal_count, 0)
    point = tl.max(tl.where(totals.equal_count == most, inner, float("-inf")), 0)
    return tl.where(most * MANY >= SAMPLE, point, float("nan")) + tl.zeros((1,), COMPUTE)


@triton.jit
def _place(source, origin, k, t, is_hard, SAMPLE: tl.constexpr, COMPUTE: tl.constexpr):
    """The :class:`Place` of one row's threshold, from the sample that ``source`` is."""
    found = survey_rows(source, origin, SAMPLE, COMPUTE)
    survey, mean, square = found
    finite = survey.finite
    share, deviation = _share_of(
        survey, square, mean, k, source.call.n, t, is_hard, SAMPLE, COMPUTE
    )
    spread = deviation * DEVIATIONS
    # Two budgets at once, more than the row's share and less; an end may be left open.
    is_low = tl.arange(0, 2) == 0
    has_end = tl.where(is_low, share + spread < finite - 0.5, share - spread > 0.5)
    wanted = share + tl.where(is_low, spread, -spread)
    is_live = has_end & (finite > 1)
    b, _ = _near_roots(source, origin, wanted, deviation, t, found, is_live, COMPUTE)
    # At the row's own temperature these may be too near to the budget, or too far away.
    t_soft = tl.where(is_hard, smallest_normal(COMPUTE), t)
    inverse = exponent_scale(t_soft, COMPUTE) + 0 * b
    look, _ = look_at(source, b, inverse, tl.zeros((), tl.int32), COMPUTE)
    mass = look.above + tl.where(is_hard, 0.0, 0.5 * (look.below - look.higher))
    distance = tl.abs(mass - survey.infinite - share) / deviation
    is_beyond = (mass - survey.infinite > share) == is_low
    is_good = is_beyond & (distance >= NEAREST) & (distance <= FARTHEST)
    is_open = is_live & (~is_good)
    if any_row(is_open):
        slack = deviation * SLACK
        root = _roots(source, origin, wanted, slack, t, is_hard, found, is_open, COMPUTE)
        b = tl.where(is_open, root, b)
    low = pick(b, 0)
    high = pick(b, 1)
    has_low = pick(has_end.to(COMPUTE), 0) * finite > 1
    has_high = pick(has_end.to(COMPUTE), 1) * finite > 1
    lower = tl.where(has_high, tl.minimum(low, high), low)
    upper = tl.where(has_low, tl.maximum(low, high), high)
    lower = tl.where(has_low, lower, float("-inf"))
    upper = tl.where(has_high, upper, float("inf"))
    point = tl.zeros_like(lower) + float("nan")
    # It may be ties that made the ends hard to find, or ties below the band that make up the mass:
    # those are counted as well, as the mask rounds their distances all alike.
    highest = survey.highest
    is_beyond_all = has_low & (highest < lower)
    if any_row(is_open) | any_row(is_beyond_all):
        first = tl.where(is_beyond_all, highest, lower)
        point = _common_score(
            source, first, upper, exponent_scale(t_soft, COMPUTE), SAMPLE, COMPUTE
        )
        lower = tl.where(is_beyond_all & (point == highest), highest, lower)
    return Place(lower, upper, point)


@constexpr_function
def parts_of_sample(sample: int, lanes: int) -> int:
    """A thread holds its scores in parts of eight."""
    return max(sample // lanes // 8, 1)


@triton.jit
def _sampled(
    call,
    outer,
    inner,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Runs of scores out of stretches of equal length, and one score for sums to be relative to.

    The place of a run differs from stretch to stretch: a period of the scores must not be the
    sample's. Runs of several scores are what memory is read in: one program has few reads at once.
    """
    stretch = (tl.zeros((), tl.int64) + call.n) // (SAMPLE // RUN)
    PARTS: tl.constexpr = parts_of_sample(SAMPLE, LANES)
    r = ()
    for part in tl.static_range(PARTS):
        number = part_indices(0, part, SAMPLE // LANES // PARTS, LANES, 1)
        run = number // RUN
        within = tl.umulhi(run.to(tl.uint32) * 2654435761, stretch.to(tl.uint32))
        index = (run * stretch + within.to(tl.int64)) // RUN * RUN + number % RUN
        scores = load_scores(call, outer, inner, index, None, LARGEST, 1, COMPUTE)
        r = r + (tl.where(scores == scores, scores, float("-inf")),)  # type: ignore[assignment]
    return r, first_score(call, outer, inner, LARGEST, COMPUTE)


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
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A :class:`Guess` at one row's threshold."""
    PARTS: tl.constexpr = parts_of_sample(SAMPLE, LANES)
    r, origin = _sampled(call, outer, inner, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    return _guess(
        Source(
            *(r, 0, call, outer, inner, None, 0, None),
            *(False, False, LARGEST, PARTS, SAMPLE // LANES // PARTS, LANES, 1, 1),
        ),
        *(origin, k, t, is_hard, SAMPLE, COMPUTE),
    )


@triton.jit
def sample_place(
    call,
    outer,
    inner,
    k,
    t,
    OUTPUT: tl.constexpr,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The :class:`Place` of one row's threshold, and of the boundary where that is asked for."""
    PARTS: tl.constexpr = parts_of_sample(SAMPLE, LANES)
    r, origin = _sampled(call, outer, inner, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    is_limit = t < smallest_normal(COMPUTE)
    nothing = origin * 0 + float("nan")
    place = Place(nothing, nothing, nothing)
    turns = 1
    if OUTPUT == "hard":  # for the threshold and for the boundary, which may be the same
        turns += any_row(~is_limit).to(tl.int32)
    for turn in range(turns):
        found = _place(
            Source(
                *(r, 0, call, outer, inner, None, 0, None),
                *(False, False, LARGEST, PARTS, SAMPLE // LANES // PARTS, LANES, 1, 1),
            ),
            *(origin, k, tl.where(origin * 0 + turn > 0, 0.0, t), is_limit | (turn > 0)),
            *(SAMPLE, COMPUTE),
        )
        is_first = origin * 0 + turn == 0
        place = Place(
            tl.where(is_first, found.low, tl.minimum(found.low, place.low)),
            tl.where(is_first, found.high, tl.maximum(found.high, place.high)),
            tl.where(place.point == place.point, place.point, found.point),
        )
    return place


@triton.jit
def sample_point(
    call,
    outer,
    inner,
    low,
    high,
    inverse,
    LARGEST: tl.constexpr,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A score that many others may equal, in a band that holds a large part of the row."""
    PARTS: tl.constexpr = parts_of_sample(SAMPLE, LANES)
    r, _ = _sampled(call, outer, inner, LARGEST, SAMPLE, RUN, LANES, COMPUTE)
    return _common_score(
        Source(
            *(r, 0, call, outer, inner, None, 0, None),
            *(False, False, LARGEST, PARTS, SAMPLE // LANES // PARTS, LANES, 1, 1),
        ),
        *(low, high, inverse, SAMPLE, COMPUTE),
    )

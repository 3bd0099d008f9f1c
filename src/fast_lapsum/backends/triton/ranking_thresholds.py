"""The kernel of thresholds: b at given masses, between the two scores that the masses tell."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import largest_finite, smallest_normal
from .ranking import _has_answer, _scale, _score_gap, temperature_of


@triton.jit
def place_thresholds(
    ordered, temperature, t_head, t_rest, masses, knots, lower_sums, upper_sums,
    out, counts, lows, ups, n, m, blocks,
    STEPS: tl.constexpr, LENGTH: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """m = c - A / 2 + B / 2 between scores c - 1 and c (see backends/torch/ranking.py).

    Without masses they are 1/2, 3/2, ..., and c - m is 1/2 at least: the dtype of the scores will
    do. Others may lie next to a whole number, or to 0, and are solved for in float64.
    """
    WIDE: tl.constexpr = COMPUTE if masses is None else tl.float64
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    j = (program % blocks) * LENGTH + tl.arange(0, LENGTH)
    inside = j < m
    mass = j.to(WIDE)
    if masses is not None:
        mass = tl.load(masses + j, mask=inside, other=0.5)
    is_mass = mass == mass
    # How many scores have a mass below this one, from its highest binary digit to its lowest.
    count = j * 0
    of_row = knots + row * n - 1
    for step in tl.static_range(STEPS):
        more = count + (1 << (STEPS - 1 - step))
        is_there = inside & (more <= n)
        knot = tl.load(of_row + more, mask=is_there, other=0)
        if masses is None:  # of the thresholds the first above the score
            is_below = is_there & (knot <= j)
        else:
            is_below = is_there & ((knot < mass) | (is_mass == 0))
        count = tl.where(is_below, more, count)
    has_low = inside & (count > 0)
    has_up = inside & (count < n)
    below = row * n + count - 1
    low_score = tl.load(ordered + below, mask=has_low, other=0.0).to(WIDE)
    up_score = tl.load(ordered + below + 1, mask=has_up, other=0.0).to(WIDE)
    low_sum = tl.load(lower_sums + below, mask=has_low, other=0.0).to(WIDE)
    up_sum = tl.load(upper_sums + below + 1, mask=has_up, other=0.0).to(WIDE)
    t = temperature_of(temperature, t_head, t_rest, row, row >= 0)
    good = _has_answer(ordered, row, n, t, False, COMPUTE, row >= 0)
    is_hard = t < smallest_normal(COMPUTE)
    gap = _score_gap(low_score, up_score, tl.where(is_hard, float("inf"), _scale(t, WIDE)))
    t = tl.where(is_hard, 0.0, t).to(WIDE)
    coupling = tl.where(has_low & has_up, low_sum * up_sum * tl.exp2(-gap), 0.0)
    if masses is None:
        excess = (count - j).to(WIDE) - 0.5
    else:
        excess = count.to(WIDE) - mass
    is_even = excess == 0
    is_low = excess > 0
    apart = tl.where(is_even, 1.0, tl.abs(excess))
    # Next to an empty side, where the mass may be tiny, nothing is squared.
    root = tl.where(coupling > 0, tl.sqrt(apart * apart + coupling), apart)
    nearer = root + apart
    of_nearer, of_root = 1 / nearer, 0.5 / root
    near_sum = tl.where(is_low, low_sum, up_sum)
    near = tl.log(tl.where(near_sum > 0, near_sum, 1.0) * of_nearer)
    b = tl.where(is_low, low_score + t * near, up_score - t * near)
    major = nearer * of_root
    minor = coupling * of_nearer * of_root
    low_share = tl.where(is_low, major, minor)
    up_share = tl.where(is_low, minor, major)
    if masses is not None:  # which may be whole numbers
        of_sums = tl.where(low_sum > 0, low_sum, 1.0) / tl.where(up_sum > 0, up_sum, 1.0)
        aside = tl.log(of_sums) * 0.5
        is_between = (low_score == -float("inf")) & (up_score == float("inf"))
        middle = tl.where(is_between, 0.0, low_score * 0.5 + up_score * 0.5 + t * aside)
        b = tl.where(is_even, middle, b)
        even_share = tl.where(is_between, 0.0, 0.5)
        low_share = tl.where(is_even, even_share, low_share)
        up_share = tl.where(is_even, even_share, up_share)
    is_moved = tl.abs(b) <= largest_finite(WIDE)
    low_share = tl.where(is_moved & has_low, low_share, 0.0)
    up_share = tl.where(is_moved & has_up, up_share, 0.0)
    coefficient_low = low_share / tl.where(has_low, low_sum, 1.0)
    coefficient_up = up_share / tl.where(has_up, up_sum, 1.0)
    spot = row * m + j
    b = tl.where(good, tl.where(is_mass, b, float("nan")), float("nan"))
    tl.store(out + spot, b.to(COMPUTE), mask=inside)
    tl.store(counts + spot, count, mask=inside)
    tl.store(lows + spot, coefficient_low.to(COMPUTE), mask=inside)
    tl.store(ups + spot, coefficient_up.to(COMPUTE), mask=inside)

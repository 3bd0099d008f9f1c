"""The kernel of thresholds: b at given masses, between the two scores that the masses tell."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import largest_finite, smallest_normal
from .ranking import _has_answer


@triton.jit
def place_thresholds(
    ordered, temperature, masses, knots, lower_sums, upper_sums, out, counts, lows, ups,
    n, m, blocks,
    STEPS: tl.constexpr, LENGTH: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """m = c - A / 2 + B / 2 between scores c - 1 and c (see backends/torch/ranking.py).

    Without masses they are 1/2, 3/2, ...; the equation is solved in float64.
    """
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    j = (program % blocks) * LENGTH + tl.arange(0, LENGTH)
    inside = j < m
    if masses is None:
        mass = j.to(tl.float64) + 0.5
    else:
        mass = tl.load(masses + j, mask=inside, other=0.5)
    is_mass = mass == mass
    # How many scores have a mass below this one: [low, high] holds that number.
    low = j * 0
    high = low + n
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        knot = tl.load(knots + row * n + middle, mask=inside & (low < high), other=0.0)
        is_below = (low < high) & ((knot < mass) | (is_mass == 0))
        high = tl.where((low < high) & (is_below == 0), middle, high)
        low = tl.where(is_below, middle + 1, low)
    count = low
    has_low = inside & (count > 0)
    has_up = inside & (count < n)
    below = row * n + count - 1
    low_score = tl.load(ordered + below, mask=has_low, other=0.0).to(tl.float64)
    up_score = tl.load(ordered + below + 1, mask=has_up, other=0.0).to(tl.float64)
    low_sum = tl.load(lower_sums + below, mask=has_low, other=0.0).to(tl.float64)
    up_sum = tl.load(upper_sums + below + 1, mask=has_up, other=0.0).to(tl.float64)
    t = tl.load(temperature + row)
    good = _has_answer(ordered, row, n, t, False, COMPUTE, row >= 0)
    is_hard = t < smallest_normal(COMPUTE)
    safe_t = tl.where(is_hard, 1.0, t)
    t = tl.where(is_hard, 0.0, t)
    gap = (up_score * 0.5 - low_score * 0.5) / safe_t * 2
    gap = tl.where(gap == gap, gap, float("inf"))
    gap = tl.where(is_hard, float("inf"), gap)
    gap = tl.where(low_score == up_score, 0.0, gap)
    coupling = tl.where(has_low & has_up, low_sum * up_sum * tl.exp(-gap), 0.0)
    excess = count.to(tl.float64) - mass
    is_even = excess == 0
    is_low = excess > 0
    apart = tl.where(is_even, 1.0, tl.abs(excess))
    # Next to an empty side, where the mass may be tiny, nothing is squared.
    root = tl.where(coupling > 0, tl.sqrt(apart * apart + coupling), apart)
    nearer = root + apart
    near_sum = tl.where(is_low, low_sum, up_sum)
    near = tl.log(tl.where(near_sum > 0, near_sum, 1.0) / nearer)
    of_sums = tl.where(low_sum > 0, low_sum, 1.0) / tl.where(up_sum > 0, up_sum, 1.0)
    aside = tl.log(of_sums) * 0.5
    b = tl.where(is_low, low_score + t * near, up_score - t * near)
    is_open = (low_score == -float("inf")) & (up_score == float("inf"))
    middle = tl.where(is_open, 0.0, low_score * 0.5 + up_score * 0.5 + t * aside)
    b = tl.where(is_even, middle, b)
    major = nearer / (2 * root)
    minor = coupling / nearer / (2 * root)
    even_share = tl.where(is_open, 0.0, 0.5)
    low_share = tl.where(is_even, even_share, tl.where(is_low, major, minor))
    up_share = tl.where(is_even, even_share, tl.where(is_low, minor, major))
    is_moved = tl.abs(b) <= largest_finite(tl.float64)
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

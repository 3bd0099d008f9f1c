"""Formulas of gradients for scores, budget and temperature (the paper's eq. vjp), from the pair.

With u = (r - b) / t, phi = e^-|u| / 2, q = softmax(-|u|) and, for log p, a = g phi / p, which is g
below the threshold however small phi and p are:

    mask       d r = (phi / t) (g - <g, q>)   d k = <g, q>           d t = -<g phi, u - <q, u>> / t
    log p      d r = (a - q sum(a)) / t       d k = <g / p, q>       d t = -<a, u - <q, u>> / t
    threshold  d r = g q                      d k = -g t / sum(phi)  d t = -g <q, u>

So there are sums over a row first, and then the gradients. q is taken with its largest exponent
shifted to zero: phi / sum(phi) would be 0 / 0 where a gap is wide against t. For the scores'
gradient of a mask that is not needed: where all e vanish, so does d r. Kernels are in backward.py,
and in those for segments, many tensors, activations and ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .mask import half_distance
from .numbers import LN2, exponent_scale, largest_finite, smallest_normal
from .pass_kinds import constexpr_function
from .views import across, load_values, row_start, temperature_of

#: Float64 numbers that a program of a long row leaves: the shift and up to six sums.
SUMS = tl.constexpr(7)
#: e^-|u| is zero in every format long before |v| gets here.
VANISHED_AT = tl.constexpr(2048.0)
#: And 2 to the power of this is a number.
LARGEST_SHIFT = tl.constexpr(1000.0)


class Threshold(NamedTuple):
    """What is known of rows: their pair, temperature (float64) and log2(e) / t."""

    hi: Any
    lo: Any
    t: Any
    inverse: Any
    is_limit: Any


@triton.jit
def threshold_of(call, threshold, row, row_count, outer, inner, COMPUTE: tl.constexpr):
    t = temperature_of(call, outer, inner)
    row = tl.minimum(row, row_count - 1)
    hi = tl.load(threshold + 2 * row)
    lo = tl.load(threshold + 2 * row + 1)
    is_limit = (t < smallest_normal(COMPUTE)) | (hi == float("inf"))
    return Threshold(hi, lo, t, exponent_scale(t, COMPUTE), is_limit)


@triton.jit
def seen(r, g, rows, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """g, v = (r - b) log2(e) / t, and |v|: 0, 0 and infinite for scores that take no part.

    Of a mask these are the scores whose |v| is infinite. log p has a gradient however far a finite
    score is, so v may be infinite there, and |v| is limited. (In float64, where u = (r - b) / t is
    infinite, log p is -inf and constant. For float32 scores that u is always finite.)
    """
    half = half_distance(r, rows.hi, rows.lo)
    v = half * across(2 * rows.inverse)
    distance = tl.abs(v)
    is_live = distance < float("inf")
    if OUTPUT == "log":
        farthest = tl.zeros_like(rows.t) + largest_finite(COMPUTE)
        if COMPUTE == tl.float64:
            farthest *= 0.5 * tl.minimum(rows.t, 2.0)
        is_live = tl.abs(half) <= across(farthest.to(COMPUTE))
        distance = tl.minimum(distance, largest_finite(COMPUTE))
    g = tl.where(is_live, g, 0.0)
    return g, tl.where(is_live, v, 0.0), tl.where(is_live, distance, float("inf"))


@triton.jit
def _near(v):
    """v where it can matter to d t, else 0: thousands of v near the largest float overflow."""
    return tl.where(tl.abs(v) < VANISHED_AT, v, 0.0)


@triton.jit
def least_of_row(values):
    """The least of every row."""
    return tl.min(tl.min(tl.min(values, 3), 0), 1)


@triton.jit
def sum_of_row(values):
    """The sum of every row."""
    return tl.sum(tl.sum(tl.sum(values, 3), 0), 1)


@constexpr_function
def is_shifted(output: str, per_row: bool) -> bool:
    """Whether weights are taken relative to the nearest score of a row."""
    return per_row or output != "mask"


@constexpr_function
def weighted_sums(output: str, per_row: bool) -> int:
    """How many of the sums are of weights, and relative to the shift; others follow."""
    return {"mask": (2, 4), "log": (1, 3), "threshold": (1, 2)}[output][per_row]


@constexpr_function
def sum_count(output: str, per_row: bool) -> int:
    """How many sums there are."""
    return {"mask": (2, 4), "log": (2, 6), "threshold": (1, 2)}[output][per_row]


@triton.jit
def _log_weights(g, v):
    """a = g phi / p and 1 / (1 - e^-u / 2), which is 1 / p above the threshold."""
    half = 0.5 * tl.exp2(-tl.maximum(v, 0.0))
    inverse = 1 / (1 - half)
    return tl.where(v <= 0, g, g * (half * inverse)), inverse


@constexpr_function
def wide_sum(output: str, per_row: bool) -> int:
    """Which of the sums is of float64 numbers, if any."""
    return 4 if output == "log" and per_row else -1


@triton.jit
def gradient_terms(w, g, v, r, rows, OUTPUT: tl.constexpr, PER_ROW: tl.constexpr):
    """What is added up over a row, of w = 2^(shift - |v|), g and v.

    mask: w, g w, w v, g w v. log p: w, w v, g w / p above the threshold; a, a v, g below it.
    threshold: w, w v. Those of w v and those after it are for the gradients of k and t alone, and
    so is g w / p. A score that is far away is most of the sum of a v, too much for a float32.
    """
    if OUTPUT == "mask":
        if PER_ROW:
            near = _near(v)
            return w, g * w, w * near, g * w * near
        else:
            return w, g * w
    elif OUTPUT == "log":
        a, inverse = _log_weights(g, v)
        if PER_ROW:
            is_below = v <= 0
            above = tl.where(is_below, 0.0, g * w * inverse)
            half = half_distance(r, rows.hi, rows.lo).to(tl.float64)
            a_v = a.to(tl.float64) * (half * across(2 * rows.inverse.to(tl.float64)))
            a_v = tl.where(a == 0, 0.0, a_v)
            return w, w * _near(v), above, a, a_v, tl.where(is_below, g, 0.0)
        else:
            return w, a
    elif PER_ROW:
        return w, w * _near(v)
    else:
        return (w,)


class Gradients(NamedTuple):
    """What a score's gradient needs of its row, and the row's own gradients."""

    mean: Any  # <g, q>; sum(a) / sum(w); g / sum(w)
    shift: Any
    d_budget: Any
    d_temperature: Any


@triton.jit
def row_gradients(
    shift, sums, g_row, rows, LARGEST: tl.constexpr, OUTPUT: tl.constexpr, PER_ROW: tl.constexpr
):
    """:class:`Gradients` from a row's sums: 0 in the hard limit, NaN where unanswered."""
    has_any = sums[0] > 0
    weight = tl.where(has_any, sums[0], 1.0)
    d_budget = 0 * weight
    d_temperature = 0 * weight
    density = tl.exp2(tl.minimum(shift, LARGEST_SHIFT)) * 2 / weight  # 1 / sum(phi)
    density = tl.where(has_any, density, 0.0)
    if OUTPUT == "mask":
        mean = tl.where(has_any, sums[1] / weight, 0.0)
        if PER_ROW:
            spread = sums[3] - sums[1] * tl.where(has_any, sums[2] / weight, 0.0)
            d_budget = mean
            d_temperature = (-0.5 * LN2) * tl.exp2(-shift) * spread / rows.t
    elif OUTPUT == "log":
        mean = tl.where(has_any, sums[3 if PER_ROW else 1] / weight, 0.0)
        if PER_ROW:
            d_budget = tl.where(has_any, sums[2] / weight, 0.0) + sums[5] * density
            spread = sums[4] - sums[3] * tl.where(has_any, sums[1] / weight, 0.0)
            d_temperature = -LN2 * spread / rows.t
    else:
        mean = tl.where(has_any, g_row / weight, 0.0)
        if PER_ROW:
            g = g_row if LARGEST else -g_row
            d_budget = -g * rows.t * density
            d_temperature = -LN2 * g * tl.where(has_any, sums[1] / weight, 0.0)
    is_nan = rows.hi != rows.hi
    d_budget = tl.where(rows.is_limit, 0.0, d_budget)
    d_temperature = tl.where(rows.is_limit, 0.0, d_temperature)
    return Gradients(
        mean,
        shift,
        tl.where(is_nan, float("nan"), d_budget),
        tl.where(is_nan, float("nan"), d_temperature),
    )


@triton.jit
def score_gradient(
    r, g, of_row, rows, LARGEST: tl.constexpr, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr
):
    g, v, distance = seen(r, g, rows, OUTPUT, COMPUTE)
    mean = across(of_row.mean.to(COMPUTE))
    if OUTPUT == "mask":
        half_over_t = (0.5 / rows.t).to(COMPUTE)
        d = (g - mean) * (tl.exp2(-distance) * across(half_over_t))
    else:
        d = mean * tl.exp2(across(of_row.shift.to(COMPUTE)) - distance)
        if OUTPUT == "log":
            a, _ = _log_weights(g, v)
            d = (a - d) * across((1 / rows.t).to(COMPUTE))
    if OUTPUT != "threshold" and not LARGEST:
        d = -d
    d = tl.where(distance < float("inf"), d, 0.0)
    d = tl.where(across(rows.is_limit), 0.0, d)
    return tl.where(across(rows.hi != rows.hi), float("nan"), d)


@triton.jit
def load_upstream(grad, outer, inner, index, inside, r, WIDTH: tl.constexpr, OUTPUT: tl.constexpr):
    """Gradients of scores, in their shape, and of rows, which a threshold has in their place."""
    if OUTPUT == "threshold":
        g_row = tl.load(row_start(grad, outer, inner)).to(tl.float64)
        return tl.zeros_like(r), g_row
    else:
        g = load_values(grad, outer, inner, index, inside, WIDTH).to(r.dtype)
        return g, tl.zeros_like(outer).to(tl.float64)


@triton.jit
def zero_sums(
    SHAPE: tl.constexpr, COUNT: tl.constexpr, DTYPE: tl.constexpr, WIDE: tl.constexpr = -1
):
    sums = ()
    for i in tl.static_range(COUNT):
        one = tl.zeros(SHAPE, tl.float64 if i == WIDE else DTYPE)
        sums = sums + (one,)  # type: ignore[assignment]
    return sums


@triton.jit
def joined_sums(sums, more, kept, WEIGHTED: tl.constexpr):
    """Both together; the first ones are relative to a shift, and brought over to a new one."""
    joined = ()
    for i in tl.static_range(len(sums)):
        if i < WEIGHTED:
            joined = joined + (sums[i] * kept + more[i],)  # type: ignore[assignment]
        else:
            joined = joined + (sums[i] + more[i],)  # type: ignore[assignment]
    return joined


@triton.jit
def sums_of_lanes(sums, factors, WEIGHTED: tl.constexpr):
    """The sums of all lanes in float64, relative to one shift."""
    total = ()
    for i in tl.static_range(len(sums)):
        wide = sums[i].to(tl.float64)
        if i < WEIGHTED:
            wide = wide * factors
        total = total + (sum_of_row(wide),)  # type: ignore[assignment]
    return total

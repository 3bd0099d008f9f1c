"""The threshold to 60 digits, by an algorithm of its own and with a proof attached.

The sorted scores cut the line into intervals on which the budget equation is a quadratic in
e^{b/t}. The interval is found by bisection on the index, the root by the closed form, and the
answer is returned only if the budget curve changes sign within 1e-20 t of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
from mpmath import mpf

DIGITS = 60


def surplus(scores: Sequence[mpf], b: mpf, k: mpf, t: mpf) -> mpf:
    """LapSum(b) - k, the integer count apart from the tails: neither swallows the other."""
    above = [r for r in scores if r > b]
    below = [r for r in scores if r <= b]
    tail_above = mpmath.fsum(mpmath.exp((b - r) / t) for r in above)
    tail_below = mpmath.fsum(mpmath.exp((r - b) / t) for r in below)
    return (len(above) - k) + (tail_below - tail_above) / 2


def threshold(scores: Sequence[float], k: float, t: float) -> mpf:
    """b with sum_i sigma((r_i - b) / t) = k for 0 < k < n, finite scores and t > 0."""
    with mpmath.workdps(DIGITS):
        ordered = sorted((mpf(r) for r in scores), reverse=True)
        budget, width = mpf(k), mpf(t)
        # The first index at whose score the curve is at or above the budget: b is at or above it.
        first, last = 0, len(ordered)
        while first < last:
            middle = (first + last) // 2
            if surplus(ordered, ordered[middle], budget, width) >= 0:
                last = middle
            else:
                first = middle + 1
        b = _interval_root(ordered[:first], ordered[first:], budget, width)
        nudge = width * mpf(10) ** -20
        assert surplus(ordered, b - nudge, budget, width) >= 0
        assert surplus(ordered, b + nudge, budget, width) <= 0
        return b


def _interval_root(above: list[mpf], below: list[mpf], k: mpf, t: mpf) -> mpf:
    """The root b with ``above`` at or over it and ``below`` at or under it, both descending."""
    excess = len(above) - k
    anchor = above[-1] if above else below[0]
    # With x = e^{(b - anchor)/t} the equation is  excess + L / (2 x) - U x / 2 = 0.
    upper = mpmath.fsum(mpmath.exp((anchor - r) / t) for r in above)
    lower = mpmath.fsum(mpmath.exp((r - anchor) / t) for r in below)
    root = mpmath.sqrt(excess**2 + upper * lower)
    x = (excess + root) / upper if excess > 0 else lower / (root - excess)
    return anchor + t * mpmath.log(x)


def mask(scores: Sequence[float], b: mpf, t: float) -> list[mpf]:
    """sigma((r_i - b) / t) for every score."""
    with mpmath.workdps(DIGITS):
        result = []
        for r in scores:
            u = (mpf(r) - b) / mpf(t)
            half = mpmath.exp(-abs(u)) / 2
            result.append(1 - half if u > 0 else half)
        return result


def vjp(
    grad: Sequence[float], scores: Sequence[float], b: mpf, t: float
) -> tuple[list[mpf], mpf, mpf]:
    """Gradients of <grad, p> for scores, k and t, from implicit differentiation of sum(p) = k."""
    with mpmath.workdps(DIGITS):
        width = mpf(t)
        u = [(mpf(r) - b) / width for r in scores]
        density = [mpmath.exp(-abs(x)) / (2 * width) for x in u]
        total = mpmath.fsum(density)
        weighted = mpmath.fsum(mpf(g) * d for g, d in zip(grad, density, strict=True))
        b_by_t = -mpmath.fsum(d * x for d, x in zip(density, u, strict=True)) / total
        by_scores = [d * (mpf(g) - weighted / total) for g, d in zip(grad, density, strict=True)]
        by_t = mpmath.fsum(
            mpf(g) * d * (-x - b_by_t) for g, d, x in zip(grad, density, u, strict=True)
        )
        return by_scores, weighted / total, by_t

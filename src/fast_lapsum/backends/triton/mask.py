"""p of scores whose threshold pair is known."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import exponent_scale, smallest_normal
from .views import across


@triton.jit
def _soft_mask(r, hi, lo, inverse):
    """p = sigma((r - hi - lo) / t).

    The exponential is taken at hi, where the solver took it, and carried over to b by one factor:
    rounding in v is then the same in both, and the mass stays k also where |v| is large. A b far
    from hi takes the direct way.
    """
    shift = lo * inverse
    is_far = tl.abs(shift) > 4
    taken_off = tl.where(is_far, lo, 0.0)
    factor_above = 0.5 * tl.where(is_far, 1.0, tl.exp2(shift))
    factor_below = 0.5 * tl.where(is_far, 1.0, tl.exp2(-shift))
    from_hi = r - across(hi)
    is_above = from_hi > across(lo)
    v = (from_hi - across(taken_off)) * across(inverse)
    factor = tl.where(is_above, across(factor_above), across(factor_below))
    e = tl.exp2(tl.where(is_above, -v, v)) * factor
    return tl.where(is_above, 1 - e, e)


@triton.jit
def soft_mask(r, hi, lo, t, COMPUTE: tl.constexpr):
    """The mask of rows of which none is in the hard limit."""
    return _soft_mask(r, hi, lo, exponent_scale(t, COMPUTE))


@triton.jit
def any_mask(r, hi, lo, t, COMPUTE: tl.constexpr):
    """The mask of rows of any kind: soft, in the hard limit, or unanswered (NaN)."""
    is_limit = is_in_limit(hi, t, COMPUTE)
    p = _soft_mask(r, hi, lo, exponent_scale(tl.where(is_limit, 1.0, t), COMPUTE))
    q = tl.where(r == across(hi), across(lo), (r > across(hi)).to(COMPUTE))
    q = tl.where(r == float("-inf"), 0.0, q)
    q = tl.where(across(hi != hi), float("nan"), q)
    return tl.where(across(is_limit), q, p)


@triton.jit
def is_in_limit(hi, t, COMPUTE: tl.constexpr):
    return (t < smallest_normal(COMPUTE)) | (hi == float("inf"))


@triton.jit
def _numbered(ties):
    """1, 2, ... for the ones of every row, in the order of their indices."""
    in_thread = tl.sum(ties, 3)
    in_lanes = tl.sum(in_thread, 2)
    before_thread = tl.cumsum(in_thread, 2) - in_thread
    before_lanes = tl.cumsum(in_lanes, 0) - in_lanes
    before = before_thread + before_lanes[:, :, None]
    return tl.cumsum(ties, 3) + before[:, :, :, None]


@triton.jit
def ties_in(r, boundary):
    """How many scores of each row equal its boundary."""
    ties = (r == across(boundary)).to(tl.int32)
    return tl.sum(tl.sum(tl.sum(ties, 3), 0), 1)


@triton.jit
def hard_mask(r, k, boundary, above, earlier, COMPUTE: tl.constexpr):
    """Ones for the k first scores, the earliest of tied ones first; NaN for unanswered rows.

    ``above`` are greater than the boundary, ``earlier`` equal it and lie before these scores.
    """
    is_tied = r == across(boundary)
    place = _numbered(is_tied.to(tl.int32)).to(tl.float64) + across(earlier)
    is_chosen = (r > across(boundary)) | (is_tied & (place <= across(k - above)))
    # A row that takes nothing has a boundary, too.
    p = tl.where(across(k > 0), is_chosen.to(COMPUTE), 0.0)
    return tl.where(across(boundary != boundary), float("nan"), p)

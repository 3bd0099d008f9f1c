"""p of scores whose threshold pair is known."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import any_row, exponent_scale, smallest_normal
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
    from_hi = r - across(hi, r)
    is_above = from_hi > across(lo, r)
    v = (from_hi - across(taken_off, r)) * across(inverse, r)
    factor = tl.where(is_above, across(factor_above, r), across(factor_below, r))
    e = tl.exp2(tl.where(is_above, -v, v)) * factor
    return tl.where(is_above, 1 - e, e)


@triton.jit
def mask_of(r, hi, lo, t, COMPUTE: tl.constexpr):
    """The mask of rows [rows, lanes] of any kind: soft, in the hard limit, or unanswered (NaN)."""
    is_limit = (t < smallest_normal(COMPUTE)) | (hi == float("inf"))
    t_soft = tl.where(is_limit, 1.0, t)
    p = _soft_mask(r, hi, lo, exponent_scale(t_soft, COMPUTE))
    if any_row(is_limit):
        q = tl.where(r == across(hi, r), across(lo, r), (r > across(hi, r)).to(COMPUTE))
        q = tl.where(r == float("-inf"), 0.0, q)
        q = tl.where(across(hi != hi, r), float("nan"), q)
        p = tl.where(across(is_limit, r), q, p)
    return p


@triton.jit
def _numbered(ties):
    """1, 2, ... for the ones of every row, in the order of their indices."""
    if len(ties.shape) == 2:
        return tl.cumsum(ties, 1)
    else:
        in_thread = tl.sum(ties, 3)
        in_lanes = tl.sum(in_thread, 2)
        before_thread = tl.cumsum(in_thread, 2) - in_thread
        before_lanes = tl.cumsum(in_lanes, 0) - in_lanes
        before = before_thread + before_lanes[:, :, None]
        return tl.cumsum(ties, 3) + before[:, :, :, None]


@triton.jit
def hard_mask_of(r, k, boundary, above, earlier, COMPUTE: tl.constexpr):
    """Ones for the k first scores, the earliest of tied ones first; NaN for unanswered rows.

    ``above`` are greater than the boundary, ``earlier`` equal it and lie before these scores.
    """
    is_tied = r == across(boundary, r)
    place = _numbered(is_tied.to(tl.int32)).to(tl.float64) + across(earlier, r)
    is_chosen = (r > across(boundary, r)) | (is_tied & (place <= across(k - above, r)))
    # A row that takes nothing has a boundary, too.
    p = tl.where(across(k > 0, r), is_chosen.to(COMPUTE), 0.0)
    return tl.where(across(boundary != boundary, r), float("nan"), p)

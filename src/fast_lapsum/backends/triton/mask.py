"""p of scores whose threshold pair is known, its logarithm, and hard masks."""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import LN2, any_row, exponent_scale, log_rest, smallest_normal
from .views import across


@triton.jit
def soft_tails(r, hi, lo, inverse):
    """Which scores are over the threshold, and e^-|u| / 2, which is p or what is missing from 1.

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
    return is_above, tl.exp2(tl.where(is_above, -v, v)) * factor


@triton.jit
def _soft_mask(r, hi, lo, inverse):
    """p = sigma((r - hi - lo) / t)."""
    is_above, e = soft_tails(r, hi, lo, inverse)
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
def half_distance(r, hi, lo):
    """(r - b) / 2: by halves, because r - b may overflow where (r - b) / t does not."""
    return (0.5 * r - across(0.5 * hi)) - across(0.5 * lo)


@triton.jit
def _soft_log(r, hi, lo, t, COMPUTE: tl.constexpr):
    """log p: u - log 2 below the threshold, log(1 - e^-u / 2) above it, to its last digits."""
    u = half_distance(r, hi, lo) * across(2 / t.to(COMPUTE))
    half = 0.5 * tl.exp2(tl.maximum(u, 0.0) * -1.4426950408889634)
    return tl.where(u > 0, log_rest(half, COMPUTE), u - LN2)  # NaN stays NaN


@triton.jit
def _any_log(r, pair, t, COMPUTE: tl.constexpr):
    """The same of rows of any kind."""
    is_limit = is_in_limit(pair.hi, t, COMPUTE)
    log_p = _soft_log(r, pair.hi, pair.lo, tl.where(is_limit, 1.0, t), COMPUTE)
    nothing = float("-inf")
    log_p = tl.where(across(pair.is_spent), tl.where(r == float("inf"), 0.0, nothing), log_p)
    q = tl.where(r > across(pair.hi), 0.0, nothing)
    q = tl.where((r == across(pair.hi)) & (r != nothing), across(pair.log_share), q)
    log_p = tl.where(across(is_limit), q, log_p)
    return tl.where(across(pair.hi != pair.hi), float("nan"), log_p)


@triton.jit
def plain_output(r, pair, k, t, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """What is written of rows that :func:`are_plain`."""
    if OUTPUT == "hard":
        p = (r >= across(tl.where(k > 0, pair.hi, float("inf")))).to(COMPUTE)
        return tl.where(across(pair.hi != pair.hi), float("nan"), p)
    elif OUTPUT == "log":
        return _soft_log(r, pair.hi, pair.lo, t, COMPUTE)
    else:
        return soft_mask(r, pair.hi, pair.lo, t, COMPUTE)


@triton.jit
def any_output(r, pair, t, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """The mask, or its logarithm, of rows of any kind."""
    if OUTPUT == "log":
        return _any_log(r, pair, t, COMPUTE)
    else:
        return any_mask(r, pair.hi, pair.lo, t, COMPUTE)


@triton.jit
def are_plain(pair, k, t, OUTPUT: tl.constexpr, COMPUTE: tl.constexpr):
    """Rows that need no case of their own: soft ones, or hard ones that take all tied scores."""
    if OUTPUT == "hard":
        is_plain = (pair.lo == 1) | (k <= 0) | (pair.hi != pair.hi)
        return is_plain & (pair.hi != float("inf"))
    else:
        is_plain = ~is_in_limit(pair.hi, t, COMPUTE)
        return is_plain & (~pair.is_spent) if OUTPUT == "log" else is_plain


@triton.jit
def is_in_limit(hi, t, COMPUTE: tl.constexpr):
    return (t < smallest_normal(COMPUTE)) | (hi == float("inf"))


@triton.jit
def running_sums(values):
    """Sums of whole numbers of every row up to and with each, in the order of their indices."""
    in_thread = tl.sum(values, 3)
    in_lanes = tl.sum(in_thread, 2)
    before_thread = tl.cumsum(in_thread, 2) - in_thread
    before_lanes = tl.cumsum(in_lanes, 0) - in_lanes
    before = before_thread + before_lanes[:, :, None]
    return tl.cumsum(values, 3) + before[:, :, :, None]


@triton.jit
def ties_in(r, boundary):
    """How many scores of each row equal its boundary."""
    ties = (r == across(boundary)).to(tl.int32)
    return tl.sum(tl.sum(tl.sum(ties, 3), 0), 1)


@triton.jit
def hard_mask_to(r, k, boundary, is_early, COMPUTE: tl.constexpr):
    """Ones for scores over the boundary and the early ones of those that equal it."""
    is_taken = (r > across(boundary)) | ((r == across(boundary)) & is_early)
    p = tl.where(across(k > 0), is_taken.to(COMPUTE), 0.0)
    return tl.where(across(boundary != boundary), float("nan"), p)


@triton.jit
def hard_mask(r, k, boundary, room, COMPUTE: tl.constexpr):
    """Ones for the k first scores, the earliest of tied ones first; NaN for unanswered rows.

    There is ``room`` for so many that equal the boundary. Returned, too, is how many do.
    """
    is_tied = r == across(boundary)
    ties = ties_in(r, boundary)
    is_taken = is_tied & across(room >= ties)
    if any_row((room > 0) & (ties > room)):  # which is so in one part of a row at most
        is_taken = is_tied & (running_sums(is_tied.to(tl.int32)).to(tl.float64) <= across(room))
    # A row that takes nothing has a boundary, too.
    p = tl.where(across(k > 0), ((r > across(boundary)) | is_taken).to(COMPUTE), 0.0)
    return tl.where(across(boundary != boundary), float("nan"), p), ties

"""Long rows: from a round to the next. What a row wants after statistics, a ladder or a band.

Decided on the device, by the program that is the last of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import (
    VANISHED,
    exponent_scale,
    largest_finite,
    middle_float,
    model_factor,
)
from .state import BAND, DONE, GATHERED, LADDER, STATISTICS, digits, room_of, steps_to, tolerance

#: How many times as long as the one before a step is, on a ladder to a far end.
WIDENING = tl.constexpr(4.0)
#: Temperatures beyond which a tail sum has too few digits left to be taken there again.
FARTHEST = tl.constexpr(40.0)


@triton.jit
def _unlike(one, other):
    """By what part of the larger two counts differ, what chance may do left out."""
    more = tl.maximum(tl.maximum(one, other), 1.0)
    return tl.maximum(tl.abs(one - other) - 4 * tl.sqrt(more), 0.0) / more


@triton.jit
def after_statistics(
    k,
    t,
    b,
    half_window,
    left,
    right,
    above,
    close_above,
    close_below,
    at,
    sum_below,
    sum_above,
    near_below,
    near_above,
    n,
    capacity,
    may_climb,
    IS_FIRST: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair (hi, lo) if the statistics certify it, else what to look at next."""
    scale = t.to(COMPUTE)
    over = above - k
    excess64 = over + (at + sum_below - sum_above) / 2
    excess = excess64.to(COMPUTE)
    rising = excess >= 0
    below = sum_below.to(COMPUTE) + tl.where(rising, at, 0.0).to(COMPUTE)
    higher = sum_above.to(COMPUTE) + tl.where(rising, 0.0, at).to(COMPUTE)
    below = tl.where(below < VANISHED, 0.0, below)
    higher = tl.where(higher < VANISHED, 0.0, higher)
    count_excess = (over + tl.where(rising, 0.0, at)).to(COMPUTE)
    relative = tl.log(model_factor(count_excess, below, higher))
    step = scale * relative
    left = tl.where(rising, b, left)
    right = tl.where(rising, right, b)
    phi = (below + higher) / 2

    near_by = tl.where(rising, close_above, close_below).to(COMPUTE)  # on the root's side
    allowed = tolerance(COMPUTE) * tl.minimum(k.to(COMPUTE), phi)
    is_small = (tl.abs(relative) <= 1) & (tl.abs(step) <= half_window)
    # cosh(x) - 1 <= 0.55 x^2 for |x| <= 1
    error = 0.55 * near_by * relative * relative
    certified = is_small & (error <= allowed)

    # Not certain: where is the root, give or take what? By rank, if scores are spread evenly. Sides
    # that differ by more than chance say that they are not, and that ranks do not tell distances
    # well. So do tail sums that are not those of even scores.
    per_score = half_window / tl.maximum(near_by, 1.0)
    uneven = _unlike(close_above.to(COMPUTE), close_below.to(COMPUTE))
    ranks = 1.75 * tl.sqrt(near_by) + (0.005 + uneven) * tl.abs(excess) + 4
    ranks += 0.15 * uneven * capacity
    is_wide = half_window > 4 * scale
    tails = tl.where(is_wide, _unlike(below + higher, 2 * scale / per_score), 0.0)
    uneven = tl.maximum(uneven, tails)
    # Or by the step, as far as its error goes.
    most = 0.7 * capacity * per_score  # how long a band may be, if scores are spread evenly
    by_step = 4 * scale * error / phi + 2.0**-20 * (scale + tl.abs(b))
    is_better = (by_step <= per_score * ranks) | ((uneven > 0.125) & (2 * by_step <= most))
    take_step = is_small & ((tl.abs(relative) <= 0.1) | is_better)
    give = tl.where(take_step, by_step, per_score * ranks)
    target = b + tl.where(take_step, step, per_score * excess)
    inside = (tl.abs(excess) <= near_by) | take_step
    lo = target - give
    hi = target + give
    # Where enough of the mass is soft, the model's step leads to the root, however far it is.
    is_soft = (tl.abs(excess) <= 2 * (below + higher)) & (tl.abs(relative) <= FARTHEST)
    # Rather than by uneven ranks the root is found by that step or by a ladder, one round later.
    is_told = take_step | (may_climb == 0) | (uneven <= tl.where(is_soft, 0.125, 0.5))
    fits = inside & is_told & (2 * give <= most) & (lo < hi)
    # Rather all scores of that side, as far as they fit: their number is known.
    room = room_of(capacity)
    limit = largest_finite(COMPUTE)
    is_surely_inside = tl.abs(excess) + 2 * tl.sqrt(near_by) + 4 <= near_by
    is_side = is_surely_inside & (not take_step) & (uneven > 0.125) & (near_by <= room)
    lo = tl.where(is_side, tl.where(rising, b, b - half_window), lo)
    hi = tl.where(is_side, tl.where(rising, b + half_window, b), hi)
    is_tail = tl.where(rising, above, n - above) <= room
    is_tail = is_tail & (not (fits | is_side | take_step))
    lo = tl.where(is_tail, tl.where(rising, b, -limit), lo)
    hi = tl.where(is_tail, tl.where(rising, limit, b), hi)
    wanted = tl.where(fits | is_side | is_tail, BAND, STATISTICS)
    give = tl.where((uneven > 0.5) & (not take_step), tl.maximum(give, half_window / 8), give)
    next_b = tl.where(inside, target, b + tl.where(rising, 4 * half_window, -4 * half_window))
    next_half = tl.where(inside, give, 4 * half_window)
    goes_by_step = is_soft & (not take_step) & ((uneven > 0.125) | (not inside))
    if IS_FIRST:
        next_b = tl.where(goes_by_step, b + step, next_b)
        next_half = tl.where(goes_by_step, tl.maximum(tl.abs(step), scale), next_half)
    else:
        lower = tl.where(rising & (at > 0), b, near_below)
        upper = tl.where((not rising) & (at > 0), b, near_above)
        end = tl.where(rising, upper, lower)
        before_end = tl.where(rising, step <= end - b, step >= end - b)
        before_end = before_end & (tl.abs(step) < float("inf"))
        nothing_between = tl.where(rising, end >= right, end <= left)
        in_gap = (count_excess == 0) & (tl.where(rising, higher, below) == 0)
        between = before_end | nothing_between | in_gap
        is_near_below = b - lower <= 2 * scale
        is_near_above = upper - b <= 2 * scale
        # A clear excess is made up on one side: what is far away on the other hardly counts then.
        far_below = (count_excess > 2.0**-10) & (below <= 2.0**-10 * count_excess)
        far_above = (count_excess < -(2.0**-10)) & (higher <= -(2.0**-10) * count_excess)
        is_certain = (is_near_below | far_below) & (is_near_above | far_above)
        certified = certified | (between & is_certain & (tl.abs(relative) <= 4))
        # The neighbours hold the root: an empty band whose ends they are settles it.
        wanted = tl.where(between, BAND, wanted)
        far = tl.where(near_by > 0, next_b, end)
        next_b = tl.where(goes_by_step, b + step, tl.where(inside, next_b, far))
        is_far = goes_by_step | (not inside)
        next_half = tl.where(is_far, tl.maximum(tl.abs(next_b - b), scale), next_half)
    lo = tl.maximum(lo, left)
    hi = tl.minimum(hi, right)
    if not IS_FIRST:
        lo = tl.where(between, lower, lo)
        hi = tl.where(between, upper, hi)
    lo = tl.maximum(lo, -limit)
    hi = tl.minimum(hi, limit)
    next_b = tl.where(
        (left < next_b) & (next_b < right), next_b, middle_float(left, right, COMPUTE)
    )
    # A ladder up to the end of the window, or beyond it; what is near is more likely.
    is_lost = ((not inside) | (uneven > 0.5)) & (not is_soft)
    reach = tl.where(inside, 1.0, 8.0) * half_window
    end = tl.where(rising, tl.minimum(b + reach, right), tl.maximum(b - reach, left))
    widening = tl.full((), WIDENING, COMPUTE)
    is_fine = _is_ladder(b, (end - b) / steps_to(6, widening), end, COMPUTE)
    widening = tl.where(is_fine, widening, 1.0)
    rung = (end - b) / steps_to(6, widening)
    climbs = (wanted == STATISTICS) & is_lost & (may_climb != 0)
    climbs = climbs & _is_ladder(b, rung, end, COMPUTE)
    wanted = tl.where(climbs, LADDER, wanted)
    next_b = tl.where(climbs, b, next_b)
    next_half = tl.where(climbs, rung, next_half)
    lo = tl.where(climbs, (k + excess64).to(COMPUTE), lo)
    hi = tl.where(climbs, widening, hi)
    wanted = tl.where(certified, DONE, wanted)
    return wanted, step, next_b, next_half, lo, hi, left, right


@triton.jit
def _is_ladder(b, rung, end, COMPUTE: tl.constexpr):
    """Whether rungs between b and the end are apart by more than rounding."""
    is_apart = tl.abs(rung) > 16 * digits(COMPUTE) * tl.abs(b)
    return is_apart & (tl.abs(end) <= largest_finite(COMPUTE))


@triton.jit
def _rung(number, at_0, at_1, at_2, at_3, at_4, at_5, at_6):
    """The one of that number."""
    low = tl.where(number == 0, at_0, tl.where(number == 1, at_1, at_2))
    high = tl.where(number == 4, at_4, tl.where(number == 5, at_5, at_6))
    return tl.where(number < 3, low, tl.where(number == 3, at_3, high))


@triton.jit
def after_ladder(
    k,
    t,
    b,
    step,
    foot,
    widening,
    left,
    right,
    m_1,
    m_2,
    m_3,
    m_4,
    m_5,
    m_6,
    capacity,
    may_climb,
    COMPUTE: tl.constexpr,
):
    """A band between the two rungs that hold the root, if their masses say that it fits.

    Else statistics in the gap that the root is in, or a finer ladder from one rung to the other, or
    a longer one from the last. Masses are rounded, so they prove nothing: the bracket stays what it
    was.
    """
    # Rungs before the root, and those that may be: in a gap between scores many have mass k. Mass
    # falls on the way up.
    sign = tl.where(step > 0, 1.0, -1.0).to(tl.float64)
    slack = 2.0**-20 * k + 0.5
    o_1 = sign * (m_1 - k)
    o_2 = sign * (m_2 - k)
    o_3 = sign * (m_3 - k)
    o_4 = sign * (m_4 - k)
    o_5 = sign * (m_5 - k)
    o_6 = sign * (m_6 - k)
    before = (o_1 > slack).to(tl.int32) + (o_2 > slack).to(tl.int32) + (o_3 > slack).to(tl.int32)
    before += (o_4 > slack).to(tl.int32) + (o_5 > slack).to(tl.int32) + (o_6 > slack).to(tl.int32)
    after = 1 + (o_1 >= -slack).to(tl.int32) + (o_2 >= -slack).to(tl.int32)
    after += (o_3 >= -slack).to(tl.int32) + (o_4 >= -slack).to(tl.int32)
    after += (o_5 >= -slack).to(tl.int32) + (o_6 >= -slack).to(tl.int32)
    mass_near = _rung(before, foot.to(tl.float64), m_1, m_2, m_3, m_4, m_5, m_6)
    mass_far = _rung(after, m_1, m_1, m_2, m_3, m_4, m_5, m_6)
    is_past = after == 7  # how much lies beyond the last rung is not known
    s_1 = steps_to(1, widening)
    s_2 = steps_to(2, widening)
    s_3 = steps_to(3, widening)
    s_4 = steps_to(4, widening)
    s_5 = steps_to(5, widening)
    s_6 = steps_to(6, widening)
    near = b + _rung(before, 0.0 * s_1, s_1, s_2, s_3, s_4, s_5, s_6) * step
    far = b + _rung(after, s_1, s_1, s_2, s_3, s_4, s_5, s_6) * step
    # From the near one to where the root is; beyond the last rung, nobody knows how far.
    way = tl.where(is_past, far + 8 * (far - b), far) - near
    spare = 2.0**-10 * tl.abs(way) + digits(COMPUTE) * tl.abs(b)
    lo = tl.maximum(tl.minimum(near, far) - spare, left)
    hi = tl.minimum(tl.maximum(near, far) + spare, right)
    # A score between them adds less than one where t is not small against the way.
    crossed = tl.abs(way).to(tl.float64) / t
    between = tl.abs(mass_far - mass_near) / (1 - tl.exp(-0.5 * tl.minimum(crossed, 100.0)))
    room = room_of(capacity)
    fits = (between <= room) & (not is_past) & (lo < hi)
    part = ((mass_near - k) / tl.where(mass_near == mass_far, 1.0, mass_near - mass_far)).to(
        COMPUTE
    )
    part = tl.where(is_past, 0.25, tl.minimum(tl.maximum(part, 0.0), 1.0))
    aim = near + part * way
    is_inside = (left < aim) & (aim < right)
    next_b = tl.where(is_inside, aim, middle_float(left, right, COMPUTE))
    next_half = 0.5 * tl.abs(way)
    # Mass k at a rung, or at the foot: in a gap. Statistics there tell where it ends.
    is_at_foot = tl.abs(mass_near - k) <= slack
    is_flat = (not fits) & (is_at_foot | (after > before + 1))
    flat = b + _rung(before + 1, s_1, s_1, s_2, s_3, s_4, s_5, s_6) * step
    next_b = tl.where(is_flat, tl.where(is_at_foot, near, flat), next_b)
    wanted = tl.where(fits, BAND, STATISTICS)
    next_widening = tl.where(is_past, WIDENING, 1.0).to(COMPUTE)
    end = tl.minimum(tl.maximum(near + way, left), right)
    rung = (end - near) / steps_to(6, next_widening)
    climbs = (not (fits | is_flat)) & (may_climb != 0) & _is_ladder(near, rung, end, COMPUTE)
    wanted = tl.where(climbs, LADDER, wanted)
    next_b = tl.where(climbs, near, next_b)
    next_half = tl.where(climbs, rung, next_half)
    # With one round left and no band that surely fits, one that probably does, if scores are spread
    # evenly between the rungs.
    is_last = (may_climb == 0) & (not (fits | is_past | is_flat)) & (lo < hi)
    give = (0.35 * room / tl.maximum(between, 1.0)).to(COMPUTE) * tl.abs(way)
    aim = tl.minimum(tl.maximum(aim, lo), hi)
    wanted = tl.where(is_last, BAND, wanted)
    lo = tl.where(is_last, tl.maximum(lo, aim - give), lo)
    hi = tl.where(is_last, tl.minimum(hi, aim + give), hi)
    lo = tl.where(climbs, mass_near.to(COMPUTE), lo)
    hi = tl.where(climbs, next_widening, hi)
    return wanted, next_b, next_half, lo, hi


@triton.jit
def after_band(
    k,
    t,
    b,
    half_window,
    lo,
    hi,
    left,
    right,
    above,
    sum_below,
    sum_above,
    found,
    fits,
    IS_FIRST: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """GATHERED, unless the band overflowed or the root is surely not in it: then where to look."""
    inverse = exponent_scale(t, COMPUTE)
    inside = found.to(tl.float64)
    # e^-|u| between a score inside and an end of the band is between `across` and 1.
    across = tl.exp2((lo - hi) * inverse).to(tl.float64)
    most = above + inside + (sum_below - (sum_above + inside) * across) / 2  # of mass, at lo
    least = above + (inside * across + sum_below * across - sum_above) / 2  # of mass, at hi
    limit = largest_finite(COMPUTE)
    is_open = (lo == -limit) | (hi == limit)
    width = tl.where(is_open, half_window, hi - lo)
    # The ranks say where in the band the root is, if it has two ends.
    part = (above + inside - k) / tl.maximum(inside, 1.0)
    part = tl.minimum(tl.maximum(part, 0.05), 0.95).to(COMPUTE)
    next_b = tl.where(is_open, b, lo * (1 - part) + hi * part)
    next_half = tl.where(is_open, half_window, width / 8)
    slack = 2.0**-20 * k  # rounding of the sums is no certainty
    is_below = most < k - slack
    is_above = least > k + slack
    right = tl.where(is_below, tl.minimum(right, lo), right)
    left = tl.where(is_above, tl.maximum(left, hi), left)
    next_b = tl.where(is_below, lo - 4 * width, tl.where(is_above, hi + 4 * width, next_b))
    next_half = tl.where(is_below | is_above, 4 * width, next_half)
    is_inside = (left < next_b) & (next_b < right)
    next_b = tl.where(is_inside, next_b, middle_float(left, right, COMPUTE))
    # Nothing in the band and nothing near it, where the root is to be told by that: a longer gap.
    over = above - k
    is_blind = (over > -(2.0**-10)) & (sum_above < VANISHED)
    is_blind = is_blind | ((over < 2.0**-10) & (sum_below < VANISHED))
    is_blind = is_blind & (found == 0) & (not is_open)
    next_half = tl.where(is_blind, width, next_half)
    is_useful = fits & (not is_below) & (not is_above) & (not is_blind)
    if IS_FIRST:
        # Beyond all scores the tail sum tells the root. The mask rounds the distances from there,
        # and those of equal scores all alike: statistics at the root have the same rounding.
        end = tl.where(hi == limit, lo, hi)
        factor = model_factor((above - k).to(COMPUTE), sum_below.to(COMPUTE), sum_above.to(COMPUTE))
        relative = tl.log(factor)
        scale = t.to(COMPUTE)
        root = end + scale * relative
        # Rounded by more than a small part of t it would not certify itself.
        is_near = (tl.abs(relative) <= FARTHEST) & (tl.abs(root) * digits(COMPUTE) <= scale)
        is_beyond = is_useful & is_open & (found == 0) & is_near
        next_b = tl.where(is_beyond, root, next_b)
        next_half = tl.where(is_beyond, scale, next_half)
        is_useful = is_useful & (not is_beyond)
    return tl.where(is_useful, GATHERED, STATISTICS), next_b, next_half, left, right

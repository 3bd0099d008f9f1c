"""Long rows: what a row wants next. From the sample to the first round, from a round to the next.

All that is decided about a row is decided here, on the device, by one program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import (
    HOTTEST,
    LISTS,
    VANISHED,
    exponent_scale,
    largest_finite,
    logit,
    middle_float,
    model_factor,
    smallest_normal,
)
from .sample import CHUNK, DEVIATIONS, SAMPLE_FIELDS, inner_trial

#: What a row wants next.
STATISTICS = tl.constexpr(0.0)
BAND = tl.constexpr(1.0)
DONE = tl.constexpr(2.0)
GATHERED = tl.constexpr(3.0)  # the band is in memory and seems to hold the root
CORNER = tl.constexpr(4.0)  # not a row for sampling and streaming
ALONE = tl.constexpr(5.0)  # nothing any more: settle's one program had to read the row
LADDER = tl.constexpr(6.0)  # masses at six rungs

#: Float64 values per row: what is wanted, trial b, half window, lo, hi, the bracket's two ends,
#: and of a band N>, S<, S> outside it and the round's first ticket. Of a ladder, in place of b to
#: hi: its foot, the first step, the mass at the foot, and the next step's length in its last one's.
STATE_FIELDS = tl.constexpr(11)
#: So many times the shorter way from the middle trial to an outer one the longer may be.
LONG = tl.constexpr(16.0)
#: How many times as long as the one before a step is, on a ladder to a far end.
WIDENING = tl.constexpr(4.0)
#: Temperatures beyond which a tail sum has too few digits left to be taken there again.
FARTHEST = tl.constexpr(40.0)


@triton.jit
def _tolerance(COMPUTE: tl.constexpr):
    """Mass that the threshold may be off, relative to the budget and to sum(phi)."""
    return 2.0**-50 if COMPUTE == tl.float64 else 2.0**-22


@triton.jit
def _digits(COMPUTE: tl.constexpr):
    """What rounding may do to a sum of few numbers, relative to them."""
    return 2.0**-50 if COMPUTE == tl.float64 else 2.0**-21


@triton.jit
def _differences(x, trials):
    """Newton's divided differences of the trials b over x, the middle three first."""
    x_0, x_1, x_2, x_3, x_4 = x
    b_0, b_1, b_2, b_3, b_4 = trials
    d_12 = (b_2 - b_1) / (x_2 - x_1)
    d_23 = (b_3 - b_2) / (x_3 - x_2)
    d_30 = (b_0 - b_3) / (x_0 - x_3)
    d_04 = (b_4 - b_0) / (x_4 - x_0)
    d_123 = (d_23 - d_12) / (x_3 - x_1)
    d_230 = (d_30 - d_23) / (x_0 - x_2)
    d_304 = (d_04 - d_30) / (x_4 - x_3)
    d_1230 = (d_230 - d_123) / (x_0 - x_1)
    d_2304 = (d_304 - d_230) / (x_4 - x_2)
    return d_12, d_123, d_1230, (d_2304 - d_1230) / (x_4 - x_1)


@triton.jit
def _by_mass(wanted, count, masses, x, trials, differences, is_regular):
    """Where the mass is ``wanted``, and how sure: by the polynomial through the five trials.

    b is taken over the logit of the mass, in which the tails of most distributions are nearly
    straight. The last term is what the fifth trial changes. A polynomial that leaves its two
    neighbouring trials is no good (plateaus, clusters, tails without a sample), nor is one through
    trials that are not ``is_regular``: then it is a straight line between the two (the third value
    says so), and nothing is sure but those.
    """
    _, m_1, m_2, m_3, _ = masses
    x_0, x_1, x_2, x_3, x_4 = x
    b_0, b_1, b_2, b_3, b_4 = trials
    first, second, third, fourth = differences
    y = logit(wanted, count)
    product = (y - x_1) * (y - x_2)
    cubic = b_1 + first * (y - x_1) + second * product + third * product * (y - x_3)
    last = fourth * product * (y - x_3) * (y - x_0)
    found = cubic + last
    left = tl.where(
        wanted > m_1, b_0, tl.where(wanted > m_2, b_1, tl.where(wanted > m_3, b_2, b_3))
    )
    right = tl.where(
        wanted > m_1, b_1, tl.where(wanted > m_2, b_2, tl.where(wanted > m_3, b_3, b_4))
    )
    x_left = tl.where(
        wanted > m_1, x_0, tl.where(wanted > m_2, x_1, tl.where(wanted > m_3, x_2, x_3))
    )
    x_right = tl.where(
        wanted > m_1, x_1, tl.where(wanted > m_2, x_2, tl.where(wanted > m_3, x_3, x_4))
    )
    part = tl.where(x_left > x_right, (x_left - y) / (x_left - x_right), 0.5)
    part = tl.minimum(tl.maximum(part, 0.0), 1.0)
    is_inside = is_regular & (left <= found) & (found <= right)
    line = left * (1 - part) + right * part
    b = tl.where(is_inside, found, line)
    return b, tl.where(is_inside, tl.abs(last), right - left), not is_inside


@triton.jit
def _overlap(lo, hi, first, last, mass):
    """How much of the mass between two trials lies between lo and hi, if it is spread evenly."""
    shared = tl.maximum(tl.minimum(hi, last) - tl.maximum(lo, first), 0.0)
    return tl.where(last > first, mass * (shared / (last - first)), 0.0)


@triton.jit
def _room(capacity):
    """How many scores a band may be expected to hold: no list of it is over by four deviations."""
    root = tl.sqrt(tl.zeros((), tl.float32) + 4 + capacity / LISTS) - 2
    return root * root * LISTS


@triton.jit
def _nearest(found, end, trial, mass, least, room):
    """The mass beyond ``end``, the first trial whose mass fits and is over ``least``."""
    is_it = (end == float("inf")) & (mass <= room) & (mass > least)
    return tl.where(is_it, mass, found), tl.where(is_it, trial, end)


@triton.jit
def _add_samples(a0, a1, a2, a3, a4, a5, a6, a7, a8, b0, b1, b2, b3, b4, b5, b6, b7, b8):
    low = a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4
    return low[0], low[1], low[2], low[3], low[4], a5 + b5, a6 + b6, a7 + b7, a8 + b8


@triton.jit
def plan(
    samples,
    k,
    t,
    n,
    programs,
    chunks,
    capacity,
    planned,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What the sample tells the first round: its kind, trial b, half window, lo, hi."""
    lane = tl.arange(0, LANES)
    inside = lane < programs
    first = samples
    samples += lane * SAMPLE_FIELDS
    mass_0, mass_1, mass_3, mass_4, above, sum_below, sum_above, between, squares = tl.reduce(
        (
            tl.load(samples, mask=inside, other=0.0),
            tl.load(samples + 1, mask=inside, other=0.0),
            tl.load(samples + 2, mask=inside, other=0.0),
            tl.load(samples + 3, mask=inside, other=0.0),
            tl.load(samples + 4, mask=inside, other=0.0),
            tl.load(samples + 5, mask=inside, other=0.0),
            tl.load(samples + 6, mask=inside, other=0.0),
            tl.load(samples + 7, mask=inside, other=0.0),
            tl.load(samples + 8, mask=inside, other=0.0),
        ),
        0,
        _add_samples,
    )
    # The same trials in every program.
    lower = tl.load(first + 9)
    centre = tl.load(first + 10)
    upper = tl.load(first + 11)

    scale = t.to(COMPUTE)
    to_row = ((tl.zeros((), tl.float64) + n) / (chunks * CHUNK)).to(COMPUTE)
    share = k.to(COMPUTE) / to_row
    mass = above + (sum_below - sum_above) / 2
    phi = (sum_below + sum_above) / 2
    variance = tl.maximum(squares - mass * mass / chunks, 0.0)
    # A sample of much of the row errs less: what it leaves out is what can surprise.
    left_out = tl.maximum(1 - 1 / to_row, 0.25)
    margin = DEVIATIONS * tl.sqrt(variance * left_out) + 1
    limit = largest_finite(COMPUTE)
    count = (chunks * CHUNK).to(COMPUTE)
    masses = (mass_0, mass_1, mass, mass_3, mass_4)
    trials = (lower, inner_trial(lower, centre), centre, inner_trial(upper, centre), upper)
    # The model's step is short by a sixth of its cube: let that be small against the margin.
    ratio = (tl.abs(mass - share) + margin) / phi
    if (ratio <= 0.5) & (ratio * ratio * ratio * phi <= margin):
        over = above - share
        b = centre + scale * tl.log(model_factor(over, sum_below, sum_above))
        lo = centre + scale * tl.log(model_factor(over - margin, sum_below, sum_above))
        hi = centre + scale * tl.log(model_factor(over + margin, sum_below, sum_above))
    else:
        x = (
            logit(mass_0, count),
            logit(mass_1, count),
            logit(mass, count),
            logit(mass_3, count),
            logit(mass_4, count),
        )
        differences = _differences(x, trials)
        shorter = tl.minimum(upper - centre, centre - lower)
        is_regular = tl.maximum(upper - centre, centre - lower) <= shorter * LONG
        b, _, is_line = _by_mass(share, count, masses, x, trials, differences, is_regular)
        # Rather than on a straight line the root is where the small sample had it, or near that.
        is_next_to_centre = (share <= mass_1) & (share >= mass_3)
        b = tl.where(is_line & is_next_to_centre, centre, b)
        lo, unsure, _ = _by_mass(share + margin, count, masses, x, trials, differences, is_regular)
        lo -= unsure
        hi, unsure, _ = _by_mass(share - margin, count, masses, x, trials, differences, is_regular)
        hi += unsure
    b = tl.where((lower <= b) & (b <= upper), b, centre)
    known_lo = tl.where(lo >= lower, lo, lower)
    known_hi = tl.where(hi <= upper, hi, upper)
    half_window = tl.maximum(known_hi - b, b - known_lo)
    # Beyond the outer trials the sample says nothing.
    lo = tl.where((lo <= b) & (share + margin < mass_0), lo, -limit)
    hi = tl.where((hi >= b) & (share - margin > mass_4), hi, limit)
    # Finite, so that a score of -inf is at a distance and not at none.
    lo = tl.maximum(tl.minimum(lo, known_lo), -limit)
    hi = tl.minimum(tl.maximum(hi, known_hi), limit)
    m_0, m_1, m_2, m_3, m_4 = masses
    b_0, b_1, b_2, b_3, b_4 = trials
    expected = _overlap(known_lo, known_hi, b_0, b_1, m_0 - m_1)
    expected += _overlap(known_lo, known_hi, b_1, b_2, m_1 - m_2)
    expected += _overlap(known_lo, known_hi, b_2, b_3, m_2 - m_3)
    expected += _overlap(known_lo, known_hi, b_3, b_4, m_3 - m_4)
    # Where t hides that scores are crowded, their number tells.
    crossing = _overlap(known_lo, known_hi, b_0, b_4, between)
    open_ends = tl.where(hi == limit, m_4, 0.0) + tl.where(lo == -limit, count - m_0, 0.0)
    expected = tl.maximum(expected, crossing) + open_ends
    crossing += open_ends
    # Would the counts certify even the longest step that the sample leaves possible?
    crossed = half_window / scale
    error = 0.3 * crossing * to_row * crossed * crossed
    allowed = _tolerance(COMPUTE) * tl.minimum(k.to(COMPUTE), phi * to_row)
    # Few scores on one side of the root: a band of all of them holds it, whatever their tail. It
    # begins at the trial that is nearest to the root and surely on its other side. A long one takes
    # time, and is for rows whose other band does not fit.
    has_ends = (hi < limit) & (lo > -limit)
    fits = expected * to_row <= 0.7 * planned
    room = _room(tl.where(has_ends & fits, planned, capacity)).to(COMPUTE) / to_row
    none = tl.full((), float("inf"), COMPUTE)
    most = share + margin
    on_top, bottom = _nearest(0.0 * share, none, b_4, m_4, most, room)
    on_top, bottom = _nearest(on_top, bottom, b_3, m_3, most, room)
    on_top, bottom = _nearest(on_top, bottom, b_2, m_2, most, room)
    on_top, bottom = _nearest(on_top, bottom, b_1, m_1, most, room)
    on_top, bottom = _nearest(on_top, bottom, b_0, m_0, most, room)
    most = count - share + margin
    beneath, top = _nearest(0.0 * share, none, -b_0, count - m_0, most, room)
    beneath, top = _nearest(beneath, top, -b_1, count - m_1, most, room)
    beneath, top = _nearest(beneath, top, -b_2, count - m_2, most, room)
    beneath, top = _nearest(beneath, top, -b_3, count - m_3, most, room)
    beneath, top = _nearest(beneath, top, -b_4, count - m_4, most, room)
    is_upper_tail = bottom < float("inf")
    is_lower_tail = (top < float("inf")) & (not is_upper_tail)
    is_tail = is_upper_tail | is_lower_tail
    is_open = ((hi == limit) | (lo == -limit)) & (not is_tail)
    half_window = tl.where(is_open, tl.maximum(half_window, 0.5 * (upper - lower)), half_window)
    lo = tl.where(is_upper_tail, tl.maximum(bottom, -limit), tl.where(is_lower_tail, -limit, lo))
    hi = tl.where(is_upper_tail, limit, tl.where(is_lower_tail, tl.minimum(-top, limit), hi))
    wanted = tl.where(
        (fits | is_tail) & (not ((error <= allowed) & (crossed <= 1))), BAND, STATISTICS
    )
    is_soft = (t >= smallest_normal(COMPUTE)) & (t <= limit / HOTTEST) & (k > 0) & (k < n)
    is_known = (tl.abs(b) < float("inf")) & (half_window < float("inf"))
    wanted = tl.where(is_soft & is_known, wanted, CORNER)
    return wanted, b, half_window, lo, hi


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
    allowed = _tolerance(COMPUTE) * tl.minimum(k.to(COMPUTE), phi)
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
    room = _room(capacity)
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
        nothing_between = tl.where(rising, end >= right, end <= left)
        in_gap = (count_excess == 0) & (tl.where(rising, higher, below) == 0)
        between = before_end | nothing_between | in_gap
        is_near = (b - lower <= 2 * scale) & (upper - b <= 2 * scale) & (tl.abs(relative) <= 4)
        certified = certified | (between & is_near)
        # The neighbours hold the root: an empty band whose ends they are settles it.
        wanted = tl.where(between, BAND, wanted)
        lo = tl.where(between, lower, lo)
        hi = tl.where(between, upper, hi)
        far = tl.where(near_by > 0, next_b, end)
        next_b = tl.where(goes_by_step, b + step, tl.where(inside, next_b, far))
        is_far = goes_by_step | (not inside)
        next_half = tl.where(is_far, tl.maximum(tl.abs(next_b - b), scale), next_half)
    lo = tl.maximum(tl.maximum(lo, left), -limit)
    hi = tl.minimum(tl.minimum(hi, right), limit)
    next_b = tl.where(
        (left < next_b) & (next_b < right), next_b, middle_float(left, right, COMPUTE)
    )
    # A ladder up to the end of the window, or beyond it; what is near is more likely.
    is_lost = ((not inside) | (uneven > 0.5)) & (not is_soft)
    reach = tl.where(inside, 1.0, 8.0) * half_window
    end = tl.where(rising, tl.minimum(b + reach, right), tl.maximum(b - reach, left))
    widening = tl.full((), WIDENING, COMPUTE)
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
def steps_to(number: tl.constexpr, widening):
    """How many first steps it is from a ladder's foot to the rung of that number."""
    steps = 0.0 * widening
    for _ in tl.static_range(number):
        steps = steps * widening + 1
    return steps


@triton.jit
def _is_ladder(b, rung, end, COMPUTE: tl.constexpr):
    """Whether rungs between b and the end are apart by more than rounding."""
    is_apart = tl.abs(rung) > 16 * _digits(COMPUTE) * tl.abs(b)
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

    Else a finer ladder from one to the other, or a longer one from the last. Masses are rounded, so
    they prove nothing: the bracket stays what it was.
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
    way = tl.where(is_past, 8 * (near - b), far - near)  # from the near one to where the root is
    spare = 2.0**-10 * tl.abs(way) + _digits(COMPUTE) * tl.abs(b)
    lo = tl.maximum(tl.minimum(near, far) - spare, left)
    hi = tl.minimum(tl.maximum(near, far) + spare, right)
    # A score between them adds less than one where t is not small against the way.
    crossed = tl.abs(way).to(tl.float64) / t
    between = tl.abs(mass_far - mass_near) / (1 - tl.exp(-0.5 * tl.minimum(crossed, 100.0)))
    room = _room(capacity)
    fits = (between <= room) & (not is_past) & (lo < hi)
    part = ((mass_near - k) / tl.where(mass_near == mass_far, 1.0, mass_near - mass_far)).to(
        COMPUTE
    )
    part = tl.where(is_past, 0.25, tl.minimum(tl.maximum(part, 0.0), 1.0))
    next_b = near + part * way
    is_inside = (left < next_b) & (next_b < right)
    next_b = tl.where(is_inside, next_b, middle_float(left, right, COMPUTE))
    next_half = 0.5 * tl.abs(way)
    wanted = tl.where(fits, BAND, STATISTICS)
    next_widening = tl.where(is_past, WIDENING, 1.0).to(COMPUTE)
    end = tl.minimum(tl.maximum(near + way, left), right)
    rung = (end - near) / steps_to(6, next_widening)
    climbs = (not fits) & (may_climb != 0) & _is_ladder(near, rung, end, COMPUTE)
    wanted = tl.where(climbs, LADDER, wanted)
    next_b = tl.where(climbs, near, next_b)
    next_half = tl.where(climbs, rung, next_half)
    # With one round left and no band that surely fits, one that probably does, if scores are spread
    # evenly between the rungs.
    is_last = (may_climb == 0) & (not (fits | is_past))
    give = (0.35 * room / tl.maximum(between, 1.0)).to(COMPUTE) * tl.abs(way)
    wanted = tl.where(is_last, BAND, wanted)
    lo = tl.where(is_last, tl.maximum(lo, next_b - give), lo)
    hi = tl.where(is_last, tl.minimum(hi, next_b + give), hi)
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
    is_useful = fits & (not is_below) & (not is_above)
    if IS_FIRST:
        # Beyond all scores the tail sum tells the root. The mask rounds the distances from there,
        # and those of equal scores all alike: statistics at the root have the same rounding.
        end = tl.where(hi == limit, lo, hi)
        factor = model_factor((above - k).to(COMPUTE), sum_below.to(COMPUTE), sum_above.to(COMPUTE))
        relative = tl.log(factor)
        scale = t.to(COMPUTE)
        root = end + scale * relative
        # Rounded by more than a small part of t it would not certify itself.
        is_near = (tl.abs(relative) <= FARTHEST) & (tl.abs(root) * _digits(COMPUTE) <= scale)
        is_beyond = is_useful & is_open & (found == 0) & is_near
        next_b = tl.where(is_beyond, root, next_b)
        next_half = tl.where(is_beyond, scale, next_half)
        is_useful = is_useful & (not is_beyond)
    return tl.where(is_useful, GATHERED, STATISTICS), next_b, next_half, left, right

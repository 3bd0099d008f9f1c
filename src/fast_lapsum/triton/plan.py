"""Long rows: from the sample to the first round: of what kind it is, and where.

Decided on the device, by every program of that round for itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import HOTTEST, largest_finite, logit, model_factor, smallest_normal
from .sample import CHUNK, DEVIATIONS, SAMPLE_FIELDS, inner_trial
from .state import BAND, CORNER, STATISTICS, room_of, tolerance

#: So many times the shorter way from the middle trial to an outer one the longer may be.
LONG = tl.constexpr(16.0)


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
    allowed = tolerance(COMPUTE) * tl.minimum(k.to(COMPUTE), phi * to_row)
    # Few scores on one side of the root: a band of all of them holds it, whatever their tail. It
    # begins at the trial that is nearest to the root and surely on its other side. A long one takes
    # time, and is for rows whose other band does not fit.
    has_ends = (hi < limit) & (lo > -limit)
    fits = expected * to_row <= 0.7 * planned
    room = room_of(tl.where(has_ends & fits, planned, capacity)).to(COMPUTE) / to_row
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
    is_soft = (t >= smallest_normal(COMPUTE)) & (t <= limit / HOTTEST)
    is_soft = is_soft & (k >= smallest_normal(COMPUTE) * n) & (k < n)
    is_known = (tl.abs(b) < float("inf")) & (half_window < float("inf"))
    wanted = tl.where(is_soft & is_known, wanted, CORNER)
    return wanted, b, half_window, lo, hi

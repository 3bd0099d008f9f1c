"""Long rows: full readings shared by several programs, each closed by one step of the solver.

The first round starts from the sample. A round is one of two kinds, chosen on the device:

* statistics at a trial threshold b: N>, S<, S> and counts of the scores near b. The root of the
  interval equation from b is exact up to what it crosses, and the counts bound that; mostly, at
  temperatures that the sample resolves, this is all there is to do.
* a band: tail sums outside (lo, hi), the few scores inside gathered, and the root found among
  them exactly, at any temperature.

The last program of a row to end its share adds the partial sums up in their order and decides:
done, or what the next launch has to look at. A round that finds nothing to do returns at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import (
    HOTTEST,
    VANISHED,
    await_launch,
    decay,
    exponent_scale,
    largest_finite,
    load_tile,
    middle_float,
    model_factor,
    row_value,
    smallest_normal,
    start_next_launch,
    tile_count,
    tile_of,
)
from .sample import CHUNK, DEVIATIONS, SAMPLE_FIELDS, inner_trial

#: What a row wants next.
STATISTICS = tl.constexpr(0.0)
BAND = tl.constexpr(1.0)
DONE = tl.constexpr(2.0)
GATHERED = tl.constexpr(3.0)  # the band is in memory and seems to hold the root
CORNER = tl.constexpr(4.0)  # not a row for sampling and streaming

#: Float64 values per row: what is wanted, trial b, half window, lo, hi, the bracket's two ends,
#: and of a band N>, S<, S> outside it and the round's first ticket.
STATE_FIELDS = tl.constexpr(11)
#: Float64 values that a program leaves of its share.
PARTIAL_FIELDS = tl.constexpr(8)
#: A band is kept as so many lists, one for every so many lanes: adding to them does not queue up.
LISTS = tl.constexpr(32)
#: Integers per row and round, in units of SPACING (a sector for each, where rows are few): programs
#: that are through, then the lists' counters.
TICKET_FIELDS = tl.constexpr(33)
#: Tiles whose float32 sums are added before they go to float64: equal addends do not average out.
TILES_PER_SUM = tl.constexpr(16)
#: Tiles that a program of the first round asks for ahead, and cache lines in each.
PREFETCHED_TILES = tl.constexpr(8)
PREFETCHED_LINES = tl.constexpr(64)
#: Tiles of which a band's scores are looked for at once.
TILES_PER_BAND = tl.constexpr(8)


@triton.jit
def _tolerance(COMPUTE: tl.constexpr):
    """Mass that the threshold may be off, relative to the budget and to sum(phi)."""
    return 2.0**-50 if COMPUTE == tl.float64 else 2.0**-22


@triton.jit
def _by_mass(wanted, mass_lower, mass_centre, mass_upper, lower, centre, upper):
    """Where the mass is ``wanted``, by the parabola through three trials, or a straight line."""
    slope_lower = (lower - centre) / (mass_lower - mass_centre)
    slope_upper = (upper - centre) / (mass_upper - mass_centre)
    bend = (slope_lower - slope_upper) / (mass_lower - mass_upper)
    from_centre = wanted - mass_centre
    # Both are negative.
    is_even = (slope_lower > 2 * slope_upper) & (slope_upper > 2 * slope_lower)
    parabola = from_centre * (slope_upper + (wanted - mass_upper) * bend)
    line = from_centre * tl.where(from_centre > 0, slope_lower, slope_upper)
    return centre + tl.where(is_even, parabola, line)


@triton.jit
def _add_samples(a0, a1, a2, a3, a4, a5, a6, a7, a8, b0, b1, b2, b3, b4, b5, b6, b7, b8):
    low = a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4
    return low[0], low[1], low[2], low[3], low[4], a5 + b5, a6 + b6, a7 + b7, a8 + b8


@triton.jit
def plan(samples, k, t, n, programs, chunks, capacity, LANES: tl.constexpr, COMPUTE: tl.constexpr):
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
    margin = DEVIATIONS * tl.sqrt(variance) + 1
    limit = largest_finite(COMPUTE)
    # The model's step is short by a sixth of its cube: let that be small against the margin.
    ratio = (tl.abs(mass - share) + margin) / phi
    if (ratio <= 0.5) & (ratio * ratio * ratio * phi <= margin):
        over = above - share
        b = centre + scale * tl.log(model_factor(over, sum_below, sum_above))
        lo = centre + scale * tl.log(model_factor(over - margin, sum_below, sum_above))
        hi = centre + scale * tl.log(model_factor(over + margin, sum_below, sum_above))
    else:
        # The parabola through the three trials around the root.
        inner_lower = inner_trial(lower, centre)
        inner_upper = inner_trial(upper, centre)
        is_low = share > mass_1
        is_high = share < mass_3
        m_0 = tl.where(is_low, mass_0, tl.where(is_high, mass, mass_1))
        m_1 = tl.where(is_low, mass_1, tl.where(is_high, mass_3, mass))
        m_2 = tl.where(is_low, mass, tl.where(is_high, mass_4, mass_3))
        b_0 = tl.where(is_low, lower, tl.where(is_high, centre, inner_lower))
        b_1 = tl.where(is_low, inner_lower, tl.where(is_high, inner_upper, centre))
        b_2 = tl.where(is_low, centre, tl.where(is_high, upper, inner_upper))
        b = _by_mass(share, m_0, m_1, m_2, b_0, b_1, b_2)
        lo = _by_mass(share + margin, m_0, m_1, m_2, b_0, b_1, b_2)
        hi = _by_mass(share - margin, m_0, m_1, m_2, b_0, b_1, b_2)
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
    expected = between * to_row * (known_hi - known_lo) / (upper - lower)
    expected += tl.where(hi == limit, mass_4 * to_row, 0.0)
    expected += tl.where(lo == -limit, (chunks * CHUNK - mass_0) * to_row, 0.0)
    # Would the counts certify even the longest step that the sample leaves possible?
    crossed = half_window / scale
    error = 0.3 * expected * crossed * crossed
    allowed = _tolerance(COMPUTE) * tl.minimum(k.to(COMPUTE), phi * to_row)
    fits = expected <= 0.7 * capacity
    wanted = tl.where(fits & (not (error <= allowed)), BAND, STATISTICS)
    is_soft = (t >= smallest_normal(COMPUTE)) & (t <= limit / HOTTEST) & (k > 0) & (k < n)
    is_known = (tl.abs(b) < float("inf")) & (half_window < float("inf"))
    wanted = tl.where(is_soft & is_known, wanted, CORNER)
    return wanted, b, half_window, lo, hi


@triton.jit
def _prefetch(scores, n, program, programs, along, BLOCK: tl.constexpr):
    """Ask for this program's next tiles to come into the cache, while it has to wait anyway."""
    if n > 2 * programs * BLOCK:
        _prefetch_tiles(scores, n, program, programs, along, BLOCK)


@triton.jit
def _prefetch_tiles(scores, n, program, programs, along, BLOCK: tl.constexpr):
    line = tl.arange(0, PREFETCHED_TILES * PREFETCHED_LINES)
    tile = program + (1 + line // PREFETCHED_LINES) * programs
    index = tile.to(tl.int64) * BLOCK + line % PREFETCHED_LINES * (BLOCK // PREFETCHED_LINES)
    address = (scores + tl.minimum(index, n - 1) * along).to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _add5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _add4(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _statistics(
    reading,
    r,
    b,
    half_window,
    inverse,
    n,
    program,
    programs,
    IS_FIRST: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One program's share at b: N>, those near b on either side, equal, S<=, S>, nearest.

    The first round does without the number equal and the nearest: they are for rows full of ties.
    ``r`` is the first tile; while one is worked on the next is on its way.
    """
    scores, mask, along, mask_along = reading
    above = tl.zeros((), tl.float64)
    close_above = tl.zeros((), tl.float64)
    close_below = tl.zeros((), tl.float64)
    at = tl.zeros((), tl.float64)
    sum_below = tl.zeros((), tl.float64)
    sum_above = tl.zeros((), tl.float64)
    near_below = tl.full((), float("-inf"), COMPUTE)
    near_above = tl.full((), float("inf"), COMPUTE)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_SUM):
        counts = tl.zeros((BLOCK,), tl.int32)
        all_sums = tl.zeros((BLOCK,), COMPUTE)
        above_sums = tl.zeros((BLOCK,), COMPUTE)
        if not IS_FIRST:
            equals = tl.zeros((BLOCK,), tl.int32)
            below_scores = tl.full((BLOCK,), float("-inf"), COMPUTE)
            above_scores = tl.full((BLOCK,), float("inf"), COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            first, count = tile_of(tile + programs, n, BLOCK)
            following = load_tile(
                scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE
            )
            distance = r - b
            e = decay(distance, inverse)
            is_above = distance > 0
            is_near = tl.abs(distance) <= half_window
            # S< is what S> leaves of the sum: its error, like that of S>, is one of their sum.
            all_sums += e
            above_sums += tl.where(is_above, e, 0.0)
            # Three counts in one, at most 16 each: above, above and near, below and near.
            counts += tl.where(
                is_above, tl.where(is_near, 1 + (1 << 8), 1), tl.where(is_near, 1 << 16, 0)
            )
            if not IS_FIRST:
                equals += tl.where(r == b, 1, 0)
                below_scores = tl.maximum(below_scores, tl.where(r < b, r, float("-inf")))
                above_scores = tl.minimum(above_scores, tl.where(is_above, r, float("inf")))
            r = following
        p0, p1, p2, p3, p4 = tl.reduce(
            (
                (counts & 255).to(tl.float32),
                ((counts >> 8) & 255).to(tl.float32),
                (counts >> 16).to(tl.float32),
                all_sums.to(tl.float64),
                above_sums.to(tl.float64),
            ),
            0,
            _add5,
        )
        above += p0.to(tl.float64)
        close_above += p1.to(tl.float64)
        close_below += p2.to(tl.float64)
        sum_below += p3 - p4
        sum_above += p4
        if not IS_FIRST:
            at += tl.sum(equals, 0).to(tl.float64)
            near_below = tl.maximum(near_below, tl.max(below_scores, 0))
            near_above = tl.minimum(near_above, tl.min(above_scores, 0))
    return above, close_above, close_below, at, sum_below, sum_above, near_below, near_above


@triton.jit
def _gather(
    reading,
    lo,
    hi,
    n,
    tile,
    last,
    programs,
    counters,
    band,
    capacity,
    SPACING: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Append the scores inside (lo, hi) of some tiles to the band's lists."""
    scores, mask, along, mask_along = reading
    lanes = tl.arange(0, BLOCK)
    list_capacity = capacity // LISTS
    my_counter = counters + lanes % LISTS * SPACING
    my_list = band + lanes % LISTS * list_capacity
    for number in range(tile, last, programs):
        first, count = tile_of(number, n, BLOCK)
        r = load_tile(scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE)
        inside = (r > lo) & (r < hi)
        slot = tl.atomic_add(my_counter, 1, mask=inside, sem="relaxed")
        tl.store(my_list + slot, r, mask=inside & (slot < list_capacity))


@triton.jit
def _band(
    reading,
    r,
    lo,
    hi,
    inverse,
    n,
    program,
    programs,
    counters,
    band,
    capacity,
    SPACING: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One program's share outside (lo, hi): number above, tail sums; gathers the scores inside.

    Few groups of tiles have any: those are read once more.
    """
    scores, mask, along, mask_along = reading
    above = tl.zeros((), tl.float64)
    sum_below = tl.zeros((), tl.float64)
    sum_above = tl.zeros((), tl.float64)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_BAND):
        counts = tl.zeros((BLOCK,), tl.int32)
        below_sums = tl.zeros((BLOCK,), COMPUTE)
        above_sums = tl.zeros((BLOCK,), COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_BAND, tiles)
        for tile in range(group, last, programs):
            first, count = tile_of(tile + programs, n, BLOCK)
            following = load_tile(
                scores, mask, first, count, along, mask_along, LARGEST, BLOCK, COMPUTE
            )
            is_above = r >= hi
            is_over = r > lo  # a NaN counts as below: its exponential must not get lost
            e = tl.exp2(tl.where(is_above, r - hi, lo - r) * (-inverse))  # not used inside
            counts += tl.where(is_above, 1, tl.where(is_over, 1 << 16, 0))
            above_sums += tl.where(is_above, e, 0.0)
            below_sums += tl.where(is_over, 0.0, e)
            r = following
        p0, p1, p2, p3 = tl.reduce(
            (
                (counts & 65535).to(tl.float32),
                (counts >> 16).to(tl.float32),
                below_sums.to(tl.float64),
                above_sums.to(tl.float64),
            ),
            0,
            _add4,
        )
        above += p0.to(tl.float64)
        sum_below += p2
        sum_above += p3
        if p1 > 0:
            _gather(
                reading,
                lo,
                hi,
                n,
                group,
                last,
                programs,
                counters,
                band,
                capacity,
                SPACING,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
    return above, sum_below, sum_above


@triton.jit
def _after_statistics(
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
    capacity,
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

    # Not certain: where is the root, give or take what?
    per_score = half_window / tl.maximum(near_by, 1.0)
    ranks = 1.75 * tl.sqrt(near_by) + 0.005 * tl.abs(excess) + 4
    take_step = is_small & (tl.abs(relative) <= 0.1)
    ahead = tl.where(take_step, step, per_score * excess)
    by_step = 4 * scale * error / phi + 2.0**-20 * (scale + tl.abs(b))
    give = tl.where(take_step, by_step, per_score * ranks)
    target = b + ahead
    inside = (tl.abs(excess) <= near_by) | take_step
    lo = target - give
    hi = target + give
    fits = inside & (2 * give <= 0.7 * capacity * per_score) & (lo < hi)
    wanted = tl.where(fits, BAND, STATISTICS)
    next_b = tl.where(inside, target, b + tl.where(rising, 4 * half_window, -4 * half_window))
    next_half = tl.where(inside, give, 4 * half_window)
    if not IS_FIRST:
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
        is_soft = tl.abs(excess) <= 2 * (below + higher)
        next_b = tl.where(inside, next_b, tl.where(is_soft, b + step, end))
        next_half = tl.where(inside, next_half, tl.maximum(tl.abs(next_b - b), scale))
    limit = largest_finite(COMPUTE)
    lo = tl.maximum(tl.maximum(lo, left), -limit)
    hi = tl.minimum(tl.minimum(hi, right), limit)
    next_b = tl.where(
        (left < next_b) & (next_b < right), next_b, middle_float(left, right, COMPUTE)
    )
    wanted = tl.where(certified, DONE, wanted)
    return wanted, step, next_b, next_half, lo, hi, left, right


@triton.jit
def _after_band(
    k,
    t,
    lo,
    hi,
    left,
    right,
    above,
    sum_below,
    sum_above,
    found,
    fits,
    COMPUTE: tl.constexpr,
):
    """GATHERED, unless the band overflowed or the root is surely not in it: then where to look."""
    inverse = exponent_scale(t, COMPUTE)
    inside = found.to(tl.float64)
    # e^-|u| between a score inside and an end of the band is between `across` and 1.
    across = tl.exp2((lo - hi) * inverse).to(tl.float64)
    most = above + inside + (sum_below - (sum_above + inside) * across) / 2  # of mass, at lo
    least = above + (inside * across + sum_below * across - sum_above) / 2  # of mass, at hi
    width = hi - lo
    # The ranks say where in the band the root is.
    part = (above + inside - k) / tl.maximum(inside, 1.0)
    part = tl.minimum(tl.maximum(part, 0.05), 0.95).to(COMPUTE)
    next_b = lo * (1 - part) + hi * part
    next_half = width / 8
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
    return tl.where(is_useful, GATHERED, STATISTICS), next_b, next_half, left, right


@triton.jit
def _field(every, number: tl.constexpr, inside, other):
    return tl.load(every + number, mask=inside, other=other, cache_modifier=".cg")


@triton.jit
def _add6(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit
def _sums(every, inside):
    """The first six fields of all programs' partial results, added up in their order."""
    return tl.reduce(
        (
            _field(every, 0, inside, 0.0),
            _field(every, 1, inside, 0.0),
            _field(every, 2, inside, 0.0),
            _field(every, 3, inside, 0.0),
            _field(every, 4, inside, 0.0),
            _field(every, 5, inside, 0.0),
        ),
        0,
        _add6,
    )


@triton.jit(
    do_not_specialize=[
        "n",
        "programs",
        "sample_programs",
        "sample_chunks",
        "ticket_count",
        "first_ticket",
        "capacity",
    ]
)
def round_forward(
    scores,
    mask,
    budget,
    temperature,
    samples,
    state,
    partials,
    tickets,
    band,
    threshold,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    inner_count,
    programs,
    sample_programs,
    sample_chunks,
    ticket_count,
    first_ticket,
    capacity,
    scores_outer,
    scores_inner,
    scores_along,
    mask_outer,
    mask_inner,
    mask_along,
    budget_outer,
    budget_inner,
    temperature_outer,
    temperature_inner,
    IS_FIRST: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    SAMPLE_LANES: tl.constexpr,
    LANES: tl.constexpr,
    SPACING: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One round for every row that is not done; ``programs`` programs per row."""
    start_next_launch(OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    row, program = pid // programs, (pid % programs).to(tl.int32)
    outer, inner = row // inner_count, row % inner_count
    k = row_value(budget, k_hi, k_lo, outer, inner, budget_outer, budget_inner)
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    scores += outer * scores_outer + inner * scores_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    reading = (scores, mask, scores_along, mask_along)
    first, count = tile_of(program, n, BLOCK)
    state += row * STATE_FIELDS
    left = tl.full((), float("-inf"), COMPUTE)
    right = tl.full((), float("inf"), COMPUTE)
    if IS_FIRST:
        # Scores can be asked for before the sample is through.
        r = load_tile(scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE)
        if OVERLAP:  # what waits has nothing better to do
            _prefetch(scores, n, program, programs, scores_along, BLOCK)
        await_launch(OVERLAP)
        wanted, b, half_window, lo, hi = plan(
            samples + row * sample_programs * SAMPLE_FIELDS,
            k,
            t,
            n,
            sample_programs,
            sample_chunks,
            capacity,
            SAMPLE_LANES,
            COMPUTE,
        )
        if (wanted == CORNER) & (program == 0):
            fields = tl.arange(0, 16)
            tl.store(state + fields, tl.where(fields == 0, CORNER, 0.0), mask=fields < STATE_FIELDS)
    else:
        await_launch(OVERLAP)
        wanted = tl.load(state).to(tl.float32)
        b = tl.load(state + 1).to(COMPUTE)
        half_window = tl.load(state + 2).to(COMPUTE)
        lo = tl.load(state + 3).to(COMPUTE)
        hi = tl.load(state + 4).to(COMPUTE)
        left = tl.load(state + 5).to(COMPUTE)
        right = tl.load(state + 6).to(COMPUTE)
    if (wanted == BAND) | (wanted == STATISTICS):
        if not IS_FIRST:
            r = load_tile(
                scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE
            )
        tickets += row * ticket_count + first_ticket
        band += row * capacity
        inverse = exponent_scale(t, COMPUTE)
        mine = partials + pid * PARTIAL_FIELDS
        if wanted == BAND:
            above, sum_below, sum_above = _band(
                reading,
                r,
                lo,
                hi,
                inverse,
                n,
                program,
                programs,
                tickets + SPACING,
                band,
                capacity,
                SPACING,
                LARGEST,
                BLOCK,
                COMPUTE,
            )
            close_above = tl.zeros((), tl.float64)
            close_below = tl.zeros((), tl.float64)
            at = tl.zeros((), tl.float64)
        else:
            above, close_above, close_below, at, sum_below, sum_above, near_below, near_above = (
                _statistics(
                    reading,
                    r,
                    b,
                    half_window,
                    inverse,
                    n,
                    program,
                    programs,
                    IS_FIRST,
                    LARGEST,
                    BLOCK,
                    COMPUTE,
                )
            )
            if not IS_FIRST:
                tl.store(mine + 6, near_below.to(tl.float64))
                tl.store(mine + 7, near_above.to(tl.float64))
        tl.store(mine, above)
        tl.store(mine + 1, close_above)
        tl.store(mine + 2, close_below)
        tl.store(mine + 3, at)
        tl.store(mine + 4, sum_below)
        tl.store(mine + 5, sum_above)
        tl.debug_barrier()  # every thread's stores come before this program's ticket
        if tl.atomic_add(tickets, 1) == programs - 1:
            lane = tl.arange(0, LANES)
            inside = lane < programs
            every = partials + (row * programs + lane) * PARTIAL_FIELDS
            total_above, close_above, close_below, at, total_below_sum, total_above_sum = _sums(
                every, inside
            )
            pair_hi = b
            pair_lo = tl.zeros((), COMPUTE)
            next_lo = lo
            next_hi = hi
            if wanted == BAND:
                lists = tickets + (1 + tl.arange(0, LISTS)) * SPACING
                lengths = tl.load(lists, cache_modifier=".cg")
                next_wanted, next_b, next_half, left, right = _after_band(
                    k,
                    t,
                    lo,
                    hi,
                    left,
                    right,
                    total_above,
                    total_below_sum,
                    total_above_sum,
                    tl.sum(lengths, 0),
                    tl.max(lengths, 0) <= capacity // LISTS,
                    COMPUTE,
                )
                tl.store(state + 7, total_above)
                tl.store(state + 8, total_below_sum)
                tl.store(state + 9, total_above_sum)
                tl.store(state + 10, tl.zeros((), tl.float64) + first_ticket)
            else:
                near_below = tl.full((), float("-inf"), COMPUTE)
                near_above = tl.full((), float("inf"), COMPUTE)
                if not IS_FIRST:
                    near_below = tl.max(_field(every, 6, inside, float("-inf")), 0).to(COMPUTE)
                    near_above = tl.min(_field(every, 7, inside, float("inf")), 0).to(COMPUTE)
                next_wanted, pair_lo, next_b, next_half, next_lo, next_hi, left, right = (
                    _after_statistics(
                        k,
                        t,
                        b,
                        half_window,
                        left,
                        right,
                        total_above,
                        close_above,
                        close_below,
                        at,
                        total_below_sum - at,
                        total_above_sum,
                        near_below,
                        near_above,
                        capacity,
                        IS_FIRST,
                        COMPUTE,
                    )
                )
            # A NaN among the scores shows in the sums.
            is_nan = total_below_sum != total_below_sum
            next_wanted = tl.where(is_nan, DONE, next_wanted)
            pair_hi = tl.where(is_nan, float("nan"), pair_hi)
            tl.store(state, next_wanted.to(tl.float64))
            tl.store(state + 1, next_b.to(tl.float64))
            tl.store(state + 2, next_half.to(tl.float64))
            tl.store(state + 3, next_lo.to(tl.float64))
            tl.store(state + 4, next_hi.to(tl.float64))
            tl.store(state + 5, left.to(tl.float64))
            tl.store(state + 6, right.to(tl.float64))
            tl.store(threshold + 2 * row, pair_hi)
            tl.store(threshold + 2 * row + 1, pair_lo)

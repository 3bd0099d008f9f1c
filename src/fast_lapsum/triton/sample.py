"""Long rows, first launch: a sample says where the threshold is and how well that is known.

Every program solves the operator on the same small sample of single scores, drawn from jittered
strata (a fixed stride would see one phase of a periodic input), for the budget and for the budget
plus and minus its standard error. Then all programs share out a larger sample of chunks of eight
neighbours and take its statistics at those thresholds and two between them. Solving, instead of
drawing kernel noise as the paper does, conditions the noise away.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import look_around, survey, survey_clean
from .primitives import (
    as_finite,
    decay,
    exponent_scale,
    first_guess,
    load_scores,
    middle_float,
    model_factor,
    prior_bracket,
    row_value,
    start_next_launch,
)
from .root import approach, interpolate
from .solve import select_rank

#: Values that a program leaves: masses at the four outer trials, N>, S<, S> at the middle one, sum
#: of squared chunk masses, scores between the outermost trials; then lowest, middle, highest trial.
SAMPLE_FIELDS = tl.constexpr(12)
#: Scores in a chunk: one 32-byte sector of float32.
CHUNK = tl.constexpr(8)
#: Half the width of the sample's band, in standard errors.
DEVIATIONS = tl.constexpr(4.5)
#: More looks at the small sample than the first, to find its middle trial; and looks for the outer.
MOST_TRIES = tl.constexpr(12)


@triton.jit
def _jitter(index):
    """A number in [0, 1) that only depends on the index."""
    x = index.to(tl.uint32) * 2654435761 + 12345
    x = (x ^ (x >> 16)) * 2246822519
    x = (x ^ (x >> 13)) * 3266489917
    return (x ^ (x >> 16)).to(tl.float64) * 2.0**-32


@triton.jit
def masses_at(r, b, inverse):
    """What each score adds to the mass of a trial threshold."""
    e = 0.5 * decay(r - b, inverse)
    return tl.where(r > b, 1 - e, e)


@triton.jit
def _load_chunks(
    scores,
    mask,
    start,
    program,
    chunks_each,
    stratum,
    n,
    along,
    mask_along,
    LARGEST: tl.constexpr,
    SINGLES: tl.constexpr,
    CHUNKS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Chunks of neighbours, one from each stratum, at a place that only depends on its number."""
    chunk = start + tl.arange(0, CHUNKS)
    number = program * chunks_each + chunk
    jitter = _jitter(number + SINGLES)
    first = (number.to(tl.float64) * stratum + jitter * (stratum - CHUNK)).to(tl.int64)
    first = tl.maximum(tl.minimum(first, n - CHUNK), 0) // CHUNK * CHUNK
    index = first[:, None] + tl.arange(0, CHUNK)[None, :]
    inside = (chunk < chunks_each)[:, None] & (index < n)
    return load_scores(scores, mask, 0, index, inside, along, mask_along, LARGEST, COMPUTE)


@triton.jit
def _add_squares(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _add_fields(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    low = a0 + b0, a1 + b1, a2 + b2, a3 + b3
    return low[0], low[1], low[2], low[3], a4 + b4, a5 + b5, a6 + b6, a7 + b7


@triton.jit
def _spread(r, b, inverse, COMPUTE: tl.constexpr):
    """N>, S<=, S> at b, and the sum of squared masses, which tells the sample's error."""
    e = decay(r - b, inverse)
    is_above = r > b
    p = tl.where(is_above, 1 - 0.5 * e, 0.5 * e)
    return tl.reduce(
        (is_above.to(COMPUTE), tl.where(is_above, 0.0, e), tl.where(is_above, e, 0.0), p * p),
        0,
        _add_squares,
    )


@triton.jit
def _margin(squares, mass, SINGLES: tl.constexpr):
    """Wider than the sample's own band: the large sample should find the root within it."""
    return 5 * tl.sqrt(tl.maximum(squares - mass * mass / SINGLES, 0.0)) + 2


@triton.jit
def _add_masses(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _distance(by_model, reach, near_by, margin, half_window):
    """How far away the mass may be off by the margin: the model's step, or by ranks, if longer."""
    by_rank = tl.minimum(reach / tl.maximum(near_by, 0.25 * margin), half_window)
    is_longer = (by_model > by_rank) & (by_model < float("inf"))
    return tl.where(is_longer, by_model, by_rank)


@triton.jit
def _correction(found, margin, short, far):
    """Factor for a distance at which the mass was off by ``found`` and not by the margin.

    None where it took a search: mass that comes in steps may be lost again on a shorter way.
    """
    factor = 1.1 * tl.minimum(tl.maximum(margin / tl.maximum(found, 0.1 * margin), 0.5), 3.0)
    return tl.where((short == 0) & (far == float("inf")), factor, 1.0)


@triton.jit
def _other_distance(distance, short, far):
    """The next one to try, beyond ``short`` and, once that is known, before ``far``."""
    return tl.where(far == float("inf"), 6 * distance, 0.5 * (short + far))


@triton.jit
def _off_by_margin(r, centre, to_lower, to_upper, mass, margin, count, inverse):
    """Trials on both sides of the middle one where the small sample's mass is off by the margin.

    Mostly the first look finds them. Where density falls off or rises steeply, as in a tail, it
    takes a few. A side that has no such mass is not searched: `_beyond` is for that.
    """
    lower_wanted = tl.minimum(margin, count - mass - 0.5)
    upper_wanted = tl.minimum(margin, mass - 0.5)
    lower_short = 0.0 * margin
    upper_short = 0.0 * margin
    lower_far = lower_short + float("inf")
    upper_far = lower_short + float("inf")
    tries = 0
    searching = True
    while searching & (tries < MOST_TRIES):
        tries += 1
        mass_lower, mass_upper = tl.reduce(
            (masses_at(r, centre - to_lower, inverse), masses_at(r, centre + to_upper, inverse)),
            0,
            _add_masses,
        )
        lower_found = mass_lower - mass
        upper_found = mass - mass_upper
        lower_is_short = (lower_found < 0.7 * lower_wanted) & (lower_wanted > 0.5)
        upper_is_short = (upper_found < 0.7 * upper_wanted) & (upper_wanted > 0.5)
        lower_is_far = (lower_found > 2.5 * margin) & (lower_wanted > 0.5)
        upper_is_far = (upper_found > 2.5 * margin) & (upper_wanted > 0.5)
        lower_short = tl.where(lower_is_short, to_lower, lower_short)
        upper_short = tl.where(upper_is_short, to_upper, upper_short)
        lower_far = tl.where(lower_is_far, to_lower, lower_far)
        upper_far = tl.where(upper_is_far, to_upper, upper_far)
        lower_is_off = lower_is_short | lower_is_far
        upper_is_off = upper_is_short | upper_is_far
        next_lower = _other_distance(to_lower, lower_short, lower_far)
        next_upper = _other_distance(to_upper, upper_short, upper_far)
        to_lower = tl.where(
            lower_is_off,
            next_lower,
            to_lower
            * _correction(lower_found, tl.maximum(lower_wanted, 0.5), lower_short, lower_far),
        )
        to_upper = tl.where(
            upper_is_off,
            next_upper,
            to_upper
            * _correction(upper_found, tl.maximum(upper_wanted, 0.5), upper_short, upper_far),
        )
        searching = lower_is_off | upper_is_off
    return centre - to_lower, centre + to_upper


@triton.jit
def _beyond(end, inner, mass, margin, scale):
    """How far beyond the sample's outermost score the row's tail may matter.

    As in an exponential tail, whose scale the sample's own tells: of ``mass + margin`` scores
    between ``inner`` and ``end``.
    """
    tail = tl.maximum(tl.abs(end - inner), scale) / tl.log(tl.maximum(mass + margin, 3.0))
    return tail * (2 + tl.maximum(-tl.log(tl.maximum(mass, 1e-30)), 0.0)) + 2 * scale


@triton.jit
def inner_trial(outer, centre):
    """A trial between the middle one and an outer one, nearer to the middle."""
    return centre + 0.35 * (outer - centre)


@triton.jit
def _trials(r, k, t, origin, SINGLES: tl.constexpr, COMPUTE: tl.constexpr):
    """Three trial thresholds from the small sample: the budget's, and a margin to either side.

    They need not be exact: the large sample tells the masses at all three.
    """
    lowest, highest, mean, square = survey_clean(r, None, origin, SINGLES)
    finite = tl.zeros((), tl.float64) + SINGLES
    infinite = tl.zeros((), tl.float64)
    source = (r, None, None, SINGLES, 1, 1)
    if not (square < float("inf")):
        finite, infinite, _, lowest, highest, mean, square = survey(
            source, origin, "row", True, SINGLES, COMPUTE
        )
    centre = highest
    lower = lowest
    upper = highest
    remaining = k - infinite
    inverse = exponent_scale(t, COMPUTE)
    scale = t.to(COMPUTE)
    is_soft = (inverse < float("inf")) & (scale < float("inf"))
    is_between = (remaining > 0) & (remaining < finite)
    if is_soft & is_between & (not (square < float("inf"))):
        # Scores of 1e30 and the like leave no moments: by rank, as if t were 0.
        spread = 5 * tl.sqrt(remaining * (1 - remaining / finite)) + 2
        least = infinite + 1
        most = infinite + finite
        last = tl.minimum(tl.maximum(tl.ceil(k), least), most)
        centre, _, _ = select_rank(source, last, lowest, highest, "row", True, SINGLES, COMPUTE)
        last = tl.minimum(tl.ceil(k + spread), most)
        lower, _, _ = select_rank(source, last, lowest, highest, "row", True, SINGLES, COMPUTE)
        last = tl.maximum(tl.ceil(k - spread), least)
        upper, _, _ = select_rank(source, last, lowest, highest, "row", True, SINGLES, COMPUTE)
        lower -= scale
        upper += scale
    elif is_soft & is_between:
        count = (finite + infinite).to(COMPUTE)
        mass = k.to(COMPUTE)
        left, right = prior_bracket(lowest, highest, remaining, finite, t, COMPUTE)
        left = as_finite(left, COMPUTE)
        right = as_finite(right, COMPUTE)
        guess, error = first_guess(origin, mean, square, remaining, finite, t, COMPUTE)
        _, centre, _, spacing, left, right, mass_left, mass_right = approach(
            r, k, t, guess, error, left, right, count - 0.5, 0.5 + 0.0 * count, 1, COMPUTE
        )
        centre = tl.where((left <= centre) & (centre <= right), centre, guess)
        above, sum_below, sum_above, squares = _spread(r, centre, inverse, COMPUTE)
        found = above + 0.5 * (sum_below - sum_above)
        margin = _margin(squares, found, SINGLES)
        tries = 0
        # Heavy tails spoil the guess. Ties may keep the mass from ever being right.
        smaller = tl.minimum(mass, count - mass)
        while (tl.abs(found - mass) > tl.minimum(0.2 * margin, 0.5 * smaller)) & (
            tries < MOST_TRIES
        ):
            tries += 1
            rising = found > mass
            left = tl.where(rising, centre, left)
            right = tl.where(rising, right, centre)
            mass_left = tl.where(rising, found, mass_left)
            mass_right = tl.where(rising, mass_right, found)
            if tries % 3 == 0:
                centre = middle_float(left, right, COMPUTE)
            else:
                centre = interpolate(left, right, mass_left, mass_right, mass, count)
            above, sum_below, sum_above, squares = _spread(r, centre, inverse, COMPUTE)
            found = above + 0.5 * (sum_below - sum_above)
            margin = _margin(squares, found, SINGLES)
        over = above - mass
        to_lower = -scale * tl.log(model_factor(over - margin, sum_below, sum_above))
        to_upper = scale * tl.log(model_factor(over + margin, sum_below, sum_above))
        if margin <= 0.25 * (sum_below + sum_above):
            lower = centre - 1.2 * to_lower
            upper = centre + 1.2 * to_upper
        else:
            # The model's steps are short here. Ranks tell how far it may be, and the masses there
            # how far it is.
            per_score = error / tl.sqrt(tl.minimum(mass, count - mass) + 1)
            per_score = tl.where(spacing > 0, spacing, per_score)
            half_window = 2 * margin * per_score + scale
            above, _, _, beyond, within = look_around(r, centre, half_window, inverse, COMPUTE)
            reach = half_window * margin
            to_lower = _distance(to_lower, reach, within - above, margin, half_window)
            to_upper = _distance(to_upper, reach, above - beyond, margin, half_window)
            lower, upper = _off_by_margin(
                r, centre, to_lower, to_upper, mass, margin, count, inverse
            )
        if mass + margin >= count - 1:
            bottom = tl.minimum(lowest, centre)
            lower = bottom - _beyond(
                bottom, tl.minimum(upper, highest), count - mass, margin, scale
            )
        if mass <= margin + 1:
            top = tl.maximum(highest, centre)
            upper = top + _beyond(top, tl.maximum(lower, lowest), mass, margin, scale)
        lower = tl.minimum(lower, centre)
        upper = tl.maximum(upper, centre)
    return lower, centre, upper


@triton.jit(do_not_specialize=["n", "programs", "ticket_count", "chunks_each"])
def sample_forward(
    scores,
    mask,
    budget,
    temperature,
    samples,
    tickets,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    inner_count,
    programs,
    ticket_count,
    chunks_each,
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
    LARGEST: tl.constexpr,
    SINGLES: tl.constexpr,
    CHUNKS: tl.constexpr,
    TICKETS: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """``programs`` programs per row; the first one also clears the row's tickets."""
    start_next_launch(OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    row, program = pid // programs, pid % programs
    outer, inner = row // inner_count, row % inner_count
    k = row_value(budget, k_hi, k_lo, outer, inner, budget_outer, budget_inner)
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    scores += outer * scores_outer + inner * scores_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    if program == 0:
        slot = tl.arange(0, TICKETS)
        zeros = tl.zeros((TICKETS,), tl.int32)
        tl.store(tickets + row * ticket_count + slot, zeros, mask=slot < ticket_count)

    length = tl.zeros((), tl.float64) + n
    single = tl.arange(0, SINGLES)
    at = ((single.to(tl.float64) + _jitter(single)) * (length / SINGLES)).to(tl.int64)
    at = tl.minimum(at, n - 1)
    r = load_scores(scores, mask, 0, at, at >= 0, scores_along, mask_along, LARGEST, COMPUTE)
    # The first chunks come in while the small sample is solved.
    stratum = length / (programs * chunks_each)
    piece = _load_chunks(
        scores,
        mask,
        0,
        program,
        chunks_each,
        stratum,
        n,
        scores_along,
        mask_along,
        LARGEST,
        SINGLES,
        CHUNKS,
        COMPUTE,
    )
    origin = tl.load(scores).to(COMPUTE)
    origin = origin if LARGEST else -origin
    origin = tl.where(tl.abs(origin) < float("inf"), origin, 0.0)
    lower, centre, upper = _trials(r, k * SINGLES / length, t, origin, SINGLES, COMPUTE)
    inverse = exponent_scale(t, COMPUTE)

    mass_lower = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    mass_upper = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    mass_inner_lower = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    mass_inner_upper = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    above = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    sum_below = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    sum_above = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    between = tl.zeros((CHUNKS, CHUNK), COMPUTE)
    squares = tl.zeros((CHUNKS,), COMPUTE)
    for start in range(0, chunks_each, CHUNKS):
        following = _load_chunks(
            scores,
            mask,
            start + CHUNKS,
            program,
            chunks_each,
            stratum,
            n,
            scores_along,
            mask_along,
            LARGEST,
            SINGLES,
            CHUNKS,
            COMPUTE,
        )
        e = decay(piece - centre, inverse)
        is_above = piece > centre
        sum_below += tl.where(is_above, 0.0, e)
        sum_above += tl.where(is_above, e, 0.0)
        above += is_above.to(COMPUTE)
        chunk_mass = tl.sum(tl.where(is_above, 1 - 0.5 * e, 0.5 * e), 1)
        squares += chunk_mass * chunk_mass
        mass_lower += masses_at(piece, lower, inverse)
        mass_upper += masses_at(piece, upper, inverse)
        mass_inner_lower += masses_at(piece, inner_trial(lower, centre), inverse)
        mass_inner_upper += masses_at(piece, inner_trial(upper, centre), inverse)
        between += ((piece > lower) & (piece < upper)).to(COMPUTE)
        piece = following
    by_chunk = tl.reduce(
        (
            mass_lower,
            mass_inner_lower,
            mass_inner_upper,
            mass_upper,
            above,
            sum_below,
            sum_above,
            between,
        ),
        1,
        _add_fields,
    )
    f0, f1, f2, f3, f4, f5, f6, f7 = tl.reduce(by_chunk, 0, _add_fields)
    squares = tl.sum(squares, 0)
    samples += pid * SAMPLE_FIELDS
    tl.store(samples, f0)
    tl.store(samples + 1, f1)
    tl.store(samples + 2, f2)
    tl.store(samples + 3, f3)
    tl.store(samples + 4, f4)
    tl.store(samples + 5, f5)
    tl.store(samples + 6, f6)
    tl.store(samples + 7, f7)
    tl.store(samples + 8, squares)
    tl.store(samples + 9, lower)
    tl.store(samples + 10, centre)
    tl.store(samples + 11, upper)

"""What one pass over the scores at a trial threshold tells: counts, tail sums, nearest scores.

Over scores in registers, or over a whole row or a long band in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import LISTS, decay, load_tile, tile_count, tile_of


@triton.jit
def _add_pass(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, tl.maximum(a3, b3), tl.minimum(a4, b4)


@triton.jit
def _add_tiles(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.maximum(a4, b4), tl.minimum(a5, b5)


@triton.jit
def _add_strictly(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, tl.maximum(a2, b2)


@triton.jit
def _add_tails(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _add_clean(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.minimum(a0, b0), tl.maximum(a1, b1), a2 + b2, a3 + b3


@triton.jit
def _add_survey(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    lowest, highest = tl.minimum(a3, b3), tl.maximum(a4, b4)
    return a0 + b0, a1 + b1, a2 + b2, lowest, highest, a5 + b5, a6 + b6


@triton.jit
def _add_look(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def glance(r, b, inverse, COMPUTE: tl.constexpr):
    """The least of a pass at b over scores in registers: N>, S<=, S>."""
    e = decay(r - b, inverse)
    is_above = r > b
    terms = (is_above.to(COMPUTE), tl.where(is_above, 0.0, e), tl.where(is_above, e, 0.0))
    return tl.reduce(terms, 0, _add_tails)


@triton.jit
def look_around(r, b, half_window, inverse, COMPUTE: tl.constexpr):
    """The same, and the counts above b + window and not below b - window."""
    e = decay(r - b, inverse)
    is_above = r > b
    terms = (
        is_above.to(COMPUTE),
        tl.where(is_above, 0.0, e),
        tl.where(is_above, e, 0.0),
        (r > b + half_window).to(COMPUTE),
        (r >= b - half_window).to(COMPUTE),
    )
    return tl.reduce(terms, 0, _add_look)


@triton.jit
def _scale(HOLDS: tl.constexpr):
    """Integers to 1: the sum of the 4096 that registers hold, or of a long band's 65,536, fits."""
    return 2.0**49 if HOLDS == "band" else 2.0**46


@triton.jit
def _as_addends(e, HOLDS: tl.constexpr, COMPUTE: tl.constexpr):
    """Exponentials to be added up: integers for a band, whose order is not always the same."""
    if (HOLDS == "band") | (HOLDS == "lists"):
        if COMPUTE == tl.float64:
            return (e * _scale(HOLDS)).to(tl.int64)
        else:
            return (e * _scale(HOLDS) + 0.5).to(tl.int64)
    else:
        return e


@triton.jit
def _as_sum(total, HOLDS: tl.constexpr):
    if (HOLDS == "band") | (HOLDS == "lists"):
        return total.to(tl.float64) / _scale(HOLDS)
    else:
        return total


@triton.jit
def _remainders(e, HOLDS: tl.constexpr):
    """What float64 exponentials have beyond their integers, in integers again."""
    scaled = e * _scale(HOLDS)
    return ((scaled - tl.floor(scaled)) * 2.0**46 + 0.5).to(tl.int64)


@triton.jit
def _with_remainders(total, rest, HOLDS: tl.constexpr):
    return _as_sum(total, HOLDS) + rest.to(tl.float64) * 2.0**-46 / _scale(HOLDS)


@triton.jit
def _add_rests(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _pass_rests(r, b, inverse, HOLDS: tl.constexpr):
    is_above = r > b
    rest = _remainders(decay(r - b, inverse), HOLDS)
    return tl.where(is_above, 0, rest), tl.where(is_above, rest, 0)


@triton.jit
def load_lists(lists, lengths, tile, stride, spacing, BLOCK: tl.constexpr):
    """So much of each of a band's lists as makes a tile, as far as they are filled; else -inf."""
    part: tl.constexpr = BLOCK // LISTS
    lane = tl.arange(0, BLOCK)
    number, place = lane // part, tile * part + lane % part
    inside = place < tl.load(lengths + number * spacing)
    return tl.load(lists + number * stride + place, mask=inside, other=float("-inf"))


@triton.jit
def _piece(
    source,
    tile,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A tile of a row or of a band."""
    _, scores, mask, n, stride, mask_stride = source
    if HOLDS == "lists":
        return load_lists(scores, mask, tile, stride, mask_stride, BLOCK)
    else:
        first, count = tile_of(tile, n, BLOCK)
        return load_tile(scores, mask, first, count, stride, mask_stride, LARGEST, BLOCK, COMPUTE)


@triton.jit
def _pass_terms(r, b, inverse, HOLDS: tl.constexpr, COMPUTE: tl.constexpr):
    is_above = r > b
    e = _as_addends(decay(r - b, inverse), HOLDS, COMPUTE)
    sum_below = tl.where(is_above, 0, e)
    sum_above = tl.where(is_above, e, 0)
    below = tl.where(is_above, float("-inf"), r)
    above = tl.where(is_above, r, float("inf"))
    return is_above.to(COMPUTE), sum_below, sum_above, below, above


@triton.jit
def _strict_terms(r, b, inverse, HOLDS: tl.constexpr, COMPUTE: tl.constexpr):
    is_below = r < b
    e = _as_addends(decay(r - b, inverse), HOLDS, COMPUTE)
    below = tl.where(is_below, r, float("-inf"))
    return (r == b).to(COMPUTE), tl.where(is_below, e, 0), below


@triton.jit
def measure(
    source,
    b,
    inverse,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One pass at b: N>, number equal, S<, S>, nearest below, nearest above.

    ``source`` is (scores in registers, scores, mask, n, stride, mask stride). It HOLDS a "row" or a
    "band" in registers, or a row is to be read from "memory", or the "lists" of a band: then it is
    (-, the lists, their lengths, LISTS times the longest, from list to list, from length to next).
    Equal scores show as a nearest score that is b itself. Only then are they counted, and S< is
    taken anew without them: it may be 1e-8 beside their ones, which a sum of both would round away.
    """
    r, _, _, n, _, _ = source
    if (HOLDS == "row") | (HOLDS == "band"):
        above, below_sum, above_sum, nearest_below, nearest_above = tl.reduce(
            _pass_terms(r, b, inverse, HOLDS, COMPUTE), 0, _add_pass
        )
        at = 0.0 * above
        if nearest_below == b:
            at, below_sum, nearest_below = tl.reduce(
                _strict_terms(r, b, inverse, HOLDS, COMPUTE), 0, _add_strictly
            )
        if (HOLDS == "band") & (COMPUTE == tl.float64):
            # An equal score has no remainder.
            rest_below, rest_above = tl.reduce(_pass_rests(r, b, inverse, HOLDS), 0, _add_rests)
            sum_below = _with_remainders(below_sum, rest_below, HOLDS)
            sum_above = _with_remainders(above_sum, rest_above, HOLDS)
        else:
            sum_below = _as_sum(below_sum, HOLDS)
            sum_above = _as_sum(above_sum, HOLDS)
    else:
        # Added up lane by lane: the lanes are for the end.
        numbers = tl.zeros((BLOCK,), tl.int32)
        equals = tl.zeros((BLOCK,), tl.int32)
        below_sums = tl.zeros((BLOCK,), tl.int64 if HOLDS == "lists" else tl.float64)
        above_sums = tl.zeros((BLOCK,), tl.int64 if HOLDS == "lists" else tl.float64)
        below_scores = tl.full((BLOCK,), float("-inf"), COMPUTE)
        above_scores = tl.full((BLOCK,), float("inf"), COMPUTE)
        if (HOLDS == "lists") & (COMPUTE == tl.float64):
            below_rests = tl.zeros((BLOCK,), tl.int64)
            above_rests = tl.zeros((BLOCK,), tl.int64)
        for tile in range(tile_count(n, BLOCK)):
            piece = _piece(source, tile, HOLDS, LARGEST, BLOCK, COMPUTE)
            is_above = piece > b
            is_below = piece < b
            e = _as_addends(decay(piece - b, inverse), HOLDS, COMPUTE).to(below_sums.dtype)
            if (HOLDS == "lists") & (COMPUTE == tl.float64):
                rest_below, rest_above = _pass_rests(piece, b, inverse, HOLDS)
                below_rests += rest_below
                above_rests += rest_above
            numbers += is_above.to(tl.int32)
            equals += (piece == b).to(tl.int32)
            below_sums += tl.where(is_below, e, 0)
            above_sums += tl.where(is_above, e, 0)
            below_scores = tl.maximum(below_scores, tl.where(is_below, piece, float("-inf")))
            above_scores = tl.minimum(above_scores, tl.where(is_above, piece, float("inf")))
        number, equal = numbers.to(tl.float64), equals.to(tl.float64)  # beyond 32 bits, all in all
        above, at, total_below, total_above, nearest_below, nearest_above = tl.reduce(
            (number, equal, below_sums, above_sums, below_scores, above_scores), 0, _add_tiles
        )
        if (HOLDS == "lists") & (COMPUTE == tl.float64):
            rest_below, rest_above = tl.reduce((below_rests, above_rests), 0, _add_rests)
            sum_below = _with_remainders(total_below, rest_below, HOLDS)
            sum_above = _with_remainders(total_above, rest_above, HOLDS)
        else:
            sum_below = _as_sum(total_below, HOLDS)
            sum_above = _as_sum(total_above, HOLDS)
    return above, at, sum_below, sum_above, nearest_below, nearest_above


@triton.jit
def _tail_terms(r, lower, upper, from_lower, from_upper, inverse):
    is_above = r >= upper
    below = tl.where(r <= lower, tl.exp2((r - from_lower) * inverse), 0.0)
    higher = tl.where(is_above, tl.exp2((from_upper - r) * inverse), 0.0)
    return is_above, below, higher


@triton.jit
def tails(
    source,
    lower,
    upper,
    inverse,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Number at ``upper`` and above, tail sums relative to ``lower`` and ``upper`` (may be inf)."""
    r, _, _, n, _, _ = source
    from_upper = tl.where(upper < float("inf"), upper, 0.0)
    from_lower = tl.where(lower > float("-inf"), lower, 0.0)
    if (HOLDS == "row") | (HOLDS == "band"):
        is_above, below, higher = _tail_terms(r, lower, upper, from_lower, from_upper, inverse)
        below_terms = _as_addends(below, HOLDS, COMPUTE)
        above_terms = _as_addends(higher, HOLDS, COMPUTE)
        above, total_below, total_above = tl.reduce(
            (is_above.to(COMPUTE), below_terms, above_terms), 0, _add_tails
        )
        if (HOLDS == "band") & (COMPUTE == tl.float64):
            below_rests = _remainders(below, HOLDS)
            above_rests = _remainders(higher, HOLDS)
    else:
        numbers = tl.zeros((BLOCK,), tl.int32)
        below_terms = tl.zeros((BLOCK,), tl.int64 if HOLDS == "lists" else tl.float64)
        above_terms = tl.zeros((BLOCK,), tl.int64 if HOLDS == "lists" else tl.float64)
        if (HOLDS == "lists") & (COMPUTE == tl.float64):
            below_rests = tl.zeros((BLOCK,), tl.int64)
            above_rests = tl.zeros((BLOCK,), tl.int64)
        for tile in range(tile_count(n, BLOCK)):
            piece = _piece(source, tile, HOLDS, LARGEST, BLOCK, COMPUTE)
            is_above, below, higher = _tail_terms(
                piece, lower, upper, from_lower, from_upper, inverse
            )
            numbers += is_above.to(tl.int32)
            below_terms += _as_addends(below, HOLDS, COMPUTE).to(below_terms.dtype)
            above_terms += _as_addends(higher, HOLDS, COMPUTE).to(above_terms.dtype)
            if (HOLDS == "lists") & (COMPUTE == tl.float64):
                below_rests += _remainders(below, HOLDS)
                above_rests += _remainders(higher, HOLDS)
        above, total_below, total_above = tl.reduce(
            (numbers.to(tl.float64), below_terms, above_terms), 0, _add_tails
        )
    if ((HOLDS == "band") | (HOLDS == "lists")) & (COMPUTE == tl.float64):
        rest_below, rest_above = tl.reduce((below_rests, above_rests), 0, _add_rests)
        sum_below = _with_remainders(total_below, rest_below, HOLDS)
        sum_above = _with_remainders(total_above, rest_above, HOLDS)
    else:
        sum_below = _as_sum(total_below, HOLDS)
        sum_above = _as_sum(total_above, HOLDS)
    return above, sum_below, sum_above


@triton.jit
def _survey_terms(r, origin, COMPUTE: tl.constexpr):
    is_finite = tl.abs(r) < float("inf")
    distance = tl.where(is_finite, r - origin, 0.0)
    return (
        is_finite.to(COMPUTE),
        (r == float("inf")).to(COMPUTE),
        (r != r).to(COMPUTE),
        tl.where(is_finite, r, float("inf")),
        tl.where(is_finite, r, float("-inf")),
        distance,
        distance * distance,
    )


@triton.jit
def survey_clean(r, inside, origin, n):
    """Lowest, highest, mean and square of a row; the square is not finite if a score is not.

    Lowest and highest are scores themselves: the bracket that is made of them must hold the root,
    however far from the others the origin may be.
    """
    distance = r - origin
    low = r
    high = r
    if inside is not None:
        distance = tl.where(inside, distance, 0.0)
        low = tl.where(inside, r, float("inf"))
        high = tl.where(inside, r, float("-inf"))
    lowest, highest, total, squares = tl.reduce(
        (low, high, distance, distance * distance), 0, _add_clean
    )
    return lowest, highest, total / n, squares / n


@triton.jit
def survey(
    source,
    origin,
    HOLDS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Numbers of finite, infinite and NaN scores; lowest, highest; mean and square from origin."""
    r, scores, mask, n, stride, mask_stride = source
    if HOLDS != "memory":
        finite, infinite, nans, lowest, highest, total, squares = tl.reduce(
            _survey_terms(r, origin, COMPUTE), 0, _add_survey
        )
        count = tl.maximum(finite, 1.0)
        mean = total / count
        square = squares / count
        return (
            finite.to(tl.float64),
            infinite.to(tl.float64),
            nans,
            lowest,
            highest,
            mean,
            square,
        )
    else:
        finite = tl.zeros((), tl.float64)
        infinite = tl.zeros((), tl.float64)
        nans = tl.zeros((), COMPUTE)
        lowest = tl.full((), float("inf"), COMPUTE)
        highest = tl.full((), float("-inf"), COMPUTE)
        total = tl.zeros((), tl.float64)
        squares = tl.zeros((), tl.float64)
        for tile in range(tile_count(n, BLOCK)):
            first, count = tile_of(tile, n, BLOCK)
            piece = load_tile(
                scores, mask, first, count, stride, mask_stride, LARGEST, BLOCK, COMPUTE
            )
            p0, p1, p2, p3, p4, p5, p6 = tl.reduce(
                _survey_terms(piece, origin, COMPUTE), 0, _add_survey
            )
            finite += p0.to(tl.float64)
            infinite += p1.to(tl.float64)
            nans += p2
            lowest = tl.minimum(lowest, p3)
            highest = tl.maximum(highest, p4)
            total += p5.to(tl.float64)
            squares += p6.to(tl.float64)
        valid = tl.maximum(finite, 1.0)
        mean = (total / valid).to(COMPUTE)
        square = (squares / valid).to(COMPUTE)
        return finite, infinite, nans, lowest, highest, mean, square

"""What every kernel shares: reading scores, the closed-form step, the first guess, the mask.

A row is seen from one side only (``largest=False`` negates it), and a score that takes no part is
-inf. Exponentials are taken to base 2: v = (r - b) log2(e) / t and e = 2^-|v| = e^-|u|.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: A mask is exactly 0 or 1 this many temperatures away from the outermost score.
SATURATION = tl.constexpr(800.0)
#: The highest temperature is this part of the largest number.
HOTTEST = tl.constexpr(256.0)
#: A band is kept as so many lists, one for every so many lanes: adding to them does not queue up.
LISTS = tl.constexpr(32)
#: Sums below this have lost their digits to denormals and count as nothing.
VANISHED = tl.constexpr(2.0**-100)


@triton.jit
def smallest_normal(COMPUTE: tl.constexpr):
    """The smallest normal number of the dtype; temperatures below it are the hard limit."""
    return 2.2250738585072014e-308 if COMPUTE == tl.float64 else 1.1754943508222875e-38


@triton.jit
def largest_finite(COMPUTE: tl.constexpr):
    """The largest finite number of the dtype."""
    return 1.7976931348623157e308 if COMPUTE == tl.float64 else 3.4028234663852886e38


@triton.jit
def as_finite(x, COMPUTE: tl.constexpr):
    """The nearest number to x, which may be infinite; some number where it is NaN."""
    limit = largest_finite(COMPUTE)
    return tl.minimum(tl.maximum(x, -limit), limit)


@triton.jit
def negligible_step(COMPUTE: tl.constexpr):
    """|d| / t below which what the step crosses cannot matter.

    At most S e^{|d|/t} scores lie within d of b, each off by cosh(d / t) - 1: less than an ulp.
    """
    return 2.0**-27 if COMPUTE == tl.float64 else 2.0**-12


@triton.jit
def start_next_launch(OVERLAP: tl.constexpr):
    """Let the next kernel of the call come up beside this one (devices that can: sm_90 and on)."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def await_launch(OVERLAP: tl.constexpr):
    """Wait for all that the kernel before this one of the call wrote."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@triton.jit
def row_value(values, number_hi, number_lo, outer, inner, outer_stride, inner_stride):
    """A row's budget or temperature in float64: from a tensor, or a number passed as a pair."""
    if values is not None:
        return tl.load(values + outer * outer_stride + inner * inner_stride).to(tl.float64)
    return tl.zeros((), tl.float64) + number_hi + number_lo


@triton.jit
def exponent_scale(t, COMPUTE: tl.constexpr):
    """log2(e) / t, which makes 2^-|v| of e^-|u|."""
    return 1.4426950408889634 / t.to(COMPUTE)


@triton.jit
def decay(distance, inverse):
    """e^-|u| of a distance from the threshold, the sign taken by the product: one instruction."""
    return tl.exp2(tl.abs(distance) * (-inverse))


@triton.jit
def offset(first, index, stride):
    """Where ``first + index`` is in memory, in 64 bits: a stride may be long."""
    return first * stride + index.to(tl.int64) * stride


@triton.jit
def tile_count(n, BLOCK: tl.constexpr):
    """Tiles in a row; n + BLOCK may not fit the 32 bits that n fits."""
    return ((tl.zeros((), tl.int64) + n + (BLOCK - 1)) // BLOCK).to(tl.int32)


@triton.jit
def tile_of(tile, n, BLOCK: tl.constexpr):
    """First index of a tile, in 64 bits, and how many of its indices are in the row."""
    first = (tl.zeros((), tl.int64) + tile) * BLOCK
    return first, tl.maximum(tl.minimum(n - first, BLOCK), 0).to(tl.int32)


@triton.jit
def load_scores(
    scores,
    mask,
    first,
    index,
    inside,
    stride,
    mask_stride,
    LARGEST: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The scores ``first + index`` as the solver sees them, -inf for what takes no part."""
    place = offset(first, index, stride)
    if inside is None:
        r = tl.load(scores + place).to(COMPUTE)
    else:
        outside = float("-inf") if LARGEST else float("inf")
        r = tl.load(scores + place, mask=inside, other=outside).to(COMPUTE)
    if not LARGEST:
        r = -r
    if mask is not None:
        place = offset(first, index, mask_stride)
        if inside is None:
            keep = tl.load(mask + place)
        else:
            keep = tl.load(mask + place, mask=inside, other=0)
        r = tl.where(keep != 0, r, float("-inf"))
    return r


@triton.jit
def load_tile(
    scores,
    mask,
    first,
    count,
    stride,
    mask_stride,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A tile of scores. A whole tile is read without bounds: only then are the loads wide."""
    lanes = tl.arange(0, BLOCK)
    if count == BLOCK:
        r = load_scores(scores, mask, first, lanes, None, stride, mask_stride, LARGEST, COMPUTE)
    else:
        r = load_scores(
            scores, mask, first, lanes, lanes < count, stride, mask_stride, LARGEST, COMPUTE
        )
    return r


@triton.jit
def load_values(values, first, count, stride, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """A tile of anything else, 0 beyond the row; wide loads for a whole one."""
    lanes = tl.arange(0, BLOCK)
    place = offset(first, lanes, stride)
    if count == BLOCK:
        found = tl.load(values + place)
    else:
        found = tl.load(values + place, mask=lanes < count, other=0.0)
    return found.to(COMPUTE)


@triton.jit
def store_tile(out, first, count, stride, values, BLOCK: tl.constexpr):
    """A tile of results; wide stores for a whole one."""
    lanes = tl.arange(0, BLOCK)
    place = offset(first, lanes, stride)
    values = values.to(out.dtype.element_ty)
    if count == BLOCK:
        tl.store(out + place, values)
    else:
        tl.store(out + place, values, mask=lanes < count)


@triton.jit
def middle_float(left, right, COMPUTE: tl.constexpr):
    """The number half-way between two floats in the order of their bit patterns."""
    if COMPUTE == tl.float64:
        a = left.to(tl.int64, bitcast=True)
        b = right.to(tl.int64, bitcast=True)
        lowest = tl.full((), -(2**63), tl.int64)
    else:
        a = left.to(tl.int32, bitcast=True)
        b = right.to(tl.int32, bitcast=True)
        lowest = tl.full((), -(2**31), tl.int32)
    a = tl.where(a < 0, lowest - a, a)
    b = tl.where(b < 0, lowest - b, b)
    middle = (a & b) + ((a ^ b) >> 1)
    middle = tl.where(middle < 0, lowest - middle, middle)
    return middle.to(COMPUTE, bitcast=True)


@triton.jit
def hypotenuse(a, b):
    """sqrt(a^2 + b^2) where neither square may underflow on its own."""
    big = tl.maximum(tl.abs(a), tl.abs(b))
    ratio = tl.minimum(tl.abs(a), tl.abs(b)) / tl.where(big > 0, big, 1.0)
    return big * tl.sqrt(1 + ratio * ratio)


@triton.jit
def model_factor(count_excess, sum_below, sum_above):
    """x = e^{d/t} with S+ x^2 - 2 c x - S- = 0, in the form that does not cancel."""
    root = hypotenuse(count_excess, tl.sqrt(sum_above) * tl.sqrt(sum_below))
    is_up = count_excess >= 0
    numerator = tl.where(is_up, count_excess + root, sum_below)
    return numerator / tl.where(is_up, sum_above, root - count_excess)


@triton.jit
def logit(mass, count):
    """log(mass / (count - mass)), kept finite."""
    clipped = tl.minimum(tl.maximum(mass, 0.25), count - 0.25)
    return tl.log(clipped / (count - clipped))


@triton.jit
def _smaller_part(share, count, COMPUTE: tl.constexpr):
    """min(share, count - share) / count of float64 numbers, with the digits of the smaller one."""
    return tl.minimum(share, count - share).to(COMPUTE) / count.to(COMPUTE)


@triton.jit
def prior_bracket(lowest, highest, share, count, t, COMPUTE: tl.constexpr):
    """Numbers that hold the threshold of ``share`` out of ``count`` finite scores (float64).

    If all scores were r it would be r - t sigma^-1(share / count), and it grows with every score.
    Beyond the largest number they are infinite: a threshold may lie beyond a score that is there.
    """
    shift = t.to(COMPUTE) * tl.log(2 * _smaller_part(share, count, COMPUTE))
    shift = tl.where(2 * share <= count, shift, -shift)
    tiny = smallest_normal(COMPUTE)
    slack = 2.0**-50 if COMPUTE == tl.float64 else 2.0**-21  # rounding must not exclude the root
    left = lowest - shift - slack * (tl.abs(lowest) + tl.abs(shift)) - tiny
    right = highest - shift + slack * (tl.abs(highest) + tl.abs(shift)) + tiny
    return left, right


@triton.jit
def first_guess(origin, mean, square, share, count, t, COMPUTE: tl.constexpr):
    """b and its standard error, were the scores normal: a quantile of scores and kernel noise.

    Where nearly all mass lies on one side, e^u / 2 for sigma gives the tail's exact quantile, which
    bounds the other from outside.
    """
    scale = t.to(COMPUTE)
    spread = tl.maximum(square - mean * mean, 0.0)
    part = _smaller_part(share, count, COMPUTE)
    log_part = tl.log(part)
    s = tl.sqrt(-2 * log_part)
    # The normal quantile by a quotient of polynomials, good to 5e-4 (Abramowitz, Stegun 26.2.23).
    z = s - (2.515517 + s * (0.802853 + s * 0.010328)) / (
        1 + s * (1.432788 + s * (0.189269 + s * 0.001308))
    )
    normal = z * tl.sqrt(spread + 2 * scale * scale)
    tail = 0.5 * spread / scale - scale * (log_part + 0.6931471805599453)
    distance = tl.minimum(normal, tail)
    # sqrt(part / count) / density of the normal distribution at z
    error = 2.5066283 * tl.sqrt(spread * part / count.to(COMPUTE)) * tl.exp2(0.7213475 * z * z)
    return origin + mean + tl.where(2 * share <= count, distance, -distance), error


@triton.jit
def soft_mask(r, hi, lo, inverse, COMPUTE: tl.constexpr):
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
    from_hi = r - hi
    is_above = from_hi > lo
    v = (from_hi - taken_off) * inverse
    e = tl.exp2(tl.where(is_above, -v, v)) * tl.where(is_above, factor_above, factor_below)
    return tl.where(is_above, 1 - e, e)


@triton.jit
def any_mask(r, hi, lo, t, inverse, COMPUTE: tl.constexpr):
    """The mask of a row whatever its kind: soft, in the hard limit, or without an answer (NaN)."""
    if (t < smallest_normal(COMPUTE)) | (hi == float("inf")):
        p = tl.where(r == hi, lo, (r > hi).to(COMPUTE))
        p = tl.where(r == float("-inf"), 0.0, p)
        p = tl.where(hi != hi, float("nan"), p)
    else:
        p = soft_mask(r, hi, lo, inverse, COMPUTE)
    return p

"""Formulas of single numbers, for vectors with one entry per row: the step, the guess, the bracket.

Exponentials are taken to base 2: v = (r - b) log2(e) / t and e = 2^-|v| = e^-|u|.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: A mask is exactly 0 or 1 this many temperatures away from the outermost score.
SATURATION = tl.constexpr(800.0)
#: The highest temperature is this part of the largest number.
HOTTEST = tl.constexpr(256.0)
#: Sums below this have lost their digits to denormals and count as nothing.
VANISHED = tl.constexpr(2.0**-100)
#: The square of a sum from here on is a normal number.
SQUARABLE = tl.constexpr(2.0**-60)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def any_row(condition):
    """Whether it holds for any row, as one number that a branch can be taken on."""
    return tl.max(condition.to(tl.int32), 0) > 0


@triton.jit
def pick(values, i):
    """Entry i of a vector, shape [1]."""
    here = tl.arange(0, values.shape[0]) == i
    return tl.sum(tl.where(here, values, 0.0), 0) + tl.zeros((1,), values.dtype)


@triton.jit
def smallest_normal(COMPUTE: tl.constexpr):
    """The smallest normal number of the dtype; temperatures below it are the hard limit."""
    return 2.2250738585072014e-308 if COMPUTE == tl.float64 else 1.1754943508222875e-38


@triton.jit
def largest_finite(COMPUTE: tl.constexpr):
    """The largest finite number of the dtype."""
    return 1.7976931348623157e308 if COMPUTE == tl.float64 else 3.4028234663852886e38


@triton.jit
def below_one(COMPUTE: tl.constexpr):
    """The number before 1."""
    return 1 - 2.0**-53 if COMPUTE == tl.float64 else 1 - 2.0**-24


@triton.jit
def as_finite(x, COMPUTE: tl.constexpr):
    """The nearest number to x, which may be infinite; some number where it is NaN."""
    limit = largest_finite(COMPUTE)
    return tl.minimum(tl.maximum(x, -limit), limit)


@triton.jit
def sum_of_two(a, b, COMPUTE: tl.constexpr):
    """a + b as the number next to it, kept finite, and what is missing: exact (Knuth)."""
    hi = as_finite(a + b, COMPUTE)
    of_b = hi - a
    return hi, (a - (hi - of_b)) + (b - of_b)


@triton.jit
def negligible_step(COMPUTE: tl.constexpr):
    """|d| / t below which what the step crosses cannot matter.

    At most S e^{|d|/t} scores lie within d of b, each off by cosh(d / t) - 1: less than an ulp.
    """
    return 2.0**-27 if COMPUTE == tl.float64 else 2.0**-12


@triton.jit
def exponent_scale(t, COMPUTE: tl.constexpr):
    """log2(e) / t, which makes 2^-|v| of e^-|u|."""
    return 1.4426950408889634 / t.to(COMPUTE)


@triton.jit
def _mirrored(i):
    """Whole numbers of either sign, whose bits are in the order of floats or the other way."""
    lowest = (
        tl.full((), -(2**63), tl.int64) if i.dtype == tl.int64 else tl.full((), -(2**31), tl.int32)
    )
    return tl.where(i < 0, lowest - i, i)


@triton.jit
def _place_of(x):
    """Where a float is in the order of all floats."""
    if x.dtype == tl.float64:
        return _mirrored(x.to(tl.int64, bitcast=True))
    else:
        return _mirrored(x.to(tl.int32, bitcast=True))


@triton.jit
def _float_at(place, COMPUTE: tl.constexpr):
    return _mirrored(place).to(COMPUTE, bitcast=True)


@triton.jit
def middle_float(left, right, COMPUTE: tl.constexpr):
    """The number half-way between two floats in the order of their bit patterns."""
    a = _place_of(left)
    b = _place_of(right)
    return _float_at((a & b) + ((a ^ b) >> 1), COMPUTE)


@triton.jit
def float_before(x, COMPUTE: tl.constexpr):
    """The greatest number below x, which is not -inf; -inf below the lowest one."""
    return _float_at(_place_of(x) - 1, COMPUTE)


@triton.jit
def float_after(x, COMPUTE: tl.constexpr):
    """The least number above x, which is not +inf; of -inf it is the lowest one."""
    return _float_at(_place_of(x) + 1, COMPUTE)


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
def closed_form_step(count_excess, sum_below, sum_above, excess):
    """d / t of the same equation, for trials that are near or have sums well above 0.

    With x = 1 + y it is S+ y^2 + 2 (S+ - c) y - 2 excess = 0, and y has all its digits where the
    step is short. NaN where the sums have vanished.
    """
    root = tl.sqrt(count_excess * count_excess + sum_above * sum_below)
    is_up = count_excess >= 0
    numerator = tl.where(is_up, count_excess + root, sum_below)
    x = numerator / tl.where(is_up, sum_above, root - count_excess)
    y = 2 * excess / (sum_above - count_excess + root)
    return tl.where(tl.abs(y) < 2.0**-8, y - y * y * (0.5 - y * 0.333333333), tl.log(x))


@triton.jit
def lift_of(excess, target, count):
    """By how much the logit of a mass out of ``count`` is over that of the target, kept finite."""
    wanted = tl.minimum(tl.maximum(target, 0.25), count - 0.25)
    mass = tl.minimum(tl.maximum(target + excess, 0.25), count - 0.25)
    return tl.log(mass / wanted * ((count - wanted) / (count - mass)))


@triton.jit
def between(left, right, part):
    """A number between two, at a part of the way.

    If they are of one sign and very different size it is a part of the way of their logarithms:
    heavy tails are even there.
    """
    is_positive = (left > 0) & (right > 2 * left)
    is_negative = (right < 0) & (left < 2 * right)
    size_left = tl.log2(tl.where(is_positive | is_negative, tl.abs(left), 1.0))
    size_right = tl.log2(tl.where(is_positive | is_negative, tl.abs(right), 1.0))
    size = tl.exp2(size_left * (1 - part) + size_right * part)
    straight = left * (1 - part) + right * part
    return tl.where(is_positive, size, tl.where(is_negative, -size, straight))


@triton.jit
def interpolate(left, right, lift_left, lift_right, COMPUTE: tl.constexpr):
    """Where a straight line through both ends' lifts is zero, kept off the ends."""
    part = lift_left / (lift_left - lift_right)
    part = tl.where(lift_left > lift_right, part, 0.5)
    part = tl.minimum(tl.maximum(part, 0.02), 0.98)
    return between(as_finite(left, COMPUTE), as_finite(right, COMPUTE), part)


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
    of_shift = tl.abs(shift) + t.to(COMPUTE)  # the logarithm of nearly 1 is off by as much as of 2
    left = lowest - shift - slack * (tl.abs(lowest) + of_shift) - tiny
    right = highest - shift + slack * (tl.abs(highest) + of_shift) + tiny
    return left, right


@triton.jit
def first_guess(origin, mean, square, share, count, t, COMPUTE: tl.constexpr):
    """b and its standard error, were the scores normal: a quantile of scores and kernel noise.

    Where nearly all mass lies on one side, e^u / 2 for sigma gives the tail's exact quantile, which
    bounds the other from outside.
    """
    t_compute = t.to(COMPUTE)
    spread = tl.maximum(square - mean * mean, 0.0)
    part = _smaller_part(share, count, COMPUTE)
    log_part = tl.log(part)
    s = tl.sqrt(-2 * log_part)
    # The normal quantile by a quotient of polynomials, good to 5e-4 (Abramowitz, Stegun 26.2.23).
    z = s - (2.515517 + s * (0.802853 + s * 0.010328)) / (
        1 + s * (1.432788 + s * (0.189269 + s * 0.001308))
    )
    normal = z * tl.sqrt(spread + 2 * t_compute * t_compute)
    tail = 0.5 * spread / t_compute - t_compute * (log_part + LN2)
    distance = tl.minimum(normal, tail)
    # sqrt(part / count) / density of the normal distribution at z
    error = 2.5066283 * tl.sqrt(spread * part / count.to(COMPUTE)) * tl.exp2(0.7213475 * z * z)
    return origin + mean + tl.where(2 * share <= count, distance, -distance), error


@triton.jit
def log_rest(x, COMPUTE: tl.constexpr):
    """log(1 - x) for 0 <= x <= 1/2 with the digits of x."""
    if COMPUTE == tl.float32:
        # -2 artanh(x / (2 - x)) as a series: the next term is below 2^-26.
        s = x / (2 - x)
        z = s * s
        series = 0.0909090909 + z * 0.0769230769
        series = 0.3333333333 + z * (0.2 + z * (0.1428571429 + z * (0.1111111111 + z * series)))
        return -2 * s * (1 + z * series)
    else:
        # The logarithm of a rounded number, by as much as the rounding moved it.
        rest = 1 - x
        moved = rest - 1
        is_one = moved == 0
        return tl.where(is_one, -x, tl.log(rest) * (x / tl.where(is_one, 1.0, -moved)))


@triton.jit
def log_quotient(part, whole, COMPUTE: tl.constexpr):
    """log(part / whole) of numbers in float64, part <= whole, with all digits also next to 1."""
    rest = tl.minimum((whole - part) / whole, 0.5)
    log = tl.where(part * 2 > whole, log_rest(rest, tl.float64), tl.log(part / whole))
    return log.to(COMPUTE)

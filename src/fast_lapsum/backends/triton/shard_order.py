"""The order of floating-point numbers of a dtype, for numbers in float64: see float_order.py.

NAME is that of the scores' dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Differences of orders up to this many can be multiplied by any number of cuts.
EXACT = tl.constexpr(2**52)


@triton.jit
def _mirrored(bits, NAME: tl.constexpr):
    """Bits as they are ordered, or the other way; int64."""
    bits = bits.to(tl.int64)
    least = -(2**31) if NAME == "float32" else -(2**15)
    if NAME == "float64":
        return tl.where(bits < 0, tl.full((), -(2**63), tl.int64) - bits, bits)
    else:
        return tl.where(bits < 0, least - bits, bits)


@triton.jit
def order_among(values, NAME: tl.constexpr):
    """The place of numbers among all of their dtype, int64, or of one next to them.

    Numbers that are none of the dtype are rounded, those of bfloat16 towards zero.
    """
    if NAME == "float64":
        return _mirrored(values.to(tl.int64, bitcast=True), NAME)
    elif NAME == "float32":
        return _mirrored(values.to(tl.float32).to(tl.int32, bitcast=True), NAME)
    elif NAME == "bfloat16":
        return _mirrored(values.to(tl.float32).to(tl.int32, bitcast=True) >> 16, NAME)
    else:
        half = values.to(tl.float32).to(tl.float16)
        return _mirrored(half.to(tl.int16, bitcast=True), NAME)


@triton.jit
def number_at(order, NAME: tl.constexpr):
    """The way back, float64."""
    bits = _mirrored(order, NAME)
    if NAME == "float64":
        return bits.to(tl.float64, bitcast=True)
    elif NAME == "float32":
        return bits.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    elif NAME == "bfloat16":
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    else:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)


@triton.jit
def next_number(value, NAME: tl.constexpr):
    """The next number of the dtype above each, and infinity after itself."""
    is_last = value == float("inf")
    following = order_among(tl.where(is_last, 0.0, value), NAME) + 1
    return tl.where(is_last, value, number_at(following, NAME))


@triton.jit
def cuts_of(left, right, index, count, NAME: tl.constexpr):
    """Numbers that cut [left, right) into count + 1 parts of as many numbers each."""
    below, above = order_among(left, NAME), order_among(right, NAME)
    half = (above >> 1) - (below >> 1)
    wide = half // (count + 1) * 2 * index
    steps = tl.where(half > EXACT, wide, (above - below) * index // (count + 1))
    return number_at(below + steps, NAME)

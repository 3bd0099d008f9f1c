"""The order of floating-point numbers of a dtype, for numbers in float64: see float_order.py.

BITS is that of the scores' dtype: "64", "32", "16" for float16, and "bf" for bfloat16.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Differences of orders up to this many can be multiplied by any number of cuts.
EXACT = tl.constexpr(2**52)


@triton.jit
def _mirrored(bits, BITS: tl.constexpr):
    """Bits as they are ordered, or the other way; int64."""
    bits = bits.to(tl.int64)
    least = -(2**31) if BITS == "32" else -(2**15)
    if BITS == "64":
        return tl.where(bits < 0, tl.full((), -(2**63), tl.int64) - bits, bits)
    else:
        return tl.where(bits < 0, least - bits, bits)


@triton.jit
def order_among(values, BITS: tl.constexpr):
    """The place of numbers among all of their dtype, int64; they are such numbers."""
    if BITS == "64":
        return _mirrored(values.to(tl.int64, bitcast=True), BITS)
    elif BITS == "32":
        return _mirrored(values.to(tl.float32).to(tl.int32, bitcast=True), BITS)
    elif BITS == "bf":
        return _mirrored(values.to(tl.float32).to(tl.int32, bitcast=True) >> 16, BITS)
    else:
        half = values.to(tl.float32).to(tl.float16)
        return _mirrored(half.to(tl.int16, bitcast=True), BITS)


@triton.jit
def number_at(order, BITS: tl.constexpr):
    """The way back, float64."""
    bits = _mirrored(order, BITS)
    if BITS == "64":
        return bits.to(tl.float64, bitcast=True)
    elif BITS == "32":
        return bits.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    elif BITS == "bf":
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    else:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)


@triton.jit
def next_number(value, BITS: tl.constexpr):
    """The next number of the dtype above each, and infinity after itself."""
    is_last = value == float("inf")
    following = order_among(tl.where(is_last, 0.0, value), BITS) + 1
    return tl.where(is_last, value, number_at(following, BITS))


@triton.jit
def cuts_of(left, right, index, count, BITS: tl.constexpr):
    """Numbers that cut [left, right) into count + 1 parts of as many numbers each."""
    below, above = order_among(left, BITS), order_among(right, BITS)
    half = (above >> 1) - (below >> 1)
    wide = half // (count + 1) * 2 * index
    steps = tl.where(half > EXACT, wide, (above - below) * index // (count + 1))
    return number_at(below + steps, BITS)

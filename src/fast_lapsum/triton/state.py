"""Long rows: what a row can want next, and what is kept of it between launches."""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import LISTS

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


@triton.jit
def tolerance(COMPUTE: tl.constexpr):
    """Mass that the threshold may be off, relative to the budget and to sum(phi)."""
    return 2.0**-50 if COMPUTE == tl.float64 else 2.0**-22


@triton.jit
def digits(COMPUTE: tl.constexpr):
    """What rounding may do to a sum of few numbers, relative to them."""
    return 2.0**-50 if COMPUTE == tl.float64 else 2.0**-21


@triton.jit
def room_of(capacity):
    """How many scores a band may be expected to hold: no list of it is over by four deviations."""
    root = tl.sqrt(tl.zeros((), tl.float32) + 4 + capacity / LISTS) - 2
    return root * root * LISTS


@triton.jit
def steps_to(number: tl.constexpr, widening):
    """How many first steps it is from a ladder's foot to the rung of that number."""
    steps = 0.0 * widening
    for _ in tl.static_range(number):
        steps = steps * widening + 1
    return steps

"""How kernels see tensors: rows behind two strides, budgets and temperatures, scores as the solver
wants them.

A row is seen from one side only (``largest=False`` negates it), and a score that takes no part is
-inf.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """A tensor's rows: row (outer, inner) begins at two strides, its scores follow by a third."""

    start: Any
    outer: Any
    inner: Any
    along: Any = 1


class Numbers(NamedTuple):
    """k and t given as numbers, each the sum of two float32: what a kernel can be given."""

    k_head: Any
    k_rest: Any
    t_head: Any
    t_rest: Any


class Call(NamedTuple):
    """What every kernel is told of a call; ``mask``, ``budget``, ``temperature`` may be None."""

    scores: Any
    mask: Any
    budget: Any
    temperature: Any
    numbers: Any
    n: Any
    inner_count: Any


@triton.jit
def coordinates(call, row, row_count):
    """Outer and inner index of rows; a number over the last row reads the last one again."""
    row = tl.minimum(row, row_count - 1).to(tl.int64)
    return row // call.inner_count, row % call.inner_count


@triton.jit
def row_start(view, outer, inner):
    return view.start + outer * view.outer + inner * view.inner


@triton.jit
def budget_of(call, outer, inner):
    """k of rows, float64."""
    if call.budget is not None:
        return tl.load(row_start(call.budget, outer, inner)).to(tl.float64)
    else:
        return tl.zeros_like(outer).to(tl.float64) + call.numbers.k_head + call.numbers.k_rest


@triton.jit
def temperature_of(call, outer, inner):
    """t of rows, float64."""
    if call.temperature is not None:
        return tl.load(row_start(call.temperature, outer, inner)).to(tl.float64)
    else:
        return tl.zeros_like(outer).to(tl.float64) + call.numbers.t_head + call.numbers.t_rest


@triton.jit
def warm_start_of(warm_start, outer, inner, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """Thresholds to start from; NaN where there are none."""
    if warm_start is not None:
        start = tl.load(row_start(warm_start, outer, inner)).to(COMPUTE)
        return start if LARGEST else -start
    else:
        return tl.zeros_like(outer).to(COMPUTE) + float("nan")


@triton.jit
def first_score(call, outer, inner, LARGEST: tl.constexpr, COMPUTE: tl.constexpr):
    """A number near the scores: sums of squares are taken from there, an offset has no part."""
    place = row_start(call.scores, outer, inner)
    origin = tl.load(place, mask=tl.zeros_like(outer) < call.n, other=0.0).to(COMPUTE)
    origin = origin if LARGEST else -origin
    if call.mask is not None:  # what takes no part may be far from the others
        keep = tl.load(
            row_start(call.mask, outer, inner), mask=tl.zeros_like(outer) < call.n, other=0
        )
        origin = tl.where(keep != 0, origin, 0.0)
    return tl.where(tl.abs(origin) < float("inf"), origin, 0.0)


@triton.jit
def across(values):
    """Values of rows in the shape of their scores."""
    return values[None, :, None, None]


@triton.jit
def part_indices(first, part, REPEATS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """The indices [REPEATS, 1, LANES, WIDTH] of a part of what a program holds from ``first`` on.

    Scores are laid out over the threads from the last dimension on: WIDTH neighbours in a thread,
    which are one access to memory, LANES threads for a row, the other threads of a warp for other
    rows, and then again. A sum over a row so begins within its threads.
    """
    repeat = tl.arange(0, REPEATS)[:, None, None, None]
    lane = tl.arange(0, LANES)[None, None, :, None]
    place = tl.arange(0, WIDTH)[None, None, None, :]
    index = ((part * REPEATS + repeat) * LANES + lane) * WIDTH + place
    return first + index.to(tl.int64)


@triton.jit
def exist(index, n, WIDTH: tl.constexpr):
    """Which indices are in a row of n scores: a WIDTH of them all or none, as the plan says."""
    return index // WIDTH < n // WIDTH


@triton.jit
def _places(view, outer, inner, index, WIDTH: tl.constexpr):
    """Addresses; a WIDTH of scores is as aligned as it is long, as the plan says.

    Neighbours that are no WIDTH are in different threads: nothing is to be gained by an access to
    several of them, and much lost by the exchange that would put them where they belong.
    """
    place = across(row_start(view, outer, inner)) + index * view.along
    # A mask's value is one bit, in a byte of memory.
    BYTES: tl.constexpr = WIDTH * ((view.start.dtype.element_ty.primitive_bitwidth + 7) // 8)
    if WIDTH == 1:
        return tl.multiple_of(place, (1, 1, 1, 1))
    else:
        return tl.multiple_of(place, (1, 1, 1, BYTES))


@triton.jit
def load_scores(
    call,
    outer,
    inner,
    index,
    inside,
    LARGEST: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The scores at indices of rows; ``inside`` is None where all of them exist."""
    place = _places(call.scores, outer, inner, index, WIDTH)
    if inside is None:
        r = tl.load(place).to(COMPUTE)
    else:
        outside = float("-inf") if LARGEST else float("inf")
        r = tl.load(place, mask=inside, other=outside).to(COMPUTE)
    if not LARGEST:
        r = -r
    if call.mask is not None:
        keep = load_values(call.mask, outer, inner, index, inside, WIDTH)
        r = tl.where(keep != 0, r, float("-inf"))
    return r


@triton.jit
def load_values(view, outer, inner, index, inside, WIDTH: tl.constexpr):
    """Anything else at indices of rows, 0 where there is nothing."""
    place = _places(view, outer, inner, index, WIDTH)
    if inside is None:
        return tl.load(place)
    else:
        return tl.load(place, mask=inside, other=0)


@triton.jit
def store_values(view, outer, inner, index, inside, values, WIDTH: tl.constexpr):
    """Results at indices of rows."""
    place = _places(view, outer, inner, index, WIDTH)
    tl.store(place, values.to(view.start.dtype.element_ty), mask=inside)


class FullCall(NamedTuple):
    """A Call with a mask, a budget and a temperature, and one more field, which is always None.

    Triton 3.6 forgets in loops which strides are 1 unless its compiler knows a later entry of the
    same tuple, too. None is such an entry; other calls have it in place of what they lack.
    """

    scores: Any
    mask: Any
    budget: Any
    temperature: Any
    numbers: Any
    n: Any
    inner_count: Any
    nothing: None = None


def call_of(
    scores: Any, mask: Any, budget: Any, temperature: Any, numbers: Any, n: int, inner_count: int
) -> Any:
    """What kernels are told of a call, in a way that all compilers understand."""
    is_full = mask is not None and budget is not None and temperature is not None
    kind = FullCall if is_full else Call
    return kind(scores, mask, budget, temperature, numbers, n, inner_count)

"""One budget over many tensors: every launch sees them through a table, and summaries are combined.

    sample_many      a sample of all scores, in one vector
    place_many       a band that holds the threshold, from the sample
    summarise_many   a part: what is beyond the band, in float64, and which scores are in it
    compact_many     the scores in the band, in one vector
    solve_many       the summaries combined, and the root in the band, by a team
    search_many      where the band failed: the root by halving, all scores in every pass
    write_many       a part: the mask

A part is a stretch of one tensor. What is told of a part (PART_FIELDS) is all that a threshold
needs of it beside the scores in the band: sums and counts are added, ends are compared. So parts
may be anywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .band import Band
from .mask import any_mask
from .numbers import (
    any_row,
    exponent_scale,
    largest_finite,
    smallest_normal,
)
from .passes import Source, Survey
from .sample import sample_place
from .solve import Guess, solve
from .team import Team, parts_place
from .views import Call, Rows, budget_of, part_indices, temperature_of

#: Columns of the table: addresses of scores, results and gradients, their dtypes by the numbers of
#: common.DTYPES, the number of scores, and of all tensors before it the parts and the scores.
COLUMNS = tl.constexpr(8)
SCORES = tl.constexpr(0)
OUT = tl.constexpr(1)
GRAD = tl.constexpr(2)
SIZE = tl.constexpr(3)
FIRST_PART = tl.constexpr(4)
FIRST_SCORE = tl.constexpr(5)
DTYPE = tl.constexpr(6)
OUT_DTYPE = tl.constexpr(7)
#: What a summary has: scores above the band, sums beyond its ends, scores in it, the lowest and the
#: highest finite score, and the numbers of +inf, NaN and -inf.
PART_FIELDS = tl.constexpr(9)
#: Summaries that are read at a time.
AT_ONCE = tl.constexpr(1024)
#: The state: the band's ends, the pair, whether it is to be searched for.
LOW = tl.constexpr(0)
HIGH = tl.constexpr(1)
PAIR = tl.constexpr(2)
IS_OPEN = tl.constexpr(4)


@triton.jit
def find_tensor(table, count, value, COLUMN: tl.constexpr, STEPS: tl.constexpr):
    """The last tensor whose entry in a rising column is not over a value."""
    low = value * 0
    high = low + (count - 1)
    for _ in tl.static_range(STEPS):
        middle = (low + high + 1) // 2
        is_left = tl.load(table + middle * COLUMNS + COLUMN) <= value
        low = tl.where(is_left, middle, low)
        high = tl.where(is_left, high, middle - 1)
    return low


@triton.jit
def part_of(table, count, part, PART: tl.constexpr, STEPS: tl.constexpr):
    """A part: where its tensor is in the table, its first score there, and how many it has."""
    row = table + find_tensor(table, count, part, FIRST_PART, STEPS) * COLUMNS
    first = (part - tl.load(row + FIRST_PART)) * PART
    return row, first, tl.minimum(tl.load(row + SIZE) - first, PART)


@triton.jit
def _load(at, index, inside, other, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    if KIND == 0:
        typed = at.to(tl.pointer_type(tl.float32))
    elif KIND == 1:
        typed = at.to(tl.pointer_type(tl.float64))
    elif KIND == 2:
        typed = at.to(tl.pointer_type(tl.float16))
    else:
        typed = at.to(tl.pointer_type(tl.bfloat16))
    return tl.load(typed + index, mask=inside, other=other).to(COMPUTE)


@triton.jit
def _store(at, index, inside, values, KIND: tl.constexpr):
    if KIND == 0:
        tl.store(at.to(tl.pointer_type(tl.float32)) + index, values.to(tl.float32), mask=inside)
    elif KIND == 1:
        tl.store(at.to(tl.pointer_type(tl.float64)) + index, values.to(tl.float64), mask=inside)
    elif KIND == 2:
        tl.store(at.to(tl.pointer_type(tl.float16)) + index, values.to(tl.float16), mask=inside)
    else:
        tl.store(at.to(tl.pointer_type(tl.bfloat16)) + index, values.to(tl.bfloat16), mask=inside)


@triton.jit
def load_part(at, kind, index, inside, other, KINDS: tl.constexpr, COMPUTE: tl.constexpr):
    """Numbers of a tensor of this kind; KINDS are those that there are, a bit each."""
    values = tl.full(index.shape, 0.0, COMPUTE)
    for i in tl.static_range(4):
        if KINDS == 1 << i:
            values = _load(at, index, inside, other, i, COMPUTE)
        elif KINDS & (1 << i) != 0:
            if kind == i:
                values = _load(at, index, inside, other, i, COMPUTE)
    return values


@triton.jit
def store_part(at, kind, index, inside, values, KINDS: tl.constexpr):
    """Numbers into a tensor of this kind."""
    for i in tl.static_range(4):
        if KINDS == 1 << i:
            _store(at, index, inside, values, i)
        elif KINDS & (1 << i) != 0:
            if kind == i:
                _store(at, index, inside, values, i)


@triton.jit
def read(row, index, inside, LARGEST: tl.constexpr, KINDS: tl.constexpr, COMPUTE: tl.constexpr):
    """Scores of a tensor, the largest side up; -inf where there are none."""
    outside = float("-inf") if LARGEST else float("inf")
    at, kind = tl.load(row + SCORES), tl.load(row + DTYPE)
    r = load_part(at, kind, index, inside, outside, KINDS, COMPUTE)
    return r if LARGEST else -r


@triton.jit(do_not_specialize=["count"])
def sample_many(
    table,
    count,
    total,
    sample,
    SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One score out of each stretch of equal length."""
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stretch = (tl.zeros((), tl.int64) + total) // SAMPLED
    within = tl.umulhi(number.to(tl.uint32) * 2654435761, stretch.to(tl.uint32)).to(tl.int64)
    place = number * stretch + within
    row = table + find_tensor(table, count, place, FIRST_SCORE, STEPS) * COLUMNS
    place -= tl.load(row + FIRST_SCORE)
    inside = (place >= 0) & (place < tl.load(row + SIZE)) & (number < SAMPLED)
    at, kind = tl.load(row + SCORES), tl.load(row + DTYPE)
    r = tl.zeros((BLOCK,), COMPUTE)
    for i in tl.static_range(4):
        if KINDS & (1 << i) != 0:
            r += _load(at, place, inside & (kind == i), 0.0, i, COMPUTE)
    r = r if LARGEST else -r
    tl.store(sample + number, tl.where(r == r, r, float("-inf")), mask=number < SAMPLED)


@triton.jit
def place_many(
    call,
    total,
    sample,
    state,
    SAMPLED: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A band for the threshold."""
    zero = tl.zeros((1,), tl.int64)
    k = budget_of(call, zero, zero) * SAMPLED / (tl.zeros((1,), tl.float64) + total)
    t = temperature_of(call, zero, zero)
    rows = Call(Rows(sample, 0, 0, 1), None, None, None, None, SAMPLED, 1)
    place = sample_place(rows, zero, zero, k, t, "mask", True, SAMPLED, 1, LANES, COMPUTE)
    low = tl.where(place.low == place.low, place.low, float("-inf"))
    high = tl.where(place.high == place.high, place.high, float("inf"))
    tl.store(state + LOW + zero, low.to(tl.float64))
    tl.store(state + HIGH + zero, high.to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def summarise_many(
    call,
    table,
    count,
    state,
    summaries,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The summary of a part; its scores in the band go to its first places in the result."""
    part = tl.program_id(0).to(tl.int64)
    row, first, n = part_of(table, count, part, PART, STEPS)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    zero = tl.zeros((1,), tl.int64)
    t = tl.maximum(temperature_of(call, zero, zero), smallest_normal(COMPUTE))
    inverse = exponent_scale(t, COMPUTE)
    limit = largest_finite(COMPUTE)
    low = tl.maximum(tl.load(state + LOW + zero).to(COMPUTE), -limit)
    high = tl.minimum(tl.load(state + HIGH + zero).to(COMPUTE), limit)
    none = tl.zeros((BLOCK,), tl.int32)
    above = none
    infinite = none
    nans = none
    excluded = none
    below_sum = none.to(tl.float64)
    above_sum = none.to(tl.float64)
    lowest = tl.full((BLOCK,), float("inf"), COMPUTE)
    highest = -lowest
    written = tl.zeros((), tl.int32)
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        inside = index < n
        r = read(row, first + index, inside, LARGEST, KINDS, COMPUTE)
        is_above = r > high
        is_finite = tl.abs(r) < float("inf")
        above += is_above.to(tl.int32)
        infinite += (r == float("inf")).to(tl.int32)
        nans += (r != r).to(tl.int32)
        excluded += (inside & (r == float("-inf"))).to(tl.int32)
        above_sum += tl.where(is_above, tl.exp2((high - r) * inverse), 0.0).to(tl.float64)
        below_sum += tl.where(r < low, tl.exp2((r - low) * inverse), 0.0).to(tl.float64)
        lowest = tl.minimum(lowest, tl.where(is_finite, r, float("inf")))
        highest = tl.maximum(highest, tl.where(is_finite, r, float("-inf")))
        is_listed = ((r >= low) & (r <= high)).to(tl.int32)
        place = first + (written + tl.cumsum(is_listed, 0) - 1)
        store_part(out, out_kind, place, is_listed != 0, r, OUT_KINDS)
        written += tl.sum(is_listed, 0)
    to = summaries + part  # field by field: neighbouring parts are neighbours
    parts = tl.num_programs(0).to(tl.int64)
    tl.store(to, tl.sum(above, 0).to(tl.float64))
    tl.store(to + 1 * parts, tl.sum(below_sum, 0))
    tl.store(to + 2 * parts, tl.sum(above_sum, 0))
    tl.store(to + 3 * parts, written.to(tl.float64))
    tl.store(to + 4 * parts, tl.min(lowest, 0).to(tl.float64))
    tl.store(to + 5 * parts, tl.max(highest, 0).to(tl.float64))
    tl.store(to + 6 * parts, tl.sum(infinite, 0).to(tl.float64))
    tl.store(to + 7 * parts, tl.sum(nans, 0).to(tl.float64))
    tl.store(to + 8 * parts, tl.sum(excluded, 0).to(tl.float64))


@triton.jit
def added(summaries, every, parts, FIELD: tl.constexpr, KIND: tl.constexpr):
    """A field of the first ``parts`` summaries out of ``every`` one as one number: their "sum",
    "least" or "most".
    """
    nothing = 0.0 if KIND == "sum" else (float("inf") if KIND == "least" else float("-inf"))
    total = tl.full((AT_ONCE,), nothing, tl.float64)
    for block in range((parts + (AT_ONCE - 1)) // AT_ONCE):
        part = (tl.zeros((), tl.int64) + block) * AT_ONCE + tl.arange(0, AT_ONCE)
        one = tl.load(summaries + FIELD * every + part, mask=part < parts, other=nothing)
        if KIND == "sum":
            total += one
        elif KIND == "least":
            total = tl.minimum(total, one)
        else:
            total = tl.maximum(total, one)
    if KIND == "sum":
        return tl.sum(total, 0) + tl.zeros((1,), tl.float64)
    elif KIND == "least":
        return tl.min(total, 0) + tl.zeros((1,), tl.float64)
    else:
        return tl.max(total, 0) + tl.zeros((1,), tl.float64)


@triton.jit(do_not_specialize=["count"])
def compact_many(
    table,
    count,
    summaries,
    band,
    room,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The scores of a part that are in the band, after those of all parts before it."""
    part = tl.program_id(0).to(tl.int64)
    row, first, _ = part_of(table, count, part, PART, STEPS)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    parts = tl.num_programs(0).to(tl.int64)
    before = tl.sum(added(summaries, parts, part, 3, "sum"), 0).to(tl.int64)
    listed = tl.load(summaries + 3 * parts + part).to(tl.int64)
    for block in range((listed + (BLOCK - 1)) // BLOCK):
        index = (tl.zeros((), tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        is_there = (index < listed) & (before + index < room)
        r = load_part(out, out_kind, first + index, is_there, 0.0, OUT_KINDS, COMPUTE)
        tl.store(band + before + index, r, mask=is_there)


@triton.jit
def survey_of(summaries, parts, total, COMPUTE: tl.constexpr):
    """What there is in all parts."""
    infinite = added(summaries, parts, parts, 6, "sum")
    nans = added(summaries, parts, parts, 7, "sum")
    excluded = added(summaries, parts, parts, 8, "sum")
    finite = (tl.zeros((1,), tl.float64) + total) - infinite - nans - excluded
    lowest = added(summaries, parts, parts, 4, "least").to(COMPUTE)
    highest = added(summaries, parts, parts, 5, "most").to(COMPUTE)
    return Survey(finite, infinite, nans, lowest, highest)


@triton.jit(do_not_specialize=["parts", "size"])
def solve_many(
    call,
    total,
    parts,
    state,
    summaries,
    band,
    room,
    words,
    size,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair, from the summaries and the scores in the band, by one team."""
    member = tl.program_id(0)
    zero = tl.zeros((1,), tl.int64)
    k = budget_of(call, zero, zero)
    t = temperature_of(call, zero, zero)
    survey = survey_of(summaries, parts, total, COMPUTE)
    number = added(summaries, parts, parts, 3, "sum")
    limit = largest_finite(COMPUTE)
    low = tl.load(state + LOW + zero).to(COMPUTE)
    high = tl.load(state + HIGH + zero).to(COMPUTE)
    is_open = number > room
    hi = low * 0
    lo = low * 0
    if any_row(~is_open):
        listed = tl.sum(number, 0).to(tl.int64)
        PART: tl.constexpr = READ * LANES
        length = (listed + size * PART - 1) // (size * PART) * PART
        mine = tl.maximum(tl.minimum(listed - member * length, length), 0)
        tl.store(parts_place(words, member, CHUNK_LANES), (mine + PART - 1) // PART)
        tl.debug_barrier()
        team = Team(words, member, size, size)
        nothing = low * 0 + float("nan")
        above = added(summaries, parts, parts, 0, "sum")
        below = added(summaries, parts, parts, 1, "sum")
        higher = added(summaries, parts, parts, 2, "sum")
        pair, _ = solve(
            Source(
                *(
                    None,
                    0,
                    Call(Rows(band, 0, 0, 1), None, None, None, None, listed, 1),
                    zero,
                    zero,
                    team,
                    length,
                    Band(
                        tl.maximum(low, -limit),
                        tl.minimum(high, limit),
                        *(nothing, 0.0 * k, above, below, higher, number),
                        parts_place(words, 0, CHUNK_LANES),
                    ),
                ),
                *(False, True, True, 1, READ, LANES, 1, CHUNK_LANES),
            ),
            *(survey, k, t, t < smallest_normal(COMPUTE), Guess(low, low, low), None),
            *(tl.zeros((), tl.int32), COMPUTE),
        )
        hi = pair.hi
        lo = pair.lo
        is_open = pair.missed != 0
    if member == 0:
        tl.store(state + PAIR + zero, hi.to(tl.float64))
        tl.store(state + PAIR + 1 + zero, lo.to(tl.float64))
        tl.store(state + IS_OPEN + zero, is_open.to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def write_many(
    call,
    table,
    count,
    state,
    PART: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    LARGEST: tl.constexpr,
    KINDS: tl.constexpr,
    OUT_KINDS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The mask of a part."""
    row, first, n = part_of(table, count, tl.program_id(0), PART, STEPS)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    zero = tl.zeros((1,), tl.int64)
    t = temperature_of(call, zero, zero)
    hi = tl.load(state + PAIR + zero).to(COMPUTE)
    lo = tl.load(state + PAIR + 1 + zero).to(COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = part_indices((tl.zeros((), tl.int64) + block) * BLOCK, 0, REPEATS, LANES, 1)
        r = read(row, first + index, index < n, LARGEST, KINDS, COMPUTE)
        p = any_mask(r, hi, lo, t, COMPUTE)
        store_part(out, out_kind, first + index, index < n, p, OUT_KINDS)

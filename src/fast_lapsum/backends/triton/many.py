"""One budget over many tensors: every launch sees them through a table, and summaries are combined.

    sample_many      a sample of all scores, in one vector
    place_many       a band that holds the threshold, from the sample, and its point, a score that
                     many equal, where there would be no room for all of them
    summarise_many   a part: what is beyond the band, in float64, and lists of the scores in it
    compact_many     all lists as one vector; both are in many_gather.py
    solve_many       the summaries combined, and the root in the band, by a team
    search_many      where the band failed: the root by halving, all scores in every pass; in
                     many_search.py
    write_many       a part: the mask; hard masks are written by many_hard.py

A part is a stretch of one tensor. What is told of a part (PART_FIELDS) is all that a threshold
needs of it beside the scores in the band: sums and counts are added, ends are compared. So parts
may be anywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .band import Band
from .mask import any_mask
from .numbers import any_row, as_finite, float_before, middle_float, pick, smallest_normal
from .passes import Source, Survey
from .sample import sample_place
from .solve import Guess, solve
from .team import Team, await_last, begin_next, parts_place
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
#: highest finite score, the numbers of +inf, NaN and -inf, how long the longest list is, and how
#: many scores are at the band's point, which lists leave out.
PART_FIELDS = tl.constexpr(11)
#: Summaries that are read at a time.
AT_ONCE = tl.constexpr(1024)
#: The state: the band's ends, the pair, whether it is to be searched for, and the band's point, a
#: score that many equal, which are counted and not listed; infinite where there is none.
LOW = tl.constexpr(0)
HIGH = tl.constexpr(1)
PAIR = tl.constexpr(2)
IS_OPEN = tl.constexpr(4)
POINT = tl.constexpr(5)
#: A band may be too full for its room if a sample fills so much of that. Bands of ordinary scores
#: fill less, and what is left is seven standard deviations of the sample's count.
CROWDED = tl.constexpr(0.8)


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
    if inside is None:
        return tl.load(typed + index).to(COMPUTE)
    else:
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
    """Numbers of a tensor of this kind; KINDS are those that there are, a bit each.

    ``inside`` is None where all of them exist.
    """
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
def scores_of(row):
    """Where the scores of a tensor are, and their kind: what is told to ``read``.

    It is asked for once, not in every turn of a loop: whoever stores results may have changed the
    table, for all that a compiler knows, and would wait for it again.
    """
    return tl.load(row + SCORES), tl.load(row + DTYPE)


@triton.jit
def read(scores, index, inside, LARGEST: tl.constexpr, KINDS: tl.constexpr, COMPUTE: tl.constexpr):
    """Scores of a tensor, the largest side up; -inf where there are none."""
    outside = float("-inf") if LARGEST else float("inf")
    r = load_part(scores[0], scores[1], index, inside, outside, KINDS, COMPUTE)
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
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One score out of each stretch of equal length."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
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
def _two_counts(first, second):
    """How often each is so, shape [2], by one sum: of fewer than 2^15 each."""
    both = tl.sum(first.to(tl.int32) + (second.to(tl.int32) << 16), 0)
    return tl.where(tl.arange(0, 2) == 0, both & 0xFFFF, both >> 16)


@triton.jit
def _common_score(sample, low, high, room, SAMPLED: tl.constexpr, COMPUTE: tl.constexpr):
    """A score that more than a third of a band's scores in the sample equal; +inf where there is
    none, or where ``room``, in scores of the sample, will do for all of them.

    Of so many that are equal one is a third or two thirds of the way through the band: the scores
    of these ranks are found by halving.
    """
    tl.static_assert(SAMPLED < 2**15)
    low = as_finite(low, COMPUTE)
    high = as_finite(high, COMPUTE)
    r = tl.load(sample + tl.arange(0, SAMPLED))
    is_in = (low <= r) & (r <= high)
    count = tl.sum(is_in.to(tl.int32), 0)
    point = high * 0 + float("inf")
    if any_row(count > room * CROWDED):
        inner = tl.where(is_in, r, float("-inf"))
        rank = (count * (1 + tl.arange(0, 2)) + 2) // 3
        left = float_before(low, COMPUTE) + tl.zeros((2,), COMPUTE)
        right = high + tl.zeros((2,), COMPUTE)
        middle = middle_float(left, right, COMPUTE)
        while any_row((left < middle) & (middle < right)):
            is_left = _two_counts(inner > pick(middle, 0), inner > pick(middle, 1)) >= rank
            left = tl.where(is_left, middle, left)
            right = tl.where(is_left, right, middle)
            middle = middle_float(left, right, COMPUTE)
        equal = _two_counts(inner == pick(right, 0), inner == pick(right, 1))
        is_common = (equal * 3 > count) & (equal == tl.max(equal, 0))
        point = tl.min(tl.where(is_common, right, float("inf")), 0) + high * 0
    return point


@triton.jit(do_not_specialize=["room"])
def place_many(
    call,
    total,
    sample,
    state,
    room,
    SAMPLED: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A band for the threshold, and its point."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    every = tl.zeros((1,), tl.float64) + total
    k = budget_of(call, zero, zero) * SAMPLED / every
    t = temperature_of(call, zero, zero)
    rows = Call(Rows(sample, 0, 0, 1), None, None, None, None, SAMPLED, 1)
    place = sample_place(rows, zero, zero, k, t, "mask", True, SAMPLED, 1, LANES, COMPUTE)
    low = tl.where(place.low == place.low, place.low, float("-inf"))
    high = tl.where(place.high == place.high, place.high, float("inf"))
    tl.store(state + LOW + zero, low.to(tl.float64))
    tl.store(state + HIGH + zero, high.to(tl.float64))
    share = SAMPLED / every * room  # whole numbers would overflow
    point = _common_score(sample, low, high, share, SAMPLED, COMPUTE)
    tl.store(state + POINT + zero, point.to(tl.float64))


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
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The pair, from the summaries and the scores in the band, by one team."""
    begin_next(OVERLAP)
    await_last(OVERLAP)
    member = tl.program_id(0)
    zero = tl.zeros((1,), tl.int64)
    k = budget_of(call, zero, zero)
    t = temperature_of(call, zero, zero)
    survey = survey_of(summaries, parts, total, COMPUTE)
    number = added(summaries, parts, parts, 3, "sum")
    # Ends of a band count as scores, but not infinite ones: a threshold may be beyond all floats.
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
        point = tl.load(state + POINT + zero).to(COMPUTE)
        point = tl.where(point < float("inf"), point, float("nan"))
        at_point = added(summaries, parts, parts, 10, "sum")
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
                        *(low, high, point, at_point, above, below, higher, number),
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
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The mask of a part."""
    row, first, n = part_of(table, count, tl.program_id(0), PART, STEPS)
    out, out_kind = tl.load(row + OUT), tl.load(row + OUT_DTYPE)
    scores = scores_of(row)
    await_last(OVERLAP)
    zero = tl.zeros((1,), tl.int64)
    t = temperature_of(call, zero, zero)
    hi = tl.load(state + PAIR + zero).to(COMPUTE)
    lo = tl.load(state + PAIR + 1 + zero).to(COMPUTE)
    BLOCK: tl.constexpr = REPEATS * LANES
    for block in range((n + (BLOCK - 1)) // BLOCK):
        index = part_indices((tl.zeros((), tl.int64) + block) * BLOCK, 0, REPEATS, LANES, 1)
        r = read(scores, first + index, index < n, LARGEST, KINDS, COMPUTE)
        p = any_mask(r, hi, lo, t, COMPUTE)
        store_part(out, out_kind, first + index, index < n, p, OUT_KINDS)

"""What one pass over a row's scores tells: counts, tail sums, extremes, for a trial threshold.

Every pass is a KIND: its terms for each score, and how two of them are added. What a program has of
a row is in parts, which are added score by score before any thread hears of another. Passes over
registers are unrolled. In programs of few warps those that few rows take read the scores again, in
a loop: fetching their instructions would take longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .band import with_beyond
from .team import collect, field_of, leave
from .views import across, exist, load_scores, part_indices

constexpr_function: Any = getattr(triton, "constexpr_function", None)
if constexpr_function is None:  # Triton 3.4
    constexpr_function = tl.core.constexpr_function


class Source(NamedTuple):
    """Scores of rows. Names in capitals are constants of the kernel.

    They stay constants only in an argument: a Source is made in the call of what uses it, and is
    never given a name before.
    """

    r: Any  # a tuple of parts in registers; None where they are read in every pass
    first: Any  # index of the first of those in registers
    call: Any
    outer: Any
    inner: Any
    team: Any  # None: every row is in this program alone
    length: Any  # scores of a chunk, where they are read
    band: Any  # None, or what is not read because it lies beyond a Band
    AGAIN: Any  # whether passes that few rows take read again what is in registers
    PADDED: Any
    LARGEST: Any
    PARTS: Any
    REPEATS: Any
    LANES: Any
    WIDTH: Any
    CHUNK_LANES: Any


class Survey(NamedTuple):
    """What there is in a row: numbers of scores of each kind, and the ends of the finite ones."""

    finite: Any
    infinite: Any
    nans: Any
    lowest: Any
    highest: Any


class Look(NamedTuple):
    """A cheap pass at b: N>, S<=, S>."""

    above: Any
    below: Any
    higher: Any


class Totals(NamedTuple):
    """A pass at b: N>, number equal, S<, S>, nearest scores below and above."""

    above: Any
    equal_count: Any
    sum_below: Any
    sum_above: Any
    nearest_below: Any
    nearest_above: Any


@triton.jit
def _add_glance(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _add_pass(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.maximum(a4, b4), tl.minimum(a5, b5)


@triton.jit
def _add_counts(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _add_ends(a0, a1, b0, b1):
    return tl.minimum(a0, b0), tl.maximum(a1, b1)


@triton.jit
def _add_moments(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.minimum(a0, b0), tl.maximum(a1, b1), a2 + b2, a3 + b3


@triton.jit
def _add_survey(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    lowest, highest = tl.minimum(a3, b3), tl.maximum(a4, b4)
    return a0 + b0, a1 + b1, a2 + b2, lowest, highest, a5 + b5, a6 + b6


@triton.jit
def _add_first(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.minimum(a4, b4), tl.maximum(a5, b5)


@triton.jit
def _add_gathered(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    lowest, highest = tl.minimum(a4, b4), tl.maximum(a5, b5)
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, lowest, highest, a6 + b6


@triton.jit
def _reduced(terms, AXIS: tl.constexpr, KIND: tl.constexpr):
    if KIND == "glance" or KIND == "tails":
        return tl.reduce(terms, AXIS, _add_glance)
    elif KIND == "pass":
        return tl.reduce(terms, AXIS, _add_pass)
    elif KIND == "counts":
        return tl.reduce(terms, AXIS, _add_counts)
    elif KIND == "ends":
        return tl.reduce(terms, AXIS, _add_ends)
    elif KIND == "moments":
        return tl.reduce(terms, AXIS, _add_moments)
    elif KIND == "survey":
        return tl.reduce(terms, AXIS, _add_survey)
    elif KIND == "gathered":
        return tl.reduce(terms, AXIS, _add_gathered)
    else:
        tl.static_assert(KIND == "first")
        return tl.reduce(terms, AXIS, _add_first)


@triton.jit
def _of_threads(terms, KIND: tl.constexpr):
    """Terms of scores added up to one number per row and thread."""
    return _reduced(_reduced(terms, 3, KIND), 0, KIND)


@triton.jit
def _joined(a, b, KIND: tl.constexpr):
    """Two sums of one KIND as one."""
    if KIND == "glance" or KIND == "tails":
        return _add_glance(*a, *b)
    elif KIND == "pass":
        return _add_pass(*a, *b)
    elif KIND == "counts":
        return _add_counts(*a, *b)
    elif KIND == "ends":
        return _add_ends(*a, *b)
    elif KIND == "moments":
        return _add_moments(*a, *b)
    elif KIND == "survey":
        return _add_survey(*a, *b)
    else:
        tl.static_assert(KIND == "first")
        return _add_first(*a, *b)


@constexpr_function
def _ends(kind: str) -> tuple[int, int]:
    """The fields of a KIND that are the least and the greatest of numbers; all others are sums."""
    ends = {
        "pass": (5, 4),
        "ends": (0, 1),
        "moments": (0, 1),
        "survey": (3, 4),
        "first": (4, 5),
        "gathered": (4, 5),
    }
    return ends.get(kind, (-1, -1))


@triton.jit
def _nothing(KIND: tl.constexpr, FIELD: tl.constexpr):
    """What a field of a KIND is where there are no scores."""
    if _ends(KIND)[0] == FIELD:
        return float("inf")
    elif _ends(KIND)[1] == FIELD:
        return float("-inf")
    else:
        return 0.0


@triton.jit
def _decay(distance, inverse):
    """e^-|u| of a distance from the threshold, the sign taken by the product: one instruction."""
    return tl.exp2(tl.abs(distance) * (-inverse))


@triton.jit
def _glance_terms(r, b, inverse, COMPUTE: tl.constexpr):
    e = _decay(r - across(b), across(inverse))
    is_above = r > across(b)
    return is_above.to(COMPUTE), tl.where(is_above, 0.0, e), tl.where(is_above, e, 0.0)


@triton.jit
def _survey_terms(r, origin, COMPUTE: tl.constexpr):
    is_finite = tl.abs(r) < float("inf")
    distance = tl.where(is_finite, r - across(origin), 0.0)
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
def _terms(r, inside, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """The terms of every score; ``at`` is what the KIND looks at, per row.

    ``inside`` is for moments alone: which scores exist, None if all do.
    """
    if KIND == "glance":
        b, inverse = at
        return _glance_terms(r, b, inverse, COMPUTE)
    elif KIND == "pass":
        b, inverse = at
        e = _decay(r - across(b), across(inverse))
        is_above = r > across(b)
        is_below = r < across(b)
        return (
            is_above.to(COMPUTE),
            (r == across(b)).to(COMPUTE),
            tl.where(is_below, e, 0.0),
            tl.where(is_above, e, 0.0),
            tl.where(is_below, r, float("-inf")),
            tl.where(is_above, r, float("inf")),
        )
    elif KIND == "counts":
        return (
            (r > across(at[0])).to(COMPUTE),
            (r > across(at[1])).to(COMPUTE),
            (r > across(at[2])).to(COMPUTE),
            (r > across(at[3])).to(COMPUTE),
        )
    elif KIND == "ends":
        left, right = at
        low = tl.where(r > across(left), r, float("inf"))
        return low, tl.where(r <= across(right), r, float("-inf"))
    elif KIND == "tails":
        lower, upper, from_lower, from_upper, inverse = at
        is_above = r >= across(upper)
        below = tl.exp2((r - across(from_lower)) * across(inverse))
        higher = tl.exp2((across(from_upper) - r) * across(inverse))
        return (
            is_above.to(COMPUTE),
            tl.where(r <= across(lower), below, 0.0),
            tl.where(is_above, higher, 0.0),
        )
    elif KIND == "moments":
        distance = r - across(at[0])
        low = r
        high = r
        if inside is not None:
            distance = tl.where(inside, distance, 0.0)
            low = tl.where(inside, r, float("inf"))
            high = tl.where(inside, r, float("-inf"))
        return low, high, distance, distance * distance
    elif KIND == "survey":
        return _survey_terms(r, at[0], COMPUTE)
    else:
        tl.static_assert(KIND == "first")
        b, inverse = at
        above, below, higher = _glance_terms(r, b, inverse, COMPUTE)
        is_nothing = r == float("-inf")
        low = tl.where(is_nothing, float("inf"), r)
        return above, below, higher, is_nothing.to(COMPUTE), low, r


@constexpr_function
def _fields(kind: str) -> int:
    """How many numbers a KIND gives."""
    fields = {"counts": 4, "ends": 2, "moments": 4, "pass": 6, "survey": 7, "first": 6}
    return {**fields, "gathered": 7}.get(kind, 3)


@constexpr_function
def _is_common(kind: str) -> bool:
    """Whether many rows take such a pass."""
    return kind in ("moments", "glance", "first", "counts", "ends")


@triton.jit
def read_part(source, first, part, COMPUTE: tl.constexpr):
    """A part of a row from the index ``first`` on."""
    index = part_indices(first, part, source.REPEATS, source.LANES, source.WIDTH)
    inside = exist(index, source.call.n, source.WIDTH) if source.PADDED else None
    LARGEST: tl.constexpr = source.LARGEST
    WIDTH: tl.constexpr = source.WIDTH
    return load_scores(
        source.call, source.outer, source.inner, index, inside, LARGEST, WIDTH, COMPUTE
    )


@triton.jit
def read_parts(source, first, COMPUTE: tl.constexpr):
    """The parts of a row from the index ``first`` on."""
    r = ()
    for part in tl.static_range(source.PARTS):
        r = r + (read_part(source, first, part, COMPUTE),)  # type: ignore[assignment]
    return r


@triton.jit
def _over_held(source, r, first, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """The terms of parts in registers, added score by score."""
    for part in tl.static_range(source.PARTS):
        inside = None
        if KIND == "moments" and source.PADDED:
            index = part_indices(first, part, source.REPEATS, source.LANES, source.WIDTH)
            inside = exist(index, source.call.n, source.WIDTH)
        terms = _terms(r[part], inside, at, KIND, COMPUTE)
        if part == 0:
            total = terms
        else:
            total = _joined(total, terms, KIND)
    return total


@triton.jit
def _over_read(source, first, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """The same of parts that are read again."""
    total = _terms(read_part(source, first, 0, COMPUTE), None, at, KIND, COMPUTE)
    for part in range(1, source.PARTS):
        r = read_part(source, first, part, COMPUTE)
        total = _joined(total, _terms(r, None, at, KIND, COMPUTE), KIND)
    return total


@triton.jit
def _over_parts(source, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """A pass over what a program holds: one number per row and thread."""
    if _is_common(KIND) or not source.AGAIN:
        terms = _over_held(source, source.r, source.first, at, KIND, COMPUTE)
    else:
        terms = _over_read(source, source.first, at, KIND, COMPUTE)
    return _of_threads(terms, KIND)


@triton.jit
def wide(found):
    """The same numbers in float64."""
    wide = ()
    for field in tl.static_range(len(found)):
        wide = wide + (found[field].to(tl.float64),)
    return wide


@triton.jit
def parts_of(source, chunk):
    """How many parts of a chunk there are: of all its scores, or of those in its lists."""
    PART: tl.constexpr = source.REPEATS * source.LANES * source.WIDTH
    if source.band is None:
        first = (tl.zeros((), tl.int64) + chunk) * source.length
        left = tl.minimum(source.call.n - first, source.length)
        return ((left + (PART - 1)) // PART).to(tl.int32)
    else:
        if source.team is None:
            return source.band.parts
        else:
            return tl.load(source.band.parts + chunk).to(tl.int32)


@triton.jit
def _over_chunk(source, chunk, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """A pass over a chunk that is read, added up in float64."""
    ROWS: tl.constexpr = at[0].shape[0]
    total = ()
    for field in tl.static_range(_fields(KIND)):
        nothing = tl.full((ROWS, source.LANES), _nothing(KIND, field), tl.float64)
        total = total + (nothing,)  # type: ignore[assignment]
    first = (tl.zeros((), tl.int64) + chunk) * source.length
    BLOCK: tl.constexpr = source.PARTS * source.REPEATS * source.LANES * source.WIDTH
    for block in range((parts_of(source, chunk) + (source.PARTS - 1)) // source.PARTS):
        r = read_parts(source, first + block * BLOCK, COMPUTE)
        terms = _over_held(source, r, 0, at, KIND, COMPUTE)
        total = _joined(total, wide(_of_threads(terms, KIND)), KIND)
    return _reduced(total, 1, KIND)


@triton.jit
def _over_my_chunks(source, at, crossings, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """Every chunk of this member leaves what a pass finds in it."""
    team = source.team
    if source.r is not None:
        mine = _over_parts(source, at, KIND, COMPUTE)
        leave(_reduced(wide(mine), 1, KIND), team, team.member, crossings, source.CHUNK_LANES)
    else:
        for chunk in range(team.member, team.chunks, team.size):
            found = _over_chunk(source, chunk, at, KIND, COMPUTE)
            leave(found, team, chunk, crossings, source.CHUNK_LANES)


@triton.jit
def of_chunks(collected, team, LANES: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr):
    """What chunks left of a KIND as one, shape [ROWS]."""
    found = ()
    for row in tl.static_range(ROWS):
        every = ()
        for field in tl.static_range(_fields(KIND)):
            nothing = _nothing(KIND, field)
            every = every + (field_of(collected, field * ROWS + row, nothing, team, LANES),)  # type: ignore[assignment]
        one = _reduced(every, 0, KIND)
        if row == 0:
            for field in tl.static_range(_fields(KIND)):
                found = found + (one[field] + tl.zeros((ROWS,), tl.float64),)  # type: ignore
        else:
            both = ()
            for field in tl.static_range(_fields(KIND)):
                is_row = tl.arange(0, ROWS) == row
                both = both + (tl.where(is_row, one[field], found[field]),)  # type: ignore[assignment]
            found = both
    return found


@triton.jit
def over_rows(source, at, crossings, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """One pass of a KIND over all scores of each row, and how often its team has met by now."""
    team = source.team
    if team is None:
        if source.r is None:
            found = _over_chunk(source, 0, at, KIND, COMPUTE)
        else:
            found = _reduced(_over_parts(source, at, KIND, COMPUTE), 1, KIND)
    else:
        _over_my_chunks(source, at, crossings, KIND, COMPUTE)
        ROWS: tl.constexpr = at[0].shape[0]
        collected = collect(team, crossings, _fields(KIND) * ROWS, source.CHUNK_LANES)
        found = of_chunks(collected, team, source.CHUNK_LANES, ROWS, KIND)
        crossings += 1
    if source.band is not None:
        found = with_beyond(found, source.band, at, KIND)
    return found, crossings


@triton.jit
def look_at(source, b, inverse, crossings, COMPUTE: tl.constexpr):
    """A :class:`Look` at b."""
    found, crossings = over_rows(source, (b, inverse), crossings, "glance", COMPUTE)
    above, below, higher = found
    return Look(above, below, higher), crossings


@triton.jit
def measure(source, b, inverse, crossings, COMPUTE: tl.constexpr):
    """:class:`Totals` at b.

    Scores that equal b are in no sum: S< may be 1e-8 beside their ones, which both together would
    round away.
    """
    found, crossings = over_rows(source, (b, inverse), crossings, "pass", COMPUTE)
    above, equal_count, sum_below, sum_above, below, higher = found
    totals = Totals(above, equal_count, sum_below, sum_above, below.to(COMPUTE), higher.to(COMPUTE))
    return totals, crossings

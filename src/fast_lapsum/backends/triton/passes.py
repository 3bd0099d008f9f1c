"""What one pass over a row's scores tells: counts, tail sums, extremes, for a trial threshold.

Every pass is of a KIND: see pass_kinds.py. What a program has of a row is in parts, which are added
score by score before any thread hears of another. Passes over registers are unrolled. In programs
of few warps those that few rows take read the scores again, in a loop: fetching their instructions
would take longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .band import with_beyond
from .pass_kinds import _fields, _is_common, _joined, _nothing, _of_threads, _reduced, _terms
from .team import collect, field_of, leave
from .views import exist, load_scores, part_indices


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

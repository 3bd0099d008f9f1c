"""Rows that several programs share: each leaves what it found, all add up the same.

A row is cut into chunks whose length depends on the call's shape alone. Partial results belong to
chunks and are added in the order of chunks, so the bits do not depend on how many programs there
are. All programs of a team must be on the device at once: the launch is a cooperative one.

Nobody counts who has come. A number is left as two words, each half of its bits beside the number
of the meeting, and is read until both are of this meeting: a word is written at once or not at all,
so no order between words is needed. A fast member is at most one meeting ahead of a slow one,
because it waits for what the slow one leaves; meetings take turns at two places.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Room for the numbers that a chunk leaves, a power of two.
FIELDS = tl.constexpr(8)
#: Words of a row, in lines of one for each chunk: two for a number, at two meeting places, which
#: are zero before the first meeting; then how long its lists are, how many ties lie before it, and
#: a line of what launches tell each other.
_MEETINGS = tl.constexpr(4 * 8)
_PARTS = tl.constexpr(32)
_EARLIER = tl.constexpr(33)
_NOTES = tl.constexpr(34)
LINES = tl.constexpr(35)
_HALF = tl.constexpr(0xFFFFFFFF)


class Team(NamedTuple):
    """One team as its member sees it."""

    words: Any
    member: Any
    size: Any
    chunks: Any


@triton.jit
def my_chunks(team):
    """First, end and step of the chunks that a member has; without a team there is one."""
    if team is None:
        return 0, 1, 1
    else:
        return team.member, team.chunks, team.size


@triton.jit
def words_of(words, row_number, LANES: tl.constexpr):
    """Where the words of a row begin."""
    return words + (tl.zeros((), tl.int64) + row_number) * (LANES * LINES)


@triton.jit
def clear(words, LANES: tl.constexpr):
    """Make a row's meeting places ready, in a launch before that of its team."""
    line = tl.arange(0, _MEETINGS)[:, None]
    place = words + line * LANES + tl.arange(0, LANES)[None, :]
    tl.store(place, tl.zeros((_MEETINGS, LANES), tl.int64))


@triton.jit
def write_note(words, i, number, LANES: tl.constexpr):
    """Tell a later launch a number, shape [1]."""
    place = words + (LANES * _NOTES + i) + tl.zeros((1,), tl.int32)
    tl.store(place, number.to(tl.float64).to(tl.int64, bitcast=True))


@triton.jit
def read_note(words, i, LANES: tl.constexpr):
    """A number that an earlier launch told, shape [1], float64."""
    place = words + (LANES * _NOTES + i) + tl.zeros((1,), tl.int32)
    return tl.load(place).to(tl.float64, bitcast=True)


@triton.jit
def parts_place(words, chunk, LANES: tl.constexpr):
    """Where it says how many parts a chunk's lists have."""
    return words + (LANES * _PARTS + chunk)


@triton.jit
def earlier_place(words, chunk, LANES: tl.constexpr):
    """Where it says how many scores that equal the boundary lie before a chunk."""
    return words + (LANES * _EARLIER + chunk)


@triton.jit
def leave(found, team, chunk, crossings, LANES: tl.constexpr):
    """Leave what a chunk gave: numbers of shape [ROWS]."""
    ROWS: tl.constexpr = found[0].shape[0]
    number = tl.arange(0, FIELDS // ROWS)[:, None]
    numbers = tl.zeros((FIELDS // ROWS, ROWS), tl.float64)
    for i in tl.static_range(len(found)):
        numbers = tl.where(number == i, found[i].to(tl.float64)[None, :], numbers)
    field = number * ROWS + tl.arange(0, ROWS)[None, :]
    place = team.words + (crossings % 2) * (2 * LANES * FIELDS) + field * (2 * LANES) + chunk
    is_left = field < len(found) * ROWS
    meeting = (crossings + 1).to(tl.int64)
    bits = numbers.to(tl.int64, bitcast=True)
    head = (bits & (-1 - _HALF)) | meeting
    tail = (bits << 32) | meeting
    tl.atomic_xchg(place, head, mask=is_left, sem="relaxed", scope="gpu")
    tl.atomic_xchg(place + LANES, tail, mask=is_left, sem="relaxed", scope="gpu")


@triton.jit
def collect(team, crossings, COUNT: tl.constexpr, LANES: tl.constexpr):
    """The first COUNT numbers of all chunks, [FIELDS, LANES], when every member has left them."""
    meeting = (crossings + 1).to(tl.int64)
    lane = tl.arange(0, LANES)[None, :]
    field = tl.arange(0, FIELDS)[:, None]
    place = team.words + (crossings % 2) * (2 * LANES * FIELDS) + field * (2 * LANES) + lane
    is_left = (lane < team.chunks) & (field < COUNT)
    head = tl.zeros((FIELDS, LANES), tl.int64)
    tail = head
    while _is_missing(head, tail, meeting):
        head = tl.load(place, mask=is_left, other=meeting, volatile=True)
        tail = tl.load(place + LANES, mask=is_left, other=meeting, volatile=True)
    bits = (head & (-1 - _HALF)) | ((tail >> 32) & _HALF)
    return tl.where(is_left, bits.to(tl.float64, bitcast=True), 0.0)


@triton.jit
def _is_missing(head, tail, meeting):
    """Whether any word is of an earlier meeting."""
    other = ((head ^ meeting) | (tail ^ meeting)) & _HALF
    return tl.max(tl.max((other != 0).to(tl.int32), 1), 0) > 0


@triton.jit
def _field(totals, i, ROWS: tl.constexpr):
    """Numbers of shape [ROWS] out of those of all fields, [FIELDS]."""
    table = tl.reshape(totals, (FIELDS // ROWS, ROWS))
    return tl.sum(tl.where(tl.arange(0, FIELDS // ROWS)[:, None] == i, table, 0.0), 0)


@triton.jit
def fields_of(
    collected,
    team,
    COUNT: tl.constexpr,
    LEAST: tl.constexpr,
    GREATEST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The fields of all chunks as one number each, [ROWS]: sums, but for two that are the ends."""
    is_chunk = tl.arange(0, collected.shape[1])[None, :] < team.chunks
    sums = tl.sum(collected, 1)
    if LEAST >= 0:
        least = tl.min(tl.where(is_chunk, collected, float("inf")), 1)
        greatest = tl.max(tl.where(is_chunk, collected, float("-inf")), 1)
    found = ()
    for i in tl.static_range(COUNT):
        if i == LEAST:
            found = found + (_field(least, i, ROWS),)  # type: ignore[assignment]
        elif i == GREATEST:
            found = found + (_field(greatest, i, ROWS),)  # type: ignore[assignment]
        else:
            found = found + (_field(sums, i, ROWS),)  # type: ignore[assignment]
    return found

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

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import config

FIELDS = tl.constexpr(config.FIELDS)
#: Words of a row, in lines of one for each chunk: two for a number, at two meeting places, which
#: are zero before the first meeting; then how long its lists are, how many of its scores are at the
#: point that lists leave out, and a line of what launches tell each other.
_MEETINGS = tl.constexpr(4 * config.FIELDS)
_PARTS = tl.constexpr(4 * config.FIELDS)
_AT_POINT = tl.constexpr(4 * config.FIELDS + 1)
_NOTES = tl.constexpr(4 * config.FIELDS + 2)
LINES = tl.constexpr(4 * config.FIELDS + 3)
_HALF = tl.constexpr(0xFFFFFFFF)


class Team(NamedTuple):
    """One team as its member sees it. How often it has met so far is told apart: `crossings`."""

    words: Any
    member: Any
    size: Any
    chunks: Any


@triton.jit
def begin_next(OVERLAP: tl.constexpr):
    """Let the next launch begin beside this one: up to where it waits for it."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def await_last(OVERLAP: tl.constexpr):
    """Wait for the launch before this one, to read what it left."""
    if OVERLAP:
        gdc_wait()


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


def notes_of(words: Tensor, row_count: int) -> Tensor:
    """All notes of a call's rows, [row_count, LANES], float64."""
    lines = words.view(row_count, LINES.value, -1)
    return lines[:, _NOTES.value].contiguous().view(torch.float64)


@triton.jit
def parts_place(words, chunk, LANES: tl.constexpr):
    """Where it says how many parts a chunk's lists have."""
    return words + (LANES * _PARTS + chunk)


@triton.jit
def point_place(words, chunk, LANES: tl.constexpr):
    """Where it says how many scores of a chunk are at the point that lists leave out."""
    return words + (LANES * _AT_POINT + chunk)


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
    """The first COUNT fields of all chunks, [FIELDS * LANES], when every member has left them."""
    meeting = (crossings + 1).to(tl.int64)
    index = tl.arange(0, LANES * FIELDS)
    place = team.words + (crossings % 2) * (2 * LANES * FIELDS) + index + index // LANES * LANES
    is_left = _are_left(team, COUNT, LANES)
    head = tl.zeros((LANES * FIELDS,), tl.int64)
    tail = head
    while tl.max((((head ^ meeting) | (tail ^ meeting)) & _HALF != 0).to(tl.int32), 0) > 0:
        head = tl.load(place, mask=is_left, other=meeting, volatile=True)
        tail = tl.load(place + LANES, mask=is_left, other=meeting, volatile=True)
    bits = (head & (-1 - _HALF)) | ((tail >> 32) & _HALF)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _are_left(team, COUNT: tl.constexpr, LANES: tl.constexpr):
    """Which of the numbers of a meeting there are."""
    index = tl.arange(0, LANES * FIELDS)
    return (index % LANES < team.chunks) & (index < LANES * COUNT)


@triton.jit
def field_of(collected, i, nothing, team, LANES: tl.constexpr):
    """One field of what was collected, and ``nothing`` elsewhere, to be added up with others."""
    is_field = (tl.arange(0, LANES * FIELDS) // LANES == i) & _are_left(team, FIELDS, LANES)
    return tl.where(is_field, collected, nothing)

"""Rows that several programs share: each leaves what it found, all wait, all add up the same.

A row is cut into chunks whose length depends on the call's shape alone. Partial results belong to
chunks and are added in the order of chunks, so the bits do not depend on how many programs there
are. All programs of a team must be on the device at once: the launch is a cooperative one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Room for the float64 numbers that a chunk leaves: six of a pass at four trials.
FIELDS = tl.constexpr(32)
#: Counters of teams are as far apart as lines of the cache.
COUNTER_STRIDE = tl.constexpr(32)


class Team(NamedTuple):
    """One team as its member sees it."""

    partials: Any  # [2, LANES, FIELDS]: a slow member reads one half while a fast one writes
    counter: Any
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
def leave(found, team, chunk, crossings, LANES: tl.constexpr):
    """Store what a chunk gave: numbers of shape [ROWS], by one access to memory."""
    ROWS: tl.constexpr = found[0].shape[0]
    field = tl.arange(0, FIELDS)
    numbers = tl.zeros((FIELDS,), tl.float64)
    for i in tl.static_range(len(found)):
        for row in tl.static_range(ROWS):
            number = found[i].to(tl.float64)
            if ROWS > 1:
                number = tl.sum(tl.where(tl.arange(0, ROWS) == row, number, 0.0), 0)
            numbers = tl.where(field == i * ROWS + row, number, numbers)
    place = team.partials + ((crossings % 2) * LANES + chunk) * FIELDS + field
    tl.store(place, numbers, mask=field < len(found) * ROWS)


@triton.jit
def cross(team, crossings):
    """Wait until every member has come here so many times, and see what they left."""
    tl.debug_barrier()
    tl.atomic_add(team.counter, 1, sem="release", scope="gpu")
    goal = team.size * (crossings + 1)
    while tl.atomic_add(team.counter, 0, sem="acquire", scope="gpu") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def collect(team, crossings, COUNT: tl.constexpr, LANES: tl.constexpr):
    """The first COUNT fields of all chunks, [FIELDS, LANES].

    They are read past the first-level cache, which may be stale.
    """
    lane = tl.arange(0, LANES)[None, :]
    field = tl.arange(0, FIELDS)[:, None]
    place = team.partials + ((crossings % 2) * LANES + lane) * FIELDS + field
    is_left = (lane < team.chunks) & (field < COUNT)
    return tl.load(place, mask=is_left, other=0.0, cache_modifier=".cg")


@triton.jit
def field_of(collected, i, nothing, team, ROWS: tl.constexpr):
    """One field of what was collected, [ROWS, LANES]; ``nothing`` where there is no chunk."""
    LANES: tl.constexpr = collected.shape[1]
    lane = tl.arange(0, LANES)[None, :]
    field = tl.arange(0, FIELDS)[:, None]
    number = tl.arange(0, ROWS)[:, None]
    values = tl.zeros((ROWS, LANES), tl.float64)
    for row in tl.static_range(ROWS):
        one = tl.sum(tl.where(field == i * ROWS + row, collected, 0.0), 0)[None, :]
        values = tl.where(number == row, one, values)
    return tl.where(lane < team.chunks, values, nothing)

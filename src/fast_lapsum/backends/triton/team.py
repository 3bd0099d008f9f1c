"""Rows that several programs share: each leaves what it found, all wait, all add up the same.

A row is cut into chunks whose length depends on the call's shape alone. Partial results belong to
chunks and are added in the order of chunks, so the bits do not depend on how many programs there
are. All programs of a team must be on the device at once: the launch is a cooperative one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Float64 numbers that a chunk leaves at most.
FIELDS = tl.constexpr(10)
#: Counters of teams are as far apart as lines of the cache.
COUNTER_STRIDE = tl.constexpr(32)


class Team(NamedTuple):
    """One team as its member sees it."""

    partials: Any  # [2, FIELDS, LANES]: a slow member reads one half while a fast one writes
    counter: Any
    member: Any
    size: Any
    chunks: Any


@triton.jit
def leave(found, team, chunk, crossings, LANES: tl.constexpr):
    """Store what a chunk gave, one number of shape [1] per field."""
    half = team.partials + (crossings % 2) * (FIELDS * LANES)
    for field in tl.static_range(len(found)):
        place = half + field * LANES + chunk + tl.arange(0, 1)
        tl.store(place, found[field].to(tl.float64))


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
def collect(team, crossings, field, nothing, LANES: tl.constexpr):
    """One field of all chunks, [1, LANES]; past the first-level cache, which may be stale."""
    half = team.partials + (crossings % 2) * (FIELDS * LANES)
    lane = tl.arange(0, LANES)[None, :]
    place = half + field * LANES + lane
    return tl.load(place, mask=lane < team.chunks, other=nothing, cache_modifier=".cg")

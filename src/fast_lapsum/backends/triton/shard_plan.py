"""How a rank's part of rows that are spread over many is read; see shards.py.

A row is cut into tiles, and programs take turns at them. Sums belong to programs and are added in
their order, so the number of programs depends on the shape of a call alone.
"""

from __future__ import annotations

from typing import NamedTuple

from .config import power_of_two

#: Programs of a launch that reads, all rows together: two for each core of a large device.
PROGRAMS = 256
#: Parts of so many scores and fewer are read by small programs.
SHORT = 8192
#: A thread's list holds so many scores at least, and beyond that one in so many that it reads.
LEAST_DEPTH, LISTED = 8, 32
#: Scores of a random part of a row are sorted to say where its threshold is; so many at most.
LEAST_SAMPLE, MOST_SAMPLE = 1024, 16384
#: Bins of a band by which its quantiles are found: of about a hundred scores each in long rows.
LEAST_BINS, BINS = 64, 4096
#: From this measurement on, the third, the cuts of the bracket are measured: what ends a search
#: whatever the scores are, and costs a pass for each cut. Most rows are done before, and there are
#: as many measurements as any row needs if it begins here (Sizes.most_rounds).
FIRST_CUTS = 2


class ShardPlan(NamedTuple):
    """How rows of a shape are read."""

    chunks: int  # programs that take turns at the tiles of a row
    warps: int
    read: int  # scores of a thread that are read at a time
    depth: int  # scores of a band that a thread keeps
    bins: int = BINS
    first_cuts: int = FIRST_CUTS

    @property
    def lanes(self) -> int:
        return 32 * self.warps

    @property
    def block(self) -> int:
        return self.read * self.lanes


def shard_plan(n: int, row_count: int) -> ShardPlan:
    """For rows of which this rank has n scores each."""
    warps, read = (4, 8) if n <= SHORT else (16, 16)
    tiles = max(1, -(-n // (32 * warps * read)))
    chunks = max(1, min(tiles, PROGRAMS // row_count))
    of_thread = -(-tiles // chunks) * read
    depth = min(of_thread, max(LEAST_DEPTH, of_thread // LISTED + LEAST_DEPTH))
    bins = min(BINS, max(LEAST_BINS, power_of_two(n // 8)))
    return ShardPlan(chunks, warps, read, depth, bins)


def sample_size(n: int, size: int) -> int:
    """How many scores of a row are drawn where ``size`` quantiles are asked for."""
    return min(n, max(LEAST_SAMPLE, size, min(MOST_SAMPLE, int(n ** (2 / 3)))))


def vector(count: int) -> int:
    """Lanes for so many numbers."""
    return max(2, power_of_two(count))

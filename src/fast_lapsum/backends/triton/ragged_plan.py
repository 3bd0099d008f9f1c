"""Which classes of lengths rows may be of, and how those of each class are taken."""

from __future__ import annotations

from typing import NamedTuple

from .config import (
    BLOCKS,
    BLOCKS_BACKWARD,
    MANY_ROWS,
    TILES,
    TILES_BACKWARD,
    LongBackwardPlan,
    LongPlan,
    TilePlan,
    lanes_of,
    longest_block,
    longest_block_backward,
    power_of_two,
    tile_plan,
)

#: Rows of up to so many scores have a launch; those of one warp each, in scores, and longer ones
#: by the bytes that a program holds.
SHORT = (32, 256)
#: The longest row that one program takes, unless so many longer ones may be there that all programs
#: have enough of them.
LONGEST_ALONE, MOST_SLOTS = 262_144, 256
#: How rows are read that are too long to hold, where there may be many.
MANY_LONG = LongPlan(warps=8, sample=1024)


class SharedRows(NamedTuple):
    """Rows of more than ``highest`` scores, at most ``slots`` of them, which teams share."""

    highest: int
    slots: int
    least: int = 65536  # scores of a chunk, a multiple of what is read and written at a time
    most: int = 128  # chunks of a row
    warps: int = 16
    read: int = 8
    listed: int = 4
    written: int = 4

    @property
    def lanes(self) -> int:
        return 32 * self.warps

    @property
    def chunk_lanes(self) -> int:
        """Room for what is told of each chunk."""
        return lanes_of(self.most, self.warps)

    def step(self, at_once: int) -> int:
        """Chunks are multiples of what is read or written of them at once."""
        assert self.least % (self.lanes * at_once) == 0
        return self.lanes * at_once


class RaggedPlan(NamedTuple):
    """Rows of up to ``held[i].block`` scores are held; longer ones, if there may be any, read."""

    held: tuple[TilePlan, ...]
    long: LongPlan | LongBackwardPlan | None
    shared: SharedRows | None = None


def forward_plan(longest: int, total: int, row_count: int, itemsize: int) -> RaggedPlan:
    """``longest`` scores are the most that a row may have, and ``total`` those of all rows."""
    most = longest_block(itemsize)
    sizes = [*SHORT, *(held // itemsize for held, _, _ in BLOCKS)]
    held = tuple(tile_plan(n, 1, itemsize, TILES, BLOCKS) for n in _needed(sizes, longest, most))
    # There may be so many longer rows. Few of them may be there all the same, so that programs are
    # larger than those of rows that all are long.
    number = min(row_count, total // most)
    long = MANY_LONG if number >= 4 * MANY_ROWS else LongPlan()
    return RaggedPlan(held, long if longest > most else None, _shared(longest, total, row_count))


def backward_plan(longest: int, total: int, row_count: int, itemsize: int) -> RaggedPlan:
    """The same for gradients."""
    most = longest_block_backward(itemsize)
    sizes = [*SHORT, *(held // itemsize for held, _, _ in BLOCKS_BACKWARD)]
    given = (1, itemsize, TILES_BACKWARD, BLOCKS_BACKWARD)
    held = tuple(tile_plan(n, *given) for n in _needed(sizes, longest, most))
    few = min(row_count, total // most) < MANY_ROWS
    long = LongBackwardPlan(warps=16 if few else 8)
    is_long = longest > most
    return RaggedPlan(held, long if is_long else None, _shared(longest, total, row_count))


def _shared(longest: int, total: int, row_count: int) -> SharedRows | None:
    """Which rows are shared, if there may be any.

    Kernels are compiled for both numbers. So they are powers of two, or ever new totals, as of
    tokens in a batch, would be ever new kernels.
    """
    highest = max(LONGEST_ALONE, power_of_two(-(-total // MOST_SLOTS)))
    slots = min(row_count, total // highest)
    return SharedRows(highest, power_of_two(slots)) if longest > highest and slots else None


def _needed(sizes: list[int], longest: int, most: int) -> list[int]:
    """Those of the classes that a row may be of; the first is always one, for empty rows."""
    sizes = sorted({size for size in sizes if size <= most})
    return [size for i, size in enumerate(sizes) if i == 0 or longest > sizes[i - 1]]

"""Which kernel takes rows of one length, and how it is launched: a table of sizes.

A plan depends on the shape of a call, because the bits of a result depend on the plan. The number
of teams at work at a time is the device's, and bits do not depend on it. One thing does: whether
there is room for a team that holds its row, which smaller devices do not have.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The longest row that one program holds, in bytes of what is computed in.
LONGEST_BLOCK_BYTES = 4 * 32768
#: Tiles of short rows, one warp each: rows of up to so many scores, and scores of a thread.
TILES = ((8, 8), (32, 16), (64, 16), (128, 32), (256, 32))
#: Warps for one row of up to so many bytes of what is computed in, and registers of a thread: 64
#: float32 scores each, with as many registers for all else, leave room for two rows at a time.
BLOCKS = ((4096, 1, None), (16384, 2, 128), (32768, 4, 128), (65536, 8, 128), (131072, 16, 128))
#: The same for backward, which holds two numbers per score.
TILES_BACKWARD = ((8, 8), (32, 8), (64, 16), (256, 16))
BLOCKS_BACKWARD = ((2048, 2, None), (4096, 4, None), (16384, 8, None), (65536, 16, None))
#: A team's programs, all rows together, are about so many: what a large device has room for.
PROGRAMS = 128
LEAST_CHUNK = 1024
#: Where a block begins in its chunk is a number of 32 bits.
LONGEST_CHUNK = 1 << 30
#: Rows that no team holds are read in every pass if they have so many bytes in all: what the cache
#: of a large device keeps. Longer ones are read twice.
CACHED_BYTES = 48 << 20
#: From so many rows on each of them is one program's, where they are too long to hold.
MANY_ROWS = 96
#: Scores of a sample that gives a band, of one that gives a guess, and those that lie together.
SAMPLE = 2048
GUESS_SAMPLE = 2048
RUN = 4
#: A few rows of fewer scores than that have such samples.
SHARED_SAMPLES = ((30_000_000, 8192), (math.inf, 16384))
#: Numbers that are told of each chunk, a power of two.
FIELDS = 8
#: Numbers that a launch may tell a later one of each row.
NOTES = 8
#: Scores of a part that a thread holds: what is added up side by side; more of them compile faster.
PART, PART_OF_BLOCK = 4, 8


class TilePlan(NamedTuple):
    """Rows that one program holds; how a tile of several is laid out over the threads of a warp."""

    rows: int
    parts: int
    repeats: int
    lanes: int
    width: int
    warps: int
    registers: int | None = None  # of a thread at most

    @property
    def block(self) -> int:
        return self.parts * self.repeats * self.lanes * self.width

    @property
    def may_fuse(self) -> bool:
        """Whether products and sums may be fused.

        The threads of one warp agree about a sum because they add the same numbers. If each holds
        one score, the first numbers they add may be products, their own and another thread's, and a
        fused multiply-add would not round their own: the last digit of the sum would differ from
        thread to thread, and so would the way each takes through the solver. With two scores or
        more a thread's own sum comes first. How a tile is laid out depends on the strides.
        """
        return self.rows == 1 and self.block > 32 * self.warps


class LongBackwardPlan(NamedTuple):
    """Two launches over long rows: the sums, and the gradient."""

    block: int = 2048
    warps: int = 8
    width: int = 1
    #: Programs of each launch, all rows together: a few for every core of a large device.
    sum_programs: int = 512
    write_programs: int = 1024

    @property
    def lanes(self) -> int:
        return min(32 * self.warps, self.block // self.width)

    @property
    def repeats(self) -> int:
        return self.block // (self.lanes * self.width)


class TeamPlan(NamedTuple):
    """Rows whose chunks several programs hold, one each; or read in every pass, where long."""

    block: int  # scores that are held, or read at a time
    chunks: int
    warps: int
    width: int = 1
    sample: int = GUESS_SAMPLE
    sample_warps: int = 8
    run: int = RUN
    registers: int | None = None
    length: int = 0  # of a chunk that is not held, a multiple of the block

    @property
    def lanes(self) -> int:
        return min(32 * self.warps, self.block // self.width)

    @property
    def repeats(self) -> int:
        return min(max(PART // self.width, 1), self.block // (self.lanes * self.width))

    @property
    def parts(self) -> int:
        return self.block // (self.repeats * self.lanes * self.width)


class LongPlan(NamedTuple):
    """Rows that are read twice, by one program each."""

    warps: int = 16
    width: int = 1
    sample: int = SAMPLE
    read: int = 8  # scores of a thread that are read at a time
    listed: int = 4  # and from the lists
    written: int = 4  # accesses to memory that write at a time
    registers: int | None = 64

    @property
    def lanes(self) -> int:
        return 32 * self.warps


class SharedPlan(NamedTuple):
    """Rows that are read twice, in chunks by several programs."""

    chunks: int
    length: int  # of a chunk, a multiple of what is read and written at a time
    width: int = 1
    sample: int = 8192
    sample_warps: int = 16
    run: int = RUN
    warps: int = 16
    gather_warps: int = 32
    read: int = 16
    read_again: int = 4  # the same where a band was missed, which is rare
    listed: int = 8  # scores of a thread that are read from the lists at a time
    written: int = 4
    piece: int = 32768  # scores that a program writes

    @property
    def lanes(self) -> int:
        return 32 * self.warps


def lanes_of(chunks: int, warps: int) -> int:
    """Room for what is told of each chunk.

    Every thread reads words of its own, so that all of them hear the same: were a word read by
    two, one might find it there a moment before the other. A line has room for NOTES, too.
    """
    return max(power_of_two(chunks), 32 * warps // FIELDS, NOTES)


def power_of_two(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(count - 1, 0).bit_length()


def longest_block(itemsize: int) -> int:
    """The longest row of one program, for numbers of so many bytes."""
    return LONGEST_BLOCK_BYTES // itemsize


def longest_block_backward(itemsize: int) -> int:
    """The longest row whose gradient one program takes, for numbers of so many bytes."""
    return LONGEST_BLOCK_BYTES // 2 // itemsize


def tile_plan(
    n: int,
    width: int,
    itemsize: int = 4,
    tiles: tuple[tuple[int, int], ...] = TILES,
    blocks: tuple[tuple[int, int, int | None], ...] = BLOCKS,
) -> TilePlan:
    """How rows of n scores are held by one program; ``width`` of them are one access to memory."""
    block = max(power_of_two(n), 8)
    for longest, per_thread in tiles:
        if block <= longest:
            lanes = block // per_thread
            return _tile(32 // lanes, per_thread, lanes, width, 1, PART)
    held = block * itemsize
    warps, registers = next((w, most) for longest, w, most in blocks if held <= longest)
    plan = _tile(1, block // (32 * warps), 32 * warps, width, warps, PART_OF_BLOCK)
    return plan._replace(registers=registers)


def _tile(rows: int, per_thread: int, lanes: int, width: int, warps: int, part: int) -> TilePlan:
    width = min(width, per_thread)
    held = min(max(part, width), per_thread)
    return TilePlan(rows, per_thread // held, held // width, lanes, width, warps)


def team_plan(n: int, row_count: int, itemsize: int, width: int) -> TeamPlan | None:
    """How rows of n scores are held by several programs each, where a device has room for them."""
    longest = longest_block(itemsize)
    block = min(max(power_of_two(-(-n * row_count // PROGRAMS)), LEAST_CHUNK), longest)
    chunks = -(-n // block)
    if chunks * row_count > PROGRAMS:
        return None
    # Up to eight warps may have all the registers they want: scores and what a meeting brings.
    held = block * itemsize
    warps = 16 if held > LONGEST_BLOCK_BYTES // 2 else max(4, min(8, held // 4096))
    return TeamPlan(block, chunks, warps, width, registers=128 if warps > 8 else None)


def reading_plan(n: int, row_count: int, itemsize: int, width: int) -> TeamPlan:
    """How rows are read by several programs each in every pass."""
    warps = 32
    block = 32 * warps * 64 // itemsize
    chunks = max(1, PROGRAMS // row_count, -(-n // LONGEST_CHUNK))
    length = -(-n // (chunks * block)) * block
    return TeamPlan(block, -(-n // length), warps, width, registers=64, length=length)


def long_plan(n: int, row_count: int, width: int) -> LongPlan:
    """How longer rows are read: by many small programs, or by fewer large ones of few rows."""
    plan = LongPlan(width=width)
    if row_count >= 4 * MANY_ROWS and n < 500_000:
        plan = plan._replace(warps=8, read=16) if width > 4 else plan._replace(warps=4)
        return plan._replace(sample=1024)
    return plan


def shared_plan(n: int, row_count: int, width: int) -> SharedPlan:
    """How a few of them are read, whose chunks are all read at once."""
    plan = SharedPlan(1, n, width)
    # The longer a row, the more scores lie in a band, which a larger sample makes narrower.
    sample = next(size for longest, size in SHARED_SAMPLES if n < longest)
    step = max(32 * plan.gather_warps * plan.read, plan.lanes * plan.written * width)
    length = -(-n // max(1, PROGRAMS // row_count))
    length = -(-length // step) * step
    return plan._replace(chunks=-(-n // length), length=length, sample=sample)

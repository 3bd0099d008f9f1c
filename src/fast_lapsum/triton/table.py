"""The one table of sizes and launch parameters, as measured on an H200."""

from __future__ import annotations

from typing import NamedTuple


class Streaming(NamedTuple):
    """Launch parameters of long rows."""

    tile: int = 2048  # scores that a program of a round reads at a time
    warps: int = 8
    programs_per_core: int = 3  # of the first round, over all rows
    registers: int = 80  # of a round's thread: the decisions at its end must not thin out the loop
    later_programs_per_core: int = 3  # of the other rounds, which look for more
    later_registers: int = 80
    mask_tile: int = 4096  # scores per program of the mask's launch
    mask_warps: int = 8
    sums_tile: int = 2048  # of the backward's first launch
    sums_programs_per_core: int = 4
    sums_registers: int = 64  # so many programs at once
    write_tile: int = 2048  # of the backward's second launch
    write_programs_per_core: int = 8
    singles: int = 1024  # scores of the small sample
    sample_warps: int = 4
    sample_chunks: int = 128  # chunks of the large sample that a program reads at a time
    sample_programs: int = 128
    sample_part: int = 4  # the large sample is one score in so many, between two limits
    sample_least: int = 4096
    sample_most: int = 1 << 18
    capacity: int = 1 << 16  # of a band
    planned: int = 8192  # of a band that the sample sees both ends of
    held: int = 4096  # scores of a band that are kept in registers
    settle_tile: int = 4096
    settle_warps: int = 16
    rounds: int = 4


def streaming(n: int) -> Streaming:
    """The parameters for rows of n scores."""
    if n < 1 << 18:
        return Streaming(
            capacity=8192, planned=2048, held=2048, settle_tile=1024, settle_warps=4, rounds=2
        )
    if n < 1 << 21:
        return Streaming(
            sample_programs=256,
            sample_part=2,
            sample_most=1 << 19,
            capacity=1 << 14,
            planned=4096,
            rounds=2,
        )
    if n < 1 << 25:
        return Streaming()
    return Streaming(
        sample_programs=512,
        sample_part=128,
        sample_most=1 << 22,
        programs_per_core=4,
        registers=64,
        rounds=4,
    )


#: All bands together take no more than this.
BAND_BYTES = 8 << 20
#: So many long rows are solved in one go: their scratch stays small.
ROWS_AT_ONCE = 16384

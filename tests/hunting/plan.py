"""Which batches a run of the hunt is made of: every kind, dtype, and length of interest."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .rows import CALLS, KINDS, Spec

#: The longest row that one program of a GPU holds.
ON_CHIP = 16384
#: Row lengths around every boundary of the launch table, with what share of the rows they get.
SHORT = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64)
MIDDLE = (65, 100, 127, 128, 129, 197, 255, 256, 257, 500, 511, 512, 513, 768, 1000, 1023)
LARGE = (1024, 1025, 1536, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 5000)
LARGEST = (8191, 8192, 8193, 12000, 16383, 16384)
CLASSES = ((SHORT, 0.32), (MIDDLE, 0.32), (LARGE, 0.33), (LARGEST, 0.03))
#: Longer rows.
LONG = (16385, 20_000, 32_768, 40_000)
LONGER = (65_536, 65_537, 100_000)
LONGEST = (
    *(131_072, (1 << 18) - 1, (1 << 18) + 1, 1_000_000),
    *((1 << 21) + 1, 3_000_000, (1 << 25) + 1),
)
LONG_CLASSES = ((LONG, 0.85), (LONGER, 0.1498), (LONGEST, 0.0002))
#: What compiling a group's kernels costs, in scores; of no account on a CPU.
COMPILATION = 1_000_000_000


class Size(NamedTuple):
    """How large a run is, and how much of it a batch may be."""

    rows: int
    long_rows: int
    scores_at_once: int
    dtypes: tuple[str, ...]
    calls: tuple[str, ...] = CALLS


def specs(seed: int, size: Size) -> list[Spec]:
    """All batches of a run. The same settings give the same batches."""
    found = _specs(seed, 0, size.rows, CLASSES, size)
    return found + _specs(seed, len(found), size.long_rows, LONG_CLASSES, size)


def _specs(
    seed: int,
    first: int,
    rows: int,
    classes: tuple[tuple[tuple[int, ...], float], ...],
    size: Size,
) -> list[Spec]:
    kinds = list(KINDS)
    found: list[Spec] = []
    for lengths, share in classes:
        # Every length and dtype gets the same number of rows, in whole batches of one kind each.
        wanted = max(1, round(rows * share / (len(lengths) * len(size.dtypes)))) if rows else 0
        for n in lengths:
            if n > 4 * size.scores_at_once:
                continue  # a GPU's boundaries: a CPU would be long at it
            for dtype in size.dtypes:
                left = wanted
                while left > 0:
                    most = max(1, min(size.scores_at_once // n, -(-wanted // len(kinds))))
                    count = min(left, most)
                    number = first + len(found)
                    # Kinds and calls go round at different speeds; the seed begins elsewhere.
                    kind = kinds[(number + 7 * seed) % len(kinds)]
                    call = size.calls[(number // len(kinds) + number + seed) % len(size.calls)]
                    found.append(Spec(seed, number, kind, call, dtype, n, count))
                    left -= count
    return found


def share_of(all_specs: list[Spec], worker: int, workers: int) -> list[Spec]:
    """What one of several workers does: batches that share kernels, so that no two compile one."""
    costs: Counter[tuple[str, int]] = Counter()
    for spec in all_specs:
        costs[_kernels(spec)] += spec.rows * spec.n * (2 if spec.dtype == "float64" else 1)
    loads = [0] * workers
    mine = set()
    for kernels, cost in sorted(costs.items(), key=lambda item: (-item[1], item[0])):
        least = loads.index(min(loads))
        loads[least] += cost + COMPILATION
        if least == worker:
            mine.add(kernels)
    return [spec for spec in all_specs if _kernels(spec) in mine]


def _kernels(spec: Spec) -> tuple[str, int]:
    """Dtype, and the next power of two of the length: what kernels are compiled for."""
    return spec.dtype, (spec.n - 1).bit_length()

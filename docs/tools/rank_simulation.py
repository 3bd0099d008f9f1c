"""Plays a call on rows that are spread over ranks in one process, and counts what they say.

    python docs/tools/rank_simulation.py

writes docs/tools/rank_simulation.json, of which `make costs` makes the tables of
docs/distributed.md. Every rank measures its own scores; the search on what all have said, which is
the same on each, runs once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fast_lapsum._sharded_header import header
from fast_lapsum._sharded_ops import answers_of
from fast_lapsum._sharded_rounds import pack, search
from fast_lapsum.backends.shards import (
    COLUMNS,
    GRADIENT_COLUMNS,
    HEADER,
    Measured,
    Rows,
    Sample,
    Sizes,
)
from fast_lapsum.backends.torch import shard_entry

RESULTS = Path(__file__).with_suffix(".json")
RANKS = (8, 64, 512, 4096)
#: Rows, and how many scores of each a rank has; float32.
SHAPES = ((1, 20_000), (64, 2_048))
#: More would take hours: the ranks of many rows.
MOST_RANKS = {1: 4096, 64: 64}
TEMPERATURE = 0.1
#: The share of the scores that is selected.
SHARE = 1 / 16


class AllRanks:
    """The parts of all ranks, measured one after the other, in the place of one rank's part."""

    def __init__(self, parts: list[Any], k: Tensor, temperature: Tensor, rows: Rows) -> None:
        self.parts = parts
        self.call = k, temperature, rows
        self.said: list[Tensor] = []

    def sample(self, size: int) -> Sample:
        """That of the first rank; what all say is kept."""
        found = [part.sample(size) for part in self.parts]
        self.said = [pack(header(one, *self.call), one.nodes) for one in found]
        return found[0]  # type: ignore[no-any-return]

    def measure(self, *given: Any) -> Measured:
        """The same for a measurement."""
        found = [part.measure(*given) for part in self.parts]
        self.said = [pack(one.columns, one.nodes) for one in found]
        return found[0]  # type: ignore[no-any-return]


def message_bytes(rows: int, ranks: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """What a rank says: first, in each round after that, and backward."""
    sizes = Sizes.of(rows, ranks)
    wide = torch.float64.itemsize
    first = HEADER * wide + rows * sizes.sample * dtype.itemsize
    columns = COLUMNS + 2 * sizes.pivots
    each = rows * (columns * wide + sizes.nodes * dtype.itemsize)
    return first, each, rows * GRADIENT_COLUMNS * wide


def simulate(rows: int, ranks: int, scores: int) -> dict[str, Any]:
    """One call: how many collectives it takes, their bytes, and how far the mass is off."""
    dtype = torch.float32
    generator = torch.Generator().manual_seed(ranks)
    parts = [torch.randn(rows, scores, generator=generator) for _ in range(ranks)]
    k = torch.full((rows,), SHARE * scores * ranks, dtype=torch.float64)
    t = torch.full((rows,), TEMPERATURE, dtype=torch.float64)
    known = Rows(rows, dtype, ranks, looks=True)
    shards = AllRanks([shard_entry.Shard(part, t, None, True) for part in parts], k, t, known)
    searching = search(shards, k, t, known)
    message, collectives, count = next(searching), 0, 0
    while True:
        collectives, count = collectives + 1, count + message.numel()
        assert torch.equal(message, shards.said[0])
        try:
            message = searching.send(torch.stack(shards.said))
        except StopIteration as stop:
            solved = stop.value
            break
    answers = answers_of([solved], k, rank=0, is_hard=False)
    written = (t, None, answers, True, "mask", dtype)
    mass = sum(shard_entry.write(part, *written).double().sum(-1) for part in parts)
    first, each, backward = message_bytes(rows, ranks, dtype)
    most_rounds = Sizes.of(rows, ranks).most_rounds(dtype)
    assert count == first + (collectives - 1) * each
    return {
        "rows": rows,
        "ranks": ranks,
        "scores_per_rank": scores,
        "collectives": collectives,
        "bytes": count,
        "most_collectives": 1 + most_rounds,
        "most_bytes": first + most_rounds * each,
        "backward_bytes": backward,
        "relative_error_of_mass": float(((mass - k) / k).abs().max()),
    }


def main() -> None:
    """All shapes on all numbers of ranks."""
    torch.set_num_threads(1)  # parts are short
    cases = []
    for rows, scores in SHAPES:
        for ranks in RANKS:
            if ranks <= MOST_RANKS[rows]:
                begin = time.monotonic()
                cases.append(simulate(rows, ranks, scores))
                print(cases[-1], f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
    found = {
        "temperature": TEMPERATURE,
        "share": SHARE,
        "dtype": "float32",
        "torch": torch.__version__,
        "cases": cases,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

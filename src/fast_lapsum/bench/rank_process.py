"""One of several processes that time a call on rows spread over them, beside one process alone.

The first rank also makes the call on whole rows, with all threads, while the others wait. Both take
turns, so that what else the machine does hits them equally.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..functional import soft_topk
from .parity import ParityError

TEMPERATURE = 0.1
#: What is timed.
ALONE, SPREAD = "one process", "ranks"
BOTH = " + backward"


class RankCase(NamedTuple):
    """So many ranks, rows, and scores of each row on each rank; k is a sixteenth of a row."""

    ranks: int
    rows: int
    scores: int

    @property
    def name(self) -> str:
        """In words.

        >>> RankCase(4, 1, 5_000_000).name, RankCase(2, 64, 4096).name
        ('4 ranks, 5,000,000 scores each', '2 ranks, 64 rows of 4,096 scores each')
        """
        rows = f"{self.rows} rows of " if self.rows > 1 else ""
        return f"{self.ranks} ranks, {rows}{self.scores:,} scores each"

    @property
    def k(self) -> float:
        """The budget of a row."""
        return self.ranks * self.scores / 16

    def part(self, rank: int) -> Tensor:
        """The scores of a rank."""
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(self.rows, self.scores, generator=generator)


class Spent(NamedTuple):
    """Seconds of a call: by the clock, and of this process's work."""

    wall: float
    cpu: float


def work(rank: int, case: RankCase, folder: str, threads: int, repeats: int) -> None:
    """Time the call of this rank; what it took is in a file of the folder, one for each rank."""
    dist.init_process_group(
        *("gloo", f"file://{folder}/meeting"),
        timeout=timedelta(seconds=300),
        rank=rank,
        world_size=case.ranks,
    )
    group, own_threads = dist.group.WORLD, max(1, threads // case.ranks)
    torch.set_num_threads(own_threads)
    part, whole = case.part(rank), None
    if rank == 0:
        whole = torch.cat([case.part(each) for each in range(case.ranks)], -1)

    def spread() -> Tensor:
        return soft_topk(part, case.k, TEMPERATURE, group=group)

    def alone() -> Tensor:
        assert whole is not None
        return soft_topk(whole, case.k, TEMPERATURE)

    check(spread(), None if whole is None else alone())
    taken: dict[str, list[Spent]] = {}
    for suffix, with_backward in (("", False), (BOTH, True)):
        part.requires_grad_(with_backward)
        own, others = taken.setdefault(SPREAD + suffix, []), taken.setdefault(ALONE + suffix, [])
        for turn in range(repeats + 1):
            dist.barrier()
            if whole is not None:
                whole.requires_grad_(with_backward)
                torch.set_num_threads(threads)
                others.append(_spent(alone, whole))
                torch.set_num_threads(own_threads)
            dist.barrier()
            own.append(_spent(spread, part))
            if turn == 0:  # the first call pays for lazy set-up
                own.clear()
                others.clear()
    Path(folder, f"{rank}.json").write_text(json.dumps(taken))
    dist.destroy_process_group()


def check(mask: Tensor, whole: Tensor | None) -> None:
    """A rank's part of a mask beside the same part of the whole, which the first rank has."""
    if whole is None:
        return
    error = float((mask - whole[..., : mask.shape[-1]]).abs().max())
    if not error <= 1e-5:
        raise ParityError(f"the mask of a rank is off by {error:.3g}")


def _spent(call: Callable[[], Tensor], leaf: Tensor) -> Spent:
    """What a call takes, with its gradient where the scores want one."""
    wall, cpu = time.perf_counter(), time.process_time()
    mask = call()
    if leaf.requires_grad:
        torch.autograd.grad(mask, leaf, leaf.detach())
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)

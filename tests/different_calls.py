"""Calls that differ between ranks; `test_sharded_differences.py` starts the processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from cases import normal
from fast_lapsum import soft_topk

#: The rank whose call is another one.
ODD = 1
#: Rows, dtype, k and temperature of the others, and of that rank.
CALLS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "fewer rows": ((2, torch.float32, 5, 0.3), (1, torch.float32, 5, 0.3)),
    "more rows": ((1, torch.float32, 5, 0.3), (2, torch.float32, 5, 0.3)),
    "half": ((3, torch.bfloat16, 5, 0.3), (3, torch.float16, 5, 0.3)),
    "one k": ((1, torch.float32, 5, 0.3), (1, torch.float32, 7, 0.3)),
    "k": ((3, torch.float32, 5, 0.3), (3, torch.float32, 7, 0.3)),
    "a k for each row": (
        (3, torch.float32, torch.tensor([3, 4, 5]), 0.3),
        (3, torch.float32, torch.tensor([3, 5, 4]), 0.3),
    ),
    "k of some": ((3, torch.float32, torch.tensor([3, 4, 5]), 0.3), (3, torch.float32, 3, 0.3)),
    "temperature": ((3, torch.float32, 5, 0.3), (3, torch.float32, 5, 0.2)),
    "other sizes": ((3, torch.float32, 5, 0.3), (5, torch.float32, 5, 0.3)),
    "NaN": ((2, torch.float32, torch.tensor([1, torch.nan]), 0.3),) * 2,
}


def call(rank: int, ranks: int, name: str) -> torch.Tensor:
    """Without ``validate``."""
    rows, dtype, k, t = CALLS[name][rank == ODD]
    scores = normal(rows, 300 + rank, seed=rank, dtype=dtype)
    return soft_topk(scores, k, t, group=dist.group.WORLD)

"""What the device has room for."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .config import LongPlan, TeamPlan


def on_device(scores: Tensor) -> Any:
    """Kernels go to the current device: make it the one of the scores."""
    return torch.cuda.device_of(scores)  # type: ignore[no-untyped-call]


@functools.cache
def core_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def team_count(
    device: torch.device, plan: TeamPlan | LongPlan, row_count: int, per_core: int = 1
) -> tuple[int, int]:
    """Programs of a team, and teams that are at work at a time: all must be there at once."""
    if device.type != "cuda":
        return 1, 1  # interpreted: one program after the other, so that none may wait
    room = per_core * core_count(device)
    size = min(plan.chunks, room)
    return size, max(1, min(row_count, room // size))

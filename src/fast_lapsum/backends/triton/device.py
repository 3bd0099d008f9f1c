"""What the device has room for."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

#: Devices that refused a team of programs, and the most that were not refused since.
_room: dict[torch.device, int] = {}


def on_device(scores: Tensor) -> Any:
    """Kernels go to the current device: make it the one of the scores."""
    return torch.cuda.device_of(scores)  # type: ignore[no-untyped-call]


@functools.cache
def _core_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def room_of(device: torch.device) -> int:
    """How many programs may wait for each other: one for each core, which any kernel here fits."""
    if device.type != "cuda":
        return 1  # interpreted: one program after the other, so that none may wait
    return _room.get(device) or _core_count(device)


def shrink_room(device: torch.device, room: int, error: RuntimeError) -> None:
    """Take the driver's word that there is less room than that; any other error is raised again."""
    if "cooperative" not in str(error) or room == 1:
        raise error
    _room[device] = min(room // 2, room_of(device))


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether a launch can begin beside the one before: from Hopper on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def team_size(chunks: int, room: int) -> int:
    """Programs that share a row's chunks, as evenly as they can."""
    return -(-chunks // -(-chunks // max(1, min(room, chunks))))

"""Collectives and bytes of calls on rows that are spread over ranks, and scripts of a page."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cases import normal
from fast_lapsum import _collectives, soft_topk

#: Options of a call whose messages a page counts.
OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {},
    "validated": {"validate": True},
    "clamped": {"clamp": True},
    "hard": {"hard": True},
    "hard with its boundary": {"hard": True, "return_threshold": True},
}


def count(rank: int, ranks: int) -> dict[tuple[str, int], list[list[int]]]:
    """The bytes of each message, forward and backward, by option and number of rows."""
    said: list[int] = []
    gather = _collectives.gather

    def counting(message: Tensor, name: str) -> Tensor:
        said.append(message.numel() * message.element_size())
        return gather(message, name)

    _collectives.gather = counting
    found = {}
    for rows in (1, 64):
        scores = normal(rows, 2048, seed=rank, dtype=torch.float32).requires_grad_()
        for name, options in OPTIONS.items():
            said.clear()
            out = soft_topk(scores, 256, 0.1, group=dist.group.WORLD, **options)
            out = out[0] if isinstance(out, tuple) else out
            forward = list(said)
            said.clear()
            out.sum().backward()
            found[name, rows] = [forward, list(said)]
    return found


def run_scripts(rank: int, ranks: int, scripts: list[str], ports: list[int]) -> int:
    """Scripts as torchrun starts them, one after the other, each with the port of its store."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for number, (script, port) in enumerate(zip(scripts, ports, strict=True)):
        os.environ["MASTER_PORT"] = str(port)
        exec(compile(script, f"script {number}", "exec"), {"__name__": "__main__"})
    return len(scripts)

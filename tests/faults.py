"""What can go wrong in a group while a call is under way; `test_faults.py` starts the processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cases import normal
from fast_lapsum import _collectives, soft_topk

#: The rank that things happen to.
VICTIM = 1


class CallError(Exception):
    """How a call ended, and after how many seconds."""


def _call(rank: int, **options: Any) -> Tensor:
    scores = normal(4, 500 + rank, seed=rank, dtype=torch.float32).requires_grad_()
    k = options.pop("k", 7)
    mask = soft_topk(scores, k, 0.3, group=dist.group.WORLD, **options)
    mask.square().sum().backward()
    assert scores.grad is not None
    return mask


def _timed(call: Callable[[], Any]) -> None:
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        seconds = time.monotonic() - begin
        raise CallError(f"{seconds:.3f} s, {type(error).__name__}: {error}") from error


def killed(rank: int, ranks: int, collective: int) -> None:
    """A rank ends in the middle of a call: at one of its collectives, forward or backward."""
    _call(rank)
    gather, counted = _collectives.gather, 0

    def last(message: Tensor, name: str) -> Tensor:
        nonlocal counted
        counted += 1
        if counted == collective:
            os.kill(os.getpid(), signal.SIGKILL)
        return gather(message, name)

    if rank == VICTIM:
        _collectives.gather = last
    _timed(lambda: _call(rank))


def never_calls(rank: int, ranks: int, seconds: float) -> None:
    """A rank does something else for so long."""
    _call(rank)
    if rank == VICTIM:
        time.sleep(seconds)
    else:
        _timed(lambda: _call(rank))


def another_k(rank: int, ranks: int, budget: int) -> None:
    """A rank asks for another budget."""
    _call(rank)
    _timed(lambda: _call(rank, k=budget if rank == VICTIM else 7, validate=True))

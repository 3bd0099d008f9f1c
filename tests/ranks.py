"""Functions that run in several processes, which form a group.

The processes are forked from one that has loaded torch, because loading it takes seconds. None of
them is left when a run ends, however it ends.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

#: What most of them need, and what torch itself loads late.
_LOADED = [
    *("fast_lapsum.nn", "torch.distributed.fsdp", "torch.distributed.tensor"),
    *("torch.nn.parallel", "torch.testing", "numpy"),
]
NEEDS_GLOO = pytest.mark.skipif(
    not (
        dist.is_available()
        and dist.is_gloo_available()
        and "forkserver" in multiprocessing.get_all_start_methods()
    ),
    reason="needs gloo, and processes that can be forked",
)


class Ended(NamedTuple):
    """How a process ended: by itself with 0, with an error 1, by a signal below 0."""

    code: int
    seconds: float  # since all began
    pid: int
    result: Any
    error: str


def run(
    function: Callable[..., Any],
    ranks: int,
    *given: Any,
    limit: float = 240,
    timeout: float | None = 60,
) -> list[Any]:
    """What ``function(rank, ranks, *given)`` returns in each process of a gloo group."""
    ended = run_to_the_end(function, ranks, *given, limit=limit, timeout=timeout)
    failed = [f"rank {rank}: {one.code}\n{one.error}" for rank, one in enumerate(ended) if one.code]
    assert not failed, "\n".join(failed)
    return [one.result for one in ended]


def run_to_the_end(
    function: Callable[..., Any], ranks: int, *given: Any, limit: float, timeout: float | None
) -> list[Ended]:
    """How each process ended, with errors of theirs.

    ``timeout`` is the group's, in seconds; None leaves it to the function to make one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            context.Process(target=_main, args=(function, rank, ranks, given, folder, timeout))
            for rank in range(ranks)
        ]
        begin = time.monotonic()
        seconds = [0.0] * ranks
        try:
            for process in started:
                process.start()
            running = set(range(ranks))
            while running and time.monotonic() < begin + limit:
                for rank in list(running):
                    started[rank].join(0.02)
                    if started[rank].exitcode is not None:
                        seconds[rank] = time.monotonic() - begin
                        running.discard(rank)
            for rank in running:  # each says where it is
                os.kill(started[rank].pid or 0, signal.SIGUSR1)
                started[rank].join(1.0)
            said = [f"{rank}: {_left(folder, rank)[1]}" for rank in range(ranks)]
            assert not running, f"ranks {running} have not ended after {limit} s\n" + "\n".join(
                said
            )
        finally:
            for process in started:
                if process.is_alive():
                    process.kill()
                    process.join()
        return [
            Ended(process.exitcode or 0, seconds[rank], process.pid or 0, *_left(folder, rank))
            for rank, process in enumerate(started)
        ]


def _left(folder: Path, rank: int) -> tuple[Any, str]:
    """The result and the error that a process has written."""
    result, error = folder / f"{rank}.pt", folder / f"{rank}.txt"
    return (
        torch.load(result, weights_only=False) if result.exists() else None,
        error.read_text() if error.exists() else "",
    )


def _main(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    given: tuple[Any, ...],
    folder: Path,
    timeout: float | None,
) -> None:
    torch.set_num_threads(1)
    with (folder / f"{rank}.txt").open("w", buffering=1) as said:
        faulthandler.register(signal.SIGUSR1, file=said)
        try:
            _in_group(function, rank, ranks, given, folder, timeout)
        except BaseException:
            traceback.print_exc(file=said)
            raise SystemExit(1) from None


def _in_group(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    given: tuple[Any, ...],
    folder: Path,
    timeout: float | None,
) -> None:
    if timeout is not None:
        dist.init_process_group(
            *("gloo", f"file://{folder / 'meeting'}"),
            timeout=timedelta(seconds=timeout),
            rank=rank,
            world_size=ranks,
        )
    torch.save(function(rank, ranks, *given), folder / f"{rank}.pt")
    if timeout is not None:
        dist.destroy_process_group()

"""Programs that wait for each other: nothing hangs and no bit differs, whatever else the GPU does.

Every workload has a process of its own, so that one that hangs fails and does not stop the others.
TEAM_CALLS is the number of calls on each stream.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import SharedPlan, TeamPlan
from fast_lapsum.backends.triton.device import room_of

CALLS = int(os.environ.get("TEAM_CALLS", "300"))
REPLAYS = 200
#: Seconds for a workload, most of them for compiling.
LIMIT = 240 + CALLS // 40
#: Between so many calls there is other work for all cores.
BUSY_EVERY = 16


class Call(NamedTuple):
    """Scores, and what is asked about them."""

    scores: Tensor
    k: float
    t: float
    hard: bool = False

    def __call__(self) -> tuple[Tensor, Tensor]:
        output = "hard" if self.hard else "mask"
        given = (None, self.k, None, self.t, None, None, True, output, torch.float32)
        return launch.forward(self.scores, *given)


def _scores(*shape: int) -> Tensor:
    draw = torch.Generator("cuda").manual_seed(shape[-1])
    return torch.randn(shape, generator=draw, device="cuda")


#: A long row and several, that teams hold, read in every pass, or read twice. Programs of the many
#: take a core each, so that no two such launches fit on a device at once.
SHAPES = {
    "held": ((1, 100_000), (64, 65_536)),
    "cached": ((1, 4_300_000), (66, 32_776)),
    "shared": ((1, 13_000_000), (66, 200_000)),
}


def _kind(rows: int, n: int) -> str:
    plan = launch._plan(n, rows, 4, 4, room_of(torch.device("cuda", torch.cuda.current_device())))
    if isinstance(plan, TeamPlan):
        return "cached" if plan.length else "held"
    assert isinstance(plan, SharedPlan)
    return "shared"


def _calls(*kinds: str) -> list[Call]:
    """Calls on rows of these kinds."""
    calls = []
    for kind in kinds:
        assert {_kind(*shape) for shape in SHAPES[kind]} == {kind}
        wide, many = (_scores(*shape) for shape in SHAPES[kind])
        calls += [Call(wide, 5000.0, 0.1), Call(many, 20.5, 0.01)]
        calls += [Call(many if kind == "shared" else wide, 300.0, 0.1, hard=True)]
    return calls


class Judge:
    """Holds every answer against the first one, on the device, and looks once in the end."""

    def __init__(self, calls: list[Call]) -> None:
        self.first = [[x.clone() for x in call()] for call in calls]
        self.wrong = torch.zeros(len(calls), dtype=torch.bool, device="cuda")
        for call, (p, _) in zip(calls, self.first, strict=True):
            sums = p.sum(-1, dtype=torch.float64)
            torch.testing.assert_close(sums, torch.full_like(sums, call.k), rtol=1e-6, atol=0)
            call()  # from now on it is launched again
        torch.cuda.synchronize()

    def hear(self, number: int, answer: tuple[Tensor, Tensor]) -> None:
        for got, wanted in zip(answer, self.first[number], strict=True):
            self.wrong[number].logical_or_(
                (got.view(torch.int32) != wanted.view(torch.int32)).any()
            )

    def assert_right(self) -> None:
        torch.cuda.synchronize()
        assert not self.wrong.any(), f"other bits: {self.wrong.tolist()}"


def _busy() -> Iterator[None]:
    """Work for all cores on a stream of its own, a piece for every step."""
    stream = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    b = torch.empty_like(a)
    torch.cuda.synchronize()
    while True:
        with torch.cuda.stream(stream):
            torch.mm(a, a, out=b)
            torch.cuda._sleep(100_000)
            torch.sin(a, out=b)
        yield


def _on_two_streams(count: int) -> None:
    """Rows of all kinds on both, in different orders, beside other work."""
    calls = _calls(*SHAPES)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    judges = Judge(calls), Judge(calls)
    busy = _busy()
    for step in range(count):
        for turn, (stream, judge) in enumerate(zip(streams, judges, strict=True)):
            number = (step + turn * (1 + step // len(calls))) % len(calls)
            with torch.cuda.stream(stream):
                judge.hear(number, calls[number]())
        if step % BUSY_EVERY == 0:
            next(busy)
    for judge in judges:
        judge.assert_right()


def _beside_another_process(count: int, folder: Path, name: str) -> None:
    """All calls one after the other, from when the other process is ready too."""
    calls = _calls(*SHAPES)
    judge = Judge(calls)
    busy = _busy()
    (folder / f"{name}.ready").touch()
    while len(list(folder.glob("*.ready"))) < 2:
        time.sleep(0.001)
    began = time.time()
    for step, number in zip(range(count), itertools.cycle(range(len(calls))), strict=False):
        judge.hear(number, calls[number]())
        if step % BUSY_EVERY == 0:
            next(busy)
    judge.assert_right()
    (folder / f"{name}.times").write_text(f"{began} {time.time()}")


def _replayed(kind: str, count: int) -> None:
    """A captured call is replayed while another stream makes other calls of all kinds."""
    captured, *others = _calls(kind, *(other for other in SHAPES if other != kind))
    judge, other_judge = Judge([captured]), Judge(others)
    stream, other_stream = torch.cuda.Stream(), torch.cuda.Stream()
    busy = _busy()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        answer = captured()
    torch.cuda.synchronize()
    for step in range(REPLAYS):
        with torch.cuda.stream(stream):
            for x in answer:
                x.fill_(7.0)  # what a replay leaves out is seen
            graph.replay()
            judge.hear(0, answer)
        with torch.cuda.stream(other_stream):
            for number in range(max(1, count // REPLAYS)):
                here = (step + number) % len(others)
                other_judge.hear(here, others[here]())
        if step % BUSY_EVERY == 0:
            next(busy)
    judge.assert_right()
    other_judge.assert_right()


WORKLOADS: dict[str, Callable[..., None]] = {
    "streams": lambda: _on_two_streams(CALLS),
    "process": lambda folder, name: _beside_another_process(CALLS, Path(folder), name),
    "held graph": lambda: _replayed("held", CALLS),
    "cached graph": lambda: _replayed("cached", CALLS),
    "shared graph": lambda: _replayed("shared", CALLS),
}


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(*started: subprocess.Popen[str]) -> None:
    """All of them end well, and in time."""
    end = time.monotonic() + LIMIT
    try:
        for process in started:
            said, _ = process.communicate(timeout=max(end - time.monotonic(), 1))
            assert process.returncode == 0, said
    except subprocess.TimeoutExpired:
        pytest.fail(f"not done after {LIMIT} s")
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("workload", ["streams", "held graph", "cached graph", "shared graph"])
def test_teams_beside_other_work(workload: str) -> None:
    _finish(_start(workload))


def test_teams_of_two_processes(tmp_path: Path) -> None:
    names = ("one", "other")
    _finish(*(_start("process", str(tmp_path), name) for name in names))
    times = [[float(x) for x in (tmp_path / f"{n}.times").read_text().split()] for n in names]
    assert max(began for began, _ in times) < min(ended for _, ended in times)


if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](*sys.argv[2:])

"""The room for programs that wait for each other, and launches that a driver refuses for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU backend needs Triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing that is interpreted is refused", allow_module_level=True)

import triton.language as tl

from fast_lapsum.backends.triton import device, launch, relaunch, steps
from fast_lapsum.backends.triton.config import shared_plan, team_plan
from launch_diary import COOPERATIVE, CORES, SHAPES, Diary, Watched, diary, forward, told

__all__ = ["diary"]  # a fixture

GPU = torch.device("cuda", 0)
REFUSED = "Triton Error [CUDA]: too many blocks in cooperative launch"


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[torch.device, int]:
    """What is known of devices of 132 cores, none of which refused anything so far."""
    known: dict[torch.device, int] = {}
    monkeypatch.setattr(device, "_room", known)
    monkeypatch.setattr(device, "_core_count", lambda device: CORES)
    return known


def test_there_is_room_for_a_program_on_each_core(room: dict[torch.device, int]) -> None:
    assert device.room_of(GPU) == CORES
    assert device.room_of(torch.device("cpu")) == 1
    assert not room


def test_a_refusal_halves_the_room_of_a_device(room: dict[torch.device, int]) -> None:
    found = []
    for _ in range(7):
        device.shrink_room(GPU, device.room_of(GPU), RuntimeError(REFUSED))
        found.append(device.room_of(GPU))
    assert found == [66, 33, 16, 8, 4, 2, 1]
    assert device.room_of(torch.device("cuda", 1)) == CORES
    error = RuntimeError(REFUSED)  # one program waits for nobody: it is about something else
    with pytest.raises(RuntimeError, match="too many blocks") as raised:
        device.shrink_room(GPU, 1, error)
    assert raised.value is error
    assert device.room_of(GPU) == 1


def test_a_refusal_of_what_was_kept_shrinks_the_room_once(room: dict[torch.device, int]) -> None:
    """Calls that were kept with more room than there is by now say nothing about what there is."""
    for _ in range(3):
        device.shrink_room(GPU, CORES, RuntimeError(REFUSED))
    assert device.room_of(GPU) == CORES // 2


@pytest.mark.parametrize("place", [GPU, torch.device("cpu")], ids=str)
def test_other_errors_are_no_matter_of_room(
    place: torch.device, room: dict[torch.device, int]
) -> None:
    error = RuntimeError("Triton Error [CUDA]: out of memory")
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        device.shrink_room(place, 132, error)
    assert raised.value is error
    assert not room


@pytest.mark.parametrize("room_for", [1, 2, 7, 66, 131, 132, 1000])
def test_a_team_shares_chunks_evenly(room_for: int) -> None:
    assert device.team_size(5, 0) == 1
    for chunks in range(1, 300):
        size = device.team_size(chunks, room_for)
        assert 1 <= size <= min(chunks, room_for)
        turns = -(-chunks // size)
        assert turns == -(-chunks // min(chunks, room_for))  # none has more than it must
        assert size == 1 or -(-chunks // (size - 1)) > turns  # nor are there members to spare


class Driver:
    """Has room for so many programs of a cooperative launch."""

    def __init__(self, most: int, words: str = REFUSED) -> None:
        self.most, self.words = most, words
        self.refused: list[int] = []

    def ask(self, programs: int, options: dict[str, Any]) -> None:
        if options.get("launch_cooperative_grid") and programs > self.most:
            self.refused.append(programs)
            raise RuntimeError(self.words)


@pytest.fixture
def driver(
    diary: Diary, room: dict[torch.device, int], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Driver]:
    """Gives the device a driver; scores on the CPU are taken for its own."""
    monkeypatch.setattr(launch, "room_of", lambda _: device.room_of(GPU))
    monkeypatch.setattr(
        launch, "shrink_room", lambda _, room, error: device.shrink_room(GPU, room, error)
    )
    real = Watched.__getitem__

    def install(most: int, words: str = REFUSED) -> Driver:
        made = Driver(most, words)

        def launcher(self: Watched, grid: tuple[int, ...]) -> Callable[..., Watched]:
            def launched(*arguments: Any, **named: Any) -> Watched:
                made.ask(grid[0], named)
                return real(self, grid)(*arguments, **named)

            return launched

        monkeypatch.setattr(Watched, "__getitem__", launcher)
        return made

    return install


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("shape", ["team", "shared"])
@pytest.mark.parametrize("most", [131, 40, 1])
def test_a_refused_launch_is_tried_with_less_room(
    diary: Diary, driver: Callable[..., Driver], shape: str, most: int, hard: bool
) -> None:
    asked = driver(most)
    size, _ = SHAPES[shape]
    scores = torch.zeros(size)
    out, pairs = forward(scores, hard=hard)
    room = device.room_of(GPU)
    assert len(asked.refused) == {CORES: 0, 66: 1, 33: 2, 1: 7}[room]
    # The call that was made is whole, after what came before a refusal.
    lines = told(diary, {"scores": scores, "out": out, "pairs": pairs})
    planned = steps.forward_steps(
        launch._plan(size[1], size[0], 4, 4, room, "hard" if hard else "mask"),
        *(size[1], size[0], room, False),
        *(True, "hard" if hard else "mask", False, tl.float32),
    )
    wanted = [(step.kernel.name, step.programs) for step in planned.steps]
    assert [line[:2] for line in lines[-len(wanted) :]] == wanted
    # It is kept as it was made, and a call of another shape asks for no more room than was left.
    asked.refused.clear()
    diary.clear()
    forward(torch.zeros(size), hard=hard)
    assert all(entry.again for entry in diary)
    assert not asked.refused
    forward(torch.zeros(2, size[-1]), hard=hard)
    assert max(asked.refused, default=0) <= room
    assert all(entry.programs <= most for entry in diary if entry.kernel in COOPERATIVE)


def test_a_team_that_must_be_whole_is_refused_for_good(
    diary: Diary, driver: Callable[..., Driver]
) -> None:
    """A plan that is given is not given up."""
    asked = driver(50)
    plan = team_plan(100_000, 1, 4, 4)
    assert plan is not None
    with pytest.raises(RuntimeError, match="too many blocks"):
        forward(torch.zeros(1, 100_000), plan=plan)
    assert set(asked.refused) == {plan.chunks}
    forward(torch.zeros(1, 100_000), plan=shared_plan(100_000, 1, 4))


@pytest.mark.parametrize("shape", ["team", "shared"])
def test_other_errors_of_a_launch_are_raised(
    diary: Diary, driver: Callable[..., Driver], room: dict[torch.device, int], shape: str
) -> None:
    asked = driver(0, "Triton Error [CUDA]: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        forward(torch.zeros(SHAPES[shape][0]))
    assert len(asked.refused) == 1
    assert not room
    assert not relaunch._calls


@pytest.mark.parametrize("output", ["mask", "hard", "log", "threshold"])
def test_scratch_memory_does_not_grow_with_a_row(output: str) -> None:
    """What a call holds beside its results are these words alone: 16 MiB are meant at most."""
    for n in (10**7, 10**8, 10**9):
        plan = launch._plan(n, 1, 4, 4, CORES, output)
        made = steps.forward_steps(plan, n, 1, CORES, True, True, output, False, tl.float32)
        assert made.words * torch.int64.itemsize < 1 << 20

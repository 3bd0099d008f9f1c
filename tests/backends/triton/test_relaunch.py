"""Calls that were made before are made again without Triton's binder, and are the same launches."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the GPU backend needs Triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing that is interpreted is launched again", allow_module_level=True)

import triton.language as tl
from triton import knobs
from triton.runtime import JITFunction

from fast_lapsum.backends.triton import launch, relaunch, steps
from fast_lapsum.backends.triton.config import LongBackwardPlan, tile_plan
from launch_diary import COOPERATIVE, CORES, SHAPES, Diary, Watched, diary, forward, told

__all__ = ["diary"]  # a fixture


class Made(NamedTuple):
    """What a forward and a backward call launched, and which launches were made again."""

    forward: list[Any]
    backward: list[Any]
    again: list[bool]


def _both(
    diary: Diary, shape: tuple[int, ...], dtype: torch.dtype, hard: bool, k: float, t: float
) -> Made:
    diary.clear()
    scores, grad = (torch.zeros(shape, dtype=dtype) for _ in range(2))
    out, pairs = forward(scores, k, t, hard=hard)
    there = told(diary, {"scores": scores, "out": out, "pairs": pairs})
    again = [entry.again for entry in diary]
    diary.clear()
    d_scores, d_k, d_t = launch.backward(grad, scores, None, t, None, pairs, True, "mask", False)
    assert d_k is d_t is None
    named = {"scores": scores, "grad": grad, "pairs": pairs, "out": d_scores}
    return Made(there, told(diary, named), again + [entry.again for entry in diary])


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_kept_call_makes_the_launches_of_a_first_call(
    diary: Diary, shape: str, dtype: torch.dtype, hard: bool
) -> None:
    """For other tensors, another k and another t: nothing of the first call may stay behind."""
    size, kernels = SHAPES[shape]
    other = [torch.empty(1000) for _ in range(3)]  # so that addresses differ between calls
    # No float32, so that the low words count; two of them hold what a float64 call is given.
    first = _both(diary, size, dtype, hard, 10 + 2**-30, 0.7)
    assert not any(first.again)
    again = _both(diary, size, dtype, hard, 77 + 2**-28, 0.3)
    assert all(again.again)
    assert len(again.again) == len(first.again)
    relaunch._calls.clear()
    fresh = _both(diary, size, dtype, hard, 77 + 2**-28, 0.3)
    assert not any(fresh.again)
    assert again[:2] == fresh[:2]
    assert again[:2] != first[:2]
    if dtype != torch.float64:
        if hard and shape == "cached":  # which is for masks whose search is short
            kernels = SHAPES["shared"][1]
        assert {name for name, *_ in fresh.forward} == kernels
    backward = ["tile_backward"] if size[-1] < 10_000 else ["sums_backward", "scores_backward"]
    assert [name for name, *_ in fresh.backward] == backward
    del other


def test_every_kernel_is_launched_here() -> None:
    found = {name for name, value in vars(steps).items() if isinstance(value, JITFunction)}
    backward = {"tile_backward", "sums_backward", "scores_backward"}
    assert found == set.union(backward, *(kernels for _, kernels in SHAPES.values()))


def test_programs_that_wait_for_each_other_are_launched_together(diary: Diary) -> None:
    """They are the only ones, and no more than there is room for."""
    for size, _ in SHAPES.values():
        for hard in (False, True):
            forward(torch.zeros(size), hard=hard)
    for entry in diary:
        is_cooperative = bool(entry.options.get("launch_cooperative_grid"))
        assert is_cooperative == (entry.kernel in COOPERATIVE)
        assert not is_cooperative or entry.programs <= CORES


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_holds_no_tensor(diary: Diary, shape: str) -> None:
    size, _ = SHAPES[shape]
    scores, grad = torch.zeros(size), torch.zeros(size)
    out, pairs = forward(scores)
    d_scores, _, _ = launch.backward(grad, scores, None, 1.0, None, pairs, True, "mask", False)
    assert len(relaunch._calls) == 2

    def tensors(value: Any) -> bool:
        if isinstance(value, tuple):
            return any(map(tensors, value))
        return isinstance(value, Tensor)

    assert not any(map(tensors, relaunch._calls.values()))
    alive = [weakref.ref(x) for x in (scores, grad, out, pairs, d_scores)]
    del scores, grad, out, pairs, d_scores
    assert [x() for x in alive] == [None] * 5


def test_rows_of_a_call_may_lie_in_any_dimensions(diary: Diary) -> None:
    """As many rows of the same length are the same launches."""
    forward(torch.zeros(6, 40))
    forward(torch.zeros(2, 3, 40))
    assert [entry.again for entry in diary] == [False, True]
    forward(torch.zeros(3, 80))
    assert not diary[-1].again


def test_numbers_that_become_a_tensor_make_no_kept_call(diary: Diary) -> None:
    """Two float32 do not hold all digits of a float64 budget."""
    scores = torch.zeros(6, 40, dtype=torch.float64)
    for k in (10.3, 10.3, 10.5, 10.25, 10.3):
        forward(scores, k)
    assert [entry.again for entry in diary] == [False, False, False, True, False]


CHANGES = [
    "device",
    "hooks",
    "version",
    "plan",
    "mask",
    "budget",
    "temperature",
    "warm start",
    "strides",
    "alignment",
    "dtype",
    "largest",
    "out dtype",
    "hard",
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("n", [400, 40_000])
def test_what_a_kept_call_is_not_for(
    diary: Diary, monkeypatch: pytest.MonkeyPatch, n: int, change: str
) -> None:
    memory = torch.zeros(2 * n + 1)
    scores = memory[:-1].view(2, n)
    if change == "version":
        monkeypatch.setattr(relaunch, "_is_known", False)
    forward(scores)
    forward(scores)
    assert diary[-1].again == (change != "version")
    diary.clear()
    given: list[Any] = [None, 10, None, 1.0, None, None, True, "mask", torch.float32, False, None]
    if change == "device":
        monkeypatch.setattr(relaunch, "_device", lambda: 1)
    elif change == "hooks":
        monkeypatch.setattr(knobs.runtime.launch_exit_hook, "calls", [print])
    elif change == "plan":
        given[-1] = launch._plan(n, 2, 4, 4, CORES)  # the one that would be taken
    elif change == "mask":
        given[4] = torch.ones(2, n, dtype=torch.bool)
    elif change == "budget":
        given[0] = torch.full((2,), 10.0)
    elif change == "temperature":
        given[2] = torch.ones(2)
    elif change == "warm start":
        given[5] = torch.zeros(2)
    elif change == "strides":
        scores = torch.zeros(n, 2).mT
    elif change == "alignment":
        scores = memory[1:].view(2, n)
    elif change == "dtype":
        scores = scores.bfloat16()
    elif change == "largest":
        given[6] = False
    elif change == "hard":
        given[7] = "hard"
    elif change == "out dtype":
        given[8] = torch.float64
    launch.forward(scores, *given)
    assert diary
    assert not any(entry.again for entry in diary)


BACKWARD_CHANGES = [
    "device",
    "hooks",
    "version",
    "plan",
    "mask",
    "temperature",
    "strides",
    "strides of grad",
    "alignment",
    "alignment of grad",
    "dtype",
    "dtype of grad",
    "largest",
    "per row",
]


@pytest.mark.parametrize("change", BACKWARD_CHANGES)
@pytest.mark.parametrize("n", [400, 40_000])
def test_what_a_kept_backward_call_is_not_for(
    diary: Diary, monkeypatch: pytest.MonkeyPatch, n: int, change: str
) -> None:
    memory, other = torch.zeros(2 * n + 1), torch.zeros(2 * n + 1)
    scores, grad = memory[:-1].view(2, n), other[:-1].view(2, n)
    pairs = torch.zeros(2, 2)
    given: list[Any] = [None, 1.0, None, pairs, True, "mask", False, None]
    if change == "version":
        monkeypatch.setattr(relaunch, "_is_known", False)
    launch.backward(grad, scores, *given)
    launch.backward(grad, scores, *given)
    assert diary[-1].again == (change != "version")
    diary.clear()
    if change == "device":
        monkeypatch.setattr(relaunch, "_device", lambda: 1)
    elif change == "hooks":
        monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [print])
    elif change == "plan":
        given[-1] = LongBackwardPlan()
    elif change == "mask":
        given[2] = torch.ones(2, n, dtype=torch.bool)
    elif change == "temperature":
        given[0] = torch.ones(2)
    elif change == "strides":
        scores = torch.zeros(n, 2).mT
    elif change == "strides of grad":
        grad = torch.zeros(n, 2).mT
    elif change == "alignment":
        scores = memory[1:].view(2, n)
    elif change == "alignment of grad":
        grad = other[1:].view(2, n)
    elif change == "dtype":
        scores = scores.bfloat16()
    elif change == "dtype of grad":
        grad = grad.double()
    elif change == "largest":
        given[4] = False
    elif change == "per row":
        given[6] = True
    launch.backward(grad, scores, *given)
    assert diary
    assert not any(entry.again for entry in diary)


def test_hooks_that_are_gone_are_no_matter(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Triton has None or a function where newer has a chain."""
    assert not relaunch._has_hooks()
    for hook, expected in ((None, False), (print, True)):
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", hook)
        assert relaunch._has_hooks() == expected


def test_kept_calls_do_not_grow_without_end(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaunch, "_MOST", 3)
    for n in range(8, 18):
        forward(torch.zeros(n), 1)
        assert 1 <= len(relaunch._calls) <= 3
    diary.clear()
    forward(torch.zeros(17), 1)
    assert diary[-1].again
    forward(torch.zeros(8), 1)
    assert not diary[-1].again


def test_constants_out_of_order_are_put_in_order(diary: Diary) -> None:
    """A kept kernel gets by position what a first launch names."""
    plan = tile_plan(40, 1)
    (step,) = steps.forward_steps(plan, 40, 6, CORES, False, True, "mask", False, tl.float32).steps
    turned = step._replace(constants=dict(reversed(step.constants.items())))
    lead = tuple(range(len(step.kernel.arg_names) - len(step.constants)))
    made = [relaunch.launch(steps.Steps([one]), lead) for one in (step, turned)]
    assert made[0] == made[1]
    assert diary[0].values == diary[1].values == (*lead, *made[0].launches[0].rest)


def test_what_the_interpreter_returns_is_not_kept(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Watched.__getitem__

    def interpreted(self: Watched, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *values, **named: (real(self, grid)(*values, **named), None)[1]

    monkeypatch.setattr(Watched, "__getitem__", interpreted)
    for _ in range(2):
        for size, _kernels in SHAPES.values():
            forward(torch.zeros(size))
    assert not relaunch._calls
    assert not any(entry.again for entry in diary)


INTERPRETED = """
import torch
from fast_lapsum.backends.triton import launch, relaunch

scores = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
for k in (1.0, 2.0):
    given = (None, k, None, 0.5, None, None, True, "mask", torch.float32)
    p, pairs = launch.forward(scores, *given)
    assert abs(float(p.sum()) - k) < 1e-6
    launch.backward(torch.ones_like(p), scores, None, 0.5, None, pairs, True, "mask", False)
assert not relaunch._calls
"""


def test_nothing_is_kept_in_the_interpreter() -> None:
    """In a process of its own: Triton decides on import whether it interprets."""
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

"""Launches of ranks and sorts are made again without Triton's binder, and are the same launches."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the GPU backend needs Triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing that is interpreted is launched again", allow_module_level=True)

from triton.runtime import JITFunction

from fast_lapsum.backends.triton import ranking_launch, relaunch
from launch_diary import Diary, Watched, diary, told

__all__ = ["diary"]  # a fixture

#: Launches of a rank and its gradient, and of a sort and its gradient.
LAUNCHES = {
    (6, 40): (1, 1, 2, 2),
    (2, 10_000): (3, 2, 3, 4),
}


@pytest.fixture
def launches(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> Diary:
    for name, value in list(vars(ranking_launch).items()):
        if isinstance(value, JITFunction):
            monkeypatch.setattr(ranking_launch, name, Watched(name, value, diary))
    return diary


def _calls(launches: Diary, shape: tuple[int, int], t: float) -> tuple[list[Any], list[int]]:
    """What a forward and a backward of both are told, and how many launches each of the four has.

    Of addresses that are not named here only distances count; scratch memory differs in those.
    """
    ordered, grad = torch.zeros(shape), torch.zeros(shape)
    order = torch.zeros(shape, dtype=torch.int64)
    found, counts = [], []
    kept: list[Tensor] = []
    for call in (
        lambda: ranking_launch.rank_rows(ordered, order, t, False),
        lambda: ranking_launch.rank_rows_backward(grad, ordered, order, t, False),
        lambda: ranking_launch.threshold_rows(ordered, t, None),
        lambda: ranking_launch.threshold_rows_backward(grad, *kept, ordered, order, t),
    ):
        launches.clear()
        made = call()
        made = made if isinstance(made, tuple) else (made,)
        kept[:] = made[1:]
        named = {"ordered": ordered, "grad": grad, "order": order}
        named |= {f"made {i}": x for i, x in enumerate(made)}
        found += [
            (name, programs, tuple(x for x in values if not _is_scratch(x)))
            for name, programs, values in told(launches, named)
        ]
        counts.append(len(launches))
    return found, counts


def _is_scratch(value: Any) -> bool:
    return isinstance(value, tuple) and value[0] == "scratch"


@pytest.mark.parametrize("shape", LAUNCHES)
def test_a_call_made_again_makes_the_launches_of_a_first_call(
    launches: Diary, shape: tuple[int, int]
) -> None:
    first, counts = _calls(launches, shape, 0.7)
    assert tuple(counts) == LAUNCHES[shape]
    again, _ = _calls(launches, shape, 0.3)
    assert all(entry.again for entry in launches)
    relaunch._calls.clear()
    fresh, _ = _calls(launches, shape, 0.3)
    assert not any(entry.again for entry in launches)
    assert again == fresh
    assert again != first


def test_what_is_kept_holds_no_tensor(launches: Diary) -> None:
    ordered, order = torch.zeros(3, 10_000), torch.zeros(3, 10_000, dtype=torch.int64)
    out = ranking_launch.rank_rows(ordered, order, 0.5, False)
    assert relaunch._calls
    alive = [weakref.ref(x) for x in (ordered, order, out)]
    del ordered, order, out
    gc.collect()
    assert not any(reference() is not None for reference in alive)

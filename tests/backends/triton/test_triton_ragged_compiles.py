"""The kernels of ragged rows and of many tensors compile down to machine code; no GPU is needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted in this process", allow_module_level=True)

from triton.runtime import JITFunction

from compiling import Recorded, compiled
from fast_lapsum.backends.triton import many_launch, ragged_launch

#: Those of many operations take half a minute and more together.
SLOW = (
    *("place_many", "ragged_block_forward", "ragged_long_forward", "ragged_tile_forward"),
    *("ragged_team_forward", "search_many", "solve_many"),
)


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another run compiled does not count."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """What would be launched, which launches nothing."""
    found: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: found.append((self.kernel, args, kwargs))

    for module in (many_launch, ragged_launch):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, JITFunction):
                monkeypatch.setattr(module, name, Recorder(kernel))
        monkeypatch.setattr(module, "on_device", lambda scores: contextlib.nullcontext())
    monkeypatch.setattr(many_launch, "room_of", lambda device: 132)
    monkeypatch.setattr(ragged_launch, "can_overlap", lambda device: True)
    return found


def _ragged(dtype: torch.dtype, output: str) -> None:
    def new(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    values, offsets = new(dtype, 1_000_000), new(torch.int32, 4097)
    rows: Any = (values, offsets, None, None)
    _, pairs = ragged_launch.ragged_forward(
        *rows, None, 1.5, None, 0.5, None, None, True, output, dtype
    )
    ragged_launch.ragged_backward(values, *rows, None, 0.5, None, pairs, True, output, True)


def _many(*dtypes: torch.dtype, output: str = "mask") -> None:
    tensors = [torch.empty(300_000, dtype=dtype) for dtype in dtypes]
    *_, pair = many_launch.list_forward(tensors, None, 2.0, None, 0.5, True, output, False)
    many_launch.list_backward(tensors, tensors, None, 0.5, pair, True, "mask", True)


def _compile_all(launches: list[Recorded], slow: bool) -> set[str]:
    chosen = [x for x in launches if (x[0].__name__ in SLOW) == slow]
    for launched in chosen:
        compiled(launched)
    return {x[0].__name__ for x in chosen}


def test_launches_overlap_and_end_in_order(launches: list[Recorded]) -> None:
    """Each begins beside the one before, and its first program waits for that one."""
    _ragged(torch.float32, "mask")
    backward = [x for x in launches if x[0].__name__ == "ragged_tile_backward"]
    ptx = compiled(backward[-1])
    assert "griddepcontrol.launch_dependents" in ptx
    assert "griddepcontrol.wait" in ptx


def test_light_kernels_compile(launches: list[Recorded]) -> None:
    _many(torch.float32, torch.bfloat16)
    _many(torch.float32, torch.bfloat16, output="hard")
    light = {"count_many", "scores_many", "summarise_many", "write_hard_many", "write_many"}
    assert _compile_all(launches, slow=False) >= light
    launches.clear()
    _ragged(torch.float32, "mask")
    assert {"ragged_long_backward", "ragged_team_backward"} <= _compile_all(launches, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("output", ["mask", "hard"])
def test_heavy_kernels_compile(launches: list[Recorded], dtype: torch.dtype, output: str) -> None:
    _ragged(dtype, output)
    _many(dtype)
    assert _compile_all(launches, slow=True) == set(SLOW)

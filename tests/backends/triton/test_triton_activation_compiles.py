"""The kernels of gated activations compile, down to machine code; no GPU is needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted in this process", allow_module_level=True)

from compiling import Recorded, compiled
from fast_lapsum.backends.triton import activation_entry

_KERNELS = (
    *("activate_scores", "activate_scores_backward", "move_threshold"),
    *("tile_activation_backward", "sums_activation_backward", "scores_activation_backward"),
    "write_activations",
)
_DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Recorded]:
    """What is launched, by kernels that launch nothing."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what was compiled before does not count
    found: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel, self.arg_names = kernel, kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: found.append((self.kernel, args, kwargs))

    for name in _KERNELS:
        monkeypatch.setattr(activation_entry, name, Recorder(getattr(activation_entry, name)))
    monkeypatch.setattr(activation_entry, "on_device", lambda tensor: contextlib.nullcontext())
    monkeypatch.setattr(activation_entry, "can_overlap", lambda device: True)
    monkeypatch.setattr(activation_entry, "room_of", lambda device: 132)
    activation_entry._solving.cache_clear()
    monkeypatch.setattr(
        activation_entry,
        "launch_named",
        lambda device, name, make, given: [
            step.kernel[(step.programs,)](*given, *step.numbers, **step.constants, **step.options)
            for step in make()
        ],
    )
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16_384, 32_768), (3, 1001), (1, 1), (70_000, 40_000)])
def test_kernels_compile(
    launches: list[Recorded], shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """And read four float32 at once, or eight of two bytes, where the scores allow it."""
    scores, gate = (torch.empty(shape, dtype=dtype, device="meta") for _ in range(2))
    one = torch.empty((), device="meta")
    _, counts, best = activation_entry.activate(scores, gate, one)
    activation_entry.activate_backward(scores, scores, gate, True)
    activation_entry.activate_backward(scores, scores, gate, False)
    activation_entry.move(counts, best, (one, one, one, one, one.long()), 10.5, 0.01)
    assert len(launches) == 4
    compiled(launches.pop())
    for launched in launches:
        code = compiled(launched)
        assert ("ld.global.v4.b32" in code) == (scores.numel() % 16 == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(4096 * 16_384,), (40_003,), (3001,), (4096, 16_384), (70, 333), (4, 8)]
)
@pytest.mark.parametrize("has_tensors", [False, True])
def test_the_whole_gradient_compiles(
    launches: list[Recorded], shape: tuple[int, ...], dtype: torch.dtype, has_tensors: bool
) -> None:
    """For a budget over a batch and for rows; reads and writes 16 bytes at once, but for ties."""
    scores = torch.empty(shape, dtype=dtype, device="meta")
    gate = torch.empty(shape, dtype=torch.float32 if has_tensors else dtype, device="meta")
    pair = torch.empty((*shape[:-1], 2), device="meta")
    best = torch.empty(4096, device="meta") if len(shape) == 1 else None
    t = torch.empty(shape[:-1], dtype=torch.float64, device="meta") if has_tensors else None
    activation_entry.gated_backward(scores, scores, gate, best, t, 0.1, pair)
    is_held = shape[-1] <= activation_entry.LONGEST_BLOCK
    assert len(launches) == (1 if is_held else 2)
    is_wide = shape[-1] % (16 // dtype.itemsize) == 0
    for launched in launches:
        code = compiled(launched)
        assert "ld.global.v4.b32" in code or not is_wide
        if launched is launches[-1]:
            assert ("st.global.v4.b32" in code) == is_wide


@pytest.mark.parametrize(
    ("n", "dtype", "in_memory"),
    [
        *((n, x, False) for n in (4096 * 16_384, 5_000_001) for x in _DTYPES),
        (4096 * 16_384, torch.float32, True),
    ],
)
def test_activations_without_a_mask_compile(
    launches: list[Recorded],
    n: int,
    dtype: torch.dtype,
    in_memory: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the launches of a mask, which are compiled elsewhere, and their gradient.

    Budget and temperature are numbers, or in memory as in graphs.
    """
    monkeypatch.setattr(activation_entry, "launch_named", _only(launches, activation_entry))
    scores, one = torch.empty(n, dtype=dtype, device="meta"), torch.empty((), device="meta")
    k, t = (one.double(), one.double()) if in_memory else (100 * 4096, 0.1)
    row = activation_entry.gated_forward(scores, k, t, one)
    assert row is not None
    of_rows = (t, 1.0) if in_memory else (None, t)
    given = (scores, scores, None, None, *of_rows, row.pair, row.boundary)
    activation_entry.gated_backward(*given)
    assert len(launches) == 3
    is_wide = n % 16 == 0
    writing, _, gradient = (compiled(launched) for launched in launches)
    for code in (writing, gradient):
        assert ("ld.global.v4.b32" in code) == is_wide
        assert ("st.global.v4.b32" in code) == is_wide
    assert "griddepcontrol.wait" in writing


def _only(launches: list[Recorded], entry: Any) -> Callable[..., None]:
    """Steps of kernels that are recorded, which is their own here and not those of a mask."""

    def launch(device: torch.device, name: Any, make: Callable[[], Any], given: Any) -> None:
        recorded = [getattr(entry, name) for name in _KERNELS]
        for step in make():
            if step.kernel in recorded:
                step.kernel[(step.programs,)](
                    *given, *step.numbers, **step.constants, **step.options
                )

    return launch

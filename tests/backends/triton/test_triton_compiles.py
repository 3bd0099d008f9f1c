"""Every GPU kernel compiles, down to machine code, for the GPUs there are; no GPU is needed.

The launches are those of launch.py, recorded, with all their parameters.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
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

from compiling import Recorded, compiled, source_of
from fast_lapsum.backends.triton import launch, steps

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
KERNELS = {name: value for name, value in vars(steps).items() if isinstance(value, JITFunction)}


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another run compiled does not count."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Recorded]]:
    """The launches of a forward and a backward, which launch nothing."""
    launches: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))

    for name, kernel in KERNELS.items():
        monkeypatch.setattr(steps, name, Recorder(kernel))
    monkeypatch.setattr(launch, "room_of", lambda device: 132)
    monkeypatch.setattr(launch, "on_device", lambda scores: contextlib.nullcontext())

    def run(
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        everything: bool = False,
        output: str = "mask",
        overlap: bool = False,
    ) -> list[Recorded]:
        monkeypatch.setattr(launch, "can_overlap", lambda device: overlap)

        def new(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        scores = new(dtype, shape[::-1]).mT if everything else new(dtype, shape)
        mask = new(torch.bool, shape) if everything else None
        rows = new(torch.float64, shape[:-1]) if everything else None
        largest = not everything
        launches.clear()
        _, pairs = launch.forward(scores, rows, 1.5, rows, 0.5, mask, rows, largest, output, dtype)
        launch.backward(scores, scores, rows, 0.5, mask, pairs, largest, output, everything)
        return list(launches)

    return run


def _sums_with_a_fused_product(ptx: str) -> int:
    """Additions of another thread's number into which a thread's own product went unrounded."""
    shuffled: set[str] = set()
    count = 0
    for line in ptx.splitlines():
        operation, _, operands = line.strip().rstrip(";").replace("{", "").partition(" ")
        names = re.findall(r"%\w+", operands)
        if not names:
            continue
        if operation.startswith("shfl") or (
            operation.startswith("mov") and shuffled.intersection(names[1:])
        ):
            shuffled.add(names[0])
        count += operation.startswith("fma") and names[-1] in shuffled
    return count


def test_rows_of_eight_are_in_one_thread_each(record: Callable[..., list[Recorded]]) -> None:
    """What the layout of a tile is for: no number goes from thread to thread."""
    for launched in record((4096, 8), torch.float32):
        assert "shfl" not in compiled(launched)


@pytest.mark.parametrize("n", [8, 33, 64])
def test_threads_of_a_warp_agree_about_sums(record: Callable[..., list[Recorded]], n: int) -> None:
    """With rows that begin anywhere, every thread may have one score of a row."""
    for launched in record((3, n), torch.float32, everything=True):
        assert _sums_with_a_fused_product(compiled(launched)) == 0


#: Rows of every kind: in tiles, held by teams, one program each, in chunks.
SHAPES = ((3, 300), (1, 100_000), (100, 100_000), (2, 20_000_000))


def test_every_kernel_is_compiled_here(record: Callable[..., list[Recorded]]) -> None:
    """The shapes below launch all that there is to launch."""
    launched = {what[0].__name__ for shape in SHAPES for what in record(shape, torch.float32)}
    assert launched == set(KERNELS)


@pytest.mark.parametrize(
    ("capability", "shape"),
    [
        *((80, shape) for shape in SHAPES),
        *((100, shape) for shape in SHAPES[::3]),
        *(pytest.param(100, shape, marks=pytest.mark.slow) for shape in SHAPES[1:3]),
    ],
    ids=str,
)
def test_other_gpus(
    record: Callable[..., list[Recorded]], capability: int, shape: tuple[int, int]
) -> None:
    for launched in record(shape, torch.float32):
        compiled(launched, capability)


@pytest.mark.parametrize("output", ["hard", "log", "threshold"])
def test_every_output_compiles(record: Callable[..., list[Recorded]], output: str) -> None:
    for launched in record((3, 300), torch.float32, output=output):
        compiled(launched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_compiles(record: Callable[..., list[Recorded]], dtype: torch.dtype) -> None:
    for launched in record((3, 128), dtype):
        compiled(launched)


def test_blockscompiled(record: Callable[..., list[Recorded]]) -> None:
    """One row per program: plain, and with everything and hard masks."""
    launches = record((3, 4096), torch.float32)
    launches += record((3, 1000), torch.bfloat16, everything=True, output="hard")
    for launched in launches:
        compiled(launched)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((torch.float32, shape) for shape in SHAPES[1:]),
        *((torch.float64, shape) for shape in SHAPES[1::2]),
        pytest.param(torch.float64, SHAPES[2], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_long_rowscompiled(
    record: Callable[..., list[Recorded]], dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    for launched in record(shape, dtype, overlap=True):
        compiled(launched)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_rows_with_everythingcompiled(
    record: Callable[..., list[Recorded]], shape: tuple[int, int]
) -> None:
    """Hard masks of long rows; masks, strides, tensors, the smallest."""
    for launched in record(shape, torch.bfloat16, everything=True, output="hard"):
        compiled(launched)


def test_huge_rowscompiled(record: Callable[..., list[Recorded]]) -> None:
    """Lengths and strides beyond 32 bits."""
    for launched in record((2, 2**31 + 1024), torch.bfloat16):
        assert "i64" in str(source_of(launched).signature["call"])
        compiled(launched)


@pytest.mark.parametrize("first", ["launch", "selection_launch"])
def test_a_kernel_is_found_in_the_cache_whatever_was_called_first(first: str) -> None:
    """Keys of Triton's cache on disk, asked for in this order or the other."""
    asked = [
        "from triton.runtime import JITFunction",
        "from fast_lapsum.backends.triton import {first}, steps",
        "found = [k for k in vars(steps).values() if isinstance(k, JITFunction)]",
        "kernels = sorted(found, key=lambda kernel: kernel.__name__)",
        "print(sorted(k.cache_key for k in kernels[::{step}]))",
    ]
    keys = set()
    for step in (1, -1):
        program = "\n".join(asked).format(first=first, step=step)
        ran = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        keys.add(ran.stdout)
    assert len(keys) == 1
    assert len(next(iter(keys))) > 500

"""The kernels of sorted rows compile, down to machine code; no GPU is needed.

The launches are those of ranking_launch.py, recorded, with all their parameters.
"""

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

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from fast_lapsum.backends.triton import ranking_launch

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
KERNELS = {
    name: value for name, value in vars(ranking_launch).items() if isinstance(value, JITFunction)
}
#: Bytes that a program may have on every GPU from Ampere on.
SHARED_MEMORY = 99 << 10
Recorded = tuple[Any, tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Recorded]]:
    """All launches for rows of a shape, which launch nothing."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what was compiled before does not count
    launches: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel, self.arg_names = kernel, kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))

    for name, kernel in KERNELS.items():
        monkeypatch.setattr(ranking_launch, name, Recorder(kernel))
    monkeypatch.setattr(ranking_launch, "on_device", lambda tensor: contextlib.nullcontext())

    def run(
        shape: tuple[int, int], dtype: torch.dtype, forward_only: bool = False
    ) -> list[Recorded]:
        def new(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        rows = new(dtype, *shape)
        order, t = new(torch.int64, *shape), new(torch.float64, shape[0])
        ranking_launch.rank_rows(rows, order, 0.1, False)
        found = ranking_launch.threshold_rows(rows, 0.1, None)
        if forward_only:
            return list(launches)
        ranking_launch.rank_rows_backward(rows, rows, order, t, True)
        ranking_launch.threshold_rows(rows, t, new(torch.float64, 3))
        ranking_launch.threshold_rows_backward(*found, rows, order, t)
        gaps, values = new(dtype, shape[0], shape[1] - 1), new(dtype, shape[0], 2, shape[1])
        for reverse in (False, True):
            ranking_launch.decayed_sums(gaps, values, reverse)
        return list(launches)

    return run


def _compile(launched: Recorded, capability: int) -> None:
    kernel, args, kwargs = launched
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    signature = {}
    for place, parameter in enumerate(kernel.params):
        value = args[place] if place < len(args) else kwargs[parameter.name]
        is_one = type(value) is int and value == 1
        if parameter.name in kwargs or value is None or is_one:
            signature[parameter.name], constants[place,] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"], f"{kernel.__name__} has no machine code"
    assert compiled.metadata.shared <= SHARED_MEMORY, compiled.metadata.shared


Record = Callable[..., list[Recorded]]


def test_forward_kernels_compile(record: Record) -> None:
    """Those of long rows, for an H100 or H200; the test below has all of them."""
    for launched in record((1, 1_000_000), torch.float32, forward_only=True):
        _compile(launched, 90)


@pytest.mark.parametrize(
    ("shape", "dtype", "capability"),
    [
        pytest.param((1, 1_000_000), torch.float32, 90, marks=pytest.mark.slow),
        pytest.param((64, 4096), torch.float32, 90, marks=pytest.mark.slow),
        pytest.param((64, 100), torch.float64, 90, marks=pytest.mark.slow),
        pytest.param((3, 100_000), torch.float64, 80, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_compile(
    record: Record, shape: tuple[int, int], dtype: torch.dtype, capability: int
) -> None:
    for launched in record(shape, dtype):
        _compile(launched, capability)


def test_every_kernel_is_compiled_here(record: Record) -> None:
    launched = {what[0].__name__ for what in record((1, 1_000_000), torch.float32)}
    assert launched == set(KERNELS)

"""Every GPU kernel compiles, down to machine code, for the GPUs there are; no GPU is needed.

The launches are those of launch.py and long_rows.py, recorded, with all their parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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

from fast_lapsum.triton import launch, long_rows

#: The modules that launch, and the kernels in each.
LAUNCHING = (launch, long_rows)
KERNELS = {
    name: value
    for module in LAUNCHING
    for name, value in vars(module).items()
    if isinstance(value, JITFunction)
}
TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bool: "i1",
    torch.int32: "i32",
    torch.int64: "i64",
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
CORES = 132
#: Bytes that a program may have on every GPU named here.
SHARED_MEMORY = 99 << 10
#: A row that one program does not hold.
LENGTHS = (launch.longest_block(4) + 1,)


class Launch(NamedTuple):
    """A kernel with its arguments as the compiler sees them."""

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    multiples_of_16: tuple[str, ...]
    options: tuple[tuple[str, int], ...]


def _describe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    """What Triton makes of a launch: None and 1 are constants, multiples of 16 are told."""
    names = KERNELS[name].arg_names
    values = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
    assert list(values) == names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned = []
    plain = {p.name for p in KERNELS[name].params if p.do_not_specialize}
    for argument, value in values.items():
        is_one = type(value) is int and value == 1 and argument not in plain
        if argument.isupper() or value is None or is_one:
            signature[argument], constants[argument] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[argument] = "*" + TYPES[value.dtype]
            if value.storage_offset() * value.itemsize % 16 == 0:
                aligned.append(argument)
        elif isinstance(value, float):
            signature[argument] = "fp32"
        else:
            signature[argument] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and argument not in plain:
                aligned.append(argument)
    options = {k: v for k, v in kwargs.items() if k not in names}
    return Launch(
        name,
        tuple(signature.items()),
        tuple(constants.items()),
        tuple(aligned),
        tuple(options.items()),
    )


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Launch]]:
    """The launches of a forward and a backward, which launch nothing."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name
            self.arg_names = KERNELS[name].arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: launches.append(_describe(self.name, args, kwargs))

    for module in LAUNCHING:
        for name in KERNELS.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, Recorder(name))
        monkeypatch.setattr(module, "cores_of", lambda device: CORES)

    def run(
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        tensors: bool = False,
        masked: bool = False,
        strided: bool = False,
        largest: bool = True,
        hard: bool = False,
        overlap: bool = True,
    ) -> list[Launch]:
        monkeypatch.setattr(long_rows, "overlaps", lambda device: overlap)

        def new(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        scores, grad = new(dtype, shape), new(dtype, shape)
        if strided:
            scores, grad = new(dtype, shape[::-1]).mT, new(dtype, shape[::-1]).mT
        mask = new(torch.bool, shape) if masked else None
        rows = new(torch.float64, shape[:-1]) if tensors else None
        launches.clear()
        _, threshold = launch.forward(
            scores, rows, 1.5, rows, 0.5, mask, rows, largest, hard, dtype
        )
        launch.backward(grad, scores, rows, 0.5, mask, threshold, largest, tensors)
        return list(dict.fromkeys(launches))

    return run


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another run compiled does not count."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def _compile(what: Launch, capability: int) -> str:
    """Down to machine code; returns the PTX."""
    kernel = KERNELS[what.kernel]
    positions = {name: position for position, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=dict(what.signature),
        constexprs=dict(what.constants),
        attrs={(positions[name],): [["tt.divisibility", 16]] for name in what.multiples_of_16},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options=dict(what.options)
    )
    assert compiled.asm["cubin"], f"{what.kernel} has no machine code"
    assert compiled.metadata.shared <= SHARED_MEMORY, f"{what.kernel}: {compiled.metadata.shared}"
    return str(compiled.asm["ptx"])


def test_every_kernel_is_compiled_here(record: Callable[..., list[Launch]]) -> None:
    """The row lengths below launch all that there is to launch."""
    assert KERNELS
    launched = {what.kernel for n in LENGTHS for what in record((2, n), torch.float32)}
    assert launched == set(KERNELS)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_float32_compiles_everywhere(record: Callable[..., list[Launch]], capability: int) -> None:
    overlap = capability >= 90
    launches = [what for n in LENGTHS for what in record((2, n), torch.float32, overlap=overlap)]
    for what in dict.fromkeys(launches):
        _compile(what, capability)


@pytest.mark.parametrize(
    ("dtype", "masked"),
    [  # float32 is above; float16 differs from bfloat16 in the conversion alone
        pytest.param(dtype, masked, marks=[pytest.mark.slow] * (dtype == torch.float16))
        for dtype in DTYPES
        for masked in (False, True)
    ][1:],
    ids=str,
)
def test_every_dtype_compiles(
    record: Callable[..., list[Launch]], dtype: torch.dtype, masked: bool
) -> None:
    """Plain calls, and calls with everything: masks, strides, tensors, the smallest."""
    for what in record(
        (3, 70_001), dtype, masked=masked, strided=masked, tensors=masked, largest=not masked
    ):
        _compile(what, 90)


def test_huge_rows_compile(record: Callable[..., list[Launch]]) -> None:
    """Lengths and strides beyond 32 bits."""
    for what in record((2, 2**31 + 1024), torch.bfloat16):
        assert "i64" in dict(what.signature).values()
        _compile(what, 90)

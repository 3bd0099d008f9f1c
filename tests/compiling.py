"""Kernels compiled down to machine code, for GPUs that need not be there."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
#: Bytes that a program may have on every GPU named here.
SHARED_MEMORY = 99 << 10
Recorded = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _describe(value: Any, place: tuple[int, ...], constants: Any, attributes: Any) -> Any:
    """What Triton makes of an argument: None and 1 are constants, multiples of 16 are told."""
    if isinstance(value, tuple):
        parts = [_describe(v, (*place, i), constants, attributes) for i, v in enumerate(value)]
        return type(value)(*parts)
    if value is None or (type(value) is int and value == 1):
        constants[place] = value
        return "constexpr"
    if isinstance(value, Tensor):
        attributes[place] = [["tt.divisibility", 16]]
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if value % 16 == 0:
        attributes[place] = [["tt.divisibility", 16]]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def source_of(launched: Recorded) -> ASTSource:
    """A kernel with its arguments as the compiler sees them."""
    kernel, args, kwargs = launched
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    signature: dict[str, Any] = {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in kwargs:
            signature[name], constants[place,] = "constexpr", kwargs[name]
        elif parameter.do_not_specialize:
            signature[name] = "i32"
        else:
            signature[name] = _describe(args[place], (place,), constants, attributes)
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def options_of(launched: Recorded) -> dict[str, Any]:
    """What a launch tells the compiler beside a kernel's arguments."""
    kernel, _, kwargs = launched
    return {name: value for name, value in kwargs.items() if name not in kernel.arg_names}


def build(source: Any, launched: Recorded, capability: int) -> Any:
    """Machine code of what the compiler is given: a kernel, or what it has made of one."""
    target = GPUTarget("cuda", capability, 32)
    found = triton.compile(source, target=target, options=options_of(launched))
    assert found.asm["cubin"], f"{launched[0].__name__} has no machine code"
    assert f".target sm_{capability}" in found.asm["ptx"]
    assert found.metadata.shared <= SHARED_MEMORY, found.metadata.shared
    return found


def compiled(launched: Recorded, capability: int = 90) -> str:
    """Down to machine code, for an H100 or H200 if nothing else is said; returns the PTX."""
    return str(build(source_of(launched), launched, capability).asm["ptx"])

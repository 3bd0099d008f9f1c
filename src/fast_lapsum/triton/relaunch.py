"""Launching a kernel again without the binder, which costs more than a short row's whole solve.

Triton finds the compiled kernel for a call by looking at every argument. A call whose key (shapes,
strides, dtypes, alignment, options) was seen before needs none of that: the compiled kernel is kept
and gets its pointers and numbers directly.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

#: Launchers whose way of being called was tried; with any other every call goes the long way.
_KNOWN = ("3.6.", "3.7.")
_is_known = str(triton.__version__).startswith(_KNOWN)
#: So many kernels are kept; a process with ever new shapes starts over.
_MOST = 4096
_compiled: dict[Hashable, Any] = {}
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


def layout(tensors: Sequence[Tensor | None]) -> tuple[Hashable, ...]:
    """What Triton compiles for in a tensor's pointer: dtype, and alignment to 16 bytes."""
    return tuple(None if x is None else (x.dtype, x.data_ptr() % 16 == 0) for x in tensors)


def find(key: Hashable, device: int | None) -> Any:
    """The kernel kept under this key, if it can be launched as things are."""
    kernel = _compiled.get(key)
    if kernel is None or _device is None or _device() != device or _has_hooks():
        return None
    return kernel


def keep(key: Hashable, kernel: Any) -> None:
    """Keep what a launch returned, unless it was interpreted or Triton is one not known here."""
    if _is_known and hasattr(kernel, "packed_metadata"):
        if len(_compiled) >= _MOST:
            _compiled.clear()
        _compiled[key] = kernel


def run(kernel: Any, programs: int, device: int, *arguments: Any) -> None:
    """All of the kernel's arguments, constants included; tensors as addresses."""
    assert _stream is not None
    stream = _stream(device)
    metadata = kernel.packed_metadata
    kernel.run(programs, 1, 1, stream, kernel.function, metadata, None, None, None, *arguments)


def launch(
    key: Hashable | None,
    function: Any,
    programs: int,
    device: int | None,
    arguments: Sequence[Any],
    constants: dict[str, Any],
    **options: Any,
) -> None:
    """Launch ``function``; with a key, by what was kept under it or keeping what it compiles to."""
    if key is not None and device is not None and (kernel := find(key, device)) is not None:
        addresses = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
        run(kernel, programs, device, *addresses, *constants.values())
        return
    kernel = function[(programs,)](*arguments, **constants, **options)
    if key is not None:
        # A kept kernel gets its constants by position.
        assert function.arg_names[len(arguments) :] == list(constants)
        keep(key, kernel)


def _has_hooks() -> bool:
    """A profiler that wants to see launches."""
    runtime = knobs.runtime
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    return any(hook is not None and bool(getattr(hook, "calls", True)) for hook in hooks)

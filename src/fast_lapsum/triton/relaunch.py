"""Launching a kernel again without the binder, which costs more than a short row's whole solve.

Triton finds the compiled kernel for a call by looking at every argument. A call whose key (shapes,
dtypes, alignment, options) was seen before needs none of that: the compiled kernel is kept and gets
its pointers and numbers directly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import triton
from triton import knobs

#: Launchers whose way of being called was tried; with any other every call goes the long way.
_KNOWN = ("3.4.", "3.5.", "3.6.", "3.7.")
_is_known = str(triton.__version__).startswith(_KNOWN)
_compiled: dict[Hashable, Any] = {}
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


def is_aligned(address: int) -> bool:
    """Whether Triton would have compiled for wide loads from this address."""
    return address % 16 == 0


def find(key: Hashable, device: int | None) -> Any:
    """The kernel kept under this key, if it can be launched as things are."""
    kernel = _compiled.get(key)
    if kernel is None or _device is None or _device() != device or _has_hooks():
        return None
    return kernel


def keep(key: Hashable, kernel: Any) -> None:
    """Keep what a launch returned, unless it was interpreted or Triton is one not known here."""
    if _is_known and hasattr(kernel, "packed_metadata"):
        if len(_compiled) >= 1024:  # a process with ever new shapes
            _compiled.clear()
        _compiled[key] = kernel


def launch(kernel: Any, programs: int, device: int, *arguments: Any) -> None:
    """All of the kernel's arguments, constants included; tensors as addresses."""
    assert _stream is not None
    kernel.run(
        programs,
        1,
        1,
        _stream(device),
        kernel.function,
        kernel.packed_metadata,
        None,
        None,
        None,
        *arguments,
    )


def _has_hooks() -> bool:
    """A profiler that wants to see launches."""
    hook = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))

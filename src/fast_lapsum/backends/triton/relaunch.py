"""Launching again without the binder, which costs more than a short row's whole solve.

Triton finds the compiled kernel for a call by looking at every argument. A call whose key (shapes,
strides, dtypes, alignment, options) was seen before needs none of that: the compiled kernels are
kept and get their pointers and numbers directly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from .steps import Steps
from .views import Call, Rows

#: Launchers whose way of being called was tried; with any other every call goes the long way.
_KNOWN = ("3.6.", "3.7.")
_is_known = str(triton.__version__).startswith(_KNOWN)
#: So many calls are kept; a process with ever new shapes starts over.
_MOST = 4096
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


class Launched(NamedTuple):
    """One launch as it was made: the compiled kernel, and what follows a call's own arguments."""

    kernel: Any
    programs: int
    rest: tuple[Any, ...]


class Kept(NamedTuple):
    """A call, to be made again for other addresses and numbers."""

    launches: tuple[Launched, ...]
    words: int
    call: Call
    row_count: int
    results: tuple[Rows, ...]  # and grad, where there is one
    room: int = 0  # for so many programs that wait for each other


_calls: dict[Hashable, Kept] = {}


def launch(planned: Steps, lead: tuple[Any, ...], *words: Tensor) -> Kept:
    """Launch all steps; every kernel is told ``lead``, the scratch memory and what is its own."""
    launches = []
    for kernel, programs, numbers, constants, options in planned.steps:
        compiled = kernel[(programs,)](*lead, *words, *numbers, **constants, **options)
        # A kept kernel gets its constants by position.
        ordered = (constants[name] for name in kernel.arg_names[-len(constants) :])
        launches.append(Launched(compiled, programs, (*numbers, *ordered)))
    return Kept(tuple(launches), planned.words, lead[0], lead[1], ())


def keep(key: Hashable, made: Kept, *results: Rows | None) -> None:
    """Keep a call, unless it was interpreted or Triton is one not known here.

    Its tensors are left out: they are replaced in every call, and would be kept from being freed.
    """
    if not (_is_known and all(hasattr(one.kernel, "packed_metadata") for one in made.launches)):
        return
    if len(_calls) >= _MOST:
        _calls.clear()
    call = made.call._replace(scores=made.call.scores._replace(start=None))
    rows = tuple(result._replace(start=None) for result in results if result is not None)
    _calls[key] = made._replace(call=call, results=rows)


def find(key: Hashable, device: int | None) -> Kept | None:
    """The call kept under this key, if it can be made as things are."""
    kept = _calls.get(key)
    if kept is None or _device is None or _device() != device or _has_hooks():
        return None
    return kept


def run(kept: Kept, device: int, lead: tuple[Any, ...], *words: Tensor) -> None:
    """Make a call again; ``lead`` has addresses where tensors were."""
    assert _stream is not None
    stream = _stream(device)
    places = tuple(tensor.data_ptr() for tensor in words)
    for kernel, programs, rest in kept.launches:
        kernel.run(
            *(programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None),
            *lead,
            *places,
            *rest,
        )


def _has_hooks() -> bool:
    """A profiler that wants to see launches."""
    runtime = knobs.runtime
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    return any(hook is not None and bool(getattr(hook, "calls", True)) for hook in hooks)

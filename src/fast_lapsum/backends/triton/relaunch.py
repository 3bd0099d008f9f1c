"""Launching a kernel again without the binder, which costs more than a short row's whole solve.

Triton finds the compiled kernel for a call by looking at every argument. A call whose key (shapes,
strides, dtypes, alignment, options) was seen before needs none of that: the compiled kernel is kept
and gets its pointers and numbers directly. A call of several launches is kept whole, as a recipe:
the second time only addresses and the numbers k and t are put in their places.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from .views import Call, Rows

#: Launchers whose way of being called was tried; with any other every call goes the long way.
_KNOWN = ("3.6.", "3.7.")
_is_known = str(triton.__version__).startswith(_KNOWN)
#: So many kernels are kept; a process with ever new shapes starts over.
_MOST = 4096
_compiled: dict[Hashable, Any] = {}
#: Arguments that change from call to call, besides addresses.
NUMBERS = ("k_hi", "k_lo", "t_hi", "t_lo")


class Launched(NamedTuple):
    """One launch as it was made."""

    kernel: Any
    names: Sequence[str]
    programs: int
    values: Sequence[Any]


class _Again(NamedTuple):
    """A launch with the places of its addresses (tensor, offset) and of NUMBERS."""

    kernel: Any
    programs: int
    values: list[Any]
    addresses: list[tuple[int, int, int]]
    numbers: list[tuple[int, int]]


class Recipe(NamedTuple):
    """All launches of a call, and the bytes of scratch memory that they share."""

    launches: list[_Again]
    scratch: int


_recipes: dict[Hashable, Recipe] = {}
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


class Kept(NamedTuple):
    """A call of one launch, to be made again for other addresses and numbers."""

    kernel: Any
    programs: int
    call: Call
    row_count: int
    results: tuple[Rows, ...]  # and grad, where there is one
    constants: tuple[Any, ...]
    more: tuple[Any, ...] = ()  # arguments after the results, which are numbers or None


def keep_call(key: Hashable, made: Kept) -> None:
    """Keep a call, unless it was interpreted or Triton is one not known here.

    Its tensors are left out: they are replaced in every call, and would be kept from being freed.
    """
    if not (_is_known and hasattr(made.kernel, "packed_metadata")):
        return
    if len(_compiled) >= _MOST:
        _compiled.clear()
    call = made.call._replace(scores=made.call.scores._replace(start=None))
    results = tuple(rows._replace(start=None) for rows in made.results)
    _compiled[key] = made._replace(call=call, results=results)


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
) -> Launched:
    """Launch ``function``; with a key, by what was kept under it or keeping what it compiles to."""
    values = (*arguments, *constants.values())
    if key is not None and device is not None and (kernel := find(key, device)) is not None:
        run(
            kernel,
            programs,
            device,
            *(x.data_ptr() if isinstance(x, Tensor) else x for x in values),
        )
    else:
        kernel = function[(programs,)](*arguments, **constants, **options)
        if key is not None:
            # A kept kernel gets its constants by position.
            assert function.arg_names[len(arguments) :] == list(constants)
            keep(key, kernel)
    return Launched(kernel, function.arg_names, programs, values)


def recipe(key: Hashable, device: int | None) -> Recipe | None:
    """The recipe kept under this key, if its kernels can be launched as things are."""
    found = _recipes.get(key)
    if found is None or _device is None or _device() != device or _has_hooks():
        return None
    return found


def keep_recipe(key: Hashable, made: Sequence[Launched], tensors: Sequence[Tensor]) -> None:
    """Keep a call's launches. Every tensor among their arguments is one of ``tensors``, or a part.

    The last of those is the scratch memory. Whose an address is must be clear: a call that was
    given the same memory twice is not kept.
    """
    if not (_is_known and all(hasattr(one.kernel, "packed_metadata") for one in made)):
        return
    spans = [(x.data_ptr(), x.data_ptr() + x.numel() * x.itemsize) for x in tensors]
    in_order = sorted(spans)
    if any(end > start for (_, end), (start, _) in pairwise(in_order)):
        return
    launches = []
    for one in made:
        addresses = []
        for place, value in enumerate(one.values):
            if isinstance(value, Tensor):
                address = value.data_ptr()
                owner = next(i for i, (first, end) in enumerate(spans) if first <= address < end)
                addresses.append((place, owner, address - spans[owner][0]))
        numbers = [
            (place, NUMBERS.index(name)) for place, name in enumerate(one.names) if name in NUMBERS
        ]
        values = [None if isinstance(value, Tensor) else value for value in one.values]
        launches.append(_Again(one.kernel, one.programs, values, addresses, numbers))
    if len(_recipes) >= _MOST:
        _recipes.clear()
    _recipes[key] = Recipe(launches, tensors[-1].numel() * tensors[-1].itemsize)


def follow(recipe: Recipe, device: int, addresses: Sequence[int], numbers: Sequence[float]) -> None:
    """Make the launches of a recipe for tensors at these addresses, and these NUMBERS."""
    assert _stream is not None
    stream = _stream(device)
    for kernel, programs, kept, places, numbered in recipe.launches:
        values = kept.copy()
        for place, owner, offset in places:
            values[place] = addresses[owner] + offset
        for place, number in numbered:
            values[place] = numbers[number]
        metadata = kernel.packed_metadata
        kernel.run(programs, 1, 1, stream, kernel.function, metadata, None, None, None, *values)


def _has_hooks() -> bool:
    """A profiler that wants to see launches."""
    runtime = knobs.runtime
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    return any(hook is not None and bool(getattr(hook, "calls", True)) for hook in hooks)

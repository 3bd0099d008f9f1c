"""Launching steps whose kernels are all told the same, again without the binder (relaunch.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from . import relaunch
from .steps import Step, Steps
from .views import Call, Rows

_NO_CALL = Call(Rows(None, 0, 0), None, None, None, None, 0, 1)


def launch_steps(device: torch.device, steps: list[Step], given: tuple[Any, ...]) -> None:
    """Launch steps whose kernels are all told the same."""
    name = tuple(
        (step.kernel, step.programs, step.numbers, *step.constants.items(), *step.options.items())
        for step in steps
    )
    launch_named(device, name, lambda: steps, given)


def launch_named(
    device: torch.device, name: Hashable, make: Callable[[], list[Step]], given: tuple[Any, ...]
) -> None:
    """The same of steps that ``name`` says everything about, so that they are seldom made.

    Calls of a kind that was seen before get their addresses and numbers directly.
    """
    kinds: list[Any] = []
    addresses = _addresses(given, kinds)
    key = (name, device.index, *kinds)
    if (again := relaunch.find(key, device.index)) is not None:
        relaunch.run(again, device.index or 0, addresses)
        return
    launched = relaunch.launch(Steps(make()), given)
    # Tensors that were told are not kept alive.
    relaunch.keep(key, launched._replace(call=_NO_CALL, row_count=0))


def _addresses(given: tuple[Any, ...], kinds: list[Any]) -> Any:
    """Arguments with addresses where tensors were; ``kinds`` hears what a kernel depends on."""
    found: list[Any] = []
    for value in given:
        kind = type(value)
        if kind is int:
            kinds.append((value == 1) + 2 * (value % 16 == 0) + 4 * (-(2**31) <= value < 2**31))
        elif isinstance(value, Tensor):
            kinds.append(value.dtype)
            value = value.data_ptr()
            kinds.append(value % 16 == 0)
        elif isinstance(value, tuple):
            kinds.append(kind)
            value = _addresses(value, kinds)
        else:
            kinds.append(kind)
        found.append(value)
    is_named = hasattr(given, "_fields")
    return type(given)(*found) if is_named else tuple(found)

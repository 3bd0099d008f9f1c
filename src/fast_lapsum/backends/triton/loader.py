"""Finds out whether the GPU kernels can be used here, and says why not."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

#: The oldest Triton that has all that the kernels use.
OLDEST = (3, 4)


@functools.cache
def entry() -> Any:
    """The module ``entry``, or None where Triton is missing or too old."""
    return import_module(".entry", __package__) if _is_new_enough() else None


@functools.cache
def hint_at_triton() -> None:
    """Say once that calls on a GPU run many times slower than they could, and what is missing."""
    oldest = ".".join(map(str, OLDEST))
    warnings.warn(
        f"GPU calls run in {description()}. The kernels need Triton {oldest} or newer, which comes"
        " with torch for CUDA; until then calls are many times slower.",
        stacklevel=2,
    )


def description() -> str:
    """What a call on a GPU takes, in words."""
    if _is_new_enough():
        return f"Triton kernels (Triton {_version()})"
    if find_spec("triton") is None:
        return "plain torch: Triton is not installed"
    return f"plain torch: Triton {_version()} is older than {'.'.join(map(str, OLDEST))}"


def _version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:  # another distribution that provides it
        return str(import_module("triton").__version__)


def _is_new_enough() -> bool:
    if find_spec("triton") is None:
        return False
    numbers = [int(part) for part in _version().split("+")[0].split(".")[:2] if part.isdigit()]
    return tuple(numbers) >= OLDEST

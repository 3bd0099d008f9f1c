"""A call of a new kind has all its kernels compiled side by side, not one when the other has run.

That is most of what a first call takes: about a second per kernel, on one core each.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, NamedTuple

import triton

_known: set[Hashable] = set()


class Launch(NamedTuple):
    """A kernel and what it is to be launched with, as :func:`relaunch.launch` takes it."""

    name: Hashable
    function: Any
    programs: int
    arguments: Sequence[Any]
    constants: dict[str, Any]
    options: dict[str, Any]


def compile_together(kind: Hashable, launches: Sequence[Launch]) -> None:
    """Compile what these launch, unless that was done for their kind before."""
    if kind in _known or not hasattr(triton, "AsyncCompileMode"):
        return
    _known.add(kind)
    # In a context of its own: the caller may be compiling other kernels in the same way.
    Context().run(_compile, launches)


def _compile(launches: Sequence[Launch]) -> None:
    most = min(len(launches), os.cpu_count() or 1)
    with ThreadPoolExecutor(most) as threads, triton.AsyncCompileMode(threads):
        for one in launches:
            one.function.warmup(
                *one.arguments, grid=(one.programs,), **one.constants, **one.options
            )

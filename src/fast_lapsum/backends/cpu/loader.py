"""Finds and loads the compiled kernel; without it the plain-torch backend does the work."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import torch  # noqa: F401  (loads the OpenMP runtime that the kernel shares with it)

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_PATH = Path(__file__).with_name("_lapsum" + _SUFFIX)
#: Where a checkout has its CMakeLists.txt; an installed package has none there.
_CHECKOUT = Path(__file__).resolve().parents[4]


class KernelStatus(NamedTuple):
    """Whether CPU calls take the compiled kernel, and why not where they do not."""

    available: bool
    description: str
    instruction_set: str | None
    path: str | None
    reason: str | None


def library() -> ctypes.CDLL | None:
    """The loaded kernel, or None."""
    return _load()[0]


def status() -> KernelStatus:
    """What a CPU call uses, for ``fast-lapsum info`` and results files."""
    loaded, reason = _load()
    if loaded is None:
        return KernelStatus(False, f"plain torch ({reason})", None, None, reason)
    instruction_set = loaded.lapsum_instruction_set().decode()
    threads = "" if loaded.lapsum_has_threads() else ", one thread (built without OpenMP)"
    description = f"C++ kernel, {instruction_set}{threads}"
    return KernelStatus(True, description, instruction_set, str(_PATH), None)


@functools.cache
def hint_at_building() -> None:
    """Warn, once, that calls are slow for want of a kernel that could be built here."""
    loaded, reason = _load()
    compiler = next(filter(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++")), None)
    if loaded is not None or compiler is None:
        return
    command = "pip install --force-reinstall --no-deps --no-cache-dir . (in a checkout of it)"
    if (_CHECKOUT / "CMakeLists.txt").exists():
        command = f"pip install --no-deps --editable {_CHECKOUT}"
    warnings.warn(
        f"CPU calls run without the C++ kernel, many times slower: {reason}. There is a compiler "
        f"({compiler}), so install fast-lapsum again: {command}; -v shows what the compiler says",
        stacklevel=3,
    )


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    if not _PATH.exists():
        return (
            None,
            "the C++ kernel is not there: no compiler could build it at install time, or it was "
            "left out on purpose",
        )
    try:
        loaded = ctypes.CDLL(str(_PATH))
    except OSError as error:
        return None, f"the C++ kernel could not be loaded: {error}"
    loaded.lapsum_instruction_set.restype = ctypes.c_char_p
    calls = (
        *("lapsum_forward", "lapsum_backward", "lapsum_sample_bands"),
        *("lapsum_select", "lapsum_select_backward", "lapsum_sample"),
        *("lapsum_order", "lapsum_rank", "lapsum_rank_backward", "lapsum_decayed_sums"),
        *("lapsum_thresholds", "lapsum_thresholds_backward"),
        *("lapsum_ragged_forward", "lapsum_ragged_backward"),
        *("lapsum_list_forward", "lapsum_list_backward"),
        *("lapsum_shard_measure", "lapsum_shard_write", "lapsum_shard_sample"),
        *("lapsum_shard_gradient_sums", "lapsum_shard_gradient"),
        *("lapsum_shard_begin", "lapsum_shard_advance"),
    )
    try:
        for name in ("lapsum_has_threads", "lapsum_call_size", *calls):
            getattr(loaded, name).restype = ctypes.c_int64
    except AttributeError as error:
        return None, f"the C++ kernel is from another version of fast-lapsum; reinstall: {error}"
    for name in calls:
        getattr(loaded, name).argtypes = [ctypes.c_char_p]
    return loaded, None

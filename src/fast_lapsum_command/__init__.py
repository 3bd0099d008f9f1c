"""The command ``fast-lapsum``: a package of its own, because it has to run before torch is loaded.

The version alone needs no torch, which takes a second and more to load.

OpenMP's threads spin while they wait for each other. Where other programs want the cores, too, that
takes them from the very threads that are waited for, and a training takes many times as long.
OpenMP's runtime reads how to wait once, when torch loads it, which the first line of
``fast_lapsum`` does.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import NoReturn

#: What the extra [cli] installs.
_OF_COMMAND_LINE = ("typer", "rich")
_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
#: Of address space: torch 2.13 and the command line have no room in less, and where it ends decides
#: whether that is an error, an abort of C++, or pages of both.
_LEAST_MEMORY = 600 << 20


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"] and (version := _installed_version()) is not None:
        print(f"fast-lapsum {version}")
        sys.exit()
    wait_without_spinning()
    limit = _memory_limit()
    if limit is not None and limit < _LEAST_MEMORY:
        _end_without_memory(
            f"the command needs {_LEAST_MEMORY >> 20} MiB to start, and its limit (ulimit -v) is "
            f"{limit >> 20} MiB"
        )
    try:
        _run()
    except (ImportError, MemoryError) as error:
        # A limit is what keeps a library from being mapped; without one the file is at fault.
        is_mapping = limit is not None and "failed to map segment" in str(error)
        if not isinstance(error, MemoryError) and not is_mapping:
            raise
        said = "" if limit is None else f"; the limit (ulimit -v) is {limit >> 20} MiB"
        _end_without_memory(f"more memory is needed than there is{said}")


def _run() -> None:
    """What the command line does, if it is there."""
    try:
        from fast_lapsum.cli import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_COMMAND_LINE:
            raise
        print(
            f"error: the command line needs {missing}, which is not installed:"
            " pip install 'fast-lapsum[cli]' (in a checkout: pip install '.[cli]')",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app()


def _installed_version() -> str | None:
    """None for a checkout that is not installed: the package itself says it."""
    try:
        return metadata.version("fast-lapsum")
    except metadata.PackageNotFoundError:
        return None


def _memory_limit() -> int | None:
    """In bytes of address space; None if there is none, or the system has no such limits."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _end_without_memory(message: str) -> NoReturn:
    """One line, and the end: what else a process does then takes memory, too."""
    os.write(2, f"error: {message}\n".encode())
    os._exit(1)


def wait_without_spinning() -> None:
    """Waiting threads sleep, unless the environment says otherwise.

    Not in ``fast-lapsum bench``: it measures the operator as it runs in other people's programs.
    """
    chosen = any(name in os.environ for name in _CHOICES)
    if not chosen and sys.argv[1:2] != ["bench"]:
        os.environ["OMP_WAIT_POLICY"] = "passive"

"""The command ``fast-lapsum``: a package of its own, because it has to run before torch is loaded.

The version alone needs no torch, which takes a second and more to load.

OpenMP's threads spin while they wait for each other. Where other programs want the cores, too, that
takes them from the very threads that are waited for, and a training takes many times as long. Its
runtime reads how to wait once, when torch loads it, which the first line of ``fast_lapsum`` does.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

#: What the extra [cli] installs.
_OF_COMMAND_LINE = ("typer", "rich")
_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"] and (version := _installed_version()) is not None:
        print(f"fast-lapsum {version}")
        sys.exit()
    wait_without_spinning()
    try:
        from fast_lapsum.cli import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_COMMAND_LINE:
            raise
        print(
            f"error: the command line needs {missing}, which is not installed:"
            " pip install 'fast-lapsum[cli]'",
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


def wait_without_spinning() -> None:
    """Waiting threads sleep, unless the environment says otherwise.

    Not in ``fast-lapsum bench``: it measures the operator as it runs in other people's programs.
    """
    chosen = any(name in os.environ for name in _CHOICES)
    if not chosen and sys.argv[1:2] != ["bench"]:
        os.environ["OMP_WAIT_POLICY"] = "passive"

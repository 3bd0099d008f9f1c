"""python packaging/try_wheels.py FOLDER: install each wheel by itself, and use it.

Each gets a virtual environment of its own in a temporary folder, with no compiler on the path and
no checkout in sight, and the tests that need nothing but the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Of the folder tests/: with the kernel, and in plain torch, which is slower.
WITH_KERNEL = (
    *("core/test_semantics.py", "core/test_errors.py", "core/test_special_scores.py"),
    *("core/test_dims.py", "core/test_selection.py", "nn/test_nn_values.py"),
)
WITHOUT = ("core/test_semantics.py", "core/test_errors.py")
STATUS = "from fast_lapsum.backends.cpu import loader; print(loader.status().available)"


def attempt(wheel: Path, scratch: Path) -> None:
    """Install a wheel and run its tests."""
    begun = time.perf_counter()
    has_kernel = not wheel.name.endswith("-any.whl")
    place = scratch / "environment"
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    environment = {**os.environ, "PATH": str(python.parent), "CXX": "there-is-none"}
    environment.pop("PYTHONPATH", None)

    def run(*words: object) -> str:
        done = subprocess.run(
            [str(python), *map(str, words)], env=environment, cwd=scratch, check=True,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return done.stdout

    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    (torch,) = (line for line in pinned if line.startswith("torch=="))
    run("-m", "pip", "install", "--quiet", torch, "pytest", "hypothesis", "numpy", wheel)
    if run("-c", STATUS).strip() != str(has_kernel):
        raise SystemExit(f"error: {wheel.name}: the kernel should be there: {has_kernel}")
    shutil.copytree(ROOT / "tests", scratch / "tests", ignore=shutil.ignore_patterns("gpu"))
    files = [f"tests/{name}" for name in (WITH_KERNEL if has_kernel else WITHOUT)]
    told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    print(f"{wheel.name}: {told.strip().splitlines()[-1]}; {time.perf_counter() - begun:.0f} s")


def main(folder: Path) -> None:
    """Try all wheels of a folder."""
    for wheel in sorted(folder.glob("*.whl")):
        with tempfile.TemporaryDirectory() as scratch:
            attempt(wheel, Path(scratch))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

"""``import fast_lapsum`` is light: nothing but itself and the standard library, and at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fast_lapsum

LOOK = """
import sys, time, torch
before = set(sys.modules)
start = time.process_time()
import fast_lapsum
took = time.process_time() - start
import json
known = sys.stdlib_module_names | {"fast_lapsum"}
others = [name for name in set(sys.modules) - before if name.split(".")[0] not in known]
print(json.dumps([took, sorted(others)]))
"""
#: Beside what ``import torch`` takes, once Python has compiled the files.
MOST_SECONDS = 0.05


def _look(folder: Path) -> tuple[float, list[str]]:
    # Where Python may keep what it compiles, whatever the environment says of that.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    took, others = json.loads(done.stdout)
    return took, others


def test_import_loads_nothing_else_and_takes_no_time(tmp_path: Path) -> None:
    """The first time compiles; of the others one may be slow, if other programs are in the way."""
    for _ in range(4):
        took, others = _look(tmp_path)
        assert others == []
        if took < MOST_SECONDS:
            return
    raise AssertionError(f"an import took {took:.3f} s of processor time, four times too long")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_command_without_its_packages_says_what_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from fast_lapsum_command import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "info"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the command line needs {missing}, which is not installed:"
        " pip install 'fast-lapsum[cli]' (in a checkout: pip install '.[cli]')\n"
    )


def test_the_version_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from fast_lapsum_command import main; main()"
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"fast-lapsum {fast_lapsum.__version__}\n"

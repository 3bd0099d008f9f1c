"""The tests that need a GPU in several processes at a time: most of their time goes into compiling.

`python tests/gpu/side_by_side.py 8` runs eight; files or folders may follow. Compiled kernels are
shared by Triton's cache. Each process has a few tests in turn, and says how they ended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
#: Tests of a process: its start takes seconds, and what waits for the last one is idle.
FEW = 6


def collected(given: Sequence[str]) -> list[str]:
    """The names of all tests, in their order."""
    if options := [word for word in given if word.startswith("-")]:
        raise SystemExit(f"error: expected files or folders, got {' '.join(options)}")
    found = _pytest(["--collect-only", "-q", *(given or [str(FOLDER)])])
    names = [line for line in found.stdout.splitlines() if "::" in line]
    if found.returncode or not names:
        raise SystemExit(found.stdout + found.stderr)
    return names


def portions(names: Sequence[str], few: int = FEW) -> list[list[str]]:
    """Some tests of one file each.

    >>> portions(["a.py::one", "a.py::two", "a.py::three", "b.py::four"], few=2)
    [['a.py::one', 'a.py::two'], ['a.py::three'], ['b.py::four']]
    """
    found: list[list[str]] = []
    for name in names:
        file = name.partition("::")[0]
        if not found or len(found[-1]) == few or found[-1][0].partition("::")[0] != file:
            found.append([])
        found[-1].append(name)
    return found


def main(jobs: int, given: Sequence[str]) -> int:
    """Run them; 0 if all is well."""
    begin, failed = time.monotonic(), 0

    def run(names: list[str]) -> int:
        done = _pytest(["-q", "--tb=short", *names])
        closing = (done.stdout.strip().splitlines() or ["nothing was said"])[-1]
        said = f"{time.monotonic() - begin:5.0f} s  {names[0]} and {len(names) - 1} more: {closing}"
        if done.returncode:
            said += "\n" + done.stdout + done.stderr
        print(said, flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        failed = sum(code != 0 for code in pool.map(run, portions(collected(given))))
    print(f"{failed} of the processes failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


def _pytest(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))

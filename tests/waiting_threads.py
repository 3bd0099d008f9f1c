"""``python tests/waiting_threads.py photo.png``: encoding on busy cores, by how threads wait.

Writes results/coder/threads.json: seconds of ``fast-lapsum encode`` with one thread, with two that
spin (OpenMP's default) and with two that sleep (the command's), on cores that are left alone and
with one process more that does nothing but count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.results import write_json

COMMAND = "from fast_lapsum_command import main; main()"
WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two that spin": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": ""},
    "two that sleep": {"OMP_NUM_THREADS": "2"},
}


def main(
    picture: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    options: Annotated[str, typer.Option(help="Of encode.")] = "--plain --steps 60 --device cpu",
    repeats: int = 3,
    record: Path = Path("results/coder/threads.json"),
) -> None:
    """Measure all, in turn, so that what else the machine does falls on each of them."""
    rows: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for busy in (0, 1):
            for name, variables in WAYS.items():
                with counting(busy):
                    seconds = encoded(picture, options.split(), variables)
                rows.setdefault((name, busy), []).append(seconds)
                print(f"{name}, {busy} busy: {seconds:.1f} s", flush=True)
    write_json(
        record,
        {
            "benchmark": "coder-threads",
            "environment": environment.describe(),
            "sources": sources.describe("coder-threads", "cpu"),
            "picture": picture.name,
            "options": options,
            "rows": [
                {
                    "threads": name,
                    "busy_processes": busy,
                    "seconds": found,
                    "median": statistics.median(found),
                }
                for (name, busy), found in rows.items()
            ],
        },
    )


def encoded(picture: Path, options: list[str], variables: dict[str, str]) -> float:
    """Seconds that the command says."""
    # An empty policy is none to OpenMP, and keeps the command from choosing one.
    left = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        words = ["encode", str(picture), "-o", f"{folder}/photo.lap", "--record", str(record)]
        command = [sys.executable, "-c", COMMAND, *words, *options]
        subprocess.run(command, env=left | variables, check=True, capture_output=True)
        return float(json.loads(record.read_text())["seconds"])


@contextmanager
def counting(count: int) -> Iterator[None]:
    """So many processes that take a core each."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


if __name__ == "__main__":
    typer.run(main)

"""``python -m hostile``: decode files made by hand under the limits that docs/coder.md names."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fast_lapsum.apps.coder import limits
from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.results import write_json

from .measure import KINDS, Cost, cost

_BATCH = 20  # files between two looks at the clock
_SECONDS = 20.0  # between two writings of the record
_KEPT = 5  # of the dearest files, of each kind
console = Console()


def main(
    crafted: Annotated[int, typer.Option(min=0, help="Sizes log-uniform up to the limit.")] = 5000,
    at_limit: Annotated[int, typer.Option(min=0, help="Of those, so many of 2^26 pixels.")] = 50,
    mutated: Annotated[int, typer.Option(min=0, help="Small files, changed.")] = 5000,
    jobs: Annotated[int, typer.Option(min=1, help="Files at a time: 6 GB each at the limit.")] = 1,
    record: Annotated[Path, typer.Option(help="The results file; a run goes on in it.")] = Path(
        "build/hostile/results.json"
    ),
    minutes: Annotated[float, typer.Option(help="Stop after so many, and go on next time.")] = 1e9,
) -> None:
    """Exit code 1 if a file took more than is allowed, or did not end by a message."""
    wanted = dict(zip(KINDS, (max(0, crafted - at_limit), at_limit, mutated), strict=True))
    found = _opened(record)
    written = time.monotonic()
    end = written + 60 * minutes
    with ThreadPoolExecutor(jobs) as pool:
        for kind, count in wanted.items():
            tally = found["kinds"].setdefault(kind, _nothing())
            while tally["files"] < count and time.monotonic() < end:
                first = tally["files"]
                seeds = range(first, min(count, first + max(jobs, _BATCH)))
                for one in pool.map(lambda seed, kind=kind: _cost(kind, seed), seeds):
                    _add(tally, one)
                    if time.monotonic() > written + _SECONDS or tally["files"] == count:
                        write_json(record, found)
                        written = time.monotonic()
                        _say(kind, tally, count)
        write_json(record, found)
    over = sum(tally["over"] + len(tally["failed"]) for tally in found["kinds"].values())
    sys.exit(1 if over else 0)


def _say(kind: str, tally: dict[str, Any], count: int) -> None:
    console.print(
        f"{kind}: {tally['files']}/{count}, {tally['over']} over,"
        f" memory {tally['largest_memory_share']:.2f} and time"
        f" {tally['largest_time_share']:.2f} of what is allowed",
        highlight=False,
    )


def _cost(kind: str, seed: int) -> Cost | tuple[int, str]:
    try:
        return cost(kind, seed)
    except (RuntimeError, AssertionError) as error:
        return seed, str(error)


def _nothing() -> dict[str, Any]:
    return {
        "files": 0,
        "over": 0,
        "failed": [],
        "largest_memory_share": 0.0,
        "largest_time_share": 0.0,
        "pixels": 0,
        "seconds": 0.0,
        "endings": {},
        "most_memory": [],
        "most_time": [],
    }


def _opened(path: Path) -> dict[str, Any]:
    made_by = sources.describe("coder-hostile", "cpu")
    found: dict[str, Any] = {"benchmark": "coder-hostile", "kinds": {}}
    if path.exists():
        found = json.loads(path.read_text())
        if found.get("sources") != made_by:
            console.print(f"{path} was made by other sources: name another file, or remove it.")
            sys.exit(2)
    return found | {
        "environment": environment.describe(),
        "sources": made_by,
        "allowed": {name.lower(): getattr(limits, name) for name in dir(limits) if name.isupper()},
    }


def _add(tally: dict[str, Any], one: Cost | tuple[int, str]) -> None:
    tally["files"] += 1
    if not isinstance(one, Cost):
        tally["failed"].append({"seed": one[0], "reason": one[1]})
        return
    tally["pixels"] += one.pixels
    tally["seconds"] = round(tally["seconds"] + one.seconds, 3)
    tally["over"] += one.memory_share > 1 or one.time_share > 1
    # Messages without their numbers.
    ending = "".join("#" if letter.isdigit() else letter for letter in one.ending)
    tally["endings"] = dict(Counter(tally["endings"]) + Counter({ending: 1}))
    for name, share in (("memory", one.memory_share), ("time", one.time_share)):
        tally[f"largest_{name}_share"] = round(max(tally[f"largest_{name}_share"], share), 4)
        row = one._asdict() | {"share": round(share, 4), "seconds": round(one.seconds, 3)}
        rows = sorted([*tally[f"most_{name}"], row], key=lambda row: -row["share"])
        tally[f"most_{name}"] = rows[:_KEPT]


if __name__ == "__main__":
    typer.run(main)

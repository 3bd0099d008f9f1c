"""Tables of times out of results files, for docs/tools/costs.py and docs/tools/marked_parts.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "results"

#: Columns of a table: the heading, and how a time is found in a case.
Columns = dict[str, Callable[[dict[str, Any]], float | None]]


@cache
def load(name: str) -> dict[str, Any]:
    """A results file."""
    loaded: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return loaded


def timing(name: str) -> Callable[[dict[str, Any]], float | None]:
    """A case's median time of a name."""

    def find(case: dict[str, Any]) -> float | None:
        found = case["timings"].get(name)
        return None if found is None else found["p50"]

    return find


def seconds(name: str) -> Callable[[dict[str, Any]], float | None]:
    """The same for files that hold medians alone."""
    return lambda case: case["seconds"].get(name)


def figures(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def sizes(shape: list[int]) -> str:
    """Rows x scores, on one line of a table."""
    return unbroken(" x ".join(f"{size:,}" for size in shape))


def unbroken(text: str) -> str:
    """Text that stays on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def scores_of(case: dict[str, Any]) -> str:
    """The shape of the scores, and their dtype where it is not float32."""
    dtype = case.get("dtype") or ("bfloat16" if "bfloat16" in case["case"] else "float32")
    return sizes(case["shape"]) + ("" if dtype == "float32" else f" {dtype}")


def case_table(cases: Iterable[dict[str, Any]], columns: Columns, unit: float) -> str:
    """A line for each case; a time that was not measured is an empty cell."""
    names = [re.sub(r"t = \S+", lambda found: unbroken(found[0]), name) for name in columns]
    lines = ["| scores | k | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(columns)]
    for case in cases:
        times = [find(case) for find in columns.values()]
        cells = ["" if time is None else figures(time / unit) for time in times]
        lines.append(f"| {scores_of(case)} | {case['k']:,.10g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def environment_of(results: dict[str, Any]) -> str:
    """The processor, and the versions that matter."""
    environment = results["environment"]
    versions = f"torch {environment['torch']}"
    if gpus := environment.get("gpus"):
        return f"{gpus[0]}, {versions}, Triton {environment['triton']}"
    backend, threads = environment["cpu_backend"]["description"], environment["threads"]
    return f"{environment['cpu']}, {threads} thread{'s' * (threads != 1)}, {versions}, {backend}"


def share_met(lines: list[dict[str, Any]]) -> str:
    """How many limits hold."""
    return f"{sum(line['met'] for line in lines)} of {len(lines)}"


def limits_kept(lines: list[dict[str, Any]]) -> str:
    """The same in words.

    >>> limits_kept([{"met": True}, {"met": False}])
    'Limits kept: 1 of 2'
    """
    return f"Limits kept: {share_met(lines)}"

"""The parts of pages that are made from results/: `make costs` writes them anew.

A part lies between two comments, ``<!-- costs: NAME -->`` and ``<!-- costs: end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from result_tables import (
    RESULTS,
    Columns,
    case_table,
    environment_of,
    figures,
    load,
    scores_of,
    share_met,
    timing,
)

from fast_lapsum.bench.peers import PEERS

ROOT = RESULTS.parent
PAGES = ("README.md", "docs/benchmarks.md", "docs/notes/gpu-kernels.md", "docs/notes/wrong-rows.md")
_PART = re.compile(r"(<!-- costs: (?!end)([\w-]+) -->\n).*?(<!-- costs: end -->)", re.DOTALL)

#: Users' shapes that the README's table has, of those that the command measures.
README_SHAPES = {
    *((65_536, 8), (16_384, 64), (4096, 16_384), (4096, 65_536), (512, 1_000_000)),
    *((1_000_000,), (10_000_000,), (100_000_000,)),
}


def _readme_cpu() -> str:
    results = load("cpu.json")
    columns: Columns = {
        "t = 1": timing("soft_topk forward t=1"),
        "t = 0.01": timing("soft_topk forward t=0.01"),
        "softmax": timing("torch.softmax forward"),
        "f + b, t = 1": timing("soft_topk forward+backward t=1"),
        "softmax f + b": timing("torch.softmax forward+backward"),
        "topk": timing("torch.topk"),
    }
    table = case_table(results["cases"], columns, 1e-3)
    return f"Milliseconds on a CPU ({environment_of(results)}):\n\n{table}\n"


def _readme_gpu() -> str:
    results = load("gpu-users.json")
    cases: dict[tuple[int, ...], dict[str, Any]] = {}
    for case in results["users"]:
        if (shape := tuple(case["shape"])) in README_SHAPES:
            cases.setdefault(shape, case)
    columns: Columns = {
        "t = 1": timing("soft_topk forward t=1"),
        "t = 0.1": timing("soft_topk forward t=0.1"),
        "softmax": timing("torch.softmax"),
        "f + b, t = 0.1": timing("soft_topk forward+backward t=0.1"),
        "softmax f + b": timing("torch.softmax forward+backward"),
        "topk": timing("torch.topk"),
    }
    table = case_table(cases.values(), columns, 1e-6)
    return f"Microseconds of the device on a GPU ({environment_of(results)}):\n\n{table}\n"


def _missed(cases: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> str:
    """Limits that do not hold, the worst first, and how many do."""
    found = [(case, line) for case in cases for line in case["lines"]]
    missed = [(case, line) for case, line in found if not line["met"]]
    missed.sort(key=lambda pair: pair[1]["limit"] / pair[1]["measured"])
    lines = ["| scores | k | call | measured | limit | over |", "|---|---:|---|---:|---:|---:|"]
    for case, line in missed:
        times = " | ".join(figures(line[at] * 1e6) for at in ("measured", "limit"))
        over = f"{line['measured'] / line['limit'] - 1:.0%}"
        k = f"{case['k']:,.10g}"
        lines.append(f"| {scores_of(case)} | {k} | {name(line)} | {times} | {over} |")
    held = share_met([line for _, line in found])
    return f"{held} limits hold.\n\n" + ("\n".join(lines) + "\n" if missed else "")


def _missed_by_mask() -> str:
    return _missed(
        load("gpu-users.json")["users"],
        lambda line: f"{line['part'].replace('+', ' + ')}, t = {line['temperature']:g}",
    )


def _missed_by_functions() -> str:
    return _missed(
        load("cuda/functions.json")["cases"],
        lambda line: f"{line['call'].replace('+', ' + ')}, at most {line['at_most']}",
    )


def _hunts() -> str:
    """What was looked at, and how many rows were wrong."""
    lines = [
        "| file | rows | longer rows | p by p | wrong | ended |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for path in sorted((RESULTS / "hunt").glob("*.json")):
        found = load(f"hunt/{path.name}")
        names = ("rows_on_chip", "longer_rows", "compared_with_reference", "wrong")
        cells = [f"{found[name]:,}" for name in names]
        cells.append("by itself" if found["complete"] else "by a time limit")
        lines.append(f"| `{path.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _nearest(device: str) -> str:
    """Forward and backward, and the fastest other method whose budget is exact."""
    times: dict[int, dict[str, float]] = {}
    for row in load(f"{device}/operators.json")["rows"]:
        if row["status"] == "ok" and row["key"]["pass"] == "forward+backward":
            found = row["values"]["seconds"]["p50"]
            times.setdefault(row["key"]["n"], {})[row["key"]["method"]] = found
    lines = ["| scores | fast-lapsum, ms | nearest with an exact budget | its time |"]
    lines.append("|---:|---:|---|---:|")
    for n, methods in sorted(times.items()):
        ours = methods.pop("fast-lapsum")
        exact = {name: time for name, time in methods.items() if PEERS[name].exact_budget}
        nearest = min(exact, key=exact.__getitem__)
        ratio = f"{exact[nearest] / ours:.2g} times"
        lines.append(f"| {n:,} | {figures(ours * 1e3)} | {nearest} | {ratio} |")
    return "\n".join(lines) + "\n"


PARTS = {
    "readme-cpu": _readme_cpu,
    "readme-gpu": _readme_gpu,
    "gpu-users-misses": _missed_by_mask,
    "functions-misses": _missed_by_functions,
    "hunts": _hunts,
    "nearest-cpu": lambda: _nearest("cpu"),
    "nearest-cuda": lambda: _nearest("cuda"),
}


def pages() -> dict[Path, str]:
    """The pages with their parts, as the results files have them."""
    made = {}
    for name in PAGES:
        path = ROOT / name
        made[path], count = _PART.subn(
            lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}",
            path.read_text(encoding="utf-8"),
        )
        if not count:
            raise SystemExit(f"error: {name} has no part between <!-- costs: NAME --> and end")
    return made

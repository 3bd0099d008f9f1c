"""The parts of pages that are made from results/: `make costs` writes them anew.

A part lies between two comments, ``<!-- costs: NAME -->`` and ``<!-- costs: end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import application_tables
import rank_tables
from example_tables import EXAMPLES, example
from result_tables import (
    RESULTS,
    Columns,
    case_table,
    environment_of,
    figures,
    limits_kept,
    load,
    scores_of,
    share_met,
    timing,
    unbroken,
)

from fast_lapsum.bench.layers import BOTH, COMPILED, LAYER, USUAL, USUAL_COMPILED
from fast_lapsum.bench.peers import PEERS
from fast_lapsum.bench.rank_local import ALONE, OF_RANK

ROOT = RESULTS.parent
PAGES = (
    *("README.md", "docs/benchmarks.md", "docs/ranking.md", "docs/ragged.md"),
    *("docs/many-tensors.md", "docs/distributed.md", "docs/attack.md", "docs/coder.md"),
    *("docs/notes/gpu-kernels.md", "docs/notes/wrong-rows.md"),
    *(
        f"docs/layers/{name}.md"
        for name in ("index", "autoencoders", "losses", "pruning", "routers", "tokens")
    ),
)
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
    results = load("gpu.json")
    cases: dict[tuple[int, ...], dict[str, Any]] = {}
    for case in results["users"]:
        if (shape := tuple(case["shape"])) in README_SHAPES:
            cases.setdefault(shape, case)
    for case in results["cases"]:  # where the users' part has no softmax
        if (user := cases.get(shape := tuple(case["shape"]))) is not None:
            softmax = {"torch.softmax": case["timings"]["torch.softmax"]}
            cases[shape] = {**user, "timings": softmax | user["timings"]}
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
        load("gpu.json")["users"],
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


def _named(results: dict[str, Any], names: Iterable[str], kind: str = "timings") -> str:
    """Milliseconds of some names, a line for each case that has one of them."""
    names = list(names)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for case in results["cases"]:
        times = [case[kind].get(name) for name in names]
        if any(times):
            cells = ["" if time is None else figures(time["p50"] * 1e3) for time in times]
            lines.append(f"| {unbroken(case['case'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ranking() -> str:
    """On a GPU what the device takes, and what a caller waits for."""
    cpu, gpu = load("cpu/ranking.json"), load("cuda/ranking.json")
    ours = ("torch.sort", "soft_rank", "soft_sort")
    others = ("torchsort rank", "torchsort sort", "softtorch rank (projection)")
    return (
        f"Milliseconds of forward and backward, on a CPU\n({environment_of(cpu)}):\n\n"
        f"{_named(cpu, ours + others)}\n"
        f"Of the device, in a CUDA graph, on a GPU\n({environment_of(gpu)}):\n\n"
        f"{_named(gpu, ours)}\nAnd by the clock of a caller, call after call:\n\n"
        f"{_named(gpu, ours, 'wall')}"
    )


def _on_both(name: str, calls: tuple[str, ...]) -> str:
    """What calls of a benchmark take on a CPU, and of the device on a GPU.

    The first call is ours, and the limits are those of the cases that have it.
    """
    cpu, gpu = load(f"cpu/{name}.json"), load(f"cuda/{name}.json")
    held = {}
    for device, results in (("CPU", cpu), ("GPU", gpu)):
        ours = [case for case in results["cases"] if calls[0] in case["timings"]]
        held[device] = share_met([line for case in ours for line in case["lines"]])
    return (
        f"Milliseconds on a CPU ({environment_of(cpu)}):\n\n{_named(cpu, calls)}\n"
        f"Of the device, in a CUDA graph, on a GPU ({environment_of(gpu)}):\n\n"
        f"{_named(gpu, calls)}\n"
        f"Limits kept: {held['CPU']} on the CPU, {held['GPU']} on the GPU.\n"
    )


def _beside(results: dict[str, Any], ours: str, other: str, of: str = "") -> str:
    """What our call takes beside another, over all cases whose name begins with ``of``."""
    found = sorted(
        case["timings"][ours]["p50"] / case["timings"][other]["p50"]
        for case in results["cases"]
        if case["case"].startswith(of) and {ours, other} <= set(case["timings"])
    )
    ends = [f"{ratio:.2g}" for ratio in (found[0], found[-1])]
    return " to ".join(dict.fromkeys(ends))


def _ragged() -> str:
    names = ("segments", "rows of the mean length", "padded rows and a mask")
    return _on_both("ragged", (*names, "segments + backward", "rows of the mean length + backward"))


def _lists() -> str:
    names = ("list", "one tensor", "joined, then one tensor")
    return _on_both("ragged", (*names, "list + backward", "one tensor + backward"))


def _one_rank() -> str:
    """The work of one rank by itself, beside a call on its scores alone."""
    results = load("cuda/ranks.json")
    lines = [f"| | {ALONE} | {OF_RANK} | times |", "|---|---:|---:|---:|"]
    for case in results["cases"]:
        alone, of_rank = (case["timings"][name]["p50"] for name in (ALONE, OF_RANK))
        cells = (figures(alone * 1e3), figures(of_rank * 1e3), f"{of_rank / alone:.2g}")
        lines.append(f"| {unbroken(case['case'])} | " + " | ".join(cells) + " |")
    held = limits_kept([line for case in results["cases"] for line in case["lines"]])
    limits = [
        f"at most {line['at_most']} for {case['case']}"
        for case in results["cases"]
        for line in case["lines"]
    ]
    table = "\n".join(lines)
    return (
        f"Milliseconds of the device ({environment_of(results)}):\n\n{table}\n\n"
        f"{held} ({'; '.join(limits)}).\n"
    )


def _layers() -> str:
    """What layers take of the usual ways' time, eager and compiled, forward and backward."""
    results = load("cuda/layers.json")
    pairs = {"eager": (LAYER, USUAL), "compiled": (COMPILED, USUAL_COMPILED)}
    heads = [f"{name}, {both}" for name in pairs for both in ("forward", "forward and backward")]
    shares = ["| of the usual way's time | " + " | ".join(heads) + " |", "|---|" + "---:|" * 4]
    for layer in ("TopKRouter", "BatchTopK"):
        cells = [
            _beside(results, ours + both, usual + both, layer)
            for ours, usual in pairs.values()
            for both in ("", BOTH)
        ]
        shares.append(f"| {layer} | " + " | ".join(cells) + " |")
    held = limits_kept([line for case in results["cases"] for line in case["lines"]])
    table = "\n".join(shares)
    return (
        f"Of the device, over all shapes ({environment_of(results)}):\n\n{table}\n\n"
        f"{held}, of all layers.\n"
    )


def layer_tables() -> str:
    """The times themselves, of every shape."""
    results = load("cuda/layers.json")
    names = (LAYER + BOTH, USUAL + BOTH, COMPILED + BOTH, USUAL_COMPILED + BOTH)
    forward = _named(results, (LAYER, USUAL, COMPILED, USUAL_COMPILED))
    return (
        f"{forward}\nForward and backward together:\n\n{_named(results, names)}\n"
        "The same calls from Python, one after the other, in wall time:\n\n"
        + _named(results, names, "wall").rstrip()
    )


PARTS = {
    "ranking": _ranking,
    "ragged": _ragged,
    "lists": _lists,
    "readme-cpu": _readme_cpu,
    "readme-gpu": _readme_gpu,
    "gpu-users-misses": _missed_by_mask,
    "functions-misses": _missed_by_functions,
    "hunts": _hunts,
    "ranks-counts": rank_tables.counts,
    "ranks-times": rank_tables.times,
    "one-rank": _one_rank,
    "layers": _layers,
    "nearest-cpu": lambda: _nearest("cpu"),
    "nearest-cuda": lambda: _nearest("cuda"),
    **application_tables.PARTS,
    **{f"example-{name}": partial(example, name) for name in EXAMPLES},
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

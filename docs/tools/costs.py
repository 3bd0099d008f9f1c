"""Writes docs/costs.md, and the marked parts of other pages, from results/: `make costs`.

A marked part lies between two comments, ``<!-- costs: NAME -->`` and ``<!-- costs: end -->``. No
number on that page or in those parts is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "costs.md"
RESULTS = ROOT / "results"
MARKED = ("README.md", "docs/notes/gpu-kernels.md", "docs/notes/wrong-rows.md")
_PART = re.compile(r"(<!-- costs: (?!end)([\w-]+) -->\n).*?(<!-- costs: end -->)", re.DOTALL)

HEAD = """\
<!-- Made by docs/tools/costs.py from results/: `make costs` writes it anew. -->

# What each call costs

Every number here comes from a results file that a command wrote; each table names both. Times are
medians; f + b is forward and backward. A softmax of the same scores, or `torch.topk`, was measured
in the same run.
"""

#: Columns of a table: the heading, and how a time is found in a case.
Columns = dict[str, Callable[[dict[str, Any]], float | None]]


def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return loaded


def _timing(name: str) -> Callable[[dict[str, Any]], float | None]:
    def find(case: dict[str, Any]) -> float | None:
        found = case["timings"].get(name)
        return None if found is None else found["p50"]

    return find


def _seconds(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda case: case["seconds"].get(name)


def _figures(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def _sizes(shape: list[int]) -> str:
    """Rows x scores, on one line of a table."""
    return _unbroken(" x ".join(f"{size:,}" for size in shape))


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _scores(case: dict[str, Any]) -> str:
    """The shape of the scores, and their dtype where it is not float32."""
    dtype = case.get("dtype") or ("bfloat16" if "bfloat16" in case["case"] else "float32")
    return _sizes(case["shape"]) + ("" if dtype == "float32" else f" {dtype}")


def _table(cases: Iterable[dict[str, Any]], columns: Columns, unit: float) -> str:
    names = [_unbroken(name) if name.startswith("t =") else name for name in columns]
    lines = ["| scores | k | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(columns)]
    for case in cases:
        times = [find(case) for find in columns.values()]
        cells = ["" if time is None else _figures(time / unit) for time in times]
        lines.append(f"| {_scores(case)} | {case['k']:,.10g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _where(results: dict[str, Any]) -> str:
    """The processor, and the versions that matter."""
    environment = results["environment"]
    versions = f"torch {environment['torch']}"
    if gpus := environment.get("gpus"):
        return f"{gpus[0]}, {versions}, Triton {environment['triton']}"
    backend = environment["cpu_backend"]["description"]
    return f"{environment['cpu']}, {environment['threads']} threads, {versions}, {backend}"


def _section(title: str, text: str, file: str, command: str, table: str) -> str:
    results = _load(file)
    day = results["created"][:10]
    source = f"From `results/{file}`, written by `{command}` on {day}:\n{_where(results)}."
    return f"## {title}\n\n{text}\n\n{source}\n\n{table}\n"


def _share_met(lines: list[dict[str, Any]]) -> str:
    return f"{sum(line['met'] for line in lines)} of {len(lines)}"


def _cpu() -> str:
    columns: Columns = {
        "t = 1": _timing("soft_topk forward t=1"),
        "t = 0.01": _timing("soft_topk forward t=0.01"),
        "f + b, t = 1": _timing("soft_topk forward+backward t=1"),
        "softmax": _timing("torch.softmax forward"),
        "softmax f + b": _timing("torch.softmax forward+backward"),
        "topk": _timing("torch.topk"),
        "sort": _timing("torch.sort"),
    }
    return _section(
        "The mask on a CPU",
        "Milliseconds. Short rows pay for Python, long ones for reading the scores twice. torch runs "
        "the\nsoftmax of a single row on one thread; the kernel takes all of them.",
        "cpu.json",
        "fast-lapsum bench cpu",
        _table(_load("cpu.json")["cases"], columns, 1e-3),
    )


def _gpu() -> str:
    cases = _load("gpu-users.json")["users"]
    columns: Columns = {
        f"t = {t}": _timing(f"soft_topk forward t={t}") for t in ("1", "0.1", "0.01", "0.001")
    }
    columns |= {"softmax": _timing("torch.softmax"), "topk": _timing("torch.topk")}
    both: Columns = {
        "soft_topk, t = 0.1": _timing("soft_topk forward+backward t=0.1"),
        "softmax": _timing("torch.softmax forward+backward"),
    }
    trained = [case for case in cases if "torch.softmax forward+backward" in case["timings"]]
    tables = _table(cases, columns, 1e-6) + "\n\nForward and backward together:\n\n"
    tables += _table(trained, both, 1e-6)
    lines = [line for case in cases for line in case["lines"]]
    return _section(
        "The mask on a GPU",
        "Microseconds of the device, in a CUDA graph. The command has limits for these calls, "
        f"and\n{_share_met(lines)} hold. An empty cell was not measured.",
        "gpu-users.json",
        "fast-lapsum bench gpu --only users",
        tables,
    )


def _gpu_parts() -> str:
    results = _load("gpu.json")
    columns: Columns = {
        "t = 1": _timing("soft_topk forward t=1"),
        "t = 0.01": _timing("soft_topk forward t=0.01"),
        "backward": _timing("soft_topk backward t=1"),
        "copy": lambda case: case["floors"][case["forward_floor"]],
        "softmax": _timing("torch.softmax"),
        "topk": _timing("torch.topk"),
        "sort": _timing("torch.sort"),
    }
    wall: Columns = {
        "forward": lambda case: case["eager"]["soft_topk forward t=1"]["p50"],
        "f + b": lambda case: case["eager"]["soft_topk forward+backward t=1"]["p50"],
    }
    tables = _table(results["cases"], columns, 1e-6)
    tables += "\n\nThe same calls from Python, one after the other, in wall time:\n\n"
    tables += _table([case for case in results["cases"] if case["eager"]], wall, 1e-6)
    return _section(
        "Parts of the mask on a GPU",
        "Microseconds of the device, in a CUDA graph, k = n / 16. A copy moves the bytes that the "
        "forward\npass has to read and write. A day before that of the other tables means kernels "
        "before the present\nones.",
        "gpu.json",
        "fast-lapsum bench gpu",
        tables,
    )


def _functions(device: str) -> str:
    name = "cuda" if device == "GPU" else "cpu"
    file = f"{name}/functions.json"
    results = _load(file)
    cases = results["cases"]
    unit, unit_name = (1e-6, "Microseconds") if device == "GPU" else (1e-3, "Milliseconds")
    columns: Columns = {
        "mask": _timing("mask"),
        "mask f + b": _timing("mask forward+backward"),
        "hard": _timing("hard"),
        "log": _timing("log"),
        "threshold": _timing("threshold"),
        "sample": _timing("sample"),
        "topk": _timing("torch.topk"),
    }
    whole = [case for case in cases if "threshold" in case["timings"]]
    lines = [line for case in cases for line in case["lines"]]
    text = (
        f"{unit_name} at t = {results['temperature']:g}. `hard` is a straight-through mask with "
        "the soft threshold that\nits gradient needs. "
        f"Of the command's limits {_share_met(lines)} hold."
    )
    table = _table(whole, columns, unit)
    selecting = [case for case in cases if "select" in case["timings"]]
    if selecting:
        columns = {
            "hard mask": _timing("hard mask"),
            "select_topk": _timing("select"),
            "topk": _timing("torch.topk"),
        }
        table += "\n\nSelections with indices, beside the hard mask alone (t = 0):\n\n"
        table += _table(selecting, columns, unit)
    command = "fast-lapsum bench functions" + (" --device cuda" if device == "GPU" else "")
    return _section(f"Every function on a {device}", text, file, command, table)


def _compiled(device: str) -> str:
    file = f"{'cuda' if device == 'GPU' else 'cpu'}/compiled.json"
    results = _load(file)
    columns: Columns = {
        "softmax": _seconds("softmax"),
        "compiled": _seconds("softmax, compiled"),
        "soft_topk": _seconds("soft_topk"),
        "compiled ": _seconds("soft_topk, compiled"),
        "t falls": _seconds("soft_topk, compiled, t falls"),
        "reduce-overhead": _seconds("soft_topk, reduce-overhead"),
    }
    lines = [line for case in results["cases"] for line in case["lines"]]
    return _section(
        f"Under torch.compile on a {device}",
        "Microseconds of wall time, forward and backward, Python included. Of the limits\n"
        f"{_share_met(lines)} hold.",
        file,
        "fast-lapsum bench compiled" + (" --device cuda" if device == "GPU" else ""),
        _table(results["cases"], columns, 1e-6),
    )


def _cliffs() -> str:
    results = _load("cliffs.json")
    lines = ["| scores | calls | median, us | slowest / median | slowest kind |"]
    lines.append("|---|---:|---:|---:|---|")
    for shape in results["shapes"]:
        worst = shape["slowest"][0]
        kind = f"{worst['kind']}, t = {worst['temperature']:g}, k = {worst['k']:,.10g}"
        median = _figures(shape["median"] * 1e6)
        ratio = f"{worst['ratio']:.1f}"
        cells = (_sizes(shape["shape"]), f"{shape['calls']:,}", median, ratio, kind)
        lines.append("| " + " | ".join(cells) + " |")
    return _section(
        "The slowest calls on a GPU",
        "The same shape with every kind of scores, temperature and budget that is tried, "
        "infinities and\nNaN among them.",
        "cliffs.json",
        "fast-lapsum bench cliffs",
        "\n".join(lines),
    )


#: Users' shapes that the README's table has, of those that the command measures.
README_SHAPES = {
    *((65_536, 8), (16_384, 64), (4096, 16_384), (4096, 65_536), (512, 1_000_000)),
    *((1_000_000,), (10_000_000,), (100_000_000,)),
}


def _readme_cpu() -> str:
    results = _load("cpu.json")
    columns: Columns = {
        "t = 1": _timing("soft_topk forward t=1"),
        "t = 0.01": _timing("soft_topk forward t=0.01"),
        "softmax": _timing("torch.softmax forward"),
        "f + b, t = 1": _timing("soft_topk forward+backward t=1"),
        "softmax f + b": _timing("torch.softmax forward+backward"),
        "topk": _timing("torch.topk"),
    }
    table = _table(results["cases"], columns, 1e-3)
    return f"Milliseconds on a CPU ({_where(results)}):\n\n{table}\n"


def _readme_gpu() -> str:
    results = _load("gpu-users.json")
    cases: dict[tuple[int, ...], dict[str, Any]] = {}
    for case in results["users"]:
        if (shape := tuple(case["shape"])) in README_SHAPES:
            cases.setdefault(shape, case)
    columns: Columns = {
        "t = 1": _timing("soft_topk forward t=1"),
        "t = 0.1": _timing("soft_topk forward t=0.1"),
        "softmax": _timing("torch.softmax"),
        "f + b, t = 0.1": _timing("soft_topk forward+backward t=0.1"),
        "softmax f + b": _timing("torch.softmax forward+backward"),
        "topk": _timing("torch.topk"),
    }
    table = _table(cases.values(), columns, 1e-6)
    return f"Microseconds of the device on a GPU ({_where(results)}):\n\n{table}\n"


def _missed(cases: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> str:
    """Limits that do not hold, the worst first, and how many do."""
    found = [(case, line) for case in cases for line in case["lines"]]
    missed = [(case, line) for case, line in found if not line["met"]]
    missed.sort(key=lambda pair: pair[1]["limit"] / pair[1]["measured"])
    lines = ["| scores | k | call | measured | limit | over |", "|---|---:|---|---:|---:|---:|"]
    for case, line in missed:
        times = " | ".join(_figures(line[at] * 1e6) for at in ("measured", "limit"))
        over = f"{line['measured'] / line['limit'] - 1:.0%}"
        k = f"{case['k']:,.10g}"
        lines.append(f"| {_scores(case)} | {k} | {name(line)} | {times} | {over} |")
    held = _share_met([line for _, line in found])
    return f"{held} limits hold.\n\n" + ("\n".join(lines) + "\n" if missed else "")


def _missed_by_mask() -> str:
    return _missed(
        _load("gpu-users.json")["users"],
        lambda line: f"{line['part'].replace('+', ' + ')}, t = {line['temperature']:g}",
    )


def _missed_by_functions() -> str:
    return _missed(
        _load("cuda/functions.json")["cases"],
        lambda line: f"{line['call'].replace('+', ' + ')}, at most {line['at_most']}",
    )


def _hunts() -> str:
    """What was looked at, and how many rows were wrong."""
    lines = ["| file | rows | longer rows | p by p | wrong | ended |", "|---|---:|---:|---:|---:|---|"]
    for path in sorted((RESULTS / "hunt").glob("*.json")):
        found = _load(f"hunt/{path.name}")
        names = ("rows_on_chip", "longer_rows", "compared_with_reference", "wrong")
        cells = [f"{found[name]:,}" for name in names]
        cells.append("by itself" if found["complete"] else "by a time limit")
        lines.append(f"| `{path.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PARTS = {
    "readme-cpu": _readme_cpu,
    "readme-gpu": _readme_gpu,
    "gpu-users-misses": _missed_by_mask,
    "functions-misses": _missed_by_functions,
    "hunts": _hunts,
}


def page() -> str:
    """The page, as the results files have it."""
    parts = [HEAD, _cpu(), _gpu(), _gpu_parts(), _functions("CPU")]
    parts += [_functions("GPU"), _compiled("CPU"), _compiled("GPU"), _cliffs()]
    return "\n".join(parts)


def written() -> dict[Path, str]:
    """All files that have numbers from results/, as they should be."""
    pages = {PAGE: page()}
    for name in MARKED:
        path = ROOT / name
        text, count = _PART.subn(
            lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}",
            path.read_text(encoding="utf-8"),
        )
        if not count:
            raise SystemExit(f"error: {name} has no part between <!-- costs: NAME --> and end")
        pages[path] = text
    return pages


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")

"""Writes docs/costs.md from results/: `make costs`. No number on that page is written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "costs.md"
RESULTS = ROOT / "results"

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
    source = f"From `results/{file}`, written by `{command}`:\n{_where(results)}."
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
        "Milliseconds. Short rows pay for Python, long ones for reading the scores twice.",
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


def page() -> str:
    """The page, as the results files have it."""
    parts = [HEAD, _cpu(), _gpu(), _functions("CPU"), _functions("GPU")]
    parts += [_compiled("CPU"), _compiled("GPU"), _cliffs()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

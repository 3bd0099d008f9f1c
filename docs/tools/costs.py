"""Writes docs/costs.md, and the numbers of other pages, from results/: `make costs`.

No number on that page is written by hand. marked_parts.py has the tables of the others, and
prose_pages.py what their sentences say.
"""

from __future__ import annotations

from pathlib import Path

import marked_parts
import prose_numbers
from prose_pages import PAGES
from result_tables import (
    Columns,
    case_table,
    environment_of,
    figures,
    limits_kept,
    load,
    seconds,
    share_met,
    sizes,
    timing,
)

PAGE = Path(__file__).resolve().parents[1] / "costs.md"

HEAD = """\
<!-- Made by docs/tools/costs.py from results/: `make costs` writes it anew. -->

# What each call costs

Every number here comes from a results file that a command wrote; each table names both. Times are
medians; f + b is forward and backward. A softmax of the same scores, or `torch.topk`, was measured
in the same run.
"""


def _section(title: str, text: str, file: str, command: str, table: str) -> str:
    results = load(file)
    day = results["created"][:10]
    source = f"From `results/{file}`, written by `{command}` on {day}:\n{environment_of(results)}."
    return f"## {title}\n\n{text}\n\n{source}\n\n{table}\n"


def _cpu() -> str:
    columns: Columns = {
        "t = 1": timing("soft_topk forward t=1"),
        "t = 0.01": timing("soft_topk forward t=0.01"),
        "f + b, t = 1": timing("soft_topk forward+backward t=1"),
        "softmax": timing("torch.softmax forward"),
        "softmax f + b": timing("torch.softmax forward+backward"),
        "topk": timing("torch.topk"),
        "sort": timing("torch.sort"),
    }
    return _section(
        "The mask on a CPU",
        "Milliseconds. Short rows pay for Python, long ones for reading the scores twice. torch "
        "runs the\nsoftmax of a single row on one thread; the kernel takes all of them.",
        "cpu.json",
        "fast-lapsum bench cpu",
        case_table(load("cpu.json")["cases"], columns, 1e-3),
    )


def _gpu() -> str:
    cases = load("gpu.json")["users"]
    columns: Columns = {
        f"t = {t}": timing(f"soft_topk forward t={t}") for t in ("1", "0.1", "0.01", "0.001")
    }
    columns |= {"softmax": timing("torch.softmax"), "topk": timing("torch.topk")}
    both: Columns = {
        "soft_topk, t = 0.1": timing("soft_topk forward+backward t=0.1"),
        "softmax": timing("torch.softmax forward+backward"),
    }
    trained = [case for case in cases if "torch.softmax forward+backward" in case["timings"]]
    tables = case_table(cases, columns, 1e-6) + "\n\nForward and backward together:\n\n"
    tables += case_table(trained, both, 1e-6)
    lines = [line for case in cases for line in case["lines"]]
    return _section(
        "The mask on a GPU",
        "Microseconds of the device, in a CUDA graph. The command has limits for these calls, "
        f"and\n{share_met(lines)} hold. An empty cell was not measured.",
        "gpu.json",
        "fast-lapsum bench gpu",
        tables,
    )


def _gpu_parts() -> str:
    results = load("gpu.json")
    columns: Columns = {
        "t = 1": timing("soft_topk forward t=1"),
        "t = 0.01": timing("soft_topk forward t=0.01"),
        "backward": timing("soft_topk backward t=1"),
        "copy": lambda case: case["floors"][case["forward_floor"]],
        "softmax": timing("torch.softmax"),
        "topk": timing("torch.topk"),
        "sort": timing("torch.sort"),
    }
    wall: Columns = {
        "forward": lambda case: case["eager"]["soft_topk forward t=1"]["p50"],
        "f + b": lambda case: case["eager"]["soft_topk forward+backward t=1"]["p50"],
    }
    tables = case_table(results["cases"], columns, 1e-6)
    tables += "\n\nThe same calls from Python, one after the other, in wall time:\n\n"
    tables += case_table([case for case in results["cases"] if case["eager"]], wall, 1e-6)
    return _section(
        "Parts of the mask on a GPU",
        "Microseconds of the device, in a CUDA graph, k = n / 16. A copy moves the bytes that the "
        "forward\npass has to read and write.",
        "gpu.json",
        "fast-lapsum bench gpu",
        tables,
    )


def _functions(device: str) -> str:
    name = "cuda" if device == "GPU" else "cpu"
    file = f"{name}/functions.json"
    results = load(file)
    cases = results["cases"]
    unit, unit_name = (1e-6, "Microseconds") if device == "GPU" else (1e-3, "Milliseconds")
    columns: Columns = {
        "mask": timing("mask"),
        "mask f + b": timing("mask forward+backward"),
        "hard": timing("hard"),
        "log": timing("log"),
        "threshold": timing("threshold"),
        "sample": timing("sample"),
        "topk": timing("torch.topk"),
    }
    whole = [case for case in cases if "threshold" in case["timings"]]
    lines = [line for case in cases for line in case["lines"]]
    text = (
        f"{unit_name} at t = {results['temperature']:g}. `hard` is a straight-through mask with "
        "the soft threshold that\nits gradient needs. "
        f"{limits_kept(lines)}."
    )
    table = case_table(whole, columns, unit)
    selecting = [case for case in cases if "select" in case["timings"]]
    if selecting:
        columns = {
            "hard mask": timing("hard mask"),
            "select_topk": timing("select"),
            "topk": timing("torch.topk"),
        }
        table += "\n\nSelections with indices, beside the hard mask alone (t = 0):\n\n"
        table += case_table(selecting, columns, unit)
    command = "fast-lapsum bench functions" + (" --device cuda" if device == "GPU" else "")
    return _section(f"Every function on a {device}", text, file, command, table)


def _compiled(device: str) -> str:
    file = f"{'cuda' if device == 'GPU' else 'cpu'}/compiled.json"
    results = load(file)
    columns: Columns = {
        "softmax": seconds("softmax"),
        "softmax, compiled": seconds("softmax, compiled"),
        "soft_topk": seconds("soft_topk"),
        "soft_topk, compiled": seconds("soft_topk, compiled"),
        "t falls": seconds("soft_topk, compiled, t falls"),
        "reduce-overhead": seconds("soft_topk, reduce-overhead"),
    }
    lines = [line for case in results["cases"] for line in case["lines"]]
    return _section(
        f"Under torch.compile on a {device}",
        f"Microseconds of wall time, forward and backward, Python included.\n{limits_kept(lines)}.",
        file,
        "fast-lapsum bench compiled" + (" --device cuda" if device == "GPU" else ""),
        case_table(results["cases"], columns, 1e-6),
    )


def _cliffs() -> str:
    results = load("cliffs.json")
    lines = ["| scores | calls | median, us | slowest / median | slowest kind |"]
    lines.append("|---|---:|---:|---:|---|")
    for shape in results["shapes"]:
        worst = shape["slowest"][0]
        kind = f"{worst['kind']}, t = {worst['temperature']:g}, k = {worst['k']:,.10g}"
        median = figures(shape["median"] * 1e6)
        ratio = f"{worst['ratio']:.1f}"
        cells = (sizes(shape["shape"]), f"{shape['calls']:,}", median, ratio, kind)
        lines.append("| " + " | ".join(cells) + " |")
    return _section(
        "The slowest calls on a GPU",
        "The same shape with every kind of scores, temperature and budget that is tried, "
        "infinities and\nNaN among them.",
        "cliffs.json",
        "fast-lapsum bench cliffs",
        "\n".join(lines),
    )


def _layers() -> str:
    return _section(
        "Layers on a GPU",
        "Milliseconds of the device, forward, beside the usual way to the same choice.\n"
        "[Layers](layers/index.md#what-they-cost) says what that is, and which limits there are.",
        "cuda/layers.json",
        "fast-lapsum bench layers --device cuda",
        marked_parts.layer_tables(),
    )


def page() -> str:
    """The page, as the results files have it."""
    parts = [HEAD, _cpu(), _gpu(), _gpu_parts(), _functions("CPU")]
    parts += [_functions("GPU"), _layers(), _compiled("CPU"), _compiled("GPU"), _cliffs()]
    return "\n".join(parts)


def written() -> dict[Path, str]:
    """All files that have numbers from results/, as they should be."""
    made = {PAGE: page(), **marked_parts.pages()}
    for name in PAGES:
        path = prose_numbers.ROOT / name
        made[path] = prose_numbers.written(name, made.get(path) or path.read_text("utf-8"))
    return made


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")

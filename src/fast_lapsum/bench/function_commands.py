"""The command ``fast-lapsum bench functions``, and its record as tables for a terminal."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from . import functions, options
from .measuring import Quick, Samples, finish, measure
from .tables import microseconds, verdict


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="functions", epilog="Example: fast-lapsum bench functions --device cpu --repeats 30"
    )(bench_functions)


def bench_functions(
    device: options.Device = None,
    repeats: Samples = 15,
    out: options.Out = None,
    quick: Quick = False,
) -> None:
    """Time every function beside the soft mask, torch.topk and torch.softmax.

    Hard mask, log p, threshold, random mask and selection, as one operator call each, at t = 0.1:
    device time in CUDA graphs over inputs that exceed the cache, or wall time on a CPU. Says which
    limits hold. The functions are first checked by one another: what is wrong is not timed, and the
    exit code is 1. The results file is written after every shape.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "functions.json"
    record = measure(functions.run, path, device=chosen, repeats=repeats, quick=quick)
    shown = (timings_table(record), limits_table(record))
    finish(record, shown, path, functions.summary(record), functions.failures(record))


def timings_table(record: dict[str, Any]) -> Table:
    """What every call takes, a row for each shape."""
    names = dict.fromkeys(name for entry in record["cases"] for name in entry.get("timings", ()))
    table = Table(title="Time per call", title_justify="left")
    table.add_column("case")
    for name in names:
        table.add_column(name, justify="right")
    for entry in record["cases"]:
        found = (entry.get("timings", {}).get(name) for name in names)
        cells = ("" if x is None else microseconds(x[record["compared"]]) for x in found)
        table.add_row(entry["case"], *cells)
    return table


def limits_table(record: dict[str, Any]) -> Table:
    """Every limit with what was measured, and whether it holds."""
    table = Table(title="Limits", title_justify="left")
    for header in ("case", "call", "measured", "ratio", "limit", ""):
        left = header in ("case", "call", "")
        table.add_column(header, justify="left" if left else "right")
    for entry in record["cases"]:
        reason = entry.get("skipped") or entry.get("failed")
        for line in entry["lines"]:
            measured, base = line["measured"], line["base"]
            table.add_row(
                entry["case"],
                line["call"],
                "" if measured is None else microseconds(measured),
                f"{measured / base:.2f}" if measured and base else "",
                line["at_most"],
                Text(reason) if reason else verdict(line["met"], "holds", "misses"),
            )
    return table

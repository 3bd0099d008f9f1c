"""The command ``fast-lapsum bench ranking``, and its record as tables for a terminal."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from . import options, ranking
from .function_commands import limits_table
from .measuring import Quick, Samples, finish, measure
from .ranking_methods import METHODS
from .tables import microseconds


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ranking", epilog="Example: fast-lapsum bench ranking --device cuda")(
        bench_ranking
    )


def bench_ranking(
    device: options.Device = None,
    repeats: Samples = 10,
    out: options.Out = None,
    quick: Quick = False,
) -> None:
    """Time soft_rank and soft_sort beside torch.sort, and packages that are installed.

    Forward and backward at t = 0.1, on a GPU in device time, with what a caller waits beside it.
    Says which limits hold, and why a package could not be measured. Some ranks, sorted scores and
    gradients are first compared with sums over all pairs: what is wrong is not timed, and the exit
    code is 1. The results file is written after every shape.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ranking.json"
    record = measure(ranking.run, path, device=chosen, repeats=repeats, quick=quick)
    shown = [timings_table(record)]
    if any("wall" in entry for entry in record["cases"]):
        shown.append(timings_table(record, "wall"))
    shown.append(limits_table(record))
    finish(record, shown, path, ranking.summary(record), ranking.failures(record))


def timings_table(record: dict[str, Any], which: str = "timings") -> Table:
    """What every call takes, or why that is not known: a row for each, a column for each shape.

    ``wall`` is what a caller waits for a GPU, where ``timings`` are the device's.
    """
    on_device = ", on the device" if any("wall" in x for x in record["cases"]) else ""
    said = ", as a caller waits" if which == "wall" else on_device
    table = Table(title=f"Forward and backward{said}", title_justify="left")
    table.add_column("call")
    for entry in record["cases"]:
        table.add_column(entry["case"], justify="right")
    for name in METHODS:
        cells = []
        for entry in record["cases"]:
            timing = entry.get(which, {}).get(name)
            reason = entry["not_measured"].get(name, "")
            cells.append(reason if timing is None else microseconds(timing[record["compared"]]))
        table.add_row(name, *(escape(cell) for cell in cells))
    return table

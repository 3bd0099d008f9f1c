"""The command ``fast-lapsum bench ranks``."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table

from . import functions, options, ranks
from .function_commands import limits_table
from .measuring import Quick, Samples, finish, measure
from .tables import microseconds


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ranks", epilog="Example: fast-lapsum bench ranks --device cpu --repeats 30")(
        bench_ranks
    )


def bench_ranks(
    device: options.Device = None,
    repeats: Samples = 15,
    out: options.Out = None,
    quick: Quick = False,
) -> None:
    """Time one budget over several processes (gloo) beside one process with all of the scores.

    The processes share this machine's processors, and take turns with the one. Says wall and CPU
    time, and which limits hold. On a GPU it is the work of one rank beside a call on its scores
    alone, without a network. Masks are first checked: what is wrong is not timed, and the exit code
    is 1.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ranks.json"
    record = measure(ranks.run, path, device=chosen, repeats=repeats, quick=quick)
    told = functions.summary(record).replace("Functions", "Ranks")
    shown = (timings_table(record), limits_table(record))
    finish(record, shown, path, told, functions.failures(record))


def timings_table(record: dict[str, Any]) -> Table:
    """What every call takes, a row for each."""
    table = Table(title="Time per call", title_justify="left")
    for header in ("case", "call", "p20", "p50", "p80"):
        table.add_column(header, justify="left" if header in ("case", "call") else "right")
    for entry in record["cases"]:
        for name, timing in entry.get("timings", {}).items():
            times = (microseconds(timing[x]) for x in ("p20", "p50", "p80"))
            table.add_row(entry["case"], name, *times)
    return table

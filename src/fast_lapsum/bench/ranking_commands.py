"""The command ``fast-lapsum bench ranking``, and its record as tables for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import function_commands, options, ranking, sources, tables
from .display import PartsDisplay, print_table
from .ranking_methods import METHODS
from .results import write_json
from .tables import microseconds

console = Console()
errors = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ranking", epilog="Example: fast-lapsum bench ranking --device cuda")(
        bench_ranking
    )


def bench_ranking(
    device: options.Device = None,
    repeats: Annotated[
        int,
        typer.Option(
            help="Samples of each timing.", parser=options.whole(at_least=1), metavar="INTEGER"
        ),
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/DEVICE/ranking.json if not given, in"
            " results-quick with --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time soft_rank and soft_sort beside torch.sort, and packages that are installed.

    Forward and backward at t = 0.1, on a GPU in device time, with what a caller waits beside it.
    Says which limits hold, and why a package could not be measured. Some ranks, sorted scores and
    gradients are first compared with sums over all pairs: what is wrong is not timed, and the exit
    code is 1. The results file is written after every shape.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ranking.json"
    with PartsDisplay(console) as display:
        record = ranking.run(
            device=chosen,
            repeats=repeats,
            quick=quick,
            report=display.step,
            save=lambda record: write_json(path, record),
            advance=display.advance,
        )
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    print_table(console, timings_table(record))
    if any("wall" in entry for entry in record["cases"]):
        print_table(console, timings_table(record, "wall"))
    print_table(console, function_commands.limits_table(record))
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)
    console.print(ranking.summary(record), highlight=False, markup=False, soft_wrap=True)
    failures = ranking.failures(record)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


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

"""The command ``fast-lapsum bench ranks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import functions, options, ranks, sources, tables
from .display import PartsDisplay, print_table
from .function_commands import limits_table
from .results import write_json
from .tables import microseconds

console = Console()
errors = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ranks", epilog="Example: fast-lapsum bench ranks --device cpu --repeats 30")(
        bench_ranks
    )


def bench_ranks(
    device: options.Device = None,
    repeats: Annotated[
        int,
        typer.Option(
            help="Samples of each timing.", parser=options.whole(at_least=1), metavar="INTEGER"
        ),
    ] = 15,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/DEVICE/ranks.json if not given, in results-quick"
            " with --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time one budget over several processes (gloo) beside one process with all of the scores.

    The processes share this machine's processors, and take turns with the one. Says wall and CPU
    time, and which limits hold. On a GPU it is the work of one rank beside a call on its scores
    alone, without a network. Masks are first checked: what is wrong is not timed, and the exit code
    is 1.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ranks.json"
    with PartsDisplay(console) as display:
        record = ranks.run(
            device=chosen,
            repeats=repeats,
            quick=quick,
            report=display.step,
            save=lambda record: write_json(path, record),
            advance=display.advance,
        )
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    print_table(console, timings_table(record))
    print_table(console, limits_table(record))
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)
    console.print(functions.summary(record).replace("Functions", "Ranks"))
    failures = functions.failures(record)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


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

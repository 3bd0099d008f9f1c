"""The command ``fast-lapsum bench compiled``, and its record as tables for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import compiled, function_commands, options, sources, tables
from .display import PartsDisplay, print_table
from .results import write_json
from .tables import microseconds

console = Console()
errors = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="compiled", epilog="Example: fast-lapsum bench compiled --device cuda")(
        bench_compiled
    )


def bench_compiled(
    device: options.Device = None,
    repeats: Annotated[
        int,
        typer.Option(
            help="Samples of each timing in a run.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = 30,
    runs: Annotated[
        int,
        typer.Option(
            help="Runs, of whose medians the median counts.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = compiled.RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/DEVICE/compiled.json if not given.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny shape, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time forward and backward under torch.compile, beside the eager call and softmax.

    Wall time at t = 0.1: compiled, compiled with a temperature that falls, mode="reduce-overhead".
    Says which limits hold. A compiled mask must have the eager one's bits: what is wrong is not
    timed, and the exit code is 1. The results file is written after every shape.
    """
    chosen = options.device(device)
    folder = Path("results-quick" if quick else "results") / chosen.type
    path = out or folder / "compiled.json"
    with PartsDisplay(console) as display:
        record = compiled.run(
            device=chosen,
            repeats=repeats,
            runs=runs,
            quick=quick,
            report=display.step,
            save=lambda record: write_json(path, record),
            advance=display.advance,
        )
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    timings = Table(title="Forward and backward, wall time", title_justify="left")
    timings.add_column("call")
    for entry in record["cases"]:
        timings.add_column(entry["case"], justify="right")
    for name in dict.fromkeys(name for entry in record["cases"] for name in entry["seconds"]):
        found = (entry["seconds"].get(name) for entry in record["cases"])
        timings.add_row(name, *("" if x is None else microseconds(x) for x in found))
    print_table(console, timings)
    shown = {"cases": [entry | {"failed": None} for entry in record["cases"]]}
    print_table(console, function_commands.limits_table(shown))
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)
    failures = compiled.failures(record)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)

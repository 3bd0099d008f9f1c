"""The command ``fast-lapsum bench ragged``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from . import functions, options, ragged, sources, tables
from .display import PartsDisplay, print_table
from .function_commands import limits_table, timings_table
from .results import write_json

console = Console()
errors = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="ragged", epilog="Example: fast-lapsum bench ragged --device cpu --repeats 30"
    )(bench_ragged)


def bench_ragged(
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
            help="The results file (JSON); results/DEVICE/ragged.json if not given, in"
            " results-quick with --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time segments of several lengths, and one budget over many tensors.

    Segments beside rows of the mean length and padded rows with a mask; the tensors of a ResNet-50
    beside one tensor of their scores. Says which limits hold. Results are first checked: what is
    wrong is not timed, and the exit code is 1.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ragged.json"
    with PartsDisplay(console) as display:
        record = ragged.run(
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
    console.print(functions.summary(record).replace("Functions", "Ragged rows and lists"))
    failures = functions.failures(record)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)

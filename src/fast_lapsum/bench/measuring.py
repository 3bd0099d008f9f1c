"""What the commands that measure have in common: options, a run with its progress, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import options, sources, tables
from .display import PartsDisplay, print_table
from .results import write_json

console = Console()
errors = Console(stderr=True)

Samples = Annotated[
    int,
    typer.Option(
        help="Samples of each timing.", parser=options.whole(at_least=1), metavar="INTEGER"
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")]


def measure(
    run: Callable[..., dict[str, Any]], path: Path, *, quick: bool, **settings: Any
) -> dict[str, Any]:
    """The record of a run, which is written to ``path`` after every part of it."""
    with PartsDisplay(console) as display:
        return run(
            **settings,
            quick=quick,
            report=display.step,
            save=lambda record: write_json(path, record),
            advance=display.advance,
        )


def finish(
    record: dict[str, Any], shown: Iterable[Table], path: Path, told: str, failures: list[str]
) -> None:
    """Print what was found; exit code 1 where something is wrong rather than slow."""
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    for table in shown:
        print_table(console, table)
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)
    if told:
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)

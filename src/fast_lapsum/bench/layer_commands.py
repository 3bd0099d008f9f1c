"""The command ``fast-lapsum bench layers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from . import functions, layers, options, sources, tables
from .display import PartsDisplay, print_table
from .function_commands import limits_table, timings_table
from .results import write_json

console = Console()
errors = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="layers", epilog="Example: fast-lapsum bench layers --device cpu --repeats 30"
    )(bench_layers)


def bench_layers(
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
            help="The results file (JSON); results/DEVICE/layers.json if not given, in"
            " results-quick with --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time layers beside the usual way: softmax or ReLU, torch.topk and a scatter.

    Routers from their logits, activations, gates, tokens and attention, forward and with backward,
    eager and compiled: device time in CUDA graphs over inputs that exceed the cache, or wall time
    on a CPU. Says which limits hold. Choices, budgets and compiled gradients are first checked:
    what is wrong is not timed, and the exit code is 1. The results file is written after every
    case, and an interrupted run goes on with the same command.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "layers.json"
    with PartsDisplay(console) as display:
        record = layers.run(
            device=chosen,
            repeats=repeats,
            quick=quick,
            before=_before(path),
            report=display.step,
            save=lambda record: write_json(path, record),
            advance=display.advance,
        )
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    print_table(console, timings_table(record))
    if chosen.type == "cuda":
        waited = [{**entry, "timings": entry.get("wall", {})} for entry in record["cases"]]
        walls = timings_table({**record, "cases": waited})
        walls.title = "What a caller waits per call"
        print_table(console, walls)
    print_table(console, limits_table(record))
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)
    console.print(functions.summary(record).replace("Functions", "Layers"), highlight=False)
    failures = functions.failures(record)
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _before(path: Path) -> dict[str, Any] | None:
    """What an earlier run has written, if it can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None

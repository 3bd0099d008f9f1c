"""The command ``fast-lapsum bench compiled``, and its record as tables for a terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from . import compiled, options
from .function_commands import limits_table
from .measuring import Quick, finish, measure
from .tables import microseconds


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
    out: options.Out = None,
    quick: Quick = False,
) -> None:
    """Time forward and backward under torch.compile, beside the eager call and softmax.

    Wall time at t = 0.1: compiled, compiled with a temperature that falls, mode="reduce-overhead".
    Says which limits hold. A compiled mask must have the eager one's bits: what is wrong is not
    timed, and the exit code is 1. The results file is written after every shape.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "compiled.json"
    record = measure(compiled.run, path, device=chosen, repeats=repeats, runs=runs, quick=quick)
    timings = Table(title="Forward and backward, wall time", title_justify="left")
    timings.add_column("call")
    for entry in record["cases"]:
        timings.add_column(entry["case"], justify="right")
    for name in dict.fromkeys(name for entry in record["cases"] for name in entry["seconds"]):
        found = (entry["seconds"].get(name) for entry in record["cases"])
        timings.add_row(name, *("" if x is None else microseconds(x) for x in found))
    limits = limits_table({"cases": [entry | {"failed": None} for entry in record["cases"]]})
    finish(record, (timings, limits), path, "", compiled.failures(record))

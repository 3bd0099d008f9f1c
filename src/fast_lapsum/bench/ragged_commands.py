"""The command ``fast-lapsum bench ragged``."""

from __future__ import annotations

import typer

from . import functions, options, ragged
from .function_commands import limits_table, timings_table
from .measuring import Quick, Samples, finish, measure


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="ragged", epilog="Example: fast-lapsum bench ragged --device cpu --repeats 30"
    )(bench_ragged)


def bench_ragged(
    device: options.Device = None,
    repeats: Samples = 15,
    out: options.Out = None,
    quick: Quick = False,
) -> None:
    """Time segments of several lengths, and one budget over many tensors.

    Segments beside rows of the mean length and padded rows with a mask; the tensors of a ResNet-50
    beside one tensor of their scores. Says which limits hold. Results are first checked: what is
    wrong is not timed, and the exit code is 1.
    """
    chosen = options.device(device)
    path = out or options.results_folder(quick=quick) / chosen.type / "ragged.json"
    record = measure(ragged.run, path, device=chosen, repeats=repeats, quick=quick)
    told = functions.summary(record).replace("Functions", "Ragged rows and lists")
    shown = (timings_table(record), limits_table(record))
    finish(record, shown, path, told, functions.failures(record))

"""The command ``fast-lapsum bench layers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from . import functions, layers, options
from .function_commands import limits_table, timings_table
from .measuring import Quick, Samples, finish, measure


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="layers", epilog="Example: fast-lapsum bench layers --device cpu --repeats 30"
    )(bench_layers)


def bench_layers(
    device: options.Device = None,
    repeats: Samples = 15,
    out: options.Out = None,
    quick: Quick = False,
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
    record = measure(
        layers.run, path, device=chosen, repeats=repeats, quick=quick, before=_before(path)
    )
    shown = [timings_table(record)]
    if chosen.type == "cuda":
        waited = [{**entry, "timings": entry.get("wall", {})} for entry in record["cases"]]
        walls = timings_table({**record, "cases": waited})
        walls.title = "What a caller waits per call"
        shown.append(walls)
    shown.append(limits_table(record))
    told = functions.summary(record).replace("Functions", "Layers")
    finish(record, shown, path, told, functions.failures(record))


def _before(path: Path) -> dict[str, Any] | None:
    """What an earlier run has written, if it can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None

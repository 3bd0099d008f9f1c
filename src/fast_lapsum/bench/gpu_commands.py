"""The commands ``fast-lapsum bench gpu`` and ``bench cliffs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from . import cliff_tables, cliffs, gpu, gpu_tables, gpu_users, options
from .measuring import Quick, Samples, errors, finish, measure


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command(name="gpu", epilog="Example: fast-lapsum bench gpu --max-n 1e8 --out gpu.json")(
        bench_gpu
    )
    app.command(name="cliffs", epilog="Example: fast-lapsum bench cliffs --out cliffs.json")(
        bench_cliffs
    )


def bench_gpu(
    repeats: Samples = 15,
    max_n: Annotated[
        int | None,
        typer.Option(
            help="Leave out shapes with more scores.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/gpu.json if not given, in results-quick with"
            " --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Quick = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Measure this part alone: {', '.join(gpu.SECTIONS)}. The results file has "
            "nothing else then. May be given several times."
        ),
    ] = None,
) -> None:
    """Time soft_topk on this GPU beside a copy, torch.softmax, torch.topk and torch.sort.

    Device times come from CUDA graphs over inputs that exceed the cache. Every call is first
    checked against float64: one that fails is not timed, and the exit code is 1. The results file
    is written after every shape. For shapes that users have (routers, sparse autoencoders, long
    rows: the part "users") it says which limits hold, and how many.
    """
    for name in only or ():
        if name not in gpu.SECTIONS:
            expected = ", ".join(gpu.SECTIONS)
            raise typer.BadParameter(f"'{name}' is none of: {expected}.", param_hint="--only")
    device = _device()
    path = out or options.results_folder(quick=quick) / "gpu.json"
    record = measure(
        gpu.run,
        path,
        device=device,
        repeats=repeats,
        max_n=max_n,
        quick=quick,
        only=only or gpu.SECTIONS,
    )
    told = gpu_users.summary(record) if record["users"] else ""
    finish(record, gpu_tables.all_tables(record), path, told, gpu.failures(record))


def bench_cliffs(
    samples: Samples = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/cliffs.json if not given, in results-quick with"
            " --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Quick = False,
) -> None:
    """Look for calls that are far slower than others of their shape, on this GPU.

    Times the forward pass over every kind of scores that the hunt has and over rows with infinities
    and NaN, at temperatures from 0 to 3 and budgets from 0 to n: more than a thousand calls on
    each of six shapes. Names the slowest calls of each shape, and says whether they take at most 3
    times the median. The results file, with all times, is written after every shape. The exit code
    is 1 if an answer is wrong.
    """
    device = _device()
    path = out or options.results_folder(quick=quick) / "cliffs.json"
    record = measure(cliffs.run, path, device=device, samples=samples, quick=quick)
    told = cliffs.summary(record)
    finish(record, cliff_tables.all_tables(record), path, told, cliffs.failures(record))


def _device() -> torch.device:
    if not torch.cuda.is_available():
        errors.print("[bold red]No GPU:[/] torch finds no CUDA device; there is bench cpu.")
        raise typer.Exit(1)
    return torch.device("cuda", torch.cuda.current_device())

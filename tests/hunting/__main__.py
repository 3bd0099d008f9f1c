"""``python -m hunting``: look for wrong rows, keep them, or run kept ones again."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import torch.multiprocessing as processes
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fast_lapsum.backends.torch.forward import SOLVERS
from fast_lapsum.bench.results import write_json

from . import wrong_rows
from .functions import JUDGES
from .plan import Size, share_of, specs
from .rows import CALLS, Spec
from .tally import Tally, label
from .worker import Done, Job, compared, judged, run, work

DTYPES = ("float32", "float64", "bfloat16", "float16")
console = Console()


def main(
    rows: Annotated[
        int, typer.Option(min=0, help="Rows of up to 16,384 scores, of each seed.")
    ] = 1_000_000,
    long_rows: Annotated[int, typer.Option(min=0, help="Longer rows, of each seed.")] = 0,
    seed: Annotated[int, typer.Option(help="Other seeds make other rows.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds, one after the other.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    solver: Annotated[
        str,
        typer.Option(help="auto is the kernel of the device; else one of plain torch's solvers."),
    ] = "auto",
    function: Annotated[
        str, typer.Option(help=f"mask is the soft mask; else one of {', '.join(JUDGES)}.")
    ] = "mask",
    dtypes: Annotated[str, typer.Option(help="Which, by commas.")] = ",".join(DTYPES),
    calls: Annotated[str, typer.Option(help="How calls are made: which, by commas.")] = ",".join(
        dict.fromkeys(CALLS)
    ),
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: as many as help.")] = 0,
    sample: Annotated[
        int, typer.Option(min=1, help="One batch in so many is compared with the reference, too.")
    ] = 4,
    scores_at_once: Annotated[
        int, typer.Option(min=0, help="Of a batch; 0: what suits the device.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Where wrong rows are kept.")] = Path(
        "build/hunt/wrong.json"
    ),
    record: Annotated[
        Path | None, typer.Option(help="A results file (JSON): what was looked at and found.")
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option(
            help="Run the rows that a hunt kept, instead of a hunt.", exists=True, dir_okay=False
        ),
    ] = None,
) -> None:
    """Look for rows whose budget is not met, or whose p are not those of their scores.

    Rows of every kind, length and dtype are made from the seed, solved in batches, and judged
    without the solver's help: the sum of p in float64 against k, and p by other p of its row, each
    within what rounding allows. A sample of them is compared with the float64 reference, p by p,
    and so are their gradients. Wrong rows are kept with all that is needed to run them again
    (--again), and named at the end. Exits with 1 if there are any.
    """
    _check("--solver", [solver], ("auto", *SOLVERS, "interpreted"))
    _check("--function", [function], ("mask", *JUDGES))
    _check("--dtypes", dtypes.split(","), DTYPES)
    _check("--calls", calls.split(","), CALLS)
    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        console.print("error: --device cuda, but torch finds no GPU here", style="red")
        raise typer.Exit(2)
    if again is not None:
        job = Job(device, solver, 1, sample, function)
        raise typer.Exit(1 if _again(again, job) else 0)
    at_once = scores_at_once or (1 << 26 if on_gpu else 1 << 20)
    size = Size(rows, long_rows, at_once, tuple(dtypes.split(",")), tuple(calls.split(",")))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jobs = jobs or min(12 if on_gpu else 64, cores or 1)
    job = Job(device, solver, max(1, (cores or 1) // jobs), sample, function)
    tally = Tally(out, console)
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit ends it like Ctrl-C
    try:
        everything = [spec for number in range(seeds) for spec in specs(seed + number, size)]
        failed = _hunt(job, everything, jobs, tally)
    except KeyboardInterrupt:
        failed = "interrupted"
    seconds = time.perf_counter() - start
    tally.print(seconds)
    if record is not None:
        settings = {**size._asdict(), "seed": seed, "seeds": seeds, **job._asdict(), "jobs": jobs}
        write_json(record, tally.record(settings, seconds, failed))
    if failed:
        console.print(f"not finished: {failed}", style="red", markup=False)
        raise typer.Exit(2)
    raise typer.Exit(1 if tally.wrong else 0)


def _check(option: str, given: list[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            expected = ", ".join(dict.fromkeys(known))
            raise typer.BadParameter(f"'{name}' is none of: {expected}.", param_hint=option)


def _hunt(job: Job, all_specs: list[Spec], jobs: int, tally: Tally) -> str:
    """Why it did not finish, or nothing."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("batches", total=len(all_specs))
        quiet = Quiet(len(all_specs))

        def hear(done: Done) -> None:
            tally.add(done)
            state = f"{tally.wrong} wrong, {label(done.spec)}"
            bar.update(task, advance=1, description=state)
            if not console.is_terminal:
                quiet.hear(state)

        if jobs == 1:
            for done in work(job, all_specs):
                hear(done)
            return ""
        context = processes.get_context("spawn")
        told = context.Queue()
        workers = [
            context.Process(target=run, args=(job, share, told.put), daemon=True)
            for share in (share_of(all_specs, number, jobs) for number in range(jobs))
        ]
        for worker in workers:
            worker.start()
        running = len(workers)
        while running:
            try:
                message = told.get(timeout=5)
            except queue.Empty:
                died = [w.exitcode for w in workers if w.exitcode not in (None, 0)]
                if died:
                    return f"a worker ended with {died[0]}"
                continue
            if message is None:
                running -= 1
            elif isinstance(message, str):
                return message
            else:
                hear(message)
    return ""


class Quiet:
    """Progress where there is no terminal: a line every ten seconds."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.last = total, 0, time.monotonic()

    def hear(self, state: str) -> None:
        self.done += 1
        if time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            print(f"{self.done:,} of {self.total:,} batches, {state}", flush=True)


def _again(path: Path, job: Job) -> int:
    """Run kept rows again; how many are wrong."""
    count = 0
    try:
        kept = wrong_rows.read(path)
    except ValueError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    for entry, batch in kept:
        here = batch._replace(
            scores=batch.scores.to(job.device),
            mask=None if batch.mask is None else batch.mask.to(job.device),
        )
        verdict = judged(job, here)
        reasons = [verdict.reason(0)] if bool(verdict.wrong[0]) else []
        if job.solver != "interpreted":
            reasons += compared(job, here)
        if reasons:
            count += 1
            console.print(wrong_rows.name({**entry, "reasons": "; ".join(reasons)}))
    console.print(f"{len(kept)} rows run again, {count} wrong")
    return count


if __name__ == "__main__":
    sys.argv[0] = "hunting"
    typer.run(main)

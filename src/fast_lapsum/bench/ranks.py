"""Rows that are spread over processes of one machine, beside one process that has them whole.

The processes share the processors: each has its part of the threads. A call over ranks takes as
long as the slowest of them. CPU time is that of all processes together, which other programs on the
machine hardly change.

On a GPU it is the work of one rank alone, as if the others had said what it says (rank_local.py).
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from . import environment, rank_local, sources
from .functions import FunctionCase, Limit, Report, lines
from .gpu_timing import describe, one_line
from .rank_local import LocalCase
from .rank_process import ALONE, BOTH, SPREAD, TEMPERATURE, RankCase, work
from .timing import summary

ALONE_CPU, SPREAD_CPU = "one process, CPU time", "ranks, CPU time of all"
RANK_CPU = "ranks, CPU time of each"
SECONDS = (
    "per call, percentiles 20, 50 and 80: wall time of the slowest rank, and CPU time where it "
    "says so"
)
#: Of the case that the limits are for.
LIMITS = (Limit(SPREAD, 1.5, ALONE), Limit(SPREAD_CPU, 1.5, ALONE_CPU))
BOTH_LIMITS = tuple(Limit(x.call + BOTH, x.factor, x.base + BOTH) for x in LIMITS)


def cases_of(
    quick: bool, device: torch.device
) -> tuple[tuple[RankCase | LocalCase, tuple[Limit, ...]], ...]:
    """All cases, with their limits."""
    if device.type != "cpu":
        return rank_local.cases_of(quick)
    if quick:
        return ((RankCase(2, 1, 1000), LIMITS),)
    return (
        (RankCase(4, 1, 5_000_000), (*LIMITS, *BOTH_LIMITS)),
        (RankCase(2, 1, 5_000_000), ()),
        (RankCase(4, 256, 4096), ()),
    )


def run(
    *,
    device: torch.device | None = None,
    repeats: int = 15,
    quick: bool = False,
    report: Report = lambda step: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    advance: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Any]:
    """Measure all cases; ``save`` gets the record after each."""
    device = device or torch.device("cpu")
    cases = cases_of(quick, device)
    record: dict[str, Any] = {
        "benchmark": "ranks",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "temperature": TEMPERATURE,
        "seconds": SECONDS if device.type == "cpu" else rank_local.SECONDS,
        "compared": "p20",
        "threads": torch.get_num_threads(),
        "environment": environment.describe(),
        "sources": sources.describe("ranks", str(device)),
        "device": describe(device),
        "cases": [],
    }
    for number, (case, limits) in enumerate(cases):
        entry: dict[str, Any] = {"case": case.name}
        try:
            report(f"{case.name}: parity and times")
            if isinstance(case, LocalCase):
                entry["timings"] = rank_local.measure(case, repeats, device)
            else:
                entry["timings"] = measure(case, repeats)
        except Exception as error:  # of a process, which may end by anything
            entry["failed"] = one_line(error)
        seconds = {name: x["p20"] for name, x in entry.get("timings", {}).items()}
        entry["lines"] = lines(FunctionCase((0,), 0, limits), seconds)
        record["cases"].append(entry)
        save(record)
        advance(case.name, number + 1, len(cases))
    return record


def measure(case: RankCase, repeats: int) -> dict[str, Any]:
    """Timings by name, from processes that are started for them."""
    multiprocessing.set_forkserver_preload(["torch.distributed"])
    with tempfile.TemporaryDirectory() as folder:
        given = (case, folder, torch.get_num_threads(), repeats)
        start_processes(work, given, nprocs=case.ranks, start_method="forkserver")  # type: ignore[no-untyped-call]
        files = [Path(folder, f"{rank}.json") for rank in range(case.ranks)]
        found = [json.loads(file.read_text()) for file in files]
    timings: dict[str, Any] = {}
    for suffix in ("", BOTH):
        alone = found[0][ALONE + suffix]
        turns = list(zip(*(one[SPREAD + suffix] for one in found), strict=True))
        samples = {
            ALONE: [wall for wall, _ in alone],
            SPREAD: [max(wall for wall, _ in turn) for turn in turns],
            ALONE_CPU: [cpu for _, cpu in alone],
            SPREAD_CPU: [sum(cpu for _, cpu in turn) for turn in turns],
            RANK_CPU: [cpu for turn in turns for _, cpu in turn],
        }
        for name, values in samples.items():
            timings[name + suffix] = summary(values)._asdict()
    return timings

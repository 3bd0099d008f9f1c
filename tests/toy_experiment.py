"""An experiment whose cases do what a method may do to a benchmark, as their names say.

Run as a program it is the command line with this experiment in place of every other one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from fast_lapsum.bench import commands, sources
from fast_lapsum.bench.experiment import Case, Experiment, Record, Settings, Unavailable

#: "NAME:SIZE" of each case, separated by commas; cases of one name are a chain.
CASES = "TOY_CASES"
#: A file that gets a line for each case that is begun.
LOG = "TOY_LOG"
#: A file that the case "gate" waits for.
GATE = "TOY_GATE"


def cases(settings: Settings) -> list[Case]:
    parts = (part.split(":") for part in os.environ[CASES].split(","))
    found = [Case({"what": what, "n": int(n)}, int(n), chain=what) for what, n in parts]
    return [case for case in found if case.size <= settings.max_n]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    what, n = case.key["what"], case.size
    if LOG in os.environ:
        with Path(os.environ[LOG]).open("a") as log:
            log.write(f"{what}:{n} {os.getpid()}\n")
    if what == "unavailable":
        raise Unavailable("toy is not installed (pip install toy)")
    if what == "wrong":
        raise ValueError("parity failed")
    if what == "nan":
        return {"mass": float("nan")}
    if what == "greedy":
        torch.empty(n * 2**20, dtype=torch.uint8)
    elif what == "greedy-python":
        bytearray(n * 2**20)
    elif what == "asleep":
        time.sleep(1000)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "crashed":
        print("assertion of a library failed", file=sys.stderr, flush=True)
        os._exit(3)
    elif what == "gate":
        while not Path(os.environ[GATE]).exists():
            time.sleep(0.01)
    print("a method may print")
    # "slow" answers at once, but says that a call took n seconds.
    seconds = {"linear": n * 0.01, "slow": float(n)}.get(what, 0.002)
    timing = {"p20": 0.9 * seconds, "p50": seconds, "p80": 1.1 * seconds, "samples": 3}
    return {"seconds": timing, "process": os.getpid()}


def tables(record: Record) -> list[Table]:
    table = Table("what", "status")
    for row in record["rows"]:
        table.add_row(f"{row['key']['what']}:{row['key']['n']}", row["status"])
    return [table]


sources.KINDS["toy"] = sources.Needs(())
EXPERIMENT = Experiment("toy", "A toy", ("tab:toy",), "It is [B, n].", cases, measure, tables)


if __name__ == "__main__":
    from fast_lapsum import cli

    commands.module_of = lambda name: "toy_experiment"
    # It calls no operator, so a run may go on after somebody edited one.
    sources.OPERATOR = sources.Needs(())
    cli.app()

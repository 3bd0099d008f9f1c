"""Arguments of the command line, read so that an error says what was given."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from . import environment


def whole(at_least: int) -> Callable[[str], int]:
    """A parser whose errors, unlike the built-in ones, say what was given."""

    def parse(text: str) -> int:
        try:
            value = float(text)  # 1e6 is a whole number too
        except ValueError:
            value = math.nan
        if not (value.is_integer() and value >= at_least):
            raise typer.BadParameter(f"'{text}' is not a whole number of at least {at_least}.")
        return int(value)

    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"'{text}' is not a finite number above 0.")
    return value


def device(name: str | None) -> torch.device:
    """The device of that name; the best one here for None."""
    if name is None:
        return environment.best_device()
    available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if name not in available and not (name == "cuda" and len(available) > 1):
        raise typer.BadParameter(
            f"'{name}' is not available; expected one of: {', '.join(available)}.",
            param_hint="--device",
        )
    return torch.device(name)


def half_of_memory(chosen: torch.device) -> float:
    """Half of the GPU's memory, or of what this process can still get on a CPU, in GiB."""
    return max(0.1, round(memory(chosen) / 2 / 2**30, 1))


def memory(chosen: torch.device) -> float:
    """The GPU's memory, or what this process can still get on a CPU, in bytes."""
    if chosen.type == "cuda":
        return int(torch.cuda.get_device_properties(chosen).total_memory)
    return min(_system_bytes(), _container_bytes())


def _system_bytes() -> float:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 2**30


def _container_bytes() -> float:
    """What a container (cgroup) leaves; infinite without one."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = ((folder / f"memory.{name}").read_text() for name in ("max", "current"))
        return int(most) - int(used)
    except (OSError, ValueError):  # "max" is no number, and no limit
        return math.inf


def results_folder(*, quick: bool) -> Path:
    """Quick results lie apart: a checkout has full ones in ``results`` already."""
    return Path("results-quick" if quick else "results")


# The options that all experiments share.
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:1; the best one here by default.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Small sizes and few samples, to try the suite itself.")
]
MaxN = Annotated[
    int,
    typer.Option(
        help="Leave out cases with more scores than this in all.",
        show_default="1e8",
        parser=whole(at_least=1),
        metavar="INTEGER",
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        help="Samples of each timing; 20, or 5 with --quick.",
        parser=whole(at_least=1),
        metavar="INTEGER",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        help="Limit per case: one that takes longer is ended and recorded as a time-out, and larger"
        " ones of the same method are not tried; 20, or 5 with --quick.",
        parser=positive,
        metavar="NUMBER",
    ),
]
Gibibytes = Annotated[
    float | None,
    typer.Option(
        help="Memory limit per case: one that asks for more is recorded as out of memory; half of"
        " the available memory, or of the GPU's.",
        parser=positive,
        metavar="NUMBER",
    ),
]
Seed = Annotated[
    int,
    typer.Option(help="Seed of the random scores.", parser=whole(at_least=0), metavar="INTEGER"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The results file (JSON); results/cpu/NAME.json or results/cuda/NAME.json by default,"
        " in results-quick with --quick.",
        dir_okay=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="The folder of the results files; results/cpu or results/cuda by default, in"
        " results-quick with --quick.",
        file_okay=False,
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over, and replace a results file that is there.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Run only this experiment; may be repeated.", metavar="NAME"),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(help="Leave this experiment out; may be repeated.", metavar="NAME"),
]

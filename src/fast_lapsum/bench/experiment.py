"""What an experiment is: cases, a way to measure one of them, and tables of the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.table import Table

#: The content of a results file.
Record = dict[str, Any]


class Settings(NamedTuple):
    """What a run was asked for; part of its results file."""

    #: "cpu", "cuda" or "cuda:0".
    device: str
    #: Small sizes and few repeats, to try the suite itself.
    quick: bool
    #: Samples per timing.
    repeats: int
    #: Ceiling on the number of scores in a case, B * n.
    max_n: int
    #: Limit per case; a case over it is ended and recorded as "timeout".
    seconds: float
    #: Memory limit per case, beyond what the process starts with.
    gibibytes: float
    seed: int


#: What compiling the kernels of one call may take.
COMPILE_SECONDS = 60.0


class Case(NamedTuple):
    """One row of a results file."""

    #: Identifies the row within its experiment; JSON-ready and stable.
    key: dict[str, str | int | float]
    #: Scores in all, B * n.
    size: int
    #: Once a case of a chain has met a limit, or is seen to come near it, larger ones of the same
    #: chain are not tried; "" is no chain.
    chain: str = ""
    #: Seconds beyond the limit that the first call may take, to compile what it runs.
    patience: float = 0.0


class Experiment(NamedTuple):
    """Cases, and how each of them is measured and shown."""

    #: As on the command line.
    name: str
    #: One line for tables and the report.
    title: str
    #: The LaTeX labels of the paper that it answers.
    labels: tuple[str, ...]
    #: One paragraph: how each number was taken, what is compared, what the paper's column is.
    method: str
    #: In the order in which they are run, cut to ``max_n`` and ``quick`` already.
    cases: Callable[[Settings], list[Case]]
    #: The values of a row, measured in the worker process. Raises :class:`Unavailable` for a method
    #: that cannot take this case, lets out-of-memory errors through, and raises where a parity or
    #: sanity check fails, so that no wrong answer gets a time.
    measure: Callable[[Case, Settings], dict[str, Any]]
    #: For the terminal, the paper's numbers beside ours where it has some.
    tables: Callable[[Record], list[Table]]


class Unavailable(Exception):  # noqa: N818 - it is an answer, not a fault
    """A method is not installed, or cannot take this case; the message says why."""


def patience(settings: Settings) -> float:
    """For a case of this package's own kernels, which are compiled on a GPU."""
    return 0.0 if settings.device == "cpu" else COMPILE_SECONDS

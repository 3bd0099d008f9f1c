"""Progress of a run: a bar on a terminal, one line for each case elsewhere."""

from __future__ import annotations

import time
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from . import records
from .runner import Row, Step
from .tables import milliseconds

Bar = TypeVar("Bar", bound="LiveBar")
#: Columns of a table that is not shown in a window.
_WIDEST = 200


def outcome(row: Row) -> str:
    """What became of a case, in a few words.

    >>> outcome({"status": "ok", "values": {"seconds": {"p50": 0.002}}})
    '2 ms'
    >>> outcome({"status": "timeout", "reason": "more than 20 s"})
    'timeout, more than 20 s'
    """
    if row["status"] != "ok":
        return f"{row['status']}, {row['reason']}"
    timing = row["values"].get("seconds")
    return "ok" if timing is None else milliseconds(timing["p50"])


def duration(seconds: float) -> str:
    """Minutes and seconds.

    >>> duration(9.4), duration(75)
    ('9 s', '1:15 min')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02} min"


def number_of(number: int, noun: str) -> str:
    """A number of things.

    >>> number_of(1, "atom"), number_of(2000, "atom")
    ('1 atom', '2,000 atoms')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_table(console: Console, table: Table) -> None:
    """As wide as it needs to be in a file or a pipe, where nobody's window would cut it."""
    if console.is_terminal:
        console.print(table)
        return
    wide = Console(file=console.file, width=max(console.width, _WIDEST), force_terminal=False)
    wide.print(table)


class LiveBar:
    """A progress bar on a terminal for the length of a ``with``, nothing elsewhere."""

    def __init__(
        self, console: Console, *columns: ProgressColumn, start: str, total: int | None = None
    ) -> None:
        self._console = console
        # Few refreshes: they run on the cores that are at work.
        self._bar = Progress(
            SpinnerColumn(),
            *columns,
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(start, total=total)

    def __enter__(self: Bar) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


class PartsDisplay(LiveBar):
    """Shows the parts of a benchmark: what is being done, and a line for each that is finished."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, MofNCompleteColumn(), TimeElapsedColumn(), start="starting")
        self._start = time.monotonic()

    def step(self, step: str) -> None:
        """Something begins."""
        self._bar.update(self._task, description=step)

    def advance(self, name: str, done: int, total: int) -> None:
        """A part is finished."""
        self._bar.update(self._task, completed=done, total=total)
        elapsed = duration(time.monotonic() - self._start)
        self._console.print(f"{done}/{total} {name}, {elapsed}", highlight=False, soft_wrap=True)


class Display(LiveBar):
    """Shows the steps of one experiment."""

    def __init__(self, console: Console, name: str) -> None:
        columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TimeElapsedColumn())
        super().__init__(console, *columns, start=f"{name}: starting")
        self._name = name
        self._start = time.monotonic()
        self._measured = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def step(self, step: Step) -> None:
        """A case begins or is finished."""
        place = f"{self._name}: {records.label(step.case.key)}"
        if step.row is not None:
            self._measured += 1
            if not self._console.is_terminal:
                times = duration(self.elapsed) + self._left(step)
                self.line(f"{step.done}/{step.total} {place}: {outcome(step.row)}; {times}")
        self._bar.update(
            self._task,
            completed=step.done,
            total=step.total,
            description=f"{place}{self._left(step)}",
        )

    def line(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _left(self, step: Step) -> str:
        """How long the rest may take, if it goes on like this."""
        if not self._measured or step.done == step.total:
            return ""
        left = self.elapsed / self._measured * (step.total - step.done)
        return f", about {duration(left)} left"

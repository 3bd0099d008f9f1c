"""What a hunt has seen so far: counts, the worst row, the wrong rows; printed, or as a record."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from fast_lapsum.bench import environment, sources

from . import wrong_rows
from .plan import ON_CHIP
from .rows import KINDS, Spec
from .worker import Done

#: Functions whose figures depend on more than masks do: see bench/sources.py.
_SOURCES = {
    **dict.fromkeys(("segments", "padded", "list"), "hunt-ragged"),
    "ranks": "hunt-ranks",
}
#: Wrong rows that are kept: more of them tell nothing new.
MOST_KEPT = 200
MOST_NAMED = 40


class Tally:
    """What has been seen so far."""

    def __init__(self, out: Path, console: Console) -> None:
        self.out, self.console = out, console
        self.rows: dict[str, int] = {}
        self.long_rows = self.large_rows = self.wrong = self.sampled = 0
        self.compared_kinds: set[str] = set()
        self.worst, self.worst_spec, self.misfit = 0.0, "", 0.0
        self.found: list[wrong_rows.Found] = []
        self.slowest, self.slowest_spec = 0.0, ""

    def add(self, done: Done) -> None:
        spec = done.spec
        self.rows[spec.dtype] = self.rows.get(spec.dtype, 0) + spec.rows
        self.long_rows += spec.rows * (spec.n > ON_CHIP)
        self.large_rows += spec.rows * (1024 <= spec.n <= ON_CHIP)
        self.wrong += done.wrong
        self.sampled += done.sampled
        if done.sampled:
            self.compared_kinds.add(spec.kind)
        self.misfit = max(self.misfit, done.misfit)
        if done.worst > self.worst:
            self.worst, self.worst_spec = done.worst, label(spec)
        if done.seconds > self.slowest:
            self.slowest, self.slowest_spec = done.seconds, label(spec)
        if done.found and len(self.found) < MOST_KEPT:
            self.found += done.found[: MOST_KEPT - len(self.found)]
            wrong_rows.write(self.out, self.found)  # at once: an interrupted hunt keeps its finds

    def record(self, settings: dict[str, Any], seconds: float, failed: str) -> dict[str, Any]:
        """A results file: how many rows of what were looked at, and what was found."""
        kind = _SOURCES.get(settings["function"], "hunt")
        return {
            "benchmark": "hunt",
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "complete": not failed,
            "environment": environment.describe(),
            "sources": sources.describe(kind, settings["device"]),
            "settings": settings,
            "seconds": round(seconds, 1),
            "rows": self.rows,
            "rows_on_chip": sum(self.rows.values()) - self.long_rows,
            "of_those_with_1024_scores_or_more": self.large_rows,
            "longer_rows": self.long_rows,
            "compared_with_reference": self.sampled,
            "kinds": len(KINDS),
            "kinds_compared_with_reference": len(self.compared_kinds),
            "wrong": self.wrong,
            "largest_error_over_bound": self.worst,
            "largest_error_at": self.worst_spec,
            "largest_p_error_over_bound": self.misfit,
        }

    def print(self, seconds: float) -> None:
        total = sum(self.rows.values())
        by_dtype = ", ".join(f"{name} {count:,}" for name, count in self.rows.items())
        on_chip = total - self.long_rows
        self.console.print(f"{total:,} rows in {seconds:.0f} s: {by_dtype}")
        self.console.print(
            f"of up to {ON_CHIP:,} scores {on_chip:,}, of which {self.large_rows:,} have 1024 or "
            f"more; longer {self.long_rows:,}"
        )
        self.console.print(
            f"compared with the reference {self.sampled:,} rows, of {len(self.compared_kinds)} "
            f"kinds out of {len(KINDS)}"
        )
        self.console.print(
            f"largest error of a sum {self.worst:.3g} of its bound ({self.worst_spec}), "
            f"of a p {self.misfit:.3g}"
        )
        self.console.print(f"slowest batch {self.slowest:.1f} s: {self.slowest_spec}")
        if not self.wrong:
            self.console.print("wrong rows: none")
            return
        self.console.print(
            f"wrong rows: {self.wrong:,}; kept in {self.out} and its .npz:", style="red"
        )
        for number, found in enumerate(self.found[:MOST_NAMED]):
            self.console.print(f"  {wrong_rows.name({'row': f'row{number:02}', **found.entry})}")


def label(spec: Spec) -> str:
    """A batch in a few words."""
    return f"{spec.rows:,} x {spec.n:,} {spec.dtype}, {spec.kind}, {spec.call}"

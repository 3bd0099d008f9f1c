"""The record of ``bench cliffs`` as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .cliffs import name_of
from .tables import microseconds, verdict


def all_tables(record: dict[str, Any]) -> list[Table]:
    """The slowest calls of every shape, then the shapes with their verdicts."""
    measured = [entry for entry in record["shapes"] if entry["slowest"]]
    return [*map(slowest_table, measured), shapes_table(record)]


def slowest_table(entry: dict[str, Any]) -> Table:
    """The slowest calls of a shape by name."""
    title = f"Slowest calls of {name_of(entry['shape'])}, device time"
    table = _table(title, "scores", "t", "k", "time", "x median")
    for call in entry["slowest"]:
        table.add_row(
            call["kind"],
            f"{call['temperature']:g}",
            f"{call['k']:,.10g}",
            microseconds(call["seconds"]),
            f"{call['ratio']:.2f}",
        )
    return table


def shapes_table(record: dict[str, Any]) -> Table:
    """Median and slowest call of every shape, and whether the limit holds."""
    title = f"Slowest call, at most {record['limit']:g} times the median"
    table = _table(title, "shape", "calls", "wrong", "median", "slowest", "x median", "")
    for entry in record["shapes"]:
        worst = entry["slowest"][0] if entry["slowest"] else None
        table.add_row(
            name_of(entry["shape"]),
            f"{entry['calls']:,}",
            f"{len(entry['wrong']):,}",
            "" if worst is None else microseconds(entry["median"]),
            "" if worst is None else microseconds(worst["seconds"]),
            "" if worst is None else f"{worst['ratio']:.2f}",
            verdict(entry["met"], "holds", "misses"),
        )
    return table


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left")
    for header in headers:
        left = header in ("", "shape", "scores")
        table.add_column(header, justify="left" if left else "right")
    return table

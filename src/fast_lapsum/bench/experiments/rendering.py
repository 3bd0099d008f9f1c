"""Rows of a results record as a grid for the terminal, the paper's numbers under ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from ..experiment import Record
from ..paper import MACHINE

Key = dict[str, Any]
#: Row label -> column -> what the paper has there.
PaperCells = Mapping[str, Mapping[Any, str]]

PAPER_ROW = f"  paper, {MACHINE}"
NOT_TRIED = "In brackets: not tried, because a smaller size met that limit or came near it."


def grid_table(
    record: Record,
    title: str,
    *,
    row: str | Callable[[Key], str],
    column: str | Callable[[Key], Any],
    cell: Callable[[dict[str, Any]], str | Text],
    paper: PaperCells | None = None,
    only: Callable[[Key], bool] = lambda key: True,
    corner: str = "",
    caption: str = "",
) -> Table:
    """One table row per ``row``, one column per ``column``, in the order of the record.

    Args:
        record: a results record.
        title: stands above the table.
        row: the name of a part of the key, or what makes a label of a key.
        column: the same for columns; whole numbers are shown as sizes.
        cell: the text of a row's values; other statuses than "ok" have a word of their own.
        paper: what the paper has, by row label and column; a dim row below ours. Labels and columns
            that we do not have come last.
        only: which keys belong in the table.
        corner: the header of the row labels.
        caption: stands below the table.
    """
    rows = [entry for entry in record["rows"] if only(entry["key"])]
    row_of, column_of = _part(row), _part(column)
    paper = paper or {}
    columns = _columns(rows, column_of, paper)
    grid: dict[str, dict[Any, dict[str, Any]]] = {}
    for entry in rows:
        grid.setdefault(str(row_of(entry["key"])), {})[column_of(entry["key"])] = entry

    not_tried = any(entry["status"] == "limit" for entry in rows)
    below = " ".join(filter(None, (caption, NOT_TRIED if not_tried else "")))
    table = Table(title=title, title_justify="left", caption=below, caption_justify="left")
    table.add_column(corner, no_wrap=True)
    for name in columns:
        table.add_column(size_label(name), justify="right")
    seconds = record["settings"]["seconds"]
    for label in [*grid, *(label for label in paper if label not in grid)]:
        cells = grid.get(label, {})
        table.add_row(label, *_row_texts(cells, columns, cell, seconds))
        if label in paper:
            texts = (Text(paper[label].get(name, "")) for name in columns)
            table.add_row(PAPER_ROW, *texts, style="dim")
    return table


def size_label(value: Any) -> str:
    """Numbers of scores the short way.

    >>> size_label(10), size_label(1000), size_label(30_000_000), size_label(4096), size_label("B")
    ('10', '1e3', '3e7', '4096', 'B')
    """
    if isinstance(value, int) and value >= 1000:
        digits = math.floor(math.log10(value))
        if value % 10**digits == 0:
            return f"{value // 10**digits}e{digits}"
    return str(value)


def time_cell(values: dict[str, Any]) -> str:
    """The median in milliseconds, without the unit: a column header or title names it.

    >>> time_cell({"seconds": {"p50": 0.00123456}}), time_cell({"seconds": {"p50": 12.3456}})
    ('1.23', '12346')
    """
    return milliseconds_text(values["seconds"]["p50"] * 1e3)


def milliseconds_text(milliseconds: float) -> str:
    """Three digits that count, and no exponent.

    >>> milliseconds_text(0.0123456), milliseconds_text(98.76), milliseconds_text(7895)
    ('0.0123', '98.8', '7895')
    """
    if milliseconds >= 100:
        return f"{milliseconds:.0f}"
    digits = 2 - math.floor(math.log10(max(milliseconds, 1e-6)))
    return f"{milliseconds:.{digits}f}"


def status_text(status: str, seconds: float) -> Text:
    """The word for a row without values.

    >>> status_text("timeout", 20.0).plain, status_text("oom", 20.0).plain
    ('> 20 s', 'OOM')
    """
    words = {"oom": "OOM", "timeout": f"> {seconds:g} s", "unavailable": "-", "limit": "not tried"}
    style = {"error": "bold red", "unavailable": "dim"}.get(status, "yellow")
    return Text(words.get(status, status), style=style)


def _row_texts(
    cells: dict[Any, dict[str, Any]],
    columns: list[Any],
    cell: Callable[[dict[str, Any]], str | Text],
    seconds: float,
) -> list[Text]:
    """The cells of one row; one that was not tried names the limit met to its left."""
    texts = []
    met = "timeout"
    for name in columns:
        entry = cells.get(name)
        if entry is None:
            texts.append(Text(""))
        elif entry["status"] == "ok":
            shown = cell(entry["values"])
            texts.append(shown if isinstance(shown, Text) else Text(shown))
        elif entry["status"] == "limit":
            texts.append(Text(f"({status_text(met, seconds).plain})", style="yellow dim"))
        else:
            if entry["status"] == "oom":
                met = "oom"
            texts.append(status_text(entry["status"], seconds))
    return texts


def _part(of: str | Callable[[Key], Any]) -> Callable[[Key], Any]:
    return (lambda key: key[of]) if isinstance(of, str) else of


def _columns(
    rows: list[dict[str, Any]], column_of: Callable[[Key], Any], paper: PaperCells
) -> list[Any]:
    """Ours in their order, then the paper's; sizes are sorted."""
    names = dict.fromkeys(column_of(entry["key"]) for entry in rows)
    names.update(dict.fromkeys(name for cells in paper.values() for name in cells))
    if all(isinstance(name, int) for name in names):
        return sorted(names)
    return list(names)

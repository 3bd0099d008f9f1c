"""Tables as HTML: what the terminal shows, every row with all its values, the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from rich.errors import MarkupError
from rich.table import Table
from rich.text import Text

from ..experiment import Record

#: How a row that has no values is called, and the class that its cell gets.
WORDS = {
    "oom": "out of memory",
    "timeout": "time-out",
    "limit": "not tried",
    "unavailable": "not available",
    "error": "error",
}
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "%": 1e-2}
QUANTITY = re.compile(
    r"\(?[<>≤~]?\s*([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(ns|us|µs|ms|s|%|x|×)?\)?$", re.I
)


class Cell(NamedTuple):
    """Text, and the number that it is sorted by, if it is one."""

    text: str
    number: float | None = None
    style: str = ""


def quantity(text: str) -> float | None:
    """The number in a cell of a terminal table; None for words and for the limits that were met.

    >>> quantity("12.3 ms"), quantity("1,000"), quantity("5.6x"), quantity("<1e-5")
    (0.0123, 1000.0, 5.6, 1e-05)
    >>> quantity("OOM") is quantity("> 20 s") is None
    True
    """
    found = QUANTITY.match(text.strip())
    if found is None or text.strip(" (").startswith(">"):
        return None
    return float(found[1].replace(",", "")) * UNITS.get((found[2] or "").lower(), 1.0)


def terminal_table(table: Table) -> str:
    """A rich table; a row without a name, or with an indented one, moves with the row above it."""
    headers = [_plain(column.header) for column in table.columns]
    rows: list[list[list[Cell]]] = []
    for texts in zip(*([*column.cells] for column in table.columns), strict=True):
        plain = [_plain(text) for text in texts]
        cells = [Cell(text.strip(), quantity(text)) for text in plain]
        if rows and (not plain[0] or plain[0].startswith(" ")):
            rows[-1].append([cell._replace(style="paper") for cell in cells])
        else:
            rows.append([cells])
    caption = _plain(table.title) if table.title else ""
    below = f'<p class="note">{escape(_plain(table.caption))}</p>' if table.caption else ""
    return sortable(headers, rows, caption) + below


def full_table(record: Record) -> str:
    """Every row of a record: its key, its status, and all values it has."""
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["key"]))
    flat = [_flat(row.get("values") or {}) for row in record["rows"]]
    values = list(dict.fromkeys(name for found in flat for name in found))
    if any("reason" in row for row in record["rows"]):
        values.append("reason")
    body = []
    for row, found in zip(record["rows"], flat, strict=True):
        key = [_cell(row["key"].get(name)) for name in names]
        word = WORDS.get(row["status"])
        status = Cell(word or "ok", style=f"status {row['status']}" if word else "")
        found["reason"] = row.get("reason", "")
        body.append([[*key, status, *(_cell(found.get(name)) for name in values)]])
    count = len(body)
    caption = f"All {count} rows" + ("; times in seconds" if "seconds p50" in values else "")
    table = sortable([*names, "status", *values], body, caption)
    shown = " open" if count <= 40 else ""
    return f"<details{shown}><summary>All rows ({count})</summary>{table}</details>"


def pairs_table(pairs: Iterable[tuple[str, str]], caption: str) -> str:
    """Names and values, one pair a row; nothing to sort."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return _box(
        f"<table><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>", caption
    )


def sortable(headers: Sequence[str], rows: Sequence[Sequence[Sequence[Cell]]], caption: str) -> str:
    """A table whose headers are buttons; the rows of one inner list stay together."""
    head = "".join(
        f'<th scope="col"><button type="button">{escape(header) or "name"}</button></th>'
        for header in headers
    )
    body = "".join(
        f"<tbody>{''.join(f'<tr>{_cells(row)}</tr>' for row in group)}</tbody>" for group in rows
    )
    table = (
        f'<table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>{body}</table>"
    )
    return _box(table, caption)


def _box(table: str, name: str) -> str:
    """Wide tables scroll in here, by keyboard too, and the page does not."""
    label = escape(name, quote=True) or "table"
    return f'<div class="box" role="region" tabindex="0" aria-label="{label}">{table}</div>'


def _cells(cells: Sequence[Cell]) -> str:
    parts = []
    for cell in cells:
        classes = " ".join(filter(None, (cell.style, "number" if cell.number is not None else "")))
        attributes = f' class="{escape(classes)}"' if classes else ""
        if cell.number is not None:
            attributes += f' data-value="{cell.number!r}"'
        parts.append(f"<td{attributes}>{escape(cell.text)}</td>")
    return "".join(parts)


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(str(value))
    if isinstance(value, int):
        return Cell(f"{value:,}", float(value))
    return Cell(f"{value:.4g}", value)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Timings and other small records by their parts."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update({f"{name} {part}": number for part, number in value.items()})
        else:
            flat[name] = value
    return flat


def _plain(text: Any) -> str:
    if isinstance(text, Text):
        return text.plain
    try:
        return Text.from_markup(str(text)).plain
    except MarkupError:
        return str(text)

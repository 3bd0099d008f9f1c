"""The rows of ``coder-drawn`` as tables in Markdown."""

from __future__ import annotations

from typing import Any

from . import drawn
from .drawn_report import METHODS, SIZES, Row, limits, quality

OURS = ("best", "plain")


def markdown(record: dict[str, Any]) -> str:
    """One table for each size and budget, and what they say together."""
    rows = {
        (row["size"], row["limit"], row["picture"], row["method"]): row for row in record["rows"]
    }
    parts = ["# Drawn pictures", _summary(record["rows"])]
    for size in SIZES:
        for limit in limits(size):
            chosen = [
                {method: rows.get((size, limit, name, method)) for method in METHODS} | {"": name}
                for name in drawn.NAMES
            ]
            parts.append(f"## {size} x {size}, at most {limit:,} bytes")
            parts.append(_table(chosen))
    return "\n\n".join(parts) + "\n"


def below(rows: list[Row]) -> list[Row]:
    """Files of ours that are further from the picture than the simplest code."""
    floor = {
        (row["size"], row["limit"], row["picture"]): quality(row)
        for row in rows
        if row["method"] == "trivial"
    }
    return [
        row
        for row in rows
        if row["method"] in OURS
        and quality(row) < floor.get((row["size"], row["limit"], row["picture"]), -1.0)
    ]


def _summary(rows: list[Row]) -> str:
    ours = [row for row in rows if row["method"] in OURS]
    longest = max(ours, key=lambda row: row["seconds"], default=None)
    text = f"Of {len(ours)} files {len(below(rows))} are below the simplest code that their budget"
    text += " holds."
    if longest is not None:
        text += (
            f" The longest time is {longest['seconds']:.1f} s ({longest['picture']},"
            f" {longest['size']}, {longest['method']})."
        )
    return (
        text + " PSNR in dB over red, green and blue; the side of the simplest code's blocks, bytes"
        " and seconds in parentheses. PNG is exact and keeps no budget."
    )


def _table(chosen: list[dict[str, Any]]) -> str:
    head = ["picture", *METHODS]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * len(METHODS) + "|"]
    for one in chosen:
        cells = [one[""], *(_cell(method, one[method]) for method in METHODS)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(method: str, row: Row | None) -> str:
    if row is None or "reason" in row:
        return ""
    shown = "exact" if row["psnr"] is None else f"{row['psnr']:.2f}"
    if method == "PNG":
        return f"({row['bytes']:,})"
    if method == "trivial":
        return f"{shown} ({row['side']})"
    if method in OURS:
        return f"{shown} ({row['bytes']:,}, {row['seconds']:.1f})"
    return f"{shown} ({row['bytes']:,})"

"""The GPU benchmark's record as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from .tables import microseconds, timings_table, verdict


def all_tables(record: dict[str, Any]) -> list[Table]:
    """Everything worth a look, the verdicts last; nothing of a section that was not measured."""
    tables = [
        timings_table(record, "timings", "Device time per call, median", microseconds),
        timings_table(record, "eager", "Wall time per eager call, median", microseconds),
        floors_table(record),
        overhead_table(record),
        *sweep_tables(record),
        budgets_table(record),
        bars_table(record),
        users_table(record),
    ]
    return [table for table in tables if table.row_count]


def floors_table(record: dict[str, Any]) -> Table:
    """What the measured copy bandwidth allows, and what was left out."""
    rate = record["copy"]["bytes_per_second"]
    table = _table(f"Floors at {rate / 1e12:.2f} TB/s", "case", "forward", "backward", "left out")
    for case in record["cases"]:
        if "skipped" in case:
            table.add_row(case["case"], "", "", case["skipped"])
            continue
        floors = case["floors"]
        table.add_row(
            case["case"],
            f"{microseconds(floors[case['forward_floor']])} ({case['forward_floor']})",
            f"{microseconds(floors['20n'])} (20n)",
            "; ".join(f"{name}: {why}" for name, why in case.get("peers_skipped", {}).items()),
        )
    return table


def overhead_table(record: dict[str, Any]) -> Table:
    """Short rows: what the host costs, and what is left of it in a graph."""
    table = _table("Short rows, median per call", "", "call", "wall time", "device time, graph")
    for entry in record["overhead"]:
        names = dict.fromkeys((*entry.get("eager", ()), *entry.get("device", ())))
        for name in names:
            times = (entry.get(section, {}).get(name) for section in ("eager", "device"))
            table.add_row(
                f"n = {entry['n']:,}",
                name,
                *("" if found is None else microseconds(found["p50"]) for found in times),
            )
        for name, reason in entry["failed"].items():
            table.add_row(f"n = {entry['n']:,}", f"{name}: {reason}", "failed", "failed")
    return table


def sweep_tables(record: dict[str, Any]) -> list[Table]:
    """One table per size: budgets down, temperatures across."""
    measured = [entry for entry in record["sweeps"] if "k" in entry]
    tables = []
    for n in dict.fromkeys(entry["n"] for entry in measured):
        cells = {(e["k"], e["temperature"]): e for e in measured if e["n"] == n}
        temperatures = list(dict.fromkeys(t for _, t in cells))
        table = _table(
            f"Forward at n = {n:,}, device time", "k", *(f"t = {t:g}" for t in temperatures)
        )
        for k in dict.fromkeys(k for k, _ in cells):
            found = (cells[k, t] for t in temperatures)
            table.add_row(
                f"{k:,.10g}",
                *(microseconds(e["forward"]["p50"]) if "forward" in e else "wrong" for e in found),
            )
        tables.append(table)
    return tables


def budgets_table(record: dict[str, Any]) -> Table:
    """The worst budget error per distribution and shape."""
    measured = [entry for entry in record["budgets"] if "distribution" in entry]
    shapes = list(dict.fromkeys(tuple(entry["shape"]) for entry in measured))
    cells = {(entry["distribution"], tuple(entry["shape"])): entry for entry in measured}
    table = _table("Worst |sum p - k| / k", "scores", *(_shape(shape) for shape in shapes))
    for name in dict.fromkeys(name for name, _ in cells):
        found = (cells.get((name, shape)) for shape in shapes)
        table.add_row(name, *("" if e is None else _error(e) for e in found))
    return table


def bars_table(record: dict[str, Any]) -> Table:
    """Every bar with what was measured, met or missed."""
    rows = list(_bars(record))
    met = sum(bar["met"] is True for _, bar in rows)
    table = _table(f"Bars: {met} of {len(rows)} met", "case", "t", "what", "measured", "limit", "")
    for case, bar in rows:
        table.add_row(
            case,
            f"{bar['temperature']:g}" if "temperature" in bar else "",
            f"{bar['part']} at most {bar['at_most']}" if "at_most" in bar else bar["part"],
            *(_amount(bar[side]) for side in ("measured", "limit")),
            verdict(bar["met"]),
        )
    return table


def users_table(record: dict[str, Any]) -> Table:
    """Every limit of users' shapes with what was measured, and whether it holds."""
    headers = ("t", "ours", "softmax", "topk", "ratio", "limit", "")
    table = _table("Users' shapes, device time", "case", "what", *headers)
    for entry in record.get("users", ()):
        reason = entry.get("skipped") or entry.get("failed")
        for line in entry["lines"]:
            table.add_row(
                entry["case"],
                line["part"],
                f"{line['temperature']:g}",
                *(_amount(line[side]) for side in ("measured", "softmax", "topk")),
                _ratio(line["measured"], line["softmax"]),
                _of_softmax(line["at_most"]),
                Text(reason) if reason else verdict(line["met"], "holds", "misses"),
            )
    return table


def _of_softmax(limit: str) -> str:
    """A limit without what the line's own columns say.

    >>> _of_softmax("2.5 x torch.softmax forward+backward")
    '2.5 x softmax'
    """
    return limit.removesuffix(" forward+backward").replace("torch.", "")


def _ratio(measured: float | None, softmax: float | None) -> str:
    return f"{measured / softmax:.2f}" if measured and softmax else ""


def _bars(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All verdicts of a record in one form; what is no time is a text already."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for case in record["cases"]:
        name = case["case"]
        rows += [(name, bar) for bar in case.get("bars", ())]
        measured = [entry for entry in case.get("memory", ()) if entry["measured"]]
        if measured:
            rows.append((name, _memory_bar(measured)))
        if "determinism" in case:
            same = all(entry["met"] for entry in case["determinism"])
            rows.append((name, _yes("the same bits over repeated runs", same)))
        if "sync_free" in case:
            rows.append((name, _yes("no waiting for the device", case["sync_free"])))
    for entry in (*record["overhead"], *record["half"]):
        if "bar" in entry:
            rows.append((f"n = {entry['n']:,}", {**entry["bar"], **_temperature(entry)}))
    entries = [entry for entry in record["budgets"] if "worst" in entry]
    for shape in dict.fromkeys(tuple(entry["shape"]) for entry in entries):
        found = [entry for entry in entries if tuple(entry["shape"]) == shape]
        rows.append((_shape(shape), _budget_bar(found)))
    return rows


def _memory_bar(entries: list[dict[str, Any]]) -> dict[str, Any]:
    worst = max(max(e["forward_bytes"], e["backward_bytes"]) for e in entries)
    return {
        "part": "scratch memory",
        "at_most": "1% of the input + 16 MiB",
        "measured": f"{worst / 2**20:.1f} MiB",
        "limit": f"{entries[0]['limit_bytes'] / 2**20:.1f} MiB",
        "met": all(e["met"] for e in entries),
    }


def _budget_bar(entries: list[dict[str, Any]]) -> dict[str, Any]:
    worst = [e["worst"] for e in entries]
    limit = f"{entries[0]['limit']:g}"
    return {
        "part": f"budget error of {len(entries)} kinds of scores",
        "at_most": f"{limit} of k",
        "measured": "NaN" if None in worst else f"{max(worst):.1e}",
        "limit": limit,
        "met": all(e["met"] for e in entries),
    }


def _yes(part: str, met: bool) -> dict[str, Any]:
    return {"part": part, "measured": "yes" if met else "no", "limit": "yes", "met": met}


def _temperature(entry: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": entry["temperature"]} if "temperature" in entry else {}


def _amount(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else microseconds(value)


def _error(entry: dict[str, Any]) -> Text:
    style = "green" if entry["met"] else "bold red"
    return Text("NaN" if entry["worst"] is None else f"{entry['worst']:.1e}", style=style)


def _shape(shape: tuple[int, ...] | list[int]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left")
    left = {"", "case", "what", "call", "scores", "left out"}
    for header in headers:
        table.add_column(header, justify="left" if header in left else "right")
    return table

"""Results records as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text


def milliseconds(seconds: float) -> str:
    """A time with three digits that count.

    >>> milliseconds(0.0123456), milliseconds(1.23456e-5)
    ('12.3 ms', '0.0123 ms')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


def microseconds(seconds: float) -> str:
    """The same for what a GPU does.

    >>> microseconds(1.23456e-5), microseconds(0.00412345)
    ('12.3 us', '4123 us')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e6:.0f} us"


def environment_table(environment: dict[str, Any], sources: str | None = None) -> Table:
    """Versions, hardware and the backend that a call takes; the sources of a results file."""
    table = Table(title="fast-lapsum", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    backend = environment["cpu_backend"]
    rows = {
        "version": environment["fast_lapsum"],
        "commit": environment["commit"] or "none: installed, not run from a checkout",
        **({} if sources is None else {"sources": sources}),
        "Python": environment["python"],
        "torch": environment["torch"],
        "triton": environment["triton"] or "not installed",
        "system": environment["os"],
        "CPU": f"{environment['cpu'] or 'unknown'}, {environment['cores']} cores",
        "threads": f"{environment['threads']}, load average {environment['load_average'] or 0:.1f}",
        "a CPU call takes": backend["description"],
        "GPU": ", ".join(environment["gpus"]) or "none",
    }
    if environment.get("kernel_file"):
        rows["kernel file"] = environment["kernel_file"]
    if environment["gpus"]:
        rows["GPU driver"] = environment["gpu_driver"] or "unknown"
        rows["a GPU call takes"] = environment["gpu_backend"]
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def timings_table(
    record: dict[str, Any],
    section: str = "timings",
    title: str = "Median time per call",
    unit: Callable[[float], str] = milliseconds,
) -> Table:
    """Median time per call of every case and peer; cases that were left out are not in it."""
    cases = [case for case in record["cases"] if section in case]
    names = dict.fromkeys(name for case in cases for name in case[section])
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for case in cases:
        table.add_column(case["case"], justify="right")
    for name in names:
        timings = (case[section].get(name) for case in cases)
        table.add_row(name, *("" if found is None else unit(found["p50"]) for found in timings))
    return table


def bars_table(record: dict[str, Any]) -> Table:
    """Every bar with what was measured, met or missed."""
    table = Table(title="Bars", title_justify="left")
    for header in ("case", "t", "soft_topk against", "measured", "limit", ""):
        table.add_column(
            header, justify="right" if header in ("t", "measured", "limit") else "left"
        )
    for case in record["cases"]:
        for bar in case["bars"]:
            table.add_row(
                case["case"],
                f"{bar['temperature']:g}",
                f"{bar['ours']}, {bar['peer'].removesuffix(' ' + bar['ours'])}: {bar['sense']}",
                f"{bar['ratio']:.2f}",
                f"{bar['limit']:g}",
                verdict(bar["met"]),
            )
    for entry in record["memory"]:
        if entry["measured"]:
            for part, share in entry["share_of_input"].items():
                table.add_row(
                    f"n = {entry['n']:,}",
                    f"{entry['temperature']:g}",
                    f"{part}: peak memory beyond the output, share of the input, at most",
                    f"{share:.1%}",
                    f"{entry['limit']:.0%}",
                    verdict(share <= entry["limit"]),
                )
    for entry in record["determinism"]:
        threads = ", ".join(map(str, entry["thread_counts"]))
        table.add_row(
            " x ".join(f"{size:,}" for size in entry["shape"]),
            f"{entry['temperature']:g}",
            f"same bits over repeated runs on {threads} threads",
            "same" if entry["met"] else "differ",
            "same",
            verdict(entry["met"]),
        )
    return table


def verdict(met: bool | None, yes: str = "met", no: str = "missed") -> Text:
    """Met, missed, or None for a comparison that lacks a side."""
    if met is None:
        return Text("not measured", style="yellow")
    return Text(yes, style="green") if met else Text(no, style="bold red")

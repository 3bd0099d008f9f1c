"""What every function takes beside the soft mask, as a table of the page."""

from __future__ import annotations

from rich.table import Table

from ..experiment import Record
from ..function_calls import MASK, MASK_WITH_BACKWARD, WITH_BACKWARD
from ..tables import microseconds

#: Whether a limit holds; None where one side of it was not measured.
VERDICTS = {True: "holds", False: "misses", None: "not measured"}


def function_table(record: Record) -> Table:
    """A line for every call and limit: time, times the mask's, the limit, whether it holds.

    A shape that was not measured has a line for each of its limits, with the reason.
    """
    table = Table(title="Every function, by shape", title_justify="left")
    for header in ("shape", "function", "time", "times the mask's", "limit", "verdict"):
        table.add_column(header)
    for entry in record["cases"]:
        timings = entry.get("timings", {})
        seconds = {name: timing[record["compared"]] for name, timing in timings.items()}
        reason = entry.get("skipped") or entry.get("failed")
        limits: dict[str, list[tuple[str, str]]] = {name: [] for name in seconds}
        for line in entry["lines"]:
            verdict = reason if reason and line["met"] is None else VERDICTS[line["met"]]
            limits.setdefault(line["call"], []).append((line["at_most"], verdict))
        for call, found in limits.items():
            time = microseconds(seconds[call]) if call in seconds else ""
            for limit, verdict in found or [("", "")]:
                table.add_row(entry["case"], call, time, _ratio(call, seconds), limit, verdict)
    return table


def _ratio(call: str, seconds: dict[str, float]) -> str:
    """Times what the mask takes, with its backward pass where the call has one.

    >>> _ratio("log", {"mask": 2e-3, "log": 3e-3}), _ratio("mask", {"mask": 2e-3})
    ('1.50x', '')
    """
    base = MASK_WITH_BACKWARD if call.endswith(WITH_BACKWARD) else MASK
    if call == base or call not in seconds or base not in seconds:
        return ""
    return f"{seconds[call] / seconds[base]:.2f}x"

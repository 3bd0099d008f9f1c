"""fig:baseline-plot and fig:baseline-plot-fb: every method from 10 to 1e8 scores."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..experiment import Case, Experiment, Record, Settings
from ..methods import METHODS, caveats
from ..paper import PAPER
from .clock import timed
from .inputs import normal_inputs
from .rendering import grid_table, milliseconds_text, time_cell
from .selection import FORWARD, FORWARD_BACKWARD, checked_call, method_patience, sixteenth, usable

PASSES = (FORWARD, FORWARD_BACKWARD)
SIZES = tuple(10**power for power in range(1, 9))
QUICK_SIZES = SIZES[:4]
_FIGURES = {FORWARD: "fig:baseline-plot", FORWARD_BACKWARD: "fig:baseline-plot-fb"}


def cases(settings: Settings) -> list[Case]:
    """Every method at every size, both ways."""
    return [
        Case(
            {"method": name, "pass": passes, "n": n},
            n,
            chain=f"{name}, {passes}",
            patience=method_patience(name, settings),
        )
        for n in (QUICK_SIZES if settings.quick else SIZES)
        if n <= settings.max_n
        for passes in PASSES
        for name in METHODS
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Time and, on a GPU, peak memory of one method."""
    passes, n = str(case.key["pass"]), int(case.key["n"])
    method = usable(str(case.key["method"]), passes)
    inputs = normal_inputs(settings.device, n, settings.seed)
    call, peak = checked_call(method, *inputs, sixteenth(n), passes)
    return {"seconds": timed(call, settings)._asdict(), "peak_bytes": peak}


def tables(record: Record) -> list[Table]:
    """Forward, and forward + backward; on a GPU the memory of the latter as well."""
    shown = [_times(record, passes) for passes in PASSES]
    if any((entry.get("values") or {}).get("peak_bytes") is not None for entry in record["rows"]):
        shown.append(
            grid_table(
                record,
                "Peak memory of forward + backward beyond scores and cotangent, MiB",
                row="method",
                column="n",
                cell=lambda values: _mebibytes(values["peak_bytes"]),
                only=lambda key: key["pass"] == FORWARD_BACKWARD,
                corner="method",
            )
        )
    return shown


def _times(record: Record, passes: str) -> Table:
    sizes = {entry["key"]["n"] for entry in record["rows"]}
    paper: dict[str, dict[int, str]] = {}
    elsewhere = []
    for printed in PAPER[_FIGURES[passes]].records():
        method, n = str(printed["method"]), int(printed["n"])
        text = milliseconds_text(float(printed[passes]))
        if n in sizes:
            paper.setdefault(method, {})[n] = text
        else:
            elsewhere.append(f"{method} {text} ms at n = {n:,}")
    return grid_table(
        record,
        f"{passes.replace('+', ' + ').capitalize()}, k = n/16, t = 1: median ms",
        row="method",
        column="n",
        cell=time_cell,
        paper=paper,
        only=lambda key: key["pass"] == passes,
        corner="method",
        caption=" ".join(
            [f"Paper, other sizes: {'; '.join(elsewhere)}."] * bool(elsewhere) + [caveats()]
        ),
    )


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.3g}"


EXPERIMENT = Experiment(
    name="operators",
    title="Every method by size, forward and forward + backward",
    labels=("fig:baseline-plot", "fig:baseline-plot-fb"),
    method=(
        "One row of standard normal float32 scores, k = max(1, n // 16), t = 1, the same scores "
        "for every method; drawn on the CPU up to n = 1e7 and on the device beyond. Forward + "
        "backward is the mask and the gradient for the scores against one fixed normal cotangent. "
        "One call is checked first (shape, finite; ours: mass within 1e-6 k, gradient adding up "
        "to 0), then timed: one warm-up and up to the given number of samples of the wall time, "
        "the device idle at both ends of a sample, short calls repeated within one (1 ms, "
        "on a GPU 10 ms). Peak memory is what torch's allocator saw during the checked call, on a "
        "GPU. The time limit is for a whole case, so for two calls at least. Published packages "
        "have rows where they are installed. The paper's figures have no printed numbers; its rows "
        "here are the points that its text names."
    ),
    cases=cases,
    measure=measure,
    tables=tables,
)

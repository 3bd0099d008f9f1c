"""tab:dftopk: the runtime protocol of DFTopK, k = n/2, forward and backward in one."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..experiment import Case, Experiment, Record, Settings
from ..methods import METHODS
from ..paper import PAPER
from .clock import timed
from .inputs import normal_inputs
from .rendering import grid_table, milliseconds_text, time_cell
from .selection import FORWARD_BACKWARD, checked_call, method_patience, usable

SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 100_000_000)
QUICK_SIZES = SIZES[:4]


def cases(settings: Settings) -> list[Case]:
    """Every method that has a gradient, at every size."""
    return [
        Case({"method": name, "n": n}, n, chain=name, patience=method_patience(name, settings))
        for n in (QUICK_SIZES if settings.quick else SIZES)
        if n <= settings.max_n
        for name, method in METHODS.items()
        if method.differentiable
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Time of one method's forward and backward."""
    n = int(case.key["n"])
    method = usable(str(case.key["method"]), FORWARD_BACKWARD)
    inputs = normal_inputs(settings.device, n, settings.seed)
    call, _ = checked_call(method, *inputs, n // 2, FORWARD_BACKWARD)
    return {"seconds": timed(call, settings)._asdict()}


def tables(record: Record) -> list[Table]:
    """Times."""
    paper: dict[str, dict[int, str]] = {}
    for printed in PAPER["tab:dftopk"].records():
        for method, cell in printed.items():
            if method != "n":
                text = cell if isinstance(cell, str) else milliseconds_text(cell)
                paper.setdefault(method, {})[int(printed["n"])] = text
    return [
        grid_table(
            record,
            "DFTopK's protocol: forward + backward, k = n/2, t = 1: median ms",
            row="method",
            column="n",
            cell=time_cell,
            paper=paper,
            corner="method",
            caption="The paper's sparse top-k is forward only, in JAX.",
        )
    ]


EXPERIMENT = Experiment(
    name="dftopk",
    title="DFTopK's runtime protocol, carried on to 1e8",
    labels=("tab:dftopk",),
    method=(
        "Forward and backward of one row of standard normal float32 scores, k = n // 2, t = 1, "
        "timed and checked as in operators, with the same scores. The paper's rows are medians; "
        "its official LapSum stands below our serial form of it, its sparse top-k (forward only, "
        "JAX) below Dykstra's."
    ),
    cases=cases,
    measure=measure,
    tables=tables,
)

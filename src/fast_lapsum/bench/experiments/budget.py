"""tab:budget: how much mass each method really spends."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..experiment import Case, Experiment, Record, Settings
from ..methods import METHODS, caveats
from ..paper import PAPER
from .inputs import normal_inputs
from .rendering import grid_table
from .selection import TEMPERATURE, first_call, mass_of, method_patience, sixteenth, usable

SIZES = (1000, 10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = SIZES[:2]


def cases(settings: Settings) -> list[Case]:
    """Every method at every size."""
    return [
        Case({"method": name, "n": n}, n, chain=name, patience=method_patience(name, settings))
        for n in (QUICK_SIZES if settings.quick else SIZES)
        if n <= settings.max_n
        for name in METHODS
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """The mass of one method's mask, and how far it is from k."""
    n = int(case.key["n"])
    method = usable(str(case.key["method"]))
    scores = normal_inputs(settings.device, n, settings.seed).scores
    k = sixteenth(n)
    mask = first_call(lambda: method.function(scores, k, TEMPERATURE))
    mass = mass_of(method, mask, scores, k)
    return {"mass": mass, "relative_error": abs(mass - k) / k}


def tables(record: Record) -> list[Table]:
    """Relative errors."""
    paper: dict[str, dict[int, str]] = {}
    for printed in PAPER["tab:budget"].records():
        cells = {int(float(size)): str(cell) for size, cell in printed.items() if size != "method"}
        paper[str(printed["method"])] = cells
    return [
        grid_table(
            record,
            "Budget error |sum p - k| / k, k = n/16, t = 1",
            row="method",
            column="n",
            cell=lambda values: error_text(values["relative_error"]),
            paper=paper,
            corner="method",
            caption=caveats(),
        )
    ]


def error_text(error: float) -> str:
    """Two digits of what is small, three of what is not.

    >>> error_text(2.4567), error_text(3.21e-8), error_text(0.0)
    ('2.46', '3.2e-08', '0')
    """
    if error == 0:
        return "0"
    return f"{error:.2f}" if error >= 0.1 else f"{error:.1e}"


EXPERIMENT = Experiment(
    name="budget",
    title="Budget error of every method",
    labels=("tab:budget",),
    method=(
        "|sum p - k| / k of the float32 mask, added up in float64, on one row of standard normal "
        "scores, k = n // 16, t = 1; the same scores as in operators. Each method's temperature is "
        "the same t, mapped to its own knob as its module says. Ours must be within 1e-6; peers "
        "are recorded as they are. The paper's rows have the errors that it prints."
    ),
    cases=cases,
    measure=measure,
    tables=tables,
)

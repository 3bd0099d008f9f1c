"""tab:ks-main: the full sort against the sampled bracket on long rows, and our default."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fast_lapsum import soft_topk
from fast_lapsum._call import SolverName

from ..experiment import Case, Experiment, Record, Settings, patience
from ..methods import OURS
from ..paper import PAPER
from .clock import timed
from .inputs import normal_inputs
from .rendering import grid_table, milliseconds_text, time_cell
from .selection import TEMPERATURE, mass_of, sixteenth

#: The names of the rows, and the solver behind each.
SOLVERS: dict[str, SolverName] = {
    "full sort": "sort_scan",
    "noised bracket": "noised_bracket",
    "default": "auto",
}
SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
QUICK_SIZES = (100_000, 1_000_000)


def cases(settings: Settings) -> list[Case]:
    """Every solver at every size."""
    return [
        Case({"solver": name, "n": n}, n, chain=name, patience=patience(settings))
        for n in (QUICK_SIZES if settings.quick else SIZES)
        if n <= settings.max_n
        for name in SOLVERS
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Time and budget error of one solver."""
    n = int(case.key["n"])
    solver = SOLVERS[str(case.key["solver"])]
    k = sixteenth(n)
    scores = normal_inputs(settings.device, n, settings.seed).scores
    mass = mass_of(OURS, soft_topk(scores, k, TEMPERATURE, solver=solver), scores, k)
    timing = timed(lambda: soft_topk(scores, k, TEMPERATURE, solver=solver), settings)
    return {"seconds": timing._asdict(), "relative_error": abs(mass - k) / k}


def tables(record: Record) -> list[Table]:
    """Times, and budget errors."""
    paper: dict[str, dict[int, str]] = {}
    for printed in PAPER["tab:ks-main"].records():
        for name in ("full sort", "noised bracket"):
            cell = milliseconds_text(float(printed[name]))
            paper.setdefault(name, {})[int(printed["n"])] = cell
    return [
        grid_table(
            record,
            "Forward on long rows, k = n/16, t = 1: median ms",
            row="solver",
            column="n",
            cell=time_cell,
            paper=paper,
            corner="solver",
        ),
        grid_table(
            record,
            "The same: |sum p - k| / k",
            row="solver",
            column="n",
            cell=lambda values: f"{values['relative_error']:.1e}",
            corner="solver",
        ),
    ]


EXPERIMENT = Experiment(
    name="large-n",
    title="Long rows: full sort, sampled bracket, and our default",
    labels=("tab:ks-main",),
    method=(
        "Forward pass on one row of standard normal float32 scores, k = n // 16, t = 1. Full sort "
        "and noised bracket are the paper's two algorithms as this package has them in plain "
        'torch (solver="sort_scan" and "noised_bracket", the latter with its certificate), in '
        "float64; default is soft_topk as called without a solver. Scores are drawn on the CPU up "
        "to n = 1e7 and on the device beyond. Each solver's mask must add up to k within 1e-6 k "
        "before it is timed; then one warm-up and up to the given number of samples of the wall "
        "time, the device idle at both ends of a sample. The paper's rows are means of its "
        "compiled full-sort branch and of its unvalidated bracket."
    ),
    cases=cases,
    measure=measure,
    tables=tables,
)

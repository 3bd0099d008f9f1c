"""tab:fast-main and tab:ablation-main: from bisection to the sort-free solver, stage by stage."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..experiment import Case, Experiment, Record, Settings, patience
from ..paper import PAPER
from .rendering import grid_table, milliseconds_text, time_cell
from .variants import METHOD, VARIANTS, Problem, forward_values

FAST, ABLATION = "tab:fast-main", "tab:ablation-main"
#: B and the values of n of both tables; k = n/16 and t = 1 throughout.
SHAPES = {FAST: (8, (1024, 4096, 8192, 16384)), ABLATION: (16, (4096,))}
QUICK_LONGEST = 4096


def cases(settings: Settings) -> list[Case]:
    """Every variant at every shape."""
    return [
        Case(
            {"table": label, "B": batch, "n": n, "variant": variant},
            batch * n,
            patience=patience(settings),
        )
        for label, (batch, sizes) in SHAPES.items()
        for n in sizes
        if batch * n <= settings.max_n and (n <= QUICK_LONGEST or not settings.quick)
        for variant in VARIANTS
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Time and error of one variant's mask."""
    n = int(case.key["n"])
    problem = Problem(int(case.key["B"]), n, n // 16, 1.0)
    return forward_values(str(case.key["variant"]), problem, settings)


def tables(record: Record) -> list[Table]:
    """Times of both tables, and the errors of all variants."""
    fast: dict[str, dict[int, str]] = {}
    for printed in PAPER[FAST].records():
        for variant in VARIANTS[:-1]:
            cell = milliseconds_text(float(printed[variant]))
            fast.setdefault(variant, {})[int(printed["n"])] = cell
    shown = [
        grid_table(
            record,
            "Forward by stage, B = 8, k = n/16, t = 1: median ms",
            row="variant",
            column="n",
            cell=time_cell,
            paper=fast,
            only=lambda key: key["table"] == FAST,
            corner="stage",
        ),
        grid_table(
            record,
            "The same: largest difference from the mask by bisection",
            row="variant",
            column="n",
            cell=lambda values: f"{values['error']:.1e}",
            only=lambda key: key["table"] == FAST,
            corner="stage",
        ),
    ]
    rows = [row for row in record["rows"] if row["key"]["table"] == ABLATION]
    return [*shown, _ablation_table(rows)] if rows else shown


def _ablation_table(rows: list[dict[str, Any]]) -> Table:
    """Stages below each other with their gain over bisection."""
    table = Table(
        title="Ablation, B = 16, n = 4096, k = 256, t = 1: median ms", title_justify="left"
    )
    table.add_column("stage")
    for name in ("forward", "speed-up", "error", "paper", "paper's speed-up"):
        table.add_column(name, justify="right")
    paper = {str(printed["variant"]): printed for printed in PAPER[ABLATION].records()}
    values = {row["key"]["variant"]: row["values"] for row in rows if row["status"] == "ok"}
    base = values.get("bisection")
    for row in rows:
        variant = row["key"]["variant"]
        found, printed = values.get(variant), paper.get(variant)
        ours, gain, error = row["status"], "", ""
        if found is not None:
            ours, error = time_cell(found), f"{found['error']:.1e}"
            if base is not None:
                gain = f"{base['seconds']['p50'] / found['seconds']['p50']:.1f}x"
        theirs = ["", ""]
        if printed is not None:
            theirs = [milliseconds_text(float(printed["forward"])), f"{printed['speedup']:g}x"]
        table.add_row(variant, ours, gain, error, *theirs)
    return table


EXPERIMENT = Experiment(
    name="ablation",
    title="Stage by stage from bisection to the sort-free solver",
    labels=(FAST, ABLATION),
    method=METHOD + " The error is the largest difference between a mask and that by bisection.",
    cases=cases,
    measure=measure,
    tables=tables,
)

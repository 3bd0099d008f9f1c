"""What tab:bench-fwd and tab:bench-fb have in common: their grids and how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text

from ..experiment import Case, Record, Settings, patience
from ..paper import MACHINE, PAPER
from .rendering import milliseconds_text, status_text, time_cell
from .variants import VARIANTS, Problem

SWEEPS = {
    "n": "over n (B = 8, k = n/16, t = 1)",
    "B": "over B (n = 4096, k = 256, t = 1)",
    "temperature": "over t (B = 16, n = 2048, k = 128)",
    "k": "over k (B = 16, n = 4096, t = 1)",
}
#: With quick a sweep has its first two problems, and none with more scores than this.
QUICK_PROBLEMS = 2
QUICK_SCORES = 1 << 16

#: Values of one variant on one problem.
Measure = Callable[[str, Problem, Settings], dict[str, Any]]


def grid_cases(label: str, settings: Settings) -> list[Case]:
    """Every variant on every problem of a table of the paper."""
    cases = []
    problems_of: dict[str, int] = {}
    for printed in PAPER[label].records():
        sweep = str(printed["sweep"])
        batch, n, k = (int(printed[name]) for name in ("B", "n", "k"))
        size = batch * n
        seen = problems_of.get(sweep, 0)
        if settings.quick and (seen >= QUICK_PROBLEMS or size > QUICK_SCORES):
            continue
        if size > settings.max_n:
            continue
        problems_of[sweep] = seen + 1
        problem = {"B": batch, "n": n, "k": k, "temperature": float(printed["temperature"])}
        cases += [
            Case({"sweep": sweep, **problem, "variant": variant}, size, patience=patience(settings))
            for variant in VARIANTS
        ]
    return cases


def grid_measure(values: Measure, case: Case, settings: Settings) -> dict[str, Any]:
    """Time and error of one variant."""
    return values(str(case.key["variant"]), problem_of(case), settings)


def problem_of(case: Case) -> Problem:
    """The problem that a case's key names."""
    key = case.key
    return Problem(int(key["B"]), int(key["n"]), int(key["k"]), float(key["temperature"]))


def grid_tables(label: str, what: str, record: Record) -> list[Table]:
    """One table per sweep: times, what sort-free gains, errors; the paper's row below ours."""
    printed = PAPER[label].records()
    found: dict[str, dict[tuple[Any, ...], dict[str, dict[str, Any]]]] = {}
    for row in record["rows"]:
        key = row["key"]
        problem = tuple(key[name] for name in ("B", "n", "k", "temperature"))
        of_sweep = found.setdefault(key["sweep"], {})
        of_sweep.setdefault(problem, {})[key["variant"]] = row

    seconds = record["settings"]["seconds"]
    tables = []
    for sweep, problems in found.items():
        table = Table(
            title=f"{what} {SWEEPS[sweep]}: median ms, speed-up over bisection, largest error",
            title_justify="left",
            caption=f"Dim: the paper, {MACHINE}; its error is that of fused.",
            caption_justify="left",
        )
        for name in (
            "B",
            "n",
            "k",
            "t",
            *VARIANTS,
            "fused x",
            "sort-free x",
            "fused error",
            "sort-free error",
        ):
            table.add_column(name, justify="right", no_wrap=True)
        for problem, rows in problems.items():
            cells = [
                *(_time_text(rows.get(variant), seconds) for variant in VARIANTS),
                *(_speedup_text(rows, variant) for variant in VARIANTS[-2:]),
                *(_error_text(rows.get(variant)) for variant in VARIANTS[-2:]),
            ]
            table.add_row(*(f"{value:g}" for value in problem), *cells)
            paper = next((x for x in printed if _is_of(x, sweep, problem)), None)
            if paper is not None:
                table.add_row(*_paper_texts(paper), style="dim")
        tables.append(table)
    return tables


def _is_of(printed: dict[str, Any], sweep: str, problem: tuple[Any, ...]) -> bool:
    values = tuple(printed[name] for name in ("B", "n", "k", "temperature"))
    return bool(printed["sweep"] == sweep and values == problem)


def _paper_texts(printed: dict[str, Any]) -> list[str]:
    times = [milliseconds_text(float(printed[variant])) for variant in VARIANTS[:-1]]
    speedup = float(printed["bisection"]) / float(printed["fused"])
    error = f"{float(printed['error']):.1e}"
    return ["", "", "", "", *times, "", f"{speedup:.1f}x", "", error, ""]


def _time_text(row: dict[str, Any] | None, seconds: float) -> Text:
    if row is None:
        return Text("")
    if row["status"] != "ok":
        return status_text(row["status"], seconds)
    return Text(time_cell(row["values"]))


def _speedup_text(rows: dict[str, dict[str, Any]], variant: str) -> Text:
    pair = [rows.get(name, {}).get("values") for name in ("bisection", variant)]
    if pair[0] is None or pair[1] is None:
        return Text("")
    return Text(f"{pair[0]['seconds']['p50'] / pair[1]['seconds']['p50']:.1f}x")


def _error_text(row: dict[str, Any] | None) -> Text:
    if row is None or row["status"] != "ok":
        return Text("")
    return Text(f"{row['values']['error']:.1e}")

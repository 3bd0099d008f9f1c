"""``attack-bench`` from the command to its files: results.json, tables.md and the figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from fast_lapsum.bench.results import finished_file, write_json

from . import compare, figures, picture_run, tables, tables_text
from .comparison_file import Record
from .protocol import Classifier
from .rows import Plan


def run(
    folder: Path,
    plan: Plan,
    out: Path,
    device: torch.device,
    console: Console,
    fresh: bool,
    jobs: int = 1,
) -> list[str]:
    """Run, save and draw; what was wrong with pictures that could not be read."""

    def report(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    record = compare.run(
        folder,
        plan,
        partial(_load, plan.model, device),
        out / "results.json",
        device,
        report,
        fresh,
        jobs,
    )
    for path in write(record, out):
        report(f"Written: {path}")
    return sorted({note["why"] for note in record["pictures"] if note.get("bad")})


def _load(model: str, device: torch.device, resize: int | None) -> Classifier:
    """Picklable, and asks ``picture_run`` each time, where tests put a model of their own."""
    return picture_run.load(model, resize, device)


def write(record: Record, out: Path) -> list[Path]:
    """Tables into the results file and beside it, and the curves; the files."""
    found = tables.all_tables(record["rows"])
    results = out / "results.json"
    write_json(results, {**record, "tables": found, "paper": tables.paper_numbers()})
    listing = out / "tables.md"
    with finished_file(listing) as unfinished:
        unfinished.write_text(tables_text.markdown(found), encoding="utf-8")
    written = [results, listing]
    for group in found:
        written += figures.write_budget_success(
            out / "figures", group["fig:budget-success"], group["setting"], group["calls"]
        )
    return written

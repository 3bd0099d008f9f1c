"""``fast-lapsum report``: from results files to figures and a page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .. import options
from ..experiments import EXPERIMENTS
from ..records import ResultsError
from .load import has_results, load


def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of results files, or single files.",
            show_default="results, or results-quick where that has none",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where the page and the folder of figures go.", file_okay=False)
    ] = Path("report"),
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Figures for a README, without the page.")
    ] = False,
) -> None:
    """Turn results files into figures (SVG and PNG) and one page that needs no network.

    The page has every experiment with how it was measured, its figures, the paper's numbers beside
    ours, and tables that sort. The same results give the same files, byte for byte.
    """
    console, errors = Console(), Console(stderr=True)
    full, quick = options.results_folder(quick=False), options.results_folder(quick=True)
    chosen = results or [full if has_results(full) or not has_results(quick) else quick]
    try:
        devices = load(chosen)
    except ResultsError as error:
        errors.print(f"[bold red]No report:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error
    if find_spec("matplotlib") is None:
        errors.print(
            "[bold red]No report:[/] matplotlib is missing: pip install 'fast-lapsum\\[bench]'"
            " (in a checkout: pip install '.\\[bench]')",
            soft_wrap=True,
        )
        raise typer.Exit(1)
    from .write import write

    with console.status("drawing") as status:
        made = write(
            devices,
            EXPERIMENTS,
            out,
            figures_only=figures_only,
            report=lambda step: status.update(f"drawing {step}"),
        )
    figures = sum(path.suffix == ".svg" for path in made)
    told = f"{figures} figures, SVG and PNG: {out / 'figures'}"
    if not figures:
        told = "No figures: these results have none; fast-lapsum bench all makes those that do."
    console.print(told, highlight=False, soft_wrap=True)
    if not figures_only:
        console.print(f"Page: {out / 'index.html'}", highlight=False, soft_wrap=True)
    if not results:
        told = f"Made from {chosen[0]}."
        if chosen == [full] and has_results(quick):
            told += f" There are quick results, too: fast-lapsum report {quick}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)

"""``fast-lapsum coder-drawn`` and its options; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fast_lapsum.bench import options

from . import options as coder_options

_NEEDED = ("constriction", "numpy", "PIL")


def coder_drawn(
    out: Annotated[
        Path, typer.Option(help="The results file (JSON); a table is written beside it (.md).")
    ] = Path("coder-drawn.json"),
    fresh: options.Fresh = False,
) -> None:
    """Code twenty drawn pictures at three sizes, beside PNG, WebP, AVIF and one colour per block.

    It runs on a CPU. An interrupted run resumes.
    """
    console, errors = Console(), Console(stderr=True)
    if out.suffix.lower() != ".json":
        raise typer.BadParameter(
            f"'{out}' is written as JSON: end it in .json.", param_hint="--out"
        )
    try:
        from . import drawn_report, drawn_text
        from .bitstream import CoderError
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        _fail(errors, f"{error.name} is missing. {coder_options.REMEDY}")
    from fast_lapsum.bench.results import finished_file

    try:
        record = drawn_report.run(out, console, fresh)
    except CoderError as error:
        _fail(errors, str(error))
    except KeyboardInterrupt:
        text = f"Stopped. The rows so far are in {out}; the same command goes on from there."
        errors.print(text, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    table = out.with_suffix(".md")
    with finished_file(table) as unfinished:
        unfinished.write_text(drawn_text.markdown(record))
    console.print(f"{out} and {table}", highlight=False, markup=False, soft_wrap=True)


def _fail(errors: Console, message: str) -> NoReturn:
    errors.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(1)

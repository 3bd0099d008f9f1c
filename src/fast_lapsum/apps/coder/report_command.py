"""``fast-lapsum coder-report`` and its options; what it needs is imported when it runs."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fast_lapsum.bench import options

from . import options as coder_options

_NEEDED = ("constriction", "matplotlib", "numpy", "PIL")
_RATE = 0.05


def coder_report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Pictures, or folders of them.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(help="The folder of results, tables, figures and files.", file_okay=False),
    ] = Path("coder-report"),
    bpp: Annotated[
        list[float] | None,
        typer.Option(
            help="Bits per pixel; several for rate-distortion curves.",
            parser=options.positive,
            metavar="NUMBER",
            show_default=str(_RATE),
        ),
    ] = None,
    crop: Annotated[
        int,
        typer.Option(
            help="Cut sides to multiples of so many pixels, top left; 0 leaves them.",
            parser=options.whole(at_least=0),
            metavar="INTEGER",
        ),
    ] = 512,
    steps: coder_options.Steps = None,
    seed: coder_options.Seed = 0,
    again: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure this method anew, such as AVIF or best; may be given several times.",
            metavar="METHOD",
            show_default=False,
        ),
    ] = None,
    device: options.Device = None,
    fresh: options.Fresh = False,
) -> None:
    """Compare the coder with JPEG, JPEG 2000, WebP, AVIF and JPEG XL at equal bytes.

    Writes results.json, table.md, figures and the files themselves. An interrupted run resumes.
    """
    console, errors = Console(), Console(stderr=True)
    chosen = str(options.device(device))
    try:
        from . import report, report_figures, report_text
        from .bitstream import CoderError
        from .picture import read
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        _fail(
            errors,
            f"{error.name} is missing. Get it with: pip install 'fast-lapsum[apps,bench]'"
            " (in a checkout: pip install '.[apps,bench]')",
        )
    from fast_lapsum.bench.results import finished_file

    from ..out_of_memory import is_memory
    from ..whole_png import CUT_SHORT, is_cut_short

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        for path in report.photographs(paths):
            if is_cut_short(path):
                _fail(errors, f"{path}: {CUT_SHORT}")
        plan = report.Plan(crop, seed, steps, chosen)
        rates = list(dict.fromkeys(bpp or [_RATE]))
        results = report.run(paths, out, rates, plan, console, fresh, again or ())
        with finished_file(out / "table.md") as unfinished:
            unfinished.write_text(report_text.markdown(results.record))
        with console.status("drawing"):
            originals = {
                path.stem: report.cropped(read(path), crop) for path in report.photographs(paths)
            }
            made = report_figures.draw(results, originals, out / "figures")
    except CoderError as error:
        _fail(errors, str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        _fail(errors, coder_options.NO_MEMORY)
    except KeyboardInterrupt as interrupt:
        text = f"Stopped. The rows so far are in {out}; the same command goes on from there."
        errors.print(text, highlight=False, markup=False, soft_wrap=True)
        terminated = interrupt.args == (signal.SIGTERM,)
        raise typer.Exit(143 if terminated else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    console.print(
        f"{out / 'table.md'}, results.json and {len(made)} figures",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _fail(errors: Console, message: str) -> NoReturn:
    errors.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(1)

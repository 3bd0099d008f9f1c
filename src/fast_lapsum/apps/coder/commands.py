"""The commands of the image coder and their options; what they need is imported when they run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fast_lapsum.bench import options

from . import options as coder_options
from .drawn_command import coder_drawn
from .report_command import coder_report

console = Console()
errors = Console(stderr=True)

_NEEDED = ("constriction", "numpy", "PIL")

Source = Annotated[
    Path,
    typer.Argument(
        help="The file to read.", metavar="IN", exists=True, dir_okay=False, readable=True
    ),
]
MaxPixels = Annotated[
    int,
    typer.Option(
        help="Refuse larger pictures.", parser=options.whole(at_least=1), metavar="INTEGER"
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the file that is named after IN if it is there."),
]
_MOST_PIXELS = 1 << 26


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: fast-lapsum encode photo.png -o photo.lap --bpp 0.05")(encode)
    app.command(epilog="Example: fast-lapsum decode photo.lap -o photo.png")(decode)
    app.command(epilog="Example: fast-lapsum inspect photo.lap")(inspect)
    app.command("coder-study", epilog="Example: fast-lapsum coder-study photo.png --size 256")(
        coder_study
    )
    app.command("coder-drawn", epilog="Example: fast-lapsum coder-drawn --out drawn.json")(
        coder_drawn
    )
    app.command("coder-report", epilog="Example: fast-lapsum coder-report photos")(coder_report)


def _decibels(text: str) -> float:
    value = options.positive(text)
    if value > 100:
        raise typer.BadParameter(f"'{text}' is above 100 dB.")
    return value


def encode(
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; IN with .lap by default."),
    ] = None,
    bpp: Annotated[
        float | None,
        typer.Option(
            help="Upper limit in bits per pixel, headers included; by default 0.05, or 512 bytes if"
            " that is more.",
            parser=options.positive,
            metavar="NUMBER",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            help="Upper limit in bytes.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = None,
    psnr: Annotated[
        float | None,
        typer.Option(
            help="Lowest PSNR in dB; trains several times.", parser=_decibels, metavar="NUMBER"
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="The paper's coder: block atoms in RGB.")
    ] = False,
    k: Annotated[
        int | None,
        typer.Option(
            help="Only with --plain: how many atoms, or fewer if the budget in bits ends first.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = None,
    steps: coder_options.Steps = None,
    seed: coder_options.Seed = 0,
    device: options.Device = None,
    background: Annotated[
        str | None,
        typer.Option(help="What a transparent picture is laid over: a colour's name or #rrggbb."),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Also draw each level's code above the running reconstruction (PNG).",
            dir_okay=False,
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the operator's share of a training step.")
    ] = False,
    record: coder_options.Record = None,
    overwrite: Overwrite = False,
    max_pixels: MaxPixels = _MOST_PIXELS,
) -> None:
    """Train a sparse code for a picture and write it to a file.

    The file is read back and decoded before it appears: the PSNR printed is the file's own. A file
    that is named by --out is replaced if it is there, and IN.lap with --overwrite only.
    """
    targets = {"--bpp": bpp, "--bytes": size, "--psnr": psnr}
    given = [option for option, value in targets.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            f"expected one of --bpp, --bytes and --psnr, got {len(given)} of them.",
            param_hint=" and ".join(given),
        )
    if k is not None and not plain:
        raise typer.BadParameter(
            f"{k} atoms can be asked of the --plain coder alone; the best version takes as many as"
            " pay for themselves.",
            param_hint="--k",
        )
    coder = _coder()
    from .settings import Settings

    if background is not None:
        _check_colour(background)
    target = coder.Target(bpp, size, psnr)
    chosen = str(options.device(device))
    # The budget in bits follows from the picture and the target.
    settings = Settings(bits=1.0, atoms=k, plain=plain, seed=seed, device=chosen)
    if steps is not None:
        settings = replace(settings, steps=steps)
    out = _out(source, out, ".lap", overwrite)
    if figure is not None:
        _only_png(figure, "--figure")
        _folder(figure, "--figure")
    with _clean_end(out):
        _check_whole(source)
        coder.run_encode(
            source, out, target, settings, console, background, figure, profile, max_pixels, record
        )


def decode(
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The picture to write (PNG); IN with .png by default."),
    ] = None,
    overwrite: Overwrite = False,
    max_pixels: MaxPixels = _MOST_PIXELS,
) -> None:
    """Turn a file that encode wrote back into a picture, bit for bit the same everywhere.

    A picture that is named by --out is replaced if it is there, and IN.png with --overwrite only.
    """
    coder = _coder()
    _check_is_lap(source)
    out = _out(source, out, ".png", overwrite)
    _only_png(out, "--out")
    with _clean_end(out):
        coder.run_decode(source, out, console, max_pixels)


def inspect(source: Source, max_pixels: MaxPixels = _MOST_PIXELS) -> None:
    """Show what a file that encode wrote holds: header, size by part, atoms and bits by level."""
    coder = _coder()
    _check_is_lap(source)
    with _clean_end(None):
        coder.run_inspect(source, console, max_pixels)


def coder_study(
    source: Source,
    bpp: Annotated[
        float, typer.Option(help="Bits per pixel.", parser=options.positive, metavar="NUMBER")
    ] = 0.05,
    size: Annotated[
        int,
        typer.Option(
            help="Side of the top-left crop.", parser=options.whole(at_least=16), metavar="INTEGER"
        ),
    ] = 512,
    steps: Annotated[
        int,
        typer.Option(
            help="Steps of each training.", parser=options.whole(at_least=1), metavar="INTEGER"
        ),
    ] = 150,
    seed: coder_options.Seed = 0,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1; the best one here by default.")
    ] = None,
) -> None:
    """Compare a hard mask in training with a soft one hardened afterwards, and an annealed
    temperature with a fixed one: the paper's remarks, measured."""
    _coder()
    from . import study

    chosen = str(options.device(device))
    with _clean_end(None):
        _check_whole(source)
        study.run(source, console, bpp=bpp, size=size, steps=steps, seed=seed, device=chosen)


def _coder() -> ModuleType:
    try:
        from . import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        _fail(f"{error.name} is missing. {coder_options.REMEDY}")
    return run


def _check_colour(name: str) -> None:
    """Before a picture is read, which may not need it: one without transparency does not."""
    from .bitstream import CoderError
    from .picture import background_colour

    try:
        background_colour(name)
    except CoderError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--background") from None


def _check_whole(source: Path) -> None:
    from ..whole_png import CUT_SHORT, is_cut_short

    if is_cut_short(source):
        _fail(f"{source}: {CUT_SHORT}")


def _check_is_lap(source: Path) -> None:
    """Another kind of file is named as one before anything is done with its name."""
    from .container import MAGIC

    with source.open("rb") as file:
        begins = file.read(len(MAGIC))
    if not begins or begins != MAGIC[: len(begins)]:
        found, expected = (one.hex(" ").upper() for one in (begins, MAGIC))
        _fail(f"{source}: not a .lap file: it begins with {found or 'nothing'}, not {expected}")


def _only_png(path: Path, option: str) -> None:
    if path.suffix.lower() != ".png":
        raise typer.BadParameter(f"'{path}' is written as PNG: end it in .png.", param_hint=option)


def _out(source: Path, out: Path | None, suffix: str, overwrite: bool) -> Path:
    """Where the result goes; never onto the source, and onto what nobody named only if asked to."""
    found = source.with_suffix(suffix) if out is None else out
    _folder(found, "--out")
    if found.exists() and found.samefile(source):
        raise typer.BadParameter(f"{found} is the file to be read.", param_hint="--out")
    if found.is_dir():
        raise typer.BadParameter(f"{found} is a folder.", param_hint="--out")
    if out is None and found.exists() and not overwrite:
        maybe = ", maybe the original" if suffix == ".png" else ""
        raise typer.BadParameter(
            f"{found} is there already{maybe}: name the file to write, or say --overwrite.",
            param_hint="--out",
        )
    return found


def _folder(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist.", param_hint=option)


@contextmanager
def _clean_end(out: Path | None) -> Iterator[None]:
    """Errors as one line; an interruption removes what is unfinished and says so."""
    from ..out_of_memory import is_memory
    from .bitstream import CoderError

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except CoderError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        _fail(coder_options.NO_MEMORY)
    except KeyboardInterrupt as interrupt:
        written = "" if out is None else f" {out} was not written."
        errors.print(f"Stopped.{escape(written)}", highlight=False, soft_wrap=True)
        terminated = interrupt.args == (signal.SIGTERM,)
        raise typer.Exit(143 if terminated else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(message: str) -> NoReturn:
    errors.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(1)

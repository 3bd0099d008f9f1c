"""``fast-lapsum attack`` and ``attack-bench``; what they need is imported when they run."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from fast_lapsum.bench import options

if TYPE_CHECKING:
    import torch

    from .classifiers import Resize

console = Console()
errors = Console(stderr=True)

_Value = TypeVar("_Value")
_NEEDED = ("matplotlib", "numpy", "PIL")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        name="attack",
        epilog="Example: fast-lapsum attack photo.png --model microsoft/resnet-50 --resize 256",
    )(attack)
    app.command(
        name="attack-bench",
        epilog="Example: fast-lapsum attack-bench photos --model ./resnet50 --calls 100,300",
    )(attack_bench)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"'{text}' is not a number from 0 to 1.")
    return value


def _resize(text: str) -> Resize:
    if text in ("native", "config"):
        return None if text == "native" else "config"
    return options.whole(at_least=8)(text)


def _one(text: str, parse: Callable[[str], _Value], option: str) -> _Value:
    """What ``text`` says; an error names the option."""
    try:
        return parse(text.strip())
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=option) from None


def _several(text: str, parse: Callable[[str], _Value], option: str) -> tuple[_Value, ...]:
    """What stands between commas, each once."""
    return tuple(dict.fromkeys(_one(part, parse, option) for part in text.split(",")))


Model = Annotated[
    str,
    typer.Option(
        help="A Hugging Face image classifier by name or folder, timm:NAME, or efficientnet-lite0."
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seed of whatever is random.", parser=options.whole(at_least=0), metavar="INTEGER"
    ),
]


def attack(
    images: Annotated[
        list[Path],
        typer.Argument(help="Pictures to attack.", metavar="IMAGE...", show_default=False),
    ],
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder of the results.", file_okay=False)] = Path(
        "attacked"
    ),
    method: Annotated[
        str,
        typer.Option(
            help="ours, no-operator, no-race, paper-recipe, dense, sigma-zero, sparse-pgd, pgd-l0"
            " or sparse-fool; settings after colons: sigma-zero:step=0.3."
        ),
    ] = "ours",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of the method, at most.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            help="Classifier calls, at most; 300 if no limit is given.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds for each picture, at most.", parser=options.positive, metavar="NUMBER"
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="The true class of all pictures, by number or name; by default what the model"
            " says of each picture."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The class to be predicted, by number or name; any other by default."),
    ] = None,
    region: Annotated[
        Path | None,
        typer.Option(help="Only pixels where this picture is bright may change.", dir_okay=False),
    ] = None,
    resize: Annotated[
        str,
        typer.Option(
            help="The size that the short side is resized to inside the model; config takes the one"
            " that the model's own configuration names.",
            metavar="N|native|config",
        ),
    ] = "native",
    least_confidence: Annotated[
        float,
        typer.Option(
            help="Leave alone a picture that the model is less sure of.",
            parser=_share,
            metavar="NUMBER",
        ),
    ] = 0.5,
    seed: Seed = 0,
    device: options.Device = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the operator's share of a step.")
    ] = False,
) -> None:
    """Fool a classifier by changing as little of a picture as possible.

    For a picture that is fooled, writes the attacked picture (PNG), where the change went (a map
    and an enlarged part), a figure and a record (JSON); for one that is not, the record alone. The
    saved file is read back and classified again.
    """
    _check_packages()
    from . import picture_run
    from .methods import MethodError
    from .methods import method as by_name
    from .protocol import Limits

    try:
        chosen = by_name(method)
    except MethodError as error:
        raise typer.BadParameter(str(error), param_hint="--method") from None
    _check_names(images)
    if not any(path.exists() for path in images):  # before a model is fetched
        raise typer.BadParameter(f"{images[0]} does not exist.", param_hint="IMAGE...")
    limits = Limits(calls, seconds, steps)
    if limits == Limits():
        limits = Limits(calls=300)
    job = picture_run.Job(
        chosen, method, limits, label, target, region, least_confidence, seed, out, profile
    )
    size = _one(resize, _resize, "--resize")
    where = options.device(device)
    with _clean_end():
        classifier = picture_run.load(model, size, where)
        endings = [picture_run.attack_file(path, job, classifier, console) for path in images]
    for path, ending in zip(images, endings, strict=True):
        if ending.problem:
            _warn("[bold red]Not attacked:[/]", ending.problem)
        elif not ending.fooled:
            _warn("[bold yellow]Not fooled:[/]", str(path))
    if any(ending.problem for ending in endings):
        raise typer.Exit(2)
    if not all(ending.fooled for ending in endings):
        raise typer.Exit(1)


def attack_bench(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder of pictures.", metavar="DIR", exists=True, file_okay=False, readable=True
        ),
    ],
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder of the results.", file_okay=False)] = Path(
        "results/attack"
    ),
    methods: Annotated[
        str,
        typer.Option(help="Names as in attack --method, separated by commas.", show_default="all"),
    ] = "",
    calls: Annotated[
        str,
        typer.Option(
            help="Classifier calls per picture; several runs, separated by commas.",
            metavar="INTEGERS",
        ),
    ] = "100,300,1000",
    settings: Annotated[
        str,
        typer.Option(
            help="native, or the short side that the model resizes to, or config, the one that the"
            " model's own configuration names; several, separated by commas.",
            metavar="N|native|config,...",
        ),
    ] = "native,256",
    each_once: Annotated[
        bool,
        typer.Option(
            "--each-once",
            help="Attack a picture only in the first of the settings in which it is confident.",
        ),
    ] = False,
    least_confidence: Annotated[
        float,
        typer.Option(
            help="Leave out pictures that the model is less sure of.",
            parser=_share,
            metavar="NUMBER",
        ),
    ] = 0.8,
    seconds: Annotated[
        float,
        typer.Option(
            help="Limit for one method on one picture.", parser=options.positive, metavar="NUMBER"
        ),
    ] = 300.0,
    gibibytes: Annotated[
        float | None,
        typer.Option(
            help="Memory limit for one method on one picture; by default what a run that goes on"
            " began with, else half of what there is.",
            parser=options.positive,
            metavar="NUMBER",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            help="Processes that share the rows, each with its own model and limit of memory."
            " Seconds are then not comparable.",
            parser=options.whole(at_least=1),
            metavar="INTEGER",
        ),
    ] = 1,
    seed: Seed = 0,
    device: options.Device = None,
    fresh: options.Fresh = False,
) -> None:
    """Run all methods over a folder of pictures and write the paper's tables and curve.

    Labels come from manifest.csv (columns file, class_index) if the folder has one, else from the
    model. An interrupted run resumes: every finished row is in results.json.
    """
    _check_packages()
    from . import bench_run
    from . import methods as registry
    from .rows import Plan

    where = options.device(device)
    names = tuple(part.strip() for part in methods.split(",")) if methods else registry.DEFAULT
    try:
        for name in names:
            registry.method(name)
    except registry.MethodError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from None
    sizes = _several(settings, _resize, "--settings")
    numbers = tuple(sorted(_several(calls, options.whole(at_least=1), "--calls")))
    with _clean_end():
        plan = Plan(
            model,
            names,
            _resolved(sizes, model, where),
            numbers,
            seconds,
            _memory(out / "results.json", where, fresh) if gibibytes is None else gibibytes,
            seed,
            least_confidence,
            each_once,
        )
        bad = bench_run.run(folder, plan, out, where, console, fresh, jobs)
    for problem in bad:
        _warn("[bold red]Left out:[/]", problem)
    if bad:
        raise typer.Exit(2)


def _resolved(
    sizes: tuple[Resize, ...], model: str, device: torch.device
) -> tuple[int | None, ...]:
    """Each size once, as a number or None: tables name settings by their numbers."""
    from . import picture_run

    found = [
        picture_run.load(model, size, device).resize if size == "config" else size for size in sizes
    ]
    return tuple(dict.fromkeys(found))


def _memory(path: Path, device: torch.device, fresh: bool) -> float:
    """The limit that the rows of ``path`` were made with, or half of the memory.

    What is free varies: by its half alone a run could not go on where it was stopped.
    """
    from .comparison_file import read

    if not fresh and path.exists():
        found = read(path)["settings"].get("gibibytes")
        if isinstance(found, float):
            return found
    return options.half_of_memory(device)


def _check_packages() -> None:
    from importlib.util import find_spec

    for name in _NEEDED:
        if find_spec(name) is None:
            _fail(
                f"{name} is missing. Get it with: pip install 'fast-lapsum[apps,bench]'"
                " (in a checkout: pip install '.[apps,bench]')"
            )


def _check_names(images: list[Path]) -> None:
    """Results are named after pictures: two of one name would overwrite each other."""
    seen: dict[str, Path] = {}
    for path in images:
        if path.stem in seen:
            raise typer.BadParameter(
                f"{seen[path.stem]} and {path} would be written under one name.",
                param_hint="IMAGE...",
            )
        seen[path.stem] = path


@contextmanager
def _clean_end() -> Iterator[None]:
    """Errors as one line and exit code 2; an interruption says that it was one."""
    from .classifiers import ModelError
    from .comparison_file import CompareError
    from .workers import WorkerError

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (ModelError, CompareError, WorkerError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'writing'}: {error.strerror or error}")
    except KeyboardInterrupt as interrupt:
        errors.print("Stopped. What was finished is kept.", highlight=False)
        raise typer.Exit(143 if interrupt.args == (signal.SIGTERM,) else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _warn(heading: str, message: str) -> None:
    errors.print(f"{heading} {escape(message)}", soft_wrap=True, highlight=False)


def _fail(message: str) -> NoReturn:
    _warn("[bold red]Error:[/]", message)
    raise typer.Exit(2)

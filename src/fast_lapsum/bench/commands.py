"""The commands ``fast-lapsum bench NAME``, ``bench all``, ``compare`` and ``stale``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import (
    compare,
    compiled_commands,
    environment,
    options,
    records,
    runner,
    sources,
    stale,
    tables,
)
from .display import Display, duration, print_table
from .experiment import Experiment, Record, Settings
from .experiments import EXPERIMENTS, module_of
from .experiments.variants import METHOD
from .process import WorkerError
from .records import ResultsError

console = Console()
errors = Console(stderr=True)
#: Of the experiments with the same variants, the one whose help describes them.
_DESCRIBED = "ablation"
#: A longer account of an experiment is a list.
_MOST_SENTENCES = 4


def register(app: typer.Typer) -> None:
    """Add a command for every experiment, all of them, what changed and what is out of date."""
    compiled_commands.register(app)
    for name, experiment in EXPERIMENTS.items():
        app.command(name=name, help=_help(experiment), epilog=f"Example: {_example(name)}")(
            _command(name)
        )
    app.command(
        name="all", epilog="Example: fast-lapsum bench all --quick --skip robustness --seconds 3"
    )(run_all)
    app.command(name="compare", epilog="Example: fast-lapsum bench compare HEAD~1 --fail-over 1.2")(
        run_compare
    )
    app.command(name="stale", epilog="Example: fast-lapsum bench stale results/cuda")(run_stale)


def _example(name: str) -> str:
    return f"fast-lapsum bench {name} --device cpu --max-n 1e6 --seconds 10"


def _help(experiment: Experiment) -> str:
    labels = ", ".join(experiment.labels)
    method = experiment.method
    if method.startswith(METHOD) and experiment is not EXPERIMENTS[_DESCRIBED]:
        method = (
            f"The variants, and how they are timed: fast-lapsum bench {_DESCRIBED} --help."
            + method.removeprefix(METHOD)
        )
    sentences = re.split(r"(?<=\.) (?=[A-Z])", method)
    if len(sentences) > _MOST_SENTENCES:
        method = "\n".join(f"- {sentence}" for sentence in sentences)
    return escape(
        f"{experiment.title} ({labels}).\n\n{method}\n\n"
        "The results file is written after every case. After an interruption the same command goes"
        " on where it stopped; where all is measured, it prints the tables again."
    )


def _command(name: str) -> Callable[..., None]:
    def command(
        device: options.Device = None,
        quick: options.Quick = False,
        max_n: options.MaxN = 10**8,
        repeats: options.Repeats = None,
        seconds: options.Seconds = None,
        gibibytes: options.Gibibytes = None,
        seed: options.Seed = 0,
        out: options.Out = None,
        fresh: options.Fresh = False,
    ) -> None:
        settings = _settings(device, quick, max_n, repeats, seconds, gibibytes, seed)
        path = out or _default_folder(settings) / f"{name}.json"
        _run({name: path}, settings, fresh=fresh, memory_given=gibibytes is not None)

    return command


def run_all(
    device: options.Device = None,
    quick: options.Quick = False,
    max_n: options.MaxN = 10**8,
    repeats: options.Repeats = None,
    seconds: options.Seconds = None,
    gibibytes: options.Gibibytes = None,
    seed: options.Seed = 0,
    out: options.Folder = None,
    fresh: options.Fresh = False,
    only: options.Only = None,
    skip: options.Skip = None,
) -> None:
    """Run every experiment, one results file each, and sum up.

    A method that runs out of memory or time gets a row that says so, and the rest goes on. After an
    interruption the same command goes on where it stopped. The exit code is 1 if a case failed in
    another way, such as a wrong answer.
    """
    wanted, unwanted = _known(only, "--only"), _known(skip, "--skip")
    chosen = [
        name for name in EXPERIMENTS if name in (wanted or EXPERIMENTS) and name not in unwanted
    ]
    if not chosen:
        raise typer.BadParameter("nothing is left to run.", param_hint="--skip")
    settings = _settings(device, quick, max_n, repeats, seconds, gibibytes, seed)
    folder = out or _default_folder(settings)
    paths = {name: folder / f"{name}.json" for name in chosen}
    _run(paths, settings, fresh=fresh, memory_given=gibibytes is not None, summary=True)


def run_compare(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="Before: a results file, a folder of them, or a git commit, whose results/"
            " folder is read.",
        ),
    ],
    against: Annotated[
        str, typer.Option(help="After: a file, folder or commit, too.", metavar="FILE_OR_DIR")
    ] = "results",
    fail_over: Annotated[
        float | None,
        typer.Option(
            help="Exit with code 1 if a median is more than so many times slower, such as 1.2.",
            parser=options.positive,
            metavar="RATIO",
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all times and rows, also those that did not change.")
    ] = False,
) -> None:
    """Show what changed since other results: times with their ratio, and rows by their status.

    Differences of environment and settings come first. A time is called slower or faster only where
    the ranges from the 20th to the 80th percentile of both sides are apart; other times, and rows
    that one side alone has, are only counted.
    """
    try:
        old, new = compare.load(reference), compare.load(against)
    except ResultsError as error:
        _fail(str(error))
    common = [place for place in old if place in new]
    if len(old) > 1 and len(new) > 1:  # one file asks for its own experiment only
        for place in dict.fromkeys([*old, *new]):
            if place not in common:
                side = reference if place in old else against
                _say(f"{place[1]} on {place[0]}: only in {side}")
    if not common:
        _fail(f"{reference} and {against} have no experiment in common.")
    slower: list[str] = []
    for device, name in common:
        before, after = old[device, name], new[device, name]
        differing = compare.conditions_table(f"{name} on {device}", before, after)
        if differing is not None:
            console.print(differing)
        found = compare.changes(before, after)
        shown = [change for change in found if show_all or change.is_telling]
        if shown:
            console.print(compare.changes_table(f"{name} on {device}", shown))
        _say(f"{name} on {device}: {compare.summary(found, len(after['rows']))}")
        slower.extend(
            f"{name} on {device}, {records.label(change.key)}: {change.ratio:.2f} times the time"
            for change in found
            if fail_over is not None and change.ratio is not None and change.ratio > fail_over
        )
    for text in slower:
        errors.print(f"[bold red]Slower:[/] {escape(text)}", soft_wrap=True)
    if slower:
        raise typer.Exit(1)


def run_stale(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Where to look for results files, in folders inside it, too.",
            exists=True,
            file_okay=False,
            show_default="results, or results-quick where there is none",
        ),
    ] = None,
) -> None:
    """List all results files in a folder, and whether their figures are those of this code.

    A results file has a hash of the files of the package that its figures depend on. It is current
    where those files are still the same, else stale: to be measured anew. Where a file was written
    before there was a hash, its sources are unknown. A folder's kept.json names files that are of
    earlier code on purpose, with a reason each; they are shown as kept. The exit code is 0 if all
    are current or kept, and 1 if not.
    """
    try:
        if folder is None:
            full, quick = options.results_folder(quick=False), options.results_folder(quick=True)
            folder = quick if stale.find(quick) and not stale.find(full) else full
        found = stale.find(folder)
    except stale.KeptError as error:
        _fail(str(error))
    if not found:
        _fail(f"{folder} has no results file: make some with fast-lapsum bench.")
    print_table(console, stale.table(found))
    if kept := stale.reasons(found):
        _say(kept)
    _say(stale.summary(found))
    if any(entry.state not in (sources.CURRENT, stale.KEPT) for entry in found):
        raise typer.Exit(1)


def _settings(
    device: str | None,
    quick: bool,
    max_n: int,
    repeats: int | None,
    seconds: float | None,
    gibibytes: float | None,
    seed: int,
) -> Settings:
    chosen = options.device(device)
    return Settings(
        device=str(chosen),
        quick=quick,
        repeats=repeats or (5 if quick else 20),
        max_n=max_n,
        seconds=seconds or (5.0 if quick else 20.0),
        gibibytes=gibibytes or options.half_of_memory(chosen),
        seed=seed,
    )


def _default_folder(settings: Settings) -> Path:
    return options.results_folder(quick=settings.quick) / settings.device.split(":")[0]


def _known(names: list[str] | None, option: str) -> list[str]:
    for name in names or ():
        if name not in EXPERIMENTS:
            raise typer.BadParameter(
                f"'{name}' is no experiment; expected one of: {', '.join(EXPERIMENTS)}.",
                param_hint=option,
            )
    return names or []


def _run(
    paths: dict[str, Path],
    settings: Settings,
    *,
    fresh: bool,
    memory_given: bool,
    summary: bool = False,
) -> None:
    found = environment.describe()
    prepared = _prepare(paths, settings, found, fresh=fresh, memory_given=memory_given)
    console.print(tables.environment_table(found))
    failures: list[str] = []
    totals = Table(title="Rows", title_justify="left")
    for header in ("experiment", *records.STATUSES, "seconds"):
        totals.add_column(header, justify="left" if header == "experiment" else "right")
    for name, one in prepared.items():
        if not one.cases:
            _say(f"{name}: nothing to measure, no case has at most {settings.max_n:,} scores.")
            continue
        start = time.monotonic()
        try:
            record = _measure(name, one, fresh=fresh)
        except WorkerError as error:
            failures.append(f"{name}: {error}")
            continue
        for table in one.experiment.tables(record):
            print_table(console, table)
        is_old = sources.known(record) is None
        _say(f"Results: {one.path}" + (f", {sources.UNKNOWN}" if is_old else ""))
        failures.extend(
            f"{name}, {records.label(row['key'])}: {row['reason']}"
            for row in record["rows"]
            if row["status"] == "error"
        )
        counts = Counter(row["status"] for row in record["rows"])
        numbers = (str(counts[status]) for status in records.STATUSES)
        totals.add_row(name, *numbers, f"{time.monotonic() - start:.0f}")
    if summary:
        console.print(totals)
        _say(f"Figures and a page of them: fast-lapsum report {next(iter(paths.values())).parent}")
    for failure in failures:
        errors.print(f"[bold red]Failed:[/] {escape(failure)}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _prepare(
    paths: dict[str, Path],
    settings: Settings,
    found: dict[str, Any],
    *,
    fresh: bool,
    memory_given: bool,
) -> dict[str, runner.Run]:
    """All files are looked at before anything is measured."""
    prepared: dict[str, runner.Run] = {}
    complaints: list[str] = []
    for name, path in paths.items():
        own = settings
        if path.exists() and not fresh and not memory_given:
            own = _with_memory_of(path, settings)
        try:
            prepared[name] = runner.prepare(module_of(name), own, path, found, fresh=fresh)
        except ResultsError as error:
            complaints.append(str(error))
    if complaints:
        _fail(*complaints)
    return prepared


def _with_memory_of(path: Path, settings: Settings) -> Settings:
    """Available memory is never twice the same: a run that goes on keeps the limit it had."""
    try:
        limit = records.read(path)["settings"]["gibibytes"]
    except ResultsError:
        return settings  # the caller will find the same, and say it
    return settings._replace(gibibytes=limit)


def _measure(name: str, prepared: runner.Run, *, fresh: bool) -> Record:
    missing, total = len(prepared.missing), len(prepared.cases)
    if not missing:
        _say(f"{name}: all {total} rows are in {prepared.path} already; --fresh measures anew.")
        return prepared.record
    if missing < total:
        _say(f"{name}: {total - missing} of {total} rows are in {prepared.path}; going on.")
    with Display(console, name) as display:
        try:
            record = runner.run(prepared, report=display.step, remark=display.line)
        except KeyboardInterrupt:
            missing = len(prepared.missing)
            command = "the same command without --fresh" if fresh else "the same command"
            display.line(
                f"Stopped after {duration(display.elapsed)}. {total - missing} of {total} rows of"
                f" {name} are in {prepared.path}; {command} goes on from there."
            )
            raise typer.Exit(130) from None
        except ResultsError as error:
            _fail(str(error))
    return record


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _fail(*messages: str) -> NoReturn:
    for message in messages:
        errors.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(1)

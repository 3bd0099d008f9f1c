"""The command line: ``fast-lapsum info`` and ``demo``; benchmarks and applications add theirs."""

from __future__ import annotations

import inspect
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

import fast_lapsum

from .apps.attack import commands as attack_commands
from .apps.coder import commands as coder_commands
from .backends.cpu import loader
from .bench import (
    commands,
    cpu,
    demo,
    environment,
    function_commands,
    gpu_commands,
    layer_commands,
    options,
    ragged_commands,
    rank_commands,
    ranking_commands,
    sources,
    tables,
)
from .bench.parity import ParityError
from .bench.report.command import report
from .bench.results import finished_file, write_json

app = typer.Typer(
    help="Exact-budget differentiable top-k in a few passes over the scores.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
bench_app = typer.Typer(
    help="Benchmarks. Each checks its results, times other methods in the same run, and writes one"
    " results file."
)
app.add_typer(bench_app, name="bench", no_args_is_help=True)
console = Console()
#: What the demo can draw, by the suffix of its file.
PICTURES = (".png", ".pdf", ".svg")


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"fast-lapsum {fast_lapsum.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Exact-budget differentiable top-k in a few passes over the scores."""


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show versions, devices, and the backend that a call takes here."""
    found = {**environment.describe(), "kernel_file": loader.status().path}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        console.print(tables.environment_table(found))


@app.command(
    name="demo",
    epilog="Example: fast-lapsum demo --n 2e5 --k 1000 --temperature 0.05 --out mask.png",
)
def run_demo(
    n: Annotated[
        int,
        typer.Option(help="How many scores.", parser=options.whole(at_least=2), metavar="INTEGER"),
    ] = 1_000_000,
    k: Annotated[
        float | None,
        typer.Option(
            help="The budget, 0 < k < n, may be fractional; n/16 by default.",
            parser=options.positive,
            metavar="NUMBER",
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            help="Large is soft, small is hard.", parser=options.positive, metavar="NUMBER"
        ),
    ] = 0.1,
    device: options.Device = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path,
        typer.Option(
            help=f"Where the picture goes; its suffix says what it is: {', '.join(PICTURES)}.",
            dir_okay=False,
        ),
    ] = Path("fast-lapsum-demo.png"),
) -> None:
    """Run an exact soft top-k over a million scores, time it beside its peers, and draw it.

    Prints the budget error in float64 and the median times of soft_topk, torch.softmax,
    torch.topk and torch.sort, measured in turns on the same scores.
    """
    budget = n / 16 if k is None else k
    if not budget < n:
        raise typer.BadParameter(f"{budget:g} is not below n = {n}.", param_hint="--k")
    if out.suffix.lower() not in PICTURES:
        raise typer.BadParameter(
            f"'{out}' does not say what to draw; expected a name that ends in one of: "
            f"{', '.join(PICTURES)}.",
            param_hint="--out",
        )
    if not out.parent.is_dir():
        raise typer.BadParameter(f"the folder {out.parent} does not exist.", param_hint="--out")
    chosen = options.device(device)
    with console.status("starting") as status:
        found = demo.run(
            n, budget, temperature, chosen, seed, report=lambda step: status.update(step)
        )
    _print_demo(found, budget, temperature, chosen)
    if find_spec("matplotlib") is None:
        remedy = "pip install 'fast-lapsum[bench]' (in a checkout: pip install '.[bench]')"
        console.print(
            f"[yellow]No picture: matplotlib is missing.[/] Get it with {escape(remedy)}",
            soft_wrap=True,
        )
        return
    from .bench import plots

    with console.status("drawing"), finished_file(out) as unfinished:
        plots.draw_masks(found.scores, budget, unfinished)
    console.print(f"Picture: {out}", highlight=False, soft_wrap=True)


@bench_app.callback()
def bench() -> None:
    """Measure calls beside their peers in one run; answers are checked before they are timed."""


@bench_app.command(name="cpu", epilog="Example: fast-lapsum bench cpu --repeats 50 --out cpu.json")
def bench_cpu(
    repeats: Annotated[
        int,
        typer.Option(
            help="Samples of each timing.", parser=options.whole(at_least=1), metavar="INTEGER"
        ),
    ] = 25,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The results file (JSON); results/cpu.json if not given, in results-quick with"
            " --quick.",
            dir_okay=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes, to try the benchmark itself.")
    ] = False,
) -> None:
    """Time soft_topk on this CPU beside torch.softmax, torch.topk and torch.sort.

    Every case is first checked against the float64 reference: where that fails, nothing is timed,
    nothing is written, and the exit code is 1.
    """
    try:
        with console.status("starting") as status:
            record = cpu.run(repeats=repeats, quick=quick, report=lambda step: status.update(step))
    except ParityError as error:
        Console(stderr=True).print(f"[bold red]Parity failed:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    path = out or options.results_folder(quick=quick) / "cpu.json"
    write_json(path, record)
    console.print(tables.environment_table(record["environment"], sources.summary(record)))
    console.print(tables.timings_table(record))
    if quick:
        console.print("Shapes this small say nothing of the limits; leave out --quick for them.")
    else:
        console.print(tables.bars_table(record))
    console.print(f"Results: {path}", highlight=False, soft_wrap=True)


gpu_commands.register(bench_app)
function_commands.register(bench_app)
ragged_commands.register(bench_app)
layer_commands.register(bench_app)
rank_commands.register(bench_app)
ranking_commands.register(bench_app)
commands.register(bench_app)
coder_commands.register(app)
attack_commands.register(app)
app.command(name="report", epilog="Example: fast-lapsum report results --figures-only --out docs")(
    report
)


def _without_flag_values(parameters: list[Any]) -> list[Any]:
    """Flags take no value: Typer's help names their type, as if they did."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        """All options, with the one for help."""
        return _without_flag_values(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        """All options, with the one for help."""
        return _without_flag_values(super().get_params(ctx))


def _show_flags_alone(commands: typer.Typer) -> None:
    """The help of these commands, and of those below them, names no value for a flag."""
    commands.info.cls = _Group
    for command in commands.registered_commands:
        command.cls = _Command
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _show_flags_alone(group.typer_instance)


def _unwrap_help(commands: typer.Typer) -> None:
    """Each paragraph of a command's help in one line, and each item of a list.

    A terminal has its own width, and Typer keeps the line ends of all paragraphs but the first.
    """
    for command in commands.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(re.sub(r"\n(?!- )", " ", part) for part in text.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


_unwrap_help(app)
_show_flags_alone(app)


def _print_demo(found: demo.Demo, budget: float, temperature: float, device: torch.device) -> None:
    n = found.scores.numel()
    console.print(
        f"soft top-k of {n:,} scores on {device}, k = {budget:,.10g}, t = {temperature:g}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table()
    table.add_column("median of one call")
    table.add_column("time", justify="right")
    table.add_column("soft_topk is", justify="right")
    for name, timing in found.timings.items():
        ours = "soft_topk, with backward" if name.endswith("backward") else "soft_topk"
        ratio = timing.p50 / found.timings[ours].p50
        verdict = f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"
        verdict = "about as fast" if 0.95 < ratio < 1.05 else verdict
        table.add_row(name, tables.milliseconds(timing.p50), "" if name == ours else verdict)
    console.print(table)
    if device.type == "cpu" and (warning := environment.busy()) is not None:
        console.print(f"Note: {warning}.", highlight=False, soft_wrap=True)
    console.print(
        f"Budget: sum p - k = {found.budget_error:+.3g} in float64, "
        f"{abs(found.budget_error) / budget:.1e} of k.",
        f"\nGradient: reaches {found.scores_with_gradient:,} of {n:,} scores and sums to "
        f"{found.gradient_sum:+.1e}: raising one score takes from the others.",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    app()

"""What all examples share: arguments, the results file, paired statistics and the picture.

A study trains methods under conditions. Each method first tries the settings of its grid with a
seed of its own and keeps the one that is best on validation data. All grids have the same size. The
kept settings are then trained with the same seeds for every method: same data, same starting
weights. What is compared are differences between runs of one seed, on test data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from fast_lapsum.bench.environment import describe
from fast_lapsum.bench.results import finished_file, write_json

ROOT = Path(__file__).resolve().parents[1]
TUNING_SEED = 1000
COLOURS = ("#888888", "#b8860b", "#1f78b4", "#d95f02", "#7b3294")

Values = dict[str, float]
Setting = dict[str, float]


@dataclass(frozen=True)
class Method:
    """A way to train, with the settings that it may choose from."""

    name: str
    grid: tuple[Setting, ...]
    is_ours: bool = False


@dataclass(frozen=True)
class Run:
    """One training: what a study's `train` is called with."""

    method: str
    condition: str
    setting: Setting
    seed: int
    protocol: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """An example.

    Attributes:
        name: of the results file and of the picture.
        text: what ``--help`` says.
        methods: the usual ways, and ours.
        conditions: under which each is trained, with what they are called in the picture.
        measure: what is compared: its name in the values of a run, and on an axis.
        smaller_is_better: whether it is an error.
        protocol: every number that a run depends on, beside its setting.
        short: what is different in short form.
        train: trains once; its values have ``validation``, which chooses settings, and ``test``.
        budget: the name of a value that should be one, and is drawn beside the measure.
    """

    name: str
    text: str
    methods: tuple[Method, ...]
    conditions: dict[str, str]
    measure: str
    smaller_is_better: bool
    protocol: dict[str, Any]
    short: dict[str, Any]
    train: Callable[[Run], Values]
    budget: str | None = None
    seeds: int = field(default=5)


def grid(**choices: tuple[float, ...]) -> tuple[Setting, ...]:
    """Every combination: ``grid(rate=(1, 2), temperature=(3,))`` has two settings."""
    settings: list[Setting] = [{}]
    for name, values in choices.items():
        settings = [{**one, name: value} for one in settings for value in values]
    return tuple(settings)


def main(*studies: Study, text: str | None = None) -> None:
    """Run studies as the arguments say."""
    given = _arguments(text or studies[0].text)
    short = ROOT / "build" / "examples"
    folder = given.folder or (short if given.short else ROOT / "results" / "examples")
    figures = given.figures or (short if given.short else ROOT / "docs" / "figures")
    for study in studies:
        sizes = {len(method.grid) for method in study.methods}
        if len(sizes) != 1:
            raise ValueError(f"grids must have one size for all methods, got {sorted(sizes)}")
        path = folder / f"{study.name}.json"
        record = _begun(study, path, given.short, given.anew)
        if not given.draw:
            _complete(study, record, path)
        elif "summary" not in record:
            raise SystemExit(f"error: {path} has no complete study, run without --draw")
        print(f"{study.name}\n{_table(record)}")
        draw(study, record, figures / f"example-{study.name}.svg")
    print(f"Results are in {_shown(folder)}, pictures in {_shown(figures)}.")
    if given.short:
        print("Short runs show that the examples work. Their numbers prove nothing.")


def _shown(folder: Path) -> Path:
    """By its path from the checkout, if it is there."""
    return folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder


def _arguments(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true",
        help="few steps, two settings and two seeds, into build/examples: a smoke test; its "
        "numbers mean nothing",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, help="where the results file goes, default results/examples"
    )
    parser.add_argument("--figures", type=Path, help="where the picture goes, default docs/figures")
    parser.add_argument("--anew", action="store_true", help="ignore earlier runs")
    parser.add_argument(
        "--draw", action="store_true", help="draw the picture of the results file, train nothing"
    )
    return parser.parse_args()


def _begun(study: Study, path: Path, short: bool, anew: bool) -> dict[str, Any]:
    """The file as it is, if it has the runs of this protocol; otherwise one without runs."""
    protocol = {**study.protocol, **(study.short if short else {})}
    record: dict[str, Any] = {
        "study": study.name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "short": short,
        "seeds": list(range(2 if short else study.seeds)),
        "tuning_seed": TUNING_SEED,
        "measure": study.measure,
        "smaller_is_better": study.smaller_is_better,
        "conditions": study.conditions,
        "ours": [method.name for method in study.methods if method.is_ours],
        "grids": {m.name: list(m.grid[: 2 if short else None]) for m in study.methods},
        "protocol": protocol,
        "environment": describe(),
    }
    if path.is_file() and not anew:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fixed = ("short", "seeds", "tuning_seed", "conditions", "ours", "grids", "protocol")
        if all(found.get(name) == json.loads(json.dumps(record[name])) for name in fixed):
            return found
        print(f"{path.name} is of another protocol: its runs are left out", file=sys.stderr)
    return {**record, "runs": []}


def _complete(study: Study, record: dict[str, Any], path: Path) -> None:
    """Train what is missing, and write the file after each run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    done = {_key(run): run for run in record["runs"]}
    begun = len(done)
    total = len(study.conditions) * sum(
        len(settings) + len(record["seeds"]) for settings in record["grids"].values()
    )

    def trained(run: Run, role: str) -> dict[str, Any]:
        row = {"role": role, "method": run.method, "condition": run.condition}
        row |= {"setting": run.setting, "seed": run.seed}
        if (found := done.get(_key(row))) is not None:
            return found
        torch.manual_seed(run.seed)
        start = time.process_time()
        values = {name: round(float(value), 6) for name, value in study.train(run).items()}
        row |= {"values": values, "cpu_seconds": round(time.process_time() - start, 2)}
        done[_key(row)] = row
        record["runs"] = list(done.values())
        write_json(path, record)
        print(
            f"[{len(done)}/{total}] {run.condition}, {run.method}, {role} {run.setting}, "
            f"seed {run.seed}: {study.measure} {values['test']:.4f}, {row['cpu_seconds']} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return row

    sign = 1 if study.smaller_is_better else -1
    for condition in study.conditions:
        for method in study.methods:
            tried = [
                trained(
                    Run(method.name, condition, setting, TUNING_SEED, record["protocol"]), "tuning"
                )
                for setting in record["grids"][method.name]
            ]
            best = min(tried, key=lambda row: sign * row["values"]["validation"])["setting"]
            for seed in record["seeds"]:
                trained(Run(method.name, condition, best, seed, record["protocol"]), "compared")
    if len(done) > begun or "summary" not in record:
        record["summary"] = _summary(record)
        write_json(path, record)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    setting = tuple(sorted(row["setting"].items()))
    return row["role"], row["method"], row["condition"], row["seed"], setting


def _summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Per condition and method: means, and paired differences of ours from the usual ways."""
    lines = []
    for condition in record["conditions"]:
        runs = {name: _compared(record, condition, name) for name in record["grids"]}
        for name, found in runs.items():
            means = {key: _mean(found, key) for key in found[0]["values"]}
            line = {"condition": condition, "method": name, "setting": found[0]["setting"]}
            line |= {"means": means, "cpu_seconds": round(_mean(found, None), 2)}
            if name in record["ours"]:
                line["differences"] = {
                    other: paired(
                        [run["values"]["test"] for run in found],
                        [run["values"]["test"] for run in runs[other]],
                        smaller_is_better=record["smaller_is_better"],
                    )
                    for other in runs
                    if other not in record["ours"]
                }
            lines.append(line)
    return lines


def _compared(record: dict[str, Any], condition: str, method: str) -> list[dict[str, Any]]:
    wanted = ("compared", condition, method)
    found = [r for r in record["runs"] if (r["role"], r["condition"], r["method"]) == wanted]
    return sorted(found, key=lambda run: run["seed"])


def _mean(runs: list[dict[str, Any]], key: str | None) -> float:
    of_run = [run["cpu_seconds"] if key is None else run["values"][key] for run in runs]
    return round(statistics.fmean(of_run), 6)


def paired(ours: list[float], usual: list[float], *, smaller_is_better: bool) -> dict[str, Any]:
    """Mean of the differences of equal seeds, its 95% interval by Student's t, and who is better.

    >>> paired([1.0, 2.0, 3.0], [2.0, 3.1, 3.9], smaller_is_better=True)["verdict"]
    'ours'
    >>> paired([1.0, 4.0], [2.0, 3.0], smaller_is_better=True)["verdict"]
    'neither'
    """
    differences = [a - b for a, b in zip(ours, usual, strict=True)]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / len(differences) ** 0.5
    half = float(student.ppf(0.975, len(differences) - 1)) * error
    verdict = "neither"
    if abs(mean) > half:
        verdict = "ours" if (mean < 0) == smaller_is_better else "usual"
    interval = [round(mean - half, 6), round(mean + half, 6)]
    return {"mean": round(mean, 6), "interval": interval, "verdict": verdict}


def _table(record: dict[str, Any]) -> str:
    lines = []
    for line in record["summary"]:
        values = ", ".join(f"{name} {value:.4g}" for name, value in line["means"].items())
        lines.append(f"{line['condition']:>14}  {line['method']:<28} {values}  {line['setting']}")
        for other, found in line.get("differences", {}).items():
            low, high = found["interval"]
            lines.append(
                f"{'':>18}against {other}: {found['mean']:+.4f} [{low:+.4f}, {high:+.4f}], "
                f"better: {found['verdict']}"
            )
    return "\n".join(lines)


def draw(study: Study, record: dict[str, Any], path: Path) -> None:
    """Every seed and the means by condition; and what should be one, where there is a budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "axes.spines.right": False, "axes.spines.top": False, "font.size": 9,
        "figure.constrained_layout.use": True, "svg.fonttype": "none",
        "svg.hashsalt": "fast-lapsum",
    }  # fmt: skip
    with plt.rc_context(style):
        panels = 1 if study.budget is None else 2
        width = 4.6 if panels == 1 else 7.6
        figure, axes = plt.subplots(1, panels, figsize=(width, 3.1), squeeze=False)
        _draw_values(axes[0][0], record, "test")
        axes[0][0].set(ylabel=study.measure)
        if study.budget is not None:
            _draw_values(axes[0][1], record, study.budget)
            axes[0][1].axhspan(0.99, 1.01, color="#dddddd", zorder=0, linewidth=0)
            axes[0][1].set(ylabel="active on held-out data / budget")
        lines, names = axes[0][0].get_legend_handles_labels()
        columns = 2 if panels == 1 else 3
        figure.legend(lines, names, frameon=False, loc="outside lower center", ncols=columns)
        with finished_file(path) as unfinished:
            figure.savefig(unfinished, metadata={"Date": None})
        plt.close(figure)


def _draw_values(axes: Any, record: dict[str, Any], key: str) -> None:
    names = list(record["grids"])
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        shift = 0.14 * (place - (len(names) - 1) / 2)
        for at, condition in enumerate(record["conditions"]):
            runs = _compared(record, condition, name)
            if not runs or key not in runs[0]["values"]:
                continue
            values = [run["values"][key] for run in runs]
            label = name if at == 0 else None
            axes.plot(
                [at + shift] * len(values), values, "o", color=colour, markersize=3, alpha=0.5
            )
            mean = [statistics.fmean(values)] * 2
            span = [at + shift - 0.06, at + shift + 0.06]
            axes.plot(span, mean, color=colour, linewidth=2.5, label=label)
    axes.set_xticks(range(len(record["conditions"])), list(record["conditions"].values()))

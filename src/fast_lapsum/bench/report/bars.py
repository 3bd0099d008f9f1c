"""Speed-ups as bars, and the samplers' coverage as dots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..paper import MACHINE
from .curves import Key, Row, median_seconds
from .style import (
    BLUE,
    GRID,
    HATCHES,
    INK,
    MUTED,
    PAPER,
    STEPS,
    VERMILION,
    WIDTH,
    power_ticks,
    whole,
)

SAMPLERS = {"paper": (BLUE, "s"), "ours": (VERMILION, "o")}
#: The paper's numbers.
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markerfacecolor": PAPER,
    "markeredgecolor": INK,
    "markersize": 5,
    "linestyle": "none",
    "zorder": 5,
}
DOTS = (
    ("coverage", "coverage", "share of trials"),
    ("fallback", "fall-back", "share of trials"),
    ("budget_error", "largest budget error", "|sum p - k| / k"),
)


def speedups(
    figure: Figure,
    panels: dict[str, list[Row]],
    group_label: Callable[[Key], str],
    paper: Callable[[Key], float | None],
    columns: int,
) -> None:
    """One panel for each name; in it one group of bars per case, over the first variant's time."""
    columns = min(columns, len(panels))
    rows_of_panels = -(-len(panels) // columns)
    figure.set_size_inches(WIDTH, 1.0 + 2.3 * rows_of_panels)
    first, *variants = dict.fromkeys(
        row["key"]["variant"] for rows in panels.values() for row in rows
    )
    figure.subplots(rows_of_panels, columns, squeeze=False)
    for axes, (name, rows) in zip(figure.axes, panels.items(), strict=False):
        groups: dict[str, dict[str, Row]] = {}
        for row in rows:
            groups.setdefault(group_label(row["key"]), {})[row["key"]["variant"]] = row
        _panel(axes, groups, first, variants, paper)
        axes.set(title=name, ylabel=f"speed-up over {first}")
    for axes in figure.axes[len(panels) :]:
        axes.set_axis_off()
    handles: list[Artist] = [
        Patch(**_face(index), label=variant) for index, variant in enumerate(variants)
    ]
    handles.append(_diamond(f"the paper, {MACHINE}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))


def _panel(
    axes: Axes,
    groups: dict[str, dict[str, Row]],
    first: str,
    variants: list[str],
    paper: Callable[[Key], float | None],
) -> None:
    width = 0.84 / max(len(variants), 1)
    count = len(groups) * len(variants)
    for place, group in enumerate(groups.values()):
        base = group.get(first)
        for index, variant in enumerate(variants):
            x = place + (index - (len(variants) - 1) / 2) * width
            row = group.get(variant)
            theirs = paper(row["key"]) if row else None
            if theirs is not None:
                axes.plot(x, theirs, **DIAMOND)
            if row is None or row["status"] != "ok":
                _note(axes, x, row["status"] if row else "not measured")
            elif base is None or base["status"] != "ok":
                _note(axes, x, f"no {first}")
            else:
                ratio = median_seconds(base) / median_seconds(row)
                axes.bar(x, ratio - 1, width * 0.9, bottom=1, **_face(index))
                if count <= 24:
                    _number(axes, x, max(ratio, theirs or 1, 1), ratio, upright=count > 10)
    axes.axhline(1, color=INK, linewidth=0.9)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.grid(False, axis="x")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")


def _face(index: int) -> dict[str, Any]:
    return {
        "facecolor": STEPS[index % len(STEPS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": INK,
        "linewidth": 0.6,
    }


def _number(axes: Axes, x: float, y: float, ratio: float, *, upright: bool) -> None:
    axes.annotate(
        f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×",
        (x, y),
        (0, 6),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=6.5,
        rotation=90 if upright else 0,
    )


def _note(axes: Axes, x: float, text: str) -> None:
    axes.annotate(
        text.replace("oom", "OOM"),
        (x, 1),
        (0, 3),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=6.5,
        color=MUTED,
    )


def samplers(figure: Figure, rows: Sequence[Row], paper: dict[str, dict[str, float]]) -> None:
    """Coverage, fall-back rate and budget error, a line for each distribution and size."""
    finished = [row for row in rows if row["status"] == "ok"]
    distributions = list(dict.fromkeys(row["key"]["distribution"] for row in rows))
    sizes = sorted({row["key"]["n"] for row in rows})
    figure.set_size_inches(WIDTH, 1.6 + 0.16 * len(distributions) * (len(sizes) + 1))
    panels = figure.subplots(1, len(DOTS), sharey=True)
    for axes, (field, title, label) in zip(panels, DOTS, strict=True):
        for row in finished:
            value = row["values"][field]
            colour, marker = SAMPLERS.get(row["key"]["sampler"], (MUTED, "D"))
            place = distributions.index(row["key"]["distribution"])
            y = _line(place, sizes.index(row["key"]["n"]), len(sizes))
            if value is None:
                across = axes.get_yaxis_transform()
                axes.text(
                    1, y, "no number", transform=across, ha="right", va="center", color=colour
                )
                continue
            axes.plot(
                _floor(value, field),
                y,
                marker=marker,
                color=colour,
                markeredgecolor=INK,
                markeredgewidth=0.5,
                markersize=6 if marker == "o" else 7.5,
                linestyle="none",
                zorder=4 if marker == "o" else 3,
                clip_on=False,
            )
        for name, numbers in paper.items():
            if name in distributions and field in numbers:
                axes.plot(
                    _floor(numbers[field], field),
                    _line(distributions.index(name), (len(sizes) - 1) / 2, len(sizes)),
                    clip_on=False,
                    **DIAMOND,
                )
        _tidy_dots(axes, field, title, label, len(distributions))
    ticks = [
        (
            _line(place, index, len(sizes)),
            f"{name}   n = {whole(size)}" if not index else whole(size),
        )
        for place, name in enumerate(distributions)
        for index, size in enumerate(sizes)
    ]
    panels[0].set_yticks([y for y, _ in ticks], [text for _, text in ticks], fontsize=7.5)
    panels[0].set_ylim(len(distributions) - 0.5, -0.5)
    figure.legend(handles=_dot_handles(bool(paper)), loc="outside lower center", ncols=3)


def _diamond(label: str) -> Line2D:
    return Line2D([], [], label=label, **DIAMOND)


def _dot_handles(with_paper: bool) -> list[Line2D]:
    names = {"paper": "the paper's sampler, measured here", "ours": "our sampler"}
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=marker,
            color=colour,
            markeredgecolor=INK,
            markeredgewidth=0.5,
            label=names[sampler],
        )
        for sampler, (colour, marker) in SAMPLERS.items()
    ]
    if with_paper:
        handles.append(_diamond("the paper's own number, worst of all n"))
    return handles


def _tidy_dots(axes: Axes, field: str, title: str, label: str, count: int) -> None:
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.grid(False, axis="y")
    for place in range(count - 1):
        axes.axhline(place + 0.5, color=GRID, linewidth=0.8)
    if field == "budget_error":
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(power_ticks)
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlim(-0.04, 1.04)


def _line(place: int, index: float, count: int) -> float:
    return place + (index - (count - 1) / 2) * 0.8 / max(count, 1)


def _floor(value: float, field: str) -> float:
    """Zero has no place on a logarithmic axis: it is drawn at the left end."""
    return max(value, 1e-10) if field == "budget_error" else value

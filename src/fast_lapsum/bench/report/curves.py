"""Lines over the number of scores: one per method, and where and why each of them ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from .style import INK, MUTED, PAPER, TOP, Look, freeze_layout, whole

Row = dict[str, Any]
Key = dict[str, Any]
Array = npt.NDArray[np.float64]


class End(NamedTuple):
    """The symbol at the end of a line that could not go on."""

    marker: str
    label: str
    short: str


OUT_OF_MEMORY = End("X", "out of memory at the next size", "OOM")
OUT_OF_TIME = End("P", "over the time limit at the next size", "time-out")
FAILED = End("*", "failed at the next size", "error")
REFUSED = End("d", "cannot take the next size", "unavailable")
#: A case is left out as "limit" when its predecessor already says that it would take too long.
ENDS = {
    "oom": OUT_OF_MEMORY,
    "timeout": OUT_OF_TIME,
    "limit": OUT_OF_TIME,
    "error": FAILED,
    "unavailable": REFUSED,
}


class Curve(NamedTuple):
    """The finished sizes of one method, and what came after them."""

    name: str
    sizes: list[float]
    values: list[float]
    #: (size, why) of the first case after the last finished one; None where the line just ends.
    stopped: tuple[float, End] | None


def median_seconds(row: Row) -> float:
    """The middle of the samples."""
    return float(row["values"]["seconds"]["p50"])


def curves(
    rows: Iterable[Row], by: str, value: Callable[[Row], float | None], smallest: float = 0.0
) -> list[Curve]:
    """One curve for each value of ``by``; values under ``smallest`` are drawn at it."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: float(row["key"]["n"])):
        groups.setdefault(row["key"][by], []).append(row)
    found = []
    for name, group in groups.items():
        points = [
            (float(row["key"]["n"]), max(number, smallest))
            for row in group
            if row["status"] == "ok" and (number := value(row)) is not None
        ]
        last = points[-1][0] if points else 0.0
        after = [row for row in group if row["status"] in ENDS and row["key"]["n"] > last]
        stopped = (float(after[0]["key"]["n"]), ENDS[after[0]["status"]]) if after else None
        found.append(Curve(name, [n for n, _ in points], [y for _, y in points], stopped))
    return found


def draw(axes: Axes, drawn: list[Curve], looks: dict[str, Look]) -> None:
    """The lines, and a stub with a symbol where one of them had to stop."""
    for curve in drawn:
        if not curve.sizes:
            continue
        look = looks[curve.name]
        size = 6.0 if look.layer == TOP else 4.5
        axes.plot(
            curve.sizes,
            curve.values,
            color=look.colour,
            linestyle=look.dashes,
            linewidth=look.width,
            marker=look.marker,
            markersize=size,
            zorder=look.layer,
        )
        if curve.stopped:
            x, y = _stub(curve)
            axes.plot(
                [curve.sizes[-1], x], [curve.values[-1], y], ":", color=look.colour, linewidth=1
            )
            axes.plot(
                [x],
                [y],
                linestyle="none",
                marker=curve.stopped[1].marker,
                markersize=9,
                markerfacecolor=look.colour,
                markeredgecolor=INK,
                markeredgewidth=0.8,
                zorder=7,
            )


def draw_hollow(axes: Axes, drawn: Iterable[Curve], looks: dict[str, Look]) -> None:
    """Somebody else's numbers: the same marker and colour, unfilled and without a line."""
    for curve in drawn:
        look = looks[curve.name]
        axes.plot(
            curve.sizes,
            curve.values,
            linestyle="none",
            marker=look.marker,
            markersize=6,
            markerfacecolor=PAPER,
            markeredgecolor=look.colour,
            markeredgewidth=1.3,
            zorder=8,
        )


def legend_handles(drawn: list[Curve], looks: dict[str, Look]) -> list[Artist]:
    """The methods that come furthest first, then the faster ones, then one line per symbol."""
    ordered = sorted(
        (curve for curve in drawn if curve.sizes),
        key=lambda curve: (looks[curve.name].layer != TOP, -curve.sizes[-1], curve.values[-1]),
    )
    handles: list[Artist] = []
    for curve in ordered:
        look = looks[curve.name]
        ending = f", {curve.stopped[1].short} at {whole(curve.stopped[0])}" if curve.stopped else ""
        handles.append(
            Line2D(
                [],
                [],
                color=look.colour,
                linestyle=look.dashes,
                linewidth=look.width,
                marker=look.marker,
                markersize=5,
                label=f"{curve.name}{ending}",
            )
        )
    for end in dict.fromkeys(curve.stopped[1] for curve in ordered if curve.stopped):
        handles.append(
            Line2D(
                [],
                [],
                linestyle=":",
                color=MUTED,
                marker=end.marker,
                markersize=8,
                markerfacecolor=MUTED,
                markeredgecolor=INK,
                label=end.label,
            )
        )
    return handles


def hollow_handle(label: str) -> Line2D:
    """The legend's word for hollow points."""
    return Line2D(
        [],
        [],
        linestyle="none",
        marker="o",
        markerfacecolor=PAPER,
        markeredgecolor=INK,
        markeredgewidth=1.3,
        label=label,
    )


def missing(drawn: list[Curve]) -> str:
    """A sentence on the methods that have no point at all; empty where all have one."""
    absent = [
        f"{curve.name} ({curve.stopped[1].short if curve.stopped else 'no number'})"
        for curve in drawn
        if not curve.sizes
    ]
    return f"Without a point: {', '.join(absent)}." if absent else ""


def label_lines(
    figure: Figure, axes: Axes, drawn: list[Curve], others: list[Curve], looks: dict[str, Look]
) -> None:
    """Names beside the lines, as many as fit without covering a line, a point or each other."""
    freeze_layout(figure)
    lines = [_pixels(axes, [*_path(curve)]) for curve in drawn if curve.sizes]
    points = [axes.transData.transform([*_path(curve)]) for curve in others]
    obstacles = np.concatenate([*lines, *points])
    inside = axes.get_window_extent().padded(-2)
    taken: list[Bbox] = []
    ordered = sorted(
        (curve for curve in drawn if curve.sizes), key=lambda curve: -looks[curve.name].layer
    )
    for curve in ordered:
        _label_line(axes, curve, looks[curve.name], obstacles, inside, taken)


def _label_line(
    axes: Axes, curve: Curve, look: Look, obstacles: Array, inside: Bbox, taken: list[Bbox]
) -> None:
    """At the end of the line if there is room, else over or under a point before it."""
    first = look.layer == TOP
    path = _path(curve)
    for index, point in enumerate(reversed(path[-4:])):
        for offset, horizontal, vertical in PLACES if index == 0 else PLACES[1:3]:
            text = axes.annotate(
                curve.name,
                point,
                offset,
                textcoords="offset points",
                ha=horizontal,
                va=vertical,
                fontsize=8.5 if first else 7,
                fontweight="bold" if first else "normal",
                color=look.colour,
                zorder=9,
            )
            box = text.get_window_extent()
            outside = (
                box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
            )
            low, high = box.padded(1).get_points()
            covers = bool(np.any(np.all((obstacles >= low) & (obstacles <= high), axis=1)))
            if not (outside or covers or any(box.overlaps(other) for other in taken)):
                taken.append(box)
                return
            text.remove()


#: Offsets in points from a point of a line, with the alignment of the text there.
PLACES = (
    ((8, 0), "left", "center"),
    ((0, 8), "center", "bottom"),
    ((0, -8), "center", "top"),
    ((-8, 4), "right", "bottom"),
    ((8, -6), "left", "top"),
)


def _path(curve: Curve) -> list[tuple[float, float]]:
    """The points of a curve, and the end of its stub."""
    return [
        *zip(curve.sizes, curve.values, strict=True),
        *([_stub(curve)] if curve.stopped else []),
    ]


def _stub(curve: Curve) -> tuple[float, float]:
    """Half-way to the size that did not finish, along the slope of the line."""
    assert curve.stopped is not None
    x, y = math.log10(curve.sizes[-1]), math.log10(curve.values[-1])
    step = min(0.45, (math.log10(curve.stopped[0]) - x) / 2)
    slope = 1.0
    if len(curve.sizes) > 1:
        before_x, before_y = math.log10(curve.sizes[-2]), math.log10(curve.values[-2])
        slope = min(max((y - before_y) / (x - before_x), 0.0), 2.0)
    return 10 ** (x + step), 10 ** (y + slope * step)


def _pixels(axes: Axes, path: list[tuple[float, float]]) -> Array:
    """Points along a path, dense enough that no word fits between two of them."""
    corners = axes.transData.transform(path)
    return np.concatenate(
        [np.linspace(start, end, 60) for start, end in pairwise(corners)] or [corners]
    )

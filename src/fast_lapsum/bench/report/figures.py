"""From the results of a device to its figures, with names that README and docs can rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiment import Record
from ..paper import MACHINE, PAPER, PaperTable
from . import bars, curves
from .curves import Curve, Key, Row, median_seconds
from .load import Device
from .style import BLUE, DASHED, GREEN, INK, SOLID, TOP, VERMILION, WIDTH, Look, log_axes, looks

#: float32 scores read and mask written once; for the backward, gradient and mask read, one written.
FORWARD_BYTES, BOTH_BYTES = 8, 20
FLOAT32_EPSILON = 2.0**-23
#: Budget errors below this are drawn here: a float32 sum cannot tell them from zero.
SMALLEST_ERROR = 1e-10

SOLVERS = {
    "full sort": Look(BLUE, DASHED, "s", 1.7, 5),
    "noised bracket": Look(GREEN, SOLID, "^", 1.7, 5),
    "default": Look(VERMILION, SOLID, "o", 3.0, TOP),
}


class Drawing(NamedTuple):
    """A figure, its file name without suffix, and what it shows in words."""

    name: str
    experiment: str
    figure: Figure
    caption: str


def draw(device: Device) -> Iterator[Drawing]:
    """Every figure that these results are enough for; to be used within the shared style."""
    for experiment, artist in ARTISTS.items():
        record = device.records.get(experiment)
        if record is not None and any(row["status"] == "ok" for row in record["rows"]):
            yield from artist(device, record)


def _operators(device: Device, record: Record) -> Iterator[Drawing]:
    labels = {"forward": "fig:baseline-plot", "forward+backward": "fig:baseline-plot-fb"}
    for part, bytes_each in (("forward", FORWARD_BYTES), ("forward+backward", BOTH_BYTES)):
        rows = [row for row in record["rows"] if row["key"]["pass"] == part]
        if any(row["status"] == "ok" for row in rows):
            yield _times(
                device,
                "operators",
                f"operators-{part.replace('+', '-')}-{device.slug}",
                f"Time of one {part.replace('+', ' + ')} pass",
                curves.curves(rows, "method", median_seconds),
                _paper_points(PAPER[labels[part]].records(), part),
                bytes_each,
            )


def _dftopk(device: Device, record: Record) -> Iterator[Drawing]:
    table = PAPER["tab:dftopk"]
    points: dict[str, list[tuple[float, float]]] = {}
    for row in table.records():
        for method in table.columns[1:]:
            _add_point(points, method, row["n"], row[method])
    yield _times(
        device,
        "dftopk",
        f"dftopk-{device.slug}",
        "Time of one forward + backward pass, k = n // 2",
        curves.curves(record["rows"], "method", median_seconds),
        points,
        BOTH_BYTES,
    )


def _large_n(device: Device, record: Record) -> Iterator[Drawing]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in PAPER["tab:ks-main"].records():
        for solver in ("full sort", "noised bracket"):
            _add_point(points, solver, row["n"], row[solver])
    yield _times(
        device,
        "large-n",
        f"large-n-{device.slug}",
        "Forward time by solver",
        curves.curves(record["rows"], "solver", median_seconds),
        points,
        FORWARD_BYTES,
        SOLVERS,
        height=4.2,
    )


def _times(
    device: Device,
    experiment: str,
    name: str,
    title: str,
    drawn: list[Curve],
    paper: dict[str, list[tuple[float, float]]],
    bytes_each: int,
    known: dict[str, Look] | None = None,
    height: float = 5.4,
) -> Drawing:
    """Median times over n, the paper's hollow, above the time that the memory alone needs."""
    figure = _figure(height)
    axes = figure.subplots()
    styles = {**looks([curve.name for curve in drawn]), **(known or {})}
    log_axes(axes, "number of scores n", "median time", times=True)
    axes.set_title(f"{title}, {device.name}")
    curves.draw(axes, drawn, styles)
    shown = {curve.name for curve in drawn}
    hollow = [
        Curve(method, [n for n, _ in points], [y for _, y in points], None)
        for method, points in paper.items()
        if method in shown
    ]
    curves.draw_hollow(axes, hollow, styles)
    floor, line = _floor(axes, device, drawn, bytes_each)
    handles = curves.legend_handles(drawn, styles)
    handles += axes.get_legend_handles_labels()[0]
    if hollow:
        handles.append(curves.hollow_handle(f"hollow: the paper, {MACHINE}"))
    figure.legend(handles=handles, loc="outside right upper")
    curves.label_lines(figure, axes, drawn, [*hollow, *line], styles)
    caption = f"{title} on {device.name}: median wall time against n, both axes logarithmic."
    return Drawing(name, experiment, figure, _join(caption, floor, curves.missing(drawn)))


def _floor(
    axes: Axes, device: Device, drawn: list[Curve], bytes_each: int
) -> tuple[str, list[Curve]]:
    """A sentence on the memory floor, and the line drawn for it, if there is one."""
    rate = device.bytes_per_second
    if rate is None:
        return "No memory floor is drawn: no copy rate was measured on this device.", []
    sizes = [n for curve in drawn for n in curve.sizes]
    bottom, top = axes.get_ylim()
    # Far below the fastest call the line would only push the curves together.
    first, last = max(min(sizes), bottom / 3 * rate / bytes_each), max(sizes)
    text = f"{bytes_each} n bytes at the measured copy rate, {rate / 1e9:,.0f} GB/s"
    if first >= last:
        return f"The memory floor, {text}, lies below the drawn range.", []
    ends = [first, last]
    times = [bytes_each * n / rate for n in ends]
    label = f"memory floor: {bytes_each} n bytes\nat {rate / 1e9:,.0f} GB/s"
    axes.plot(ends, times, color=INK, linewidth=1, label=label)
    axes.set_ylim(bottom / 3, top)
    return f"Memory floor: {text}.", [Curve("memory floor", ends, times, None)]


def _budget(device: Device, record: Record) -> Iterator[Drawing]:
    drawn = curves.curves(
        record["rows"],
        "method",
        lambda row: row["values"].get("relative_error"),
        smallest=SMALLEST_ERROR,
    )
    figure = _figure(5.2)
    axes = figure.subplots()
    styles = looks([curve.name for curve in drawn])
    log_axes(axes, "number of scores n", "relative budget error |Σp − k| / k", times=False)
    axes.set_title(f"How exactly the budget is met, {device.name}")
    epsilon = Curve("epsilon", list(axes.get_xlim()), [FLOAT32_EPSILON] * 2, None)
    axes.axhline(
        FLOAT32_EPSILON, color=INK, linewidth=1, linestyle=DASHED, label="float32 epsilon, 2⁻²³"
    )
    curves.draw(axes, drawn, styles)
    handles = curves.legend_handles(drawn, styles) + axes.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside right upper")
    curves.label_lines(figure, axes, drawn, [epsilon], styles)
    caption = (
        "Relative budget error against n, both axes logarithmic; the dashed line is the float32 "
        f"machine epsilon. Errors below {SMALLEST_ERROR:g} are drawn there."
    )
    name = f"budget-{device.slug}"
    yield Drawing(name, "budget", figure, _join(caption, curves.missing(drawn)))


def _robustness(device: Device, record: Record) -> Iterator[Drawing]:
    paper = {
        str(row["distribution"]): {
            "coverage": float(row["coverage"]) / 100,
            "fallback": float(row["fallback"]) / 100,
            "budget_error": float(row["budget_error"]),
        }
        for row in PAPER["tab:robustness"].records()
    }
    figure = _figure(5.0)
    bars.samplers(figure, record["rows"], paper)
    figure.suptitle(f"The sampled bracket by distribution, {device.name}", **TITLE)
    caption = (
        "Share of trials whose sampled bracket holds the threshold, share that fell back, and "
        f"largest budget error, for both samplers. Diamonds: the paper, {MACHINE}, worst of all n."
    )
    yield Drawing(f"robustness-{device.slug}", "robustness", figure, caption)


def _grid(experiment: str) -> Callable[[Device, Record], Iterator[Drawing]]:
    def artist(device: Device, record: Record) -> Iterator[Drawing]:
        panels: dict[str, list[Row]] = {}
        for row in record["rows"]:
            panels.setdefault(f"over {row['key']['sweep']}", []).append(row)
        table = PAPER["tab:bench-fwd" if experiment == "forward" else "tab:bench-fb"]
        paper = partial(_paper_speedup, table, ("sweep", "B", "n", "k", "temperature"))
        figure = _figure(5.0)
        bars.speedups(figure, panels, lambda key: f"{key[key['sweep']]:g}", paper, 2)
        part = "forward" if experiment == "forward" else "forward + backward"
        figure.suptitle(f"Speed-up of the {part} pass over the grid, {device.name}", **TITLE)
        caption = f"Median {part} time of the first variant over that of the others. {DIAMONDS}"
        yield Drawing(f"{experiment}-{device.slug}", experiment, figure, caption)

    return artist


def _ablation(device: Device, record: Record) -> Iterator[Drawing]:
    panels: dict[str, list[Row]] = {}
    for row in record["rows"]:
        panels.setdefault(f"setting of {row['key']['table']}", []).append(row)
    figure = _figure(4.0)
    bars.speedups(figure, panels, lambda key: f"{key['B']:g} × {key['n']:g}", _paper_ablation, 1)
    figure.suptitle(f"What each step of the kernel brings, {device.name}", **TITLE)
    caption = f"Median forward time of bisection over that of each variant, by B × n. {DIAMONDS}"
    yield Drawing(f"ablation-{device.slug}", "ablation", figure, caption)


def _paper_speedup(table: PaperTable, same: tuple[str, ...], key: Key) -> float | None:
    """The paper's time of bisection over that of a variant; None where it has no such row."""
    for row in table.records():
        if all(row[name] == key[name] for name in same) and key["variant"] in row:
            return float(row["bisection"]) / float(row[key["variant"]])
    return None


def _paper_ablation(key: Key) -> float | None:
    if key["table"] == "tab:fast-main":
        return _paper_speedup(PAPER["tab:fast-main"], ("n",), key)
    rows = PAPER["tab:ablation-main"].records()
    found = (float(row["speedup"]) for row in rows if row["variant"] == key["variant"])
    return next(found, None)


ARTISTS: dict[str, Callable[[Device, Record], Iterator[Drawing]]] = {
    "large-n": _large_n,
    "operators": _operators,
    "budget": _budget,
    "robustness": _robustness,
    "forward": _grid("forward"),
    "backward": _grid("backward"),
    "ablation": _ablation,
    "dftopk": _dftopk,
}

DIAMONDS = f"Hollow diamonds: the paper's speed-up, {MACHINE}."
TITLE: dict[str, Any] = {"fontsize": 10.5, "fontweight": "bold", "x": 0.01, "ha": "left"}


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def _paper_points(
    rows: Iterable[dict[str, Any]], column: str
) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        _add_point(points, row["method"], row["n"], row[column])
    return points


def _add_point(
    points: dict[str, list[tuple[float, float]]], name: str, n: Any, milliseconds: Any
) -> None:
    """Seconds, where the paper has a number and not a word."""
    if not isinstance(milliseconds, str):
        points.setdefault(name, []).append((float(n), float(milliseconds) / 1e3))


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)

"""The figures of a report: quality by picture, rate-distortion curves, crops side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from fast_lapsum.bench.report import style
from fast_lapsum.bench.results import finished_file

from .report import (
    BEST,
    BLOCKS,
    HAAR_BEST,
    HAAR_FIXED,
    PLAIN,
    Picture,
    Results,
    Row,
    reconstruction,
)
from .report_text import methods_of

LOOKS = {
    BEST: style.Look(style.VERMILION, style.SOLID, "o", 2.6, style.TOP),
    PLAIN: style.Look(style.ORANGE, style.DASHED, "D", 1.7, 5),
    BLOCKS: style.Look(style.GREYS[3], style.DOTTED, "+", 1.2, 3),
    HAAR_FIXED: style.Look(style.MUTED, style.DASHED, "1", 1.2, 4),
    HAAR_BEST: style.Look(style.MUTED, style.DOTTED, "x", 1.3, 4),
    "JPEG": style.Look(style.INK, style.DOTTED, "v", 1.3, 4),
    "JPEG 2000": style.Look(style.BLUE, style.SOLID, "s", 1.5, 5),
    "WebP": style.Look(style.GREEN, style.DASHED, "^", 1.5, 5),
    "AVIF": style.Look(style.PURPLE, style.DASHDOT, "P", 1.5, 5),
    "JPEG XL": style.Look(style.SKY, style.DASHED, "h", 1.5, 5),
}
MEASURES = {"psnr": "PSNR in dB", "ms_ssim": "MS-SSIM"}
_TILE = 256  # pixels of a crop
_ACROSS = 4
_IN_A_LINE = 8  # names of a legend that fit the figure's width
_GAP, _LINE = 8, 20


def draw(results: Results, originals: dict[str, Picture], folder: Path) -> list[Path]:
    """Write all figures; what was measured at one rate only has no curve."""
    record = results.record
    rows = [row for row in results.rows if row["status"] == "ok" and row["psnr"] is not None]
    made: list[Path] = []
    for rate in sorted({row["target_bpp"] for row in rows}):
        here = [row for row in rows if row["target_bpp"] == rate]
        with style.shared_style():
            made += _saved(_by_picture(record, here, rate), folder / f"quality-{rate:g}bpp")
        for name, original in originals.items():
            own = {row["method"]: row for row in here if row["picture"] == name}
            if own:
                made.append(_strip(results, name, original, own, rate, folder))
    curves = [
        name
        for name in record["pictures"]
        if len({row["target_bpp"] for row in rows if row["picture"] == name}) > 1
    ]
    if curves:
        with style.shared_style():
            made += _saved(_curves(rows, curves), folder / "rate-distortion")
    return made


def _saved(figure: Figure, path: Path) -> Iterator[Path]:
    for suffix in (".svg", ".png"):
        with finished_file(path.with_name(path.name + suffix)) as unfinished:
            style.save(figure, unfinished)
        yield path.with_name(path.name + suffix)


def _by_picture(record: dict[str, Any], rows: list[Row], rate: float) -> Figure:
    """One column of marks for each picture, by how well the best version does."""
    figure = Figure(figsize=(style.WIDTH, 4.2), layout="constrained")
    names = [name for name in record["pictures"] if any(name == row["picture"] for row in rows)]
    for axes, (measure, label) in zip(figure.subplots(1, 2), MEASURES.items(), strict=True):
        for method in methods_of(rows):
            own = {row["picture"]: row[measure] for row in rows if row["method"] == method}
            places = [place for place, name in enumerate(names) if name in own]
            look = LOOKS[method]
            axes.plot(
                places,
                [own[names[place]] for place in places],
                linestyle="none",
                marker=look.marker,
                markersize=7,
                color=look.colour,
                markerfacecolor=look.colour if method == BEST else "none",
                zorder=look.layer,
                label=method,
            )
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_title(f"{label}, {rate:g} bits per pixel")
    _legend(figure, axes)
    return figure


def _curves(rows: list[Row], names: list[str]) -> Figure:
    figure = Figure(figsize=(style.WIDTH, 3.4 * len(names) + 0.5), layout="constrained")
    grid = figure.subplots(len(names), 2, squeeze=False)
    for line, name in zip(grid, names, strict=True):
        for axes, (measure, label) in zip(line, MEASURES.items(), strict=True):
            for method in methods_of(rows):
                own = [row for row in rows if (row["picture"], row["method"]) == (name, method)]
                own.sort(key=lambda row: row["bpp"])
                look = LOOKS[method]
                axes.plot(
                    [row["bpp"] for row in own],
                    [row[measure] for row in own],
                    color=look.colour,
                    linestyle=look.dashes,
                    marker=look.marker,
                    linewidth=look.width,
                    markersize=5,
                    zorder=look.layer,
                    label=method,
                )
            axes.set(xlabel="bits per pixel", title=f"{name}: {label}")
    _legend(figure, grid[0, 0])
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    lines = -(-len(labels) // _IN_A_LINE)
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // lines))


def _strip(
    results: Results,
    name: str,
    original: Picture,
    rows: dict[str, Row],
    rate: float,
    folder: Path,
) -> Path:
    """The same square of the original and of every file, pixel for pixel."""
    top, left = _liveliest(original)
    tiles = [("original", original)]
    for method in methods_of(list(rows.values())):
        again = reconstruction(results, rows[method], original.shape)
        if again is not None:
            tiles.append((f"{method}, {rows[method]['psnr']:.2f} dB", again))
    across, down = min(_ACROSS, len(tiles)), -(-len(tiles) // _ACROSS)
    height, width = (min(_TILE, size) for size in original.shape[:2])
    step = max(width, 170) + _GAP
    sheet = Image.new(
        "RGB", (_GAP + across * step, _GAP + _LINE + down * (height + _LINE + _GAP)), "white"
    )
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    title = f"{name}, {rate:g} bits per pixel, {width} x {height} pixels at ({left}, {top})"
    pen.text((_GAP, _GAP // 2), title, fill="black", font=font)
    for index, (text, shown) in enumerate(tiles):
        row, column = divmod(index, _ACROSS)
        x, y = _GAP + column * step, _GAP + _LINE + row * (height + _LINE + _GAP)
        part = shown[top : top + height, left : left + width]
        tile = Image.fromarray(part[:, :, 0] if part.shape[2] == 1 else part).convert("RGB")
        sheet.paste(tile, (x, y))
        pen.text((x, y + height + 1), text, fill="black", font=font)
    path = folder / f"crops-{name}-{rate:g}bpp.png"
    with finished_file(path) as unfinished:
        sheet.save(unfinished, format="PNG", optimize=True)
    return path


def _liveliest(original: Picture) -> tuple[int, int]:
    """Row and column of the square that varies most at a scale of eight pixels."""
    grey = original.astype(np.float64).mean(axis=2)
    height, width = (size // 8 for size in grey.shape)
    side = _TILE // 8
    if min(height, width) <= side:
        return 0, 0
    cells = grey[: 8 * height, : 8 * width].reshape(height, 8, width, 8).mean(axis=(1, 3))
    variance = _window_means(np.square(cells), side) - np.square(_window_means(cells, side))
    row, column = np.unravel_index(int(variance.argmax()), variance.shape)
    return 8 * int(row), 8 * int(column)


def _window_means(cells: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    total = np.pad(cells, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    found: npt.NDArray[np.float64] = (
        total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]
    )
    return found / side**2

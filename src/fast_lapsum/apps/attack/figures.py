"""Pictures of results: where the budget went, side by side, and the budget-success curve.

Changes are drawn on one absolute scale, the same in every figure: a logarithm from the smallest
change that a file can hold (one level of one colour, 1/765 of a pixel) to a fully changed pixel.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from fast_lapsum.bench.report import style
from fast_lapsum.bench.results import finished_file

from .measures import pixel_changes
from .pictures import levels
from .tables import BUDGETS, PAPER, PAPER_SETTING

LEAST_CHANGE = 1 / 765
SCALE = LogNorm(LEAST_CHANGE, 1.0)
#: Dark is little, bright is much, with every common colour blindness and in grey. The darkest part
#: is left out, so that the smallest change differs from none.
COLOURS = ListedColormap(mpl.colormaps["inferno"](np.linspace(0.25, 1, 256)), "change")
#: Longest side of a picture inside a figure.
_SHOWN = 900
#: Letters in a line of a picture's title: class names may be long.
_TITLE = 44
#: Share of the picture's short side that the zoom shows, and its least size in pixels.
_ZOOM, _LEAST_ZOOM = 1 / 8, 16

LOOKS = {
    "ours": style.Look(style.VERMILION, style.SOLID, "o", 3.0, style.TOP),
    "no-operator": style.Look(style.MUTED, style.DASHED, ".", 1.2, 3),
    "no-race": style.Look(style.MUTED, style.DOTTED, "x", 1.2, 3),
    "paper-recipe": style.Look(style.ORANGE, style.DASHED, "D", 1.7, 5),
    "sigma-zero": style.Look(style.BLUE, style.SOLID, "s", 1.7, 5),
    "sparse-pgd": style.Look(style.GREEN, style.DASHED, "^", 1.5, 5),
    "pgd-l0": style.Look(style.PURPLE, style.DASHDOT, "v", 1.5, 5),
    "sparse-fool": style.Look(style.SKY, style.DOTTED, "P", 1.5, 4),
    "dense": style.Look(style.INK, style.DOTTED, "X", 1.5, 4),
}
_OTHER = style.Look(style.GREYS[0], style.DASHDOT, "+", 1.2, 3)


class Region(NamedTuple):
    """A square of the picture, in pixels."""

    top: int
    left: int
    side: int

    def of(self, values: Tensor) -> Tensor:
        """That part of ``values`` [..., H, W]."""
        rows = slice(self.top, self.top + self.side)
        return values[..., rows, self.left : self.left + self.side]


def densest(changes: Tensor, side: int | None = None) -> Region:
    """The square in which most of the budget was spent; ``changes`` is e [H, W]."""
    height, width = changes.shape
    short = min(height, width)
    chosen = min(short, max(_LEAST_ZOOM, round(short * _ZOOM))) if side is None else side
    # Summed in float64: single pixels count against megapixels of nothing.
    sums = F.avg_pool2d(changes.double()[None, None], chosen, stride=1)[0, 0]
    top, left = divmod(int(sums.argmax()), sums.shape[1])
    return Region(top, left, chosen)


def heat(changes: Tensor) -> npt.NDArray[np.uint8]:
    """Bytes [H, W, 3] of e [H, W] on the absolute scale; unchanged pixels are black."""
    values = changes.detach().cpu().float().numpy()
    coloured = COLOURS(SCALE(np.maximum(values, LEAST_CHANGE)), bytes=True)
    coloured = np.asarray(coloured)[..., :3]
    return np.where(values[..., None] < LEAST_CHANGE / 2, 0, coloured).astype(np.uint8)


def write_heat(path: Path, changes: Tensor) -> None:
    """The heat map at the picture's own resolution."""
    with finished_file(path) as unfinished:
        Image.fromarray(heat(changes)).save(unfinished, format="PNG")


def write_zoom(path: Path, changes: Tensor, image: Tensor, adversarial: Tensor) -> Region:
    """The densest square, enlarged without smoothing: before, after, and the change."""
    region = densest(changes)
    factor = max(1, 384 // region.side)
    parts = [
        levels(region.of(image)),
        levels(region.of(adversarial)),
        heat(region.of(changes)),
    ]
    enlarged = [part.repeat(factor, 0).repeat(factor, 1) for part in parts]
    gap = np.full((enlarged[0].shape[0], 8, 3), 255, np.uint8)
    joined = np.concatenate([enlarged[0], gap, enlarged[1], gap, enlarged[2]], 1)
    with finished_file(path) as unfinished:
        Image.fromarray(joined).save(unfinished, format="PNG")
    return region


def write_side_by_side(
    path: Path, image: Tensor, adversarial: Tensor, before: str, after: str, title: str
) -> None:
    """Before, after and the change; under them the square where most of it lies."""
    changes = pixel_changes(adversarial, image)
    region = densest(changes)
    # The largest change of each cell: single pixels would vanish in an average.
    step = max(1, -(-max(changes.shape) // _SHOWN))
    small = F.max_pool2d(changes[None, None], step, ceil_mode=True)[0, 0]
    with style.shared_style():
        ratio = changes.shape[0] / changes.shape[1]
        figure = Figure(figsize=(12, 3.5 * (ratio + 1) + 1.1), layout="constrained")
        axes = figure.subplots(2, 3, height_ratios=(ratio, 1))
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        shown: list[tuple[Any, str]] = [
            (levels(image[:, ::step, ::step]), fill(f"picture: {before}", _TITLE)),
            (levels(adversarial[:, ::step, ::step]), fill(f"attacked: {after}", _TITLE)),
            (heat(small), "change of a pixel"),
            (levels(region.of(image)), f"{region.side} x {region.side} with most change"),
            (levels(region.of(adversarial)), "attacked"),
            (heat(region.of(changes)), "change"),
        ]
        for index, (axis, (values, text)) in enumerate(zip(axes.flat, shown, strict=True)):
            axis.imshow(values, interpolation="nearest", aspect="equal")
            axis.set_title(text, fontsize=9)
            axis.set_axis_off()
            if index < 3:
                corner = (region.left / step, region.top / step)
                size = region.side / step
                axis.add_patch(
                    Rectangle(corner, size, size, fill=False, color=style.SKY, linewidth=1.5)
                )
        bar = figure.colorbar(
            ScalarMappable(SCALE, COLOURS), ax=axes[:, 2], shrink=0.7, ticks=(1 / 765, 0.01, 0.1, 1)
        )
        bar.ax.set_yticklabels(["1/765", "0.01", "0.1", "1"])
        bar.set_label("share of a fully changed pixel")
        style.freeze_layout(figure)
        with finished_file(path) as unfinished:
            style.save(figure, unfinished)


def draw_budget_success(
    curves: dict[str, list[tuple[float, float]]], setting: str, calls: int
) -> Figure:
    """fig:budget-success: share of pictures fooled within B, the paper's points hollow."""
    figure = Figure(figsize=(style.WIDTH, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlabel="total change B, in fully changed pixels", ylabel="fooled")
    axes.set_title(f"Budget and success: {setting}, at most {calls:,} classifier calls")
    largest = max((B for points in curves.values() for B, _ in points), default=1.0)
    smallest = min((B for points in curves.values() for B, _ in points), default=1.0)
    low, high = min(10.0, smallest / 2), max(2e5, 2 * largest)
    for name, points in curves.items():
        look = LOOKS.get(name, _OTHER)
        xs = [low, *(B for B, _ in points), high]
        ys = [0.0, *(share for _, share in points), points[-1][1] if points else 0.0]
        axes.step(
            xs,
            ys,
            where="post",
            color=look.colour,
            linestyle=look.dashes,
            linewidth=look.width,
            marker=look.marker,
            markevery=slice(1, -1),
            markersize=5,
            zorder=look.layer,
            label=name if points else f"{name}: none",
        )
        if name in PAPER:
            axes.plot(
                BUDGETS,
                [share / 100 for share in PAPER[name].within],
                linestyle="none",
                marker=look.marker,
                markersize=6,
                markerfacecolor=style.PAPER,
                markeredgecolor=look.colour,
                zorder=look.layer - 1,
            )
    axes.plot(
        [],
        [],
        linestyle="none",
        marker="o",
        markerfacecolor=style.PAPER,
        markeredgecolor=style.INK,
        label=f"hollow: the paper's,\n{_wrapped(PAPER_SETTING)}",
    )
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(style.power_ticks)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.03, 1.05)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(loc="outside right upper")
    return figure


def write_budget_success(
    folder: Path, curves: dict[str, list[tuple[float, float]]], setting: str, calls: int
) -> list[Path]:
    """The curve as SVG and PNG; the files."""
    slug = setting.replace(" ", "-")
    paths = [folder / f"budget-success-{slug}-{calls}{suffix}" for suffix in (".svg", ".png")]
    with style.shared_style():
        figure = draw_budget_success(curves, setting, calls)
        style.freeze_layout(figure)
        for path in paths:
            with finished_file(path) as unfinished:
                style.save(figure, unfinished)
    return paths


def _wrapped(text: str) -> str:
    return text.replace(", ", ",\n").replace(" at ", "\nat ")

"""One look for all figures: colours, markers, axes, and files that are the same bytes each time.

The hues are those of Okabe and Ito, told apart with every common colour blindness. Each method also
has a marker and a dash pattern of its own, and lightness differs, so grey prints stay readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from ..methods import METHODS, OURS

INK = "#1b1b1b"
PAPER = "#fefefe"
GRID = "#dcdcdc"
MUTED = "#6e6e6e"
GREYS = ("#454545", "#7d7d7d", "#5f5f5f", "#999999")
VERMILION, BLUE, GREEN, PURPLE = "#d55e00", "#0072b2", "#009e73", "#cc79a7"
SKY, ORANGE = "#56b4e9", "#e69f00"

SOLID, DASHED, DOTTED, DASHDOT = "solid", (0, (5, 1.6)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5))
DASHES = (SOLID, DASHED, DOTTED, DASHDOT)
#: None of these ends a line: those symbols mean out of memory, out of time and so on.
GREY_MARKERS = "sDv^>p8x+34_"
#: The layer of this package's lines: above all others.
TOP = 6

#: Variants after the baseline, in their order; with the hatches readable in grey.
STEPS = (BLUE, SKY, "#b8c4cc", VERMILION, ORANGE, PURPLE, GREEN)
HATCHES = ("", "///", "", "\\\\\\", "", "xxx", "---")

#: Inches; every figure has the same width, so that they line up on a page.
WIDTH = 9.0


class Look(NamedTuple):
    """How one method is drawn, the same in every figure."""

    colour: str
    dashes: Any
    marker: str
    width: float
    #: What is drawn later covers what was drawn before.
    layer: int


COLOURED = {
    OURS.name: Look(VERMILION, SOLID, "o", 3.0, TOP),
    "DFTopK": Look(BLUE, SOLID, "s", 1.7, 5),
    "Official LapSum (serial)": Look(GREEN, DASHED, "^", 1.5, 5),
    "Official LapSum (vectorised)": Look(GREEN, SOLID, "v", 1.5, 5),
    "SOFT top-k (Sinkhorn)": Look(PURPLE, SOLID, "D", 1.5, 5),
    "NeuralSort": Look(SKY, SOLID, "h", 1.5, 5),
    "SoftSort": Look(ORANGE, DASHED, "<", 1.5, 5),
    "torch.topk": Look(INK, DOTTED, "1", 1.5, 4),
    "torch.sort": Look(INK, DASHDOT, "2", 1.5, 4),
}

SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so no machine draws other letters
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "figure.dpi": 100,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",  # letters as outlines: the same picture where the font is missing
    "svg.hashsalt": "fast-lapsum",
    "text.hinting": "none",  # letters as wide in one resolution as in another
    "figure.constrained_layout.w_pad": 0.1,
    "text.parse_math": False,  # names are shown as they are, dollar signs included
}


@contextmanager
def shared_style() -> Iterator[None]:
    """Matplotlib's defaults with the settings above, whatever the reader's own file says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        settings: Any = SETTINGS  # newer stubs list every name that there is
        mpl.rcParams.update(settings)
        yield


def looks(names: list[str]) -> dict[str, Look]:
    """The look of every method; greys are handed out in the order of METHODS, the same always."""
    others = [name for name in dict.fromkeys([*METHODS, *names]) if name not in COLOURED]
    greys = {
        name: Look(
            GREYS[index % len(GREYS)],
            DASHES[(index + index // len(DASHES)) % len(DASHES)],
            GREY_MARKERS[index % len(GREY_MARKERS)],
            1.2,
            3,
        )
        for index, name in enumerate(others)
    }
    return {name: COLOURED.get(name) or greys[name] for name in names}


def time_ticks(seconds: float, _: float = 0) -> str:
    """A power of ten as people say it.

    >>> time_ticks(1e-5), time_ticks(0.1), time_ticks(10.0)
    ('10 µs', '100 ms', '10 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def power_ticks(value: float, _: float = 0) -> str:
    """A power of ten, written out.

    >>> power_ticks(1e-7), power_ticks(1e8)
    ('10⁻⁷', '10⁸')
    """
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(round(math.log10(value))).translate(digits)


def log_axes(axes: Axes, x_label: str, y_label: str, *, times: bool) -> None:
    """Logarithmic both ways, decades only: minor lines would be noise over eight decades."""
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(power_ticks)
    axes.yaxis.set_major_formatter(time_ticks if times else power_ticks)


def whole(number: float) -> str:
    """A size in few letters.

    >>> whole(1e8), whole(3e6), whole(4096), whole(100)
    ('1e8', '3e6', '4096', '100')
    """
    if number >= 1e3 and number == int(number):
        mantissa, _, exponent = f"{int(number):.6e}".partition("e")
        if float(mantissa).is_integer():
            return f"{float(mantissa):.0f}e{int(exponent)}"
    return f"{number:g}" if number < 1e6 else f"{number:.3g}"


def freeze_layout(figure: Figure) -> None:
    """Lay the figure out once and for all: both files, and text placed by hand, depend on it."""
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def save(figure: Figure, path: Path) -> None:
    """As SVG or PNG by the suffix, without the date or the program's version in it."""
    if path.suffix == ".svg":
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    else:
        figure.savefig(path, dpi=160, metadata={"Software": None})

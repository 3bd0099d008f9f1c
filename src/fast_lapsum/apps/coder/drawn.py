"""Pictures that nobody photographed, drawn anew each time, the same to the last bit everywhere.

Flat ones, screens, pages, line art, charts, gradients, noise and patterns of single pixels: what a
coder that was tuned on photographs has not seen. All of it is whole numbers but for a few sines,
whose rounding is far from any edge. Letters are five by seven dots, in the numbers below, so that
no font has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]  # [size, size, 1 or 3]
Colour = tuple[int, int, int]
Floats = npt.NDArray[np.float64]

WHITE, BLACK = (255, 255, 255), (0, 0, 0)

# Seven rows of five dots, the highest bit on the left.
_LETTERS = {
    "A": (14, 17, 17, 31, 17, 17, 17),
    "B": (30, 17, 17, 30, 17, 17, 30),
    "C": (14, 17, 16, 16, 16, 17, 14),
    "E": (31, 16, 16, 30, 16, 16, 31),
    "H": (17, 17, 17, 31, 17, 17, 17),
    "I": (14, 4, 4, 4, 4, 4, 14),
    "L": (16, 16, 16, 16, 16, 16, 31),
    "N": (17, 25, 21, 19, 17, 17, 17),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "R": (30, 17, 17, 30, 20, 18, 17),
    "S": (15, 16, 16, 14, 1, 1, 30),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 17, 17, 14),
    " ": (0, 0, 0, 0, 0, 0, 0),
}


def _filled(size: int, colour: Colour) -> Picture:
    return np.full((size, size, 3), colour, dtype=np.uint8)


def _grey(picture: Picture) -> Picture:
    return np.ascontiguousarray(picture[:, :, 1:2])


def _write(picture: Picture, text: str, top: int, left: int, colour: Colour, scale: int) -> None:
    """Letters of 5 x 7 dots, each ``scale`` pixels wide; what does not fit is cut off."""
    for letter in text:
        rows = np.array(_LETTERS[letter])[:, None] >> np.arange(4, -1, -1) & 1
        dots = np.kron(rows, np.ones((scale, scale), dtype=np.int64)).astype(np.bool_)
        cell = picture[top : top + 7 * scale, left : left + 5 * scale]
        cell[dots[: cell.shape[0], : cell.shape[1]]] = colour
        left += 6 * scale


def _words(random: np.random.Generator, letters: int) -> str:
    """A line of words of two to eight letters."""
    known = [letter for letter in _LETTERS if letter != " "]
    words = ["".join(random.choice(known, random.integers(2, 9))) for _ in range(letters)]
    return " ".join(words)[:letters]


def _page(size: int, ink: Colour, paper: Colour) -> Picture:
    picture, random = _filled(size, paper), np.random.default_rng(0)
    for top in range(8, size - 14, 12):
        _write(picture, _words(random, (size - 16) // 6), top, 8, ink, 1)
    return picture


def _window(size: int) -> Picture:
    """A window on a desktop: bars, a list, buttons, letters."""
    picture, random = _filled(size, (58, 110, 165)), np.random.default_rng(1)
    edge, bar = size // 16, max(10, size // 20)
    inside = picture[edge : size - edge, edge : size - edge]
    inside[:] = (240, 240, 240)
    inside[:bar] = (0, 84, 166)
    _write(inside, "TOOLS", 2, 4, WHITE, max(1, bar // 12))
    inside[bar : 2 * bar] = (214, 211, 206)
    side = len(inside) // 4
    inside[2 * bar :, :side] = WHITE
    inside[2 * bar :, side] = (160, 160, 160)
    for top in range(2 * bar + 4, len(inside) - 10, 10):
        _write(inside[:, : side - 2], _words(random, side // 6), top, 4, (60, 60, 60), 1)
        _write(inside[:, side + 6 : -4], _words(random, 3 * side // 6), top, 0, BLACK, 1)
    inside[-2 * bar : -bar, -4 * bar : -bar] = (0, 120, 215)
    return picture


def _line_art(size: int) -> Picture:
    """Lines and rings of one pixel, black on white."""
    picture = _filled(size, WHITE)
    rows, columns = np.mgrid[:size, :size]
    for ring in range(1, 7):
        squared = (rows - size // 2) ** 2 + (columns - size // 3) ** 2
        radius = ring * size // 16
        picture[np.abs(squared - radius**2) < radius + 1] = BLACK
    for slope in range(-3, 4):
        picture[(4 * (rows - size // 3) - slope * columns) // 4 == 0] = BLACK
    return picture


def _chart(size: int) -> Picture:
    """Bars in five colours on a grid, with axes and letters."""
    picture = _filled(size, WHITE)
    picture[:: max(8, size // 16)] = (225, 225, 225)
    low, left = size - size // 8, size // 8
    colours = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189))
    width = size // 8
    for number, colour in enumerate(colours):
        top = low - size * (3, 5, 2, 6, 4)[number] // 10
        start = left + width // 4 + number * (width + width // 4)
        picture[top:low, start : start + width] = colour
        _write(picture, "ABCEH"[number], low + 2, start, BLACK, max(1, size // 256))
    picture[low, left:] = BLACK
    picture[:low, left] = BLACK
    return picture


def _flag(size: int) -> Picture:
    """Full colours side by side, without a soft edge."""
    picture = np.zeros((size, size, 3), dtype=np.uint8)
    full = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))
    for number, colour in enumerate(full):
        picture[:, number * size // 6 : (number + 1) * size // 6] = colour
    picture[size // 3 : 2 * size // 3, size // 3 : 2 * size // 3] = WHITE
    return picture


def _cartoon(size: int) -> Picture:
    """Flat shapes with dark outlines."""
    picture = _filled(size, (135, 206, 235))
    rows, columns = np.mgrid[:size, :size]
    picture[rows > 2 * size // 3] = (80, 170, 60)
    shapes = (
        ((size // 4, 3 * size // 4), size // 8, (255, 220, 40)),
        ((size // 2, size // 3), size // 5, (220, 80, 60)),
        ((3 * size // 4, 2 * size // 3), size // 7, (150, 90, 40)),
    )
    for (row, column), radius, colour in shapes:
        squared = (rows - row) ** 2 + (columns - column) ** 2
        picture[squared <= (radius + max(1, size // 128)) ** 2] = (20, 20, 20)
        picture[squared <= radius**2] = colour
    return picture


def _ramp(size: int) -> Picture:
    levels = np.arange(size) * 255 // (size - 1)
    return np.broadcast_to(levels[None, :, None], (size, size, 3)).astype(np.uint8)


def _hues(size: int) -> Picture:
    """All hues from left to right, darker to the bottom."""
    place = np.arange(size) * 6 * 256 // size
    rise, third = place % 256, place // 256
    full, none = np.full(size, 255), np.zeros(size, dtype=np.int64)
    red = np.choose(third, [full, 255 - rise, none, none, rise, full])
    green = np.choose(third, [rise, full, full, 255 - rise, none, none])
    blue = np.choose(third, [none, none, rise, full, full, 255 - rise])
    row = np.stack([red, green, blue], axis=1)
    return (row[None] * (2 * size - np.arange(size))[:, None, None] // (2 * size)).astype(np.uint8)


def _rings(size: int) -> Picture:
    """A wave that gets finer to the corner, grey: every frequency once."""
    rows, columns = np.mgrid[:size, :size]
    waves: Floats = np.sin((rows**2 + columns**2) * (np.pi / (4 * size)))
    return np.rint(127.5 + 120 * waves)[:, :, None].astype(np.uint8)


def _noise(size: int) -> Picture:
    return np.random.default_rng(2).integers(0, 256, (size, size, 3), dtype=np.uint8)


def _faint_noise(size: int) -> Picture:
    return np.random.default_rng(3).integers(124, 133, (size, size, 1), dtype=np.uint8)


def _checkerboard(size: int) -> Picture:
    rows, columns = np.mgrid[:size, :size]
    return np.repeat((rows + columns)[:, :, None] % 2 * 255, 3, axis=2).astype(np.uint8)


def _colour_pixels(size: int) -> Picture:
    """Columns of one pixel in red, green and blue in turn: all of it is fine colour."""
    picture = np.zeros((size, size, 3), dtype=np.uint8)
    for plane in range(3):
        picture[:, plane::3, plane] = 255
    return picture


def _stars(size: int) -> Picture:
    """Single white pixels on black, one in two hundred."""
    picture, random = _filled(size, BLACK), np.random.default_rng(4)
    picture[random.random((size, size)) < 0.005] = WHITE
    return picture


_DRAW: dict[str, Callable[[int], Picture]] = {
    "white": lambda size: _filled(size, WHITE),
    "black": lambda size: _filled(size, BLACK),
    "red": lambda size: _filled(size, (200, 30, 30)),
    "white, grey": lambda size: _grey(_filled(size, WHITE)),
    "window": _window,
    "page": lambda size: _page(size, BLACK, WHITE),
    "page, dark": lambda size: _page(size, (90, 220, 120), (24, 26, 32)),
    "page, grey": lambda size: _grey(_page(size, BLACK, WHITE)),
    "line art": _line_art,
    "chart": _chart,
    "flag": _flag,
    "cartoon": _cartoon,
    "ramp": _ramp,
    "hues": _hues,
    "rings, grey": _rings,
    "noise": _noise,
    "faint noise, grey": _faint_noise,
    "checkerboard": _checkerboard,
    "colour pixels": _colour_pixels,
    "stars": _stars,
}
NAMES = tuple(_DRAW)


def draw(name: str, size: int) -> Picture:
    """The picture of that name, [size, size, 1 or 3].

    >>> draw("red", 8)[0, 0].tolist(), draw("white, grey", 8).shape, len(NAMES)
    ([200, 30, 30], (8, 8, 1), 20)
    """
    if name not in _DRAW:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if size < 8:
        raise ValueError(f"size must be at least 8, got size={size}")
    return np.ascontiguousarray(_DRAW[name](size))

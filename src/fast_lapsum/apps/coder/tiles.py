"""Large arrays a part at a time: what is made on the way stays small, whatever a file claims."""

from __future__ import annotations

from collections.abc import Iterator

MOST = 1 << 17
"""Positions of a part: a few megabytes of whatever is made of them."""


def spans(count: int) -> Iterator[slice]:
    """Parts of a row of ``count`` positions, in order.

    >>> [(one.start, one.stop) for one in spans(MOST + 1)]
    [(0, 131072), (131072, 131073)]
    """
    for first in range(0, count, MOST):
        yield slice(first, min(count, first + MOST))


def tiles(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Rectangles that cover [height, width] in reading order: some rows, or a part of one.

    >>> list(tiles(2, 3))
    [(slice(0, 2, None), slice(0, 3, None))]
    """
    if width > MOST:
        for row in range(height):
            for columns in spans(width):
                yield slice(row, row + 1), columns
    elif width:
        count = MOST // width
        for first in range(0, height, count):
            yield slice(first, min(height, first + count)), slice(0, width)

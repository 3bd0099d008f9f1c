"""One colour for every block: what a few bytes can do, and no file may be worse than that.

The blocks are those of the paper's dictionary, all of one level and no others: their addresses cost
nothing, and any reader of the format knows them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .code import FRACTION_BITS, Band, Code, Place, layout
from .container import to_bytes

MODE = "plain"
_LEVELS = 128  # 257 values, of which the bytes' 256 are used
_MIDDLE = 128
_HEADER_BITS, _HEAD_BITS = 18 * 8, 8  # of the file and of an empty band, at least

Picture = npt.NDArray[np.uint8]


def block_code(picture: Picture, limit: int) -> tuple[Code, bytes] | None:
    """The mean colours of the smallest blocks that a file of ``limit`` bytes holds, if any."""
    height, width, planes = picture.shape
    places = layout("blocks", "rgb", height, width, planes)
    for level in range(len(places) - 1, -1, -1):
        place = places[level]
        values = place.height * place.width * planes
        if values * np.log2(2 * _LEVELS + 1) + _HEADER_BITS + _HEAD_BITS * level > 8 * limit:
            continue
        code = _code(picture, places, level)
        data = to_bytes(code, MODE)
        if len(data) <= limit:
            return code, data
    return None


def _code(picture: Picture, places: tuple[Place, ...], level: int) -> Code:
    height, width, planes = picture.shape
    side = 1 << len(places) - 1 - level
    means = block_means(picture, side).astype(np.int32) - _MIDDLE
    step = 1 << FRACTION_BITS
    bands = []
    for one, place in enumerate(places):
        shape = (place.height, place.width)
        if one == level:
            values, mask, levels = means.reshape(-1, planes), np.ones(shape, np.bool_), _LEVELS
        else:
            values, mask, levels = np.zeros((0, planes), np.int32), np.zeros(shape, np.bool_), 0
        bands.append(Band(place.level, place.plane, place.kind, mask, values, step, levels))
    return Code(height, width, planes, "blocks", "rgb", 0, tuple(bands))


def block_means(picture: Picture, side: int) -> Picture:
    """The mean colour of every ``side`` x ``side`` block, rounded; those at the border are cut.

    >>> block_means(np.arange(6, dtype=np.uint8).reshape(2, 3, 1), 2)[:, :, 0]
    array([[2, 4]], dtype=uint8)
    """
    height, width = picture.shape[:2]
    rows, columns = np.arange(0, height, side), np.arange(0, width, side)
    sums = np.add.reduceat(picture.astype(np.int64), rows, axis=0)
    sums = np.add.reduceat(sums, columns, axis=1)
    tall = np.minimum(side, height - rows)[:, None, None]
    wide = np.minimum(side, width - columns)[None, :, None]
    count = tall * wide
    means: Picture = ((2 * sums + count) // (2 * count)).astype(np.uint8)
    return means

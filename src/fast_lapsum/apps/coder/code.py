"""What travels between training and the file: the selected atoms, their integers, the geometry.

The geometry is never part of a code: :func:`layout` derives the bands from the picture's size, the
dictionary's name and the colour transform's name, and a code holds one :class:`Band` per
:class:`Place`, in the same order, empty ones included.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FRACTION_BITS = 12
"""Steps and synthesis count in 2^-12 of a grey level."""
MAX_STEP = 1 << 24
"""Steps lie in 1 ... MAX_STEP."""
MAX_LEVELS = 1 << 17
"""Values lie in [-levels, levels] with levels in 0 ... MAX_LEVELS."""
HALVINGS = 9
"""The coarsest level is picture / 512."""
MATRIX_BITS = 14
"""Entries of a colour matrix count in 2^-14, within [-2^14, 2^14]."""

DICTIONARIES = ("blocks", "wavelet")
COLOURS = ("rgb", "opponent")


class Place(NamedTuple):
    """Where a band belongs: which atoms of which planes, and how many of them there are."""

    level: int  # 0 is the coarsest
    plane: int  # the first colour plane of the band
    planes: int  # how many planes share its mask: 3 for the paper's RGB atoms, else 1
    kind: int  # 0 blocks or averages; 1, 2, 3 details across, down and diagonal
    height: int
    width: int


class Band(NamedTuple):
    """The selected atoms of one place of the layout."""

    level: int
    plane: int
    kind: int
    mask: npt.NDArray[np.bool_]  # [height, width]: which atoms are on
    values: npt.NDArray[np.int32]  # [number on, planes], in reading order of the mask
    step: int  # the decoder adds (value * step), in 2^-FRACTION_BITS of a grey level
    levels: int  # values lie in [-levels, levels]: 2 levels + 1 possible values


class Code(NamedTuple):
    """All that a decoder needs.

    In the block dictionary each band has its own step and levels, and a value may be 0. In the
    wavelet dictionary all bands have the same step, ``levels`` is the largest magnitude that occurs
    (0 for an empty band) and no value of a selected atom is 0.
    """

    height: int
    width: int
    planes: int  # 1 grey, 3 colour
    dictionary: str  # one of DICTIONARIES
    colour: str  # one of COLOURS; "rgb" for grey pictures
    shrink: int  # a magnitude m decodes to m * step - shrink (0 for blocks; |shrink| < step)
    bands: tuple[Band, ...]
    matrix: tuple[int, ...] = ()  # 3 x 3, rows R, G, B, for colour "opponent"; () for "rgb"


def layout(dictionary: str, colour: str, height: int, width: int, planes: int) -> tuple[Place, ...]:
    """The places of a picture's bands, coarse to fine; within a level plane by plane.

    Blocks: level j of the pyramid has ceil(height / 2^h) x ceil(width / 2^h) cells with h falling
    from 9 (or the halvings that leave a single cell, if fewer) to 0. Cells that reach past the
    picture's border are cropped, so no padding is coded; multiples of 512 have the paper's counts.
    Wavelet: the averages and then three details per decomposition, low = ceil, high = floor of
    half; chroma has no details at the finest level of a picture that has several.
    """
    _check(dictionary, colour, height, width, planes)
    halvings = (max(height, width) - 1).bit_length()
    if dictionary == "blocks":
        return _block_layout(min(halvings, HALVINGS), colour, height, width, planes)
    return _wavelet_layout(min(halvings, HALVINGS), colour, height, width, planes)


def _block_layout(
    halvings: int, colour: str, height: int, width: int, planes: int
) -> tuple[Place, ...]:
    groups = [(0, planes)] if colour == "rgb" else [(plane, 1) for plane in range(planes)]
    return tuple(
        Place(level, first, count, 0, halved(height, shift), halved(width, shift))
        for level, shift in enumerate(range(halvings, -1, -1))
        for first, count in groups
    )


def _wavelet_layout(
    halvings: int, colour: str, height: int, width: int, planes: int
) -> tuple[Place, ...]:
    top = (halved(height, halvings), halved(width, halvings))
    places = [Place(0, plane, 1, 0, *top) for plane in range(planes)]
    for level, shift in enumerate(range(halvings, 0, -1), start=1):
        low = (halved(height, shift), halved(width, shift))
        high = (halved(height, shift - 1) - low[0], halved(width, shift - 1) - low[1])
        for plane in range(planes):
            if colour == "opponent" and plane > 0 and shift == 1 and halvings > 1:
                continue
            places.append(Place(level, plane, 1, 1, low[0], high[1]))
            places.append(Place(level, plane, 1, 2, high[0], low[1]))
            places.append(Place(level, plane, 1, 3, high[0], high[1]))
    return tuple(places)


def halved(size: int, times: int) -> int:
    """The size halved and rounded up, ``times`` times over."""
    return -(-size >> times)


def _check(dictionary: str, colour: str, height: int, width: int, planes: int) -> None:
    if dictionary not in DICTIONARIES:
        raise ValueError(f"dictionary must be one of {DICTIONARIES}, got {dictionary!r}")
    if colour not in COLOURS:
        raise ValueError(f"colour must be one of {COLOURS}, got {colour!r}")
    if height < 1 or width < 1:
        raise ValueError(f"height and width must be at least 1, got {height} x {width}")
    if planes not in (1, 3):
        raise ValueError(f"planes must be 1 or 3, got planes={planes}")
    if planes == 1 and colour != "rgb":
        raise ValueError(f"a grey picture has colour 'rgb', got {colour!r}")

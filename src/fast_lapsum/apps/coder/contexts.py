"""What is known around an atom before it is coded, as small integers in whole arrays.

A band is coded in seven phases: every fourth position, those halfway between, then those between
them. A phase sees all that was coded before it, on every side: coarser levels, other bands of its
level, and the earlier phases of its own band.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .bitstream import Bits, Integers
from .code import Place

Small = npt.NDArray[np.int16]
Array = TypeVar("Array", Bits, Small, Integers)
Offsets = tuple[tuple[int, int], ...]


class Phase(NamedTuple):
    """Positions (row + i spacing, column + j spacing)."""

    row: int
    column: int
    spacing: int
    order: int  # a constant of the models: later phases know more where nothing is near

    def of(self, values: Array, border: int = 0) -> Array:
        """The phase's positions of a band, or of one with a border."""
        height, width = values.shape[0] - border, values.shape[1] - border
        return values[
            border + self.row : height : self.spacing, border + self.column : width : self.spacing
        ]


PHASES = (
    Phase(0, 0, 4, 0),
    Phase(2, 2, 4, 4),
    Phase(0, 2, 4, 4),
    Phase(2, 0, 4, 4),
    Phase(1, 1, 2, 8),
    Phase(0, 1, 2, 12),
    Phase(1, 0, 2, 12),
)
BORDER = 2
_VERTICAL = ((-1, 0), (1, 0))
_HORIZONTAL = ((0, -1), (0, 1))
_DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def _twice(offsets: Offsets) -> Offsets:
    return tuple((2 * row, 2 * column) for row, column in offsets)


# Neighbours two cells away that each of the first four phases knows.
_APART = (None, _twice(_DIAGONAL), *([_twice(_VERTICAL + _HORIZONTAL)] * 2))


def _logarithms() -> Small:
    """8 log2(1 + n), rounded, for n up to 2047; (1 + n)^16 has a whole number of bits."""
    bits = [((1 + n) ** 16).bit_length() - 1 for n in range(2048)]
    return np.array([(one + 1) // 2 for one in bits], dtype=np.int16)


_LOG8 = _logarithms()


def compressed(sums: Small) -> Small:
    """About 8 log2(1 + sum): the first neighbour says most."""
    return _LOG8[np.minimum(sums, 2047)]


def sizes_of(magnitudes: Integers) -> Small:
    """8 log2(1 + magnitude) of atoms that are on; one whose value is 0 counts as 1."""
    return _LOG8[np.clip(magnitudes, 1, 2047)]


class Field(NamedTuple):
    """What is known of a band, with a border of two cells."""

    sizes: Small  # 0 where no atom is on, or none is known yet
    signs: Small  # of the first plane

    @staticmethod
    def empty(height: int, width: int) -> Field:
        """Nothing known yet."""
        shape = (height + 2 * BORDER, width + 2 * BORDER)
        return Field(np.zeros(shape, dtype=np.int16), np.zeros(shape, dtype=np.int16))

    def reveal(self, phase: Phase, mask: Bits, values: Integers) -> None:
        """Note what was coded: ``mask`` at the phase's positions, ``values`` where it is on."""
        magnitudes = np.minimum(np.abs(values.astype(np.int64)).sum(axis=1), 2047)
        phase.of(self.sizes, BORDER)[mask] = sizes_of(magnitudes.astype(np.int32))
        phase.of(self.signs, BORDER)[mask] = np.sign(values[:, 0])


def _inside(values: Small) -> Small:
    return values[BORDER:-BORDER, BORDER:-BORDER]


def _near(values: Small, phase: Phase, offsets: Offsets) -> Small:
    """Sums over neighbours of a phase's positions."""
    height, width = values.shape[0] - BORDER, values.shape[1] - BORDER
    parts = [
        values[
            BORDER + phase.row + row : height + row : phase.spacing,
            BORDER + phase.column + column : width + column : phase.spacing,
        ]
        for row, column in offsets
    ]
    total: Small = reduce(np.add, parts)
    return total


def _box(values: Small) -> Small:
    """The sum over 3 x 3 cells, outside counting as 0."""
    rows = values.copy()
    rows[1:] += values[:-1]
    rows[:-1] += values[1:]
    sums = rows.copy()
    sums[:, 1:] += rows[:, :-1]
    sums[:, :-1] += rows[:, 1:]
    return sums


def _parents(size: int, source: int) -> npt.NDArray[np.intp]:
    return np.minimum(np.arange(size) // 2, source - 1)


def _doubled(values: Small, height: int, width: int) -> Small:
    """Each parent's value at its four children."""
    rows, columns = _parents(height, values.shape[0]), _parents(width, values.shape[1])
    return values[rows[:, None], columns]


def _smooth(values: Small, height: int, width: int) -> Small:
    """Parents weighted 9, 3, 3, 1 by their distance from the child, over 16."""

    def along(data: Small, size: int) -> Small:
        near = _parents(size, data.shape[0])
        other = np.clip(near + 2 * (np.arange(size) % 2) - 1, 0, data.shape[0] - 1)
        found: Small = np.int16(3) * data[near] + data[other]
        return found

    return along(along(values, height).T, width).T >> np.int16(4)


def _fitted(values: Small, height: int, width: int) -> Small:
    """Cropped or extended by zeros: bands of one level may differ by a row or a column."""
    found = np.zeros((height, width), dtype=np.int16)
    part = values[:height, :width]
    found[: part.shape[0], : part.shape[1]] = part
    return found


class Surroundings(NamedTuple):
    """What other bands say about each position of a band; None where there are none."""

    parent: Small | None  # size of the parent
    parent_sign: Small | None
    parents: Small | None  # the parent and its eight neighbours
    nearest_parents: Small | None
    other_parents: Small | None  # of other kinds
    grandparents: Small | None
    kinds: Small | None  # the same place in kinds of the plane that are known
    kinds_around: Small | None
    planes: Small | None  # the same place in planes that are known
    planes_sign: Small | None


def surroundings(known: Mapping[tuple[int, int, int], Field], place: Place) -> Surroundings:
    """Look up the bands that are known around ``place``."""
    level, plane, kind, shape = place.level, place.plane, place.kind, (place.height, place.width)

    def sizes(level: int, plane: int, kind: int) -> Small | None:
        field = known.get((level, plane, kind))
        return None if field is None else _inside(field.sizes)

    parent = sizes(level - 1, plane, kind)
    grandparent = sizes(level - 2, plane, kind)
    others = [
        _smooth(found, *shape)
        for other in range(4)
        if other != kind and (found := sizes(level - 1, plane, other)) is not None
    ]
    kinds = [
        _fitted(found, *shape)
        for other in range(kind)
        if (found := sizes(level, plane, other)) is not None
    ]
    planes = [known[level, one, kind] for one in range(plane) if (level, one, kind) in known]
    older = None
    if grandparent is not None:
        twice = _doubled(
            compressed(_box(grandparent)), 2 * grandparent.shape[0], 2 * grandparent.shape[1]
        )
        older = _smooth(twice, *shape)
    at_kinds = _sum(kinds)
    return Surroundings(
        parent=None if parent is None else _doubled(parent, *shape),
        parent_sign=None
        if parent is None
        else _doubled(_inside(known[level - 1, plane, kind].signs), *shape),
        parents=None if parent is None else _doubled(compressed(_box(parent)), *shape),
        nearest_parents=None if parent is None else _smooth(parent, *shape),
        other_parents=_compressed(_sum(others)),
        grandparents=older,
        kinds=_compressed(at_kinds),
        kinds_around=None if at_kinds is None else compressed(_box(at_kinds) - at_kinds),
        planes=_compressed(_sum([_fitted(_inside(one.sizes), *shape) for one in planes])),
        planes_sign=_sum([_fitted(_inside(one.signs), *shape) for one in planes]),
    )


def _sum(arrays: list[Small]) -> Small | None:
    return reduce(np.add, arrays) if arrays else None


def _compressed(sums: Small | None) -> Small | None:
    return None if sums is None else compressed(sums)


Feature = Small | int | None
"""One per position, the same for all of them, or 0."""


def mask_features(index: int, around: Surroundings, own: Field) -> list[Feature]:
    """What the models of the mask see, in the order of MASK_START."""
    phase = PHASES[index]
    found: list[Feature] = [
        None if one is None else phase.of(one)
        for one in (
            around.parents,
            around.nearest_parents,
            around.other_parents,
            around.grandparents,
            around.kinds,
            around.kinds_around,
            around.planes,
        )
    ]
    apart = _APART[index] if index < 4 else None
    found.append(None if apart is None else compressed(_near(own.sizes, phase, apart)))
    direct, late = index >= 5, index == 6
    found.append(compressed(_near(own.sizes, phase, _VERTICAL)) if direct else None)
    found.append(compressed(_near(own.sizes, phase, _HORIZONTAL)) if direct else None)
    diagonal = compressed(_near(own.sizes, phase, _DIAGONAL)) if index in (4, 6) else None
    found.extend([diagonal, diagonal if late else None, 8, phase.order])
    return found


MASK_START = np.array([3, 3, 1, 2, 1, 0, 5, 1, 2, 2, 1, 0, -30, -4], dtype=np.int32)


def value_features(
    index: int, around: Surroundings, own: Field, mask: Bits
) -> tuple[Integers, Integers]:
    """What the models of magnitudes and of signs see, one row per atom that is on."""
    phase = PHASES[index]

    def at(values: Small | None) -> Small:
        return np.zeros(mask.sum(), np.int16) if values is None else phase.of(values)[mask]

    direct = _VERTICAL + _HORIZONTAL
    nearest = _DIAGONAL + direct if index >= 4 else _APART[index] or ()
    near = _near(own.sizes, phase, nearest) if nearest else None
    magnitude = [
        at(around.parent),
        at(around.parents),
        at(around.kinds),
        at(around.planes),
        np.zeros(mask.sum(), np.int16) if near is None else compressed(near)[mask],
    ]
    sign = [
        8 * _near(own.signs, phase, _VERTICAL)[mask],
        8 * _near(own.signs, phase, _HORIZONTAL)[mask],
        8 * at(around.parent_sign),
        8 * at(around.planes_sign),
    ]
    return np.stack(magnitude, axis=1).astype(np.int32), np.stack(sign, axis=1).astype(np.int32)


SIGN_START = np.array([0, 0, 0, 0], dtype=np.int32)

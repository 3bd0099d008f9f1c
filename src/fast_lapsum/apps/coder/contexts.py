"""What is known around an atom before it is coded, as small integers in whole arrays.

A band is coded in seven phases: every fourth position, those halfway between, then those between
them. A phase sees all that was coded before it, on every side: coarser levels, other bands of its
level, and the earlier phases of its own band. It is looked at window by window, so that a band of
any size takes little more than what is kept of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .bitstream import Bits, Integers
from .code import Place
from .tiles import tiles

Small = npt.NDArray[np.int16]
Sizes = npt.NDArray[np.uint8]
Signs = npt.NDArray[np.int8]
Indices = npt.NDArray[np.intp]
Array = TypeVar("Array", Bits, Sizes, Signs, Integers)
Offsets = tuple[tuple[int, int], ...]


class Phase(NamedTuple):
    """Positions (row + i spacing, column + j spacing)."""

    row: int
    column: int
    spacing: int
    order: int  # a constant of the models: later phases know more where nothing is near

    def of(self, values: Array) -> Array:
        """The phase's positions of a band."""
        return values[self.row :: self.spacing, self.column :: self.spacing]


class Window(NamedTuple):
    """A rectangle of a phase's positions: (row + i spacing, column + j spacing) for i, j below."""

    row: int
    column: int
    rows: int
    columns: int
    spacing: int

    def of(self, values: Array) -> Array:
        """The window's positions of a band."""
        return values[
            self.row : self.row + self.rows * self.spacing : self.spacing,
            self.column : self.column + self.columns * self.spacing : self.spacing,
        ]


def whole_window(phase: Phase, height: int, width: int) -> Window:
    """All positions of a phase of a band [height, width]; there may be none."""
    rows = max(0, -(-(height - phase.row) // phase.spacing))
    columns = max(0, -(-(width - phase.column) // phase.spacing))
    return Window(phase.row, phase.column, rows, columns, phase.spacing)


def windows(phase: Phase, height: int, width: int) -> Iterator[Window]:
    """The windows of a phase of a band [height, width], in reading order."""
    row, column, rows, columns, spacing = whole_window(phase, height, width)
    for down, across in tiles(rows, columns):
        yield Window(
            row + down.start * spacing,
            column + across.start * spacing,
            down.stop - down.start,
            across.stop - across.start,
            spacing,
        )


PHASES = (
    Phase(0, 0, 4, 0),
    Phase(2, 2, 4, 4),
    Phase(0, 2, 4, 4),
    Phase(2, 0, 4, 4),
    Phase(1, 1, 2, 8),
    Phase(0, 1, 2, 12),
    Phase(1, 0, 2, 12),
)
_VERTICAL = ((-1, 0), (1, 0))
_HORIZONTAL = ((0, -1), (0, 1))
_DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))
_AROUND = _DIAGONAL + _VERTICAL + _HORIZONTAL
_HERE = ((0, 0),)


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
    """What is known of a band."""

    sizes: Sizes  # 0 where no atom is on, or none is known yet
    signs: Signs  # of the first plane

    @staticmethod
    def empty(height: int, width: int) -> Field:
        """Nothing known yet."""
        return Field(np.zeros((height, width), np.uint8), np.zeros((height, width), np.int8))

    def reveal(self, window: Window, mask: Bits, values: Integers) -> None:
        """Note what was coded: ``mask`` at the window's positions, ``values`` where it is on."""
        magnitudes = np.minimum(np.abs(values.astype(np.int64)).sum(axis=1), 2047)
        window.of(self.sizes)[mask] = sizes_of(magnitudes.astype(np.int32))
        window.of(self.signs)[mask] = np.sign(values[:, 0])


def _inside(first: int, count: int, spacing: int, size: int) -> tuple[int, int]:
    """Which of the positions first + i spacing, i < count, lie in 0 ... size - 1: a range of i."""
    return max(0, -(first // spacing)), min(count, -(-(size - first) // spacing))


def _near(values: Sizes | Signs, window: Window, offsets: Offsets) -> Small:
    """Sums over neighbours of a window's positions; those outside of the band count as 0."""
    total = np.zeros((window.rows, window.columns), dtype=np.int16)
    spacing = window.spacing
    for down, right in offsets:
        row, column = window.row + down, window.column + right
        top, bottom = _inside(row, window.rows, spacing, values.shape[0])
        left, end = _inside(column, window.columns, spacing, values.shape[1])
        if top < bottom and left < end:
            total[top:bottom, left:end] += values[
                row + top * spacing : row + (bottom - 1) * spacing + 1 : spacing,
                column + left * spacing : column + (end - 1) * spacing + 1 : spacing,
            ]
    return total


def _sum(fields: list[Sizes] | list[Signs], window: Window, offsets: Offsets) -> Small:
    return reduce(np.add, [_near(one, window, offsets) for one in fields])


def _box(values: Sizes) -> Small:
    """The sum over 3 x 3 cells, outside counting as 0."""
    rows = values.astype(np.int16)
    rows[1:] += values[:-1]
    rows[:-1] += values[1:]
    sums = rows.copy()
    sums[:, 1:] += rows[:, :-1]
    sums[:, :-1] += rows[:, 1:]
    return sums


def _parents(first: int, count: int, spacing: int, source: int) -> tuple[Indices, Indices]:
    """The nearest parent of each position along one side, and the next nearest."""
    children = first + spacing * np.arange(count)
    near = np.minimum(children // 2, source - 1)
    return near, np.clip(near + 2 * (children % 2) - 1, 0, source - 1)


def _doubled(values: Sizes | Signs, window: Window) -> Small:
    """Each parent's value at its children in the window."""
    rows, _ = _parents(window.row, window.rows, window.spacing, values.shape[0])
    columns, _ = _parents(window.column, window.columns, window.spacing, values.shape[1])
    return values[rows[:, None], columns].astype(np.int16)


def _smooth(values: Sizes, window: Window) -> Small:
    """Parents weighted 9, 3, 3, 1 by their distance from the child, over 16."""
    near, next_one = _parents(window.row, window.rows, window.spacing, values.shape[0])
    left, right = _parents(window.column, window.columns, window.spacing, values.shape[1])
    first, last = min(left[0], right[0]), max(left[-1], right[-1])
    part = values[:, first : last + 1].astype(np.int16)
    down = 3 * part[near] + part[next_one]
    found: Small = 3 * down[:, left - first] + down[:, right - first]
    return found >> 4


class Surroundings(NamedTuple):
    """Bands around a band that are known; None and empty where there are none."""

    parent: Field | None
    boxed_parents: Sizes | None  # each parent and its eight neighbours
    other_parents: list[Sizes]  # of other kinds
    boxed_grandparents: Sizes | None  # with their neighbours, at the parents' places
    kinds: list[Sizes]  # the same place in kinds of the plane that are known
    planes: list[Field]  # the same place in planes that are known

    def parent_sizes(self, window: Window) -> Small | None:
        """Size of the parent."""
        return None if self.parent is None else _doubled(self.parent.sizes, window)

    def parent_signs(self, window: Window) -> Small | None:
        """And its sign."""
        return None if self.parent is None else _doubled(self.parent.signs, window)

    def parents(self, window: Window) -> Small | None:
        """The parent and its eight neighbours."""
        return None if self.boxed_parents is None else _doubled(self.boxed_parents, window)

    def nearest_parents(self, window: Window) -> Small | None:
        """The four that are nearest."""
        return None if self.parent is None else _smooth(self.parent.sizes, window)

    def parents_of_other_kinds(self, window: Window) -> Small | None:
        """The same of other kinds."""
        found = [_smooth(one, window) for one in self.other_parents]
        return compressed(reduce(np.add, found)) if found else None

    def grandparents(self, window: Window) -> Small | None:
        """And two levels up."""
        boxed = self.boxed_grandparents
        return None if boxed is None else _smooth(boxed, window)

    def other_kinds(self, window: Window) -> Small | None:
        """The same place in kinds of the plane that are known."""
        return compressed(_sum(self.kinds, window, _HERE)) if self.kinds else None

    def around_other_kinds(self, window: Window) -> Small | None:
        """And around it."""
        return compressed(_sum(self.kinds, window, _AROUND)) if self.kinds else None

    def other_planes(self, window: Window) -> Small | None:
        """The same place in planes that are known."""
        found = [one.sizes for one in self.planes]
        return compressed(_sum(found, window, _HERE)) if found else None

    def signs_of_other_planes(self, window: Window) -> Small | None:
        """And their signs."""
        found = [one.signs for one in self.planes]
        return _sum(found, window, _HERE) if found else None


def surroundings(known: Mapping[tuple[int, int, int], Field], place: Place) -> Surroundings:
    """Look up the bands that are known around ``place``."""
    level, plane, kind = place.level, place.plane, place.kind
    parent = known.get((level - 1, plane, kind))
    grandparent = known.get((level - 2, plane, kind))
    older = None
    if grandparent is not None:
        older = _boxed(grandparent.sizes).repeat(2, axis=0).repeat(2, axis=1)
    return Surroundings(
        parent=parent,
        boxed_parents=None if parent is None else _boxed(parent.sizes),
        other_parents=[
            known[level - 1, plane, other].sizes
            for other in range(4)
            if other != kind and (level - 1, plane, other) in known
        ],
        boxed_grandparents=older,
        kinds=[
            # Cropped: bands of one level may differ by a row or a column.
            known[level, plane, other].sizes[: place.height, : place.width]
            for other in range(kind)
            if (level, plane, other) in known
        ],
        planes=[known[level, one, kind] for one in range(plane) if (level, one, kind) in known],
    )


def _boxed(sizes: Sizes) -> Sizes:
    found = np.empty_like(sizes)
    for rows, columns in tiles(*sizes.shape):
        top, left = max(0, rows.start - 1), max(0, columns.start - 1)
        sums = _box(sizes[top : rows.stop + 1, left : columns.stop + 1])
        part = sums[rows.start - top :, columns.start - left :]
        found[rows, columns] = compressed(
            part[: rows.stop - rows.start, : columns.stop - columns.start]
        )
    return found


Feature = Small | int | None
"""One per position, the same for all of them, or 0."""


def mask_features(index: int, window: Window, around: Surroundings, own: Field) -> list[Feature]:
    """What the models of the mask see in a window of a phase, in the order of MASK_START."""
    apart = _APART[index] if index < 4 else None
    direct, late = index >= 5, index == 6
    diagonal = compressed(_near(own.sizes, window, _DIAGONAL)) if index in (4, 6) else None
    return [
        around.parents(window),
        around.nearest_parents(window),
        around.parents_of_other_kinds(window),
        around.grandparents(window),
        around.other_kinds(window),
        around.around_other_kinds(window),
        around.other_planes(window),
        None if apart is None else compressed(_near(own.sizes, window, apart)),
        compressed(_near(own.sizes, window, _VERTICAL)) if direct else None,
        compressed(_near(own.sizes, window, _HORIZONTAL)) if direct else None,
        diagonal,
        diagonal if late else None,
        8,
        PHASES[index].order,
    ]


MASK_START = np.array([3, 3, 1, 2, 1, 0, 5, 1, 2, 2, 1, 0, -30, -4], dtype=np.int32)


PLANES_COLUMN = 3
"""Of both kinds of features below: what other planes hold at the same place."""


def value_features(
    index: int, window: Window, around: Surroundings, own: Field, mask: Bits
) -> tuple[Integers, Integers]:
    """What the models of magnitudes and of signs see, one row per atom that is on."""

    def at(values: Small | None) -> Small:
        return np.zeros(int(mask.sum()), np.int16) if values is None else values[mask]

    nearest = _AROUND if index >= 4 else _APART[index]
    near = None if nearest is None else compressed(_near(own.sizes, window, nearest))
    magnitude = [
        at(around.parent_sizes(window)),
        at(around.parents(window)),
        at(around.other_kinds(window)),
        at(around.other_planes(window)),
        at(near),
    ]
    sign = [
        8 * at(_near(own.signs, window, _VERTICAL)),
        8 * at(_near(own.signs, window, _HORIZONTAL)),
        8 * at(around.parent_signs(window)),
        8 * at(around.signs_of_other_planes(window)),
    ]
    return np.stack(magnitude, axis=1).astype(np.int32), np.stack(sign, axis=1).astype(np.int32)


SIGN_START = np.array([0, 0, 0, 0], dtype=np.int32)

"""The wavelet's averages: a small picture, nearly every value of which is on.

Sent from coarse to fine: a position is predicted by its neighbours on the grid of twice the
spacing, corrected by how far off that was in the planes already known, and the difference is
sent. Where the value is 0, no atom is on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import models
from .bitstream import Bits, Coder, CoderError, Integers
from .code import Band, Place
from .contexts import compressed

Wide = npt.NDArray[np.int64]
Grid = tuple[int, int, int, int]  # row, column, spacing, how far its neighbours are

_START = np.array([6, -4, 0, 0, 4, 10, -5, -6, -6], dtype=np.int32)
_SLOPE_BITS = 5  # slopes between planes count in 1/32


def fits(place: Place, levels: int) -> bool:
    """Whether a band may be sent this way."""
    return place.planes == 1 and place.level == 0 and levels > 0


def allowed(band: Band | None) -> bool | None:
    """Whether a known one should be."""
    if band is None:
        return None
    return bool((band.values != 0).all()) and 2 * int(band.mask.sum()) > band.mask.size


def _grids(height: int, width: int) -> list[Grid]:
    """The sets of positions, coarse to fine."""
    spacing = 1 << (max(height, width) - 1).bit_length()
    grids = [(0, 0, spacing, 0)]
    while spacing > 1:
        half = spacing // 2
        grids += [(half, half, spacing, 1), (0, half, spacing, 2), (half, 0, spacing, 2)]
        spacing = half
    return grids


def _predicted(
    known: Wide, row: int, column: int, spacing: int, way: int
) -> tuple[Integers, Integers]:
    """The mean of the neighbours inside the picture, rounded, and how much they differ."""
    height, width = known.shape
    rows = np.arange(row, height, spacing)
    columns = np.arange(column, width, spacing)
    shape = (len(rows), len(columns))
    if way == 0:
        return np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    half = spacing // 2
    offsets = (
        ((-half, -half), (-half, half), (half, -half), (half, half))
        if way == 1
        else ((-half, 0), (half, 0), (0, -half), (0, half))
    )
    total, count = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    least, most = np.full(shape, 1 << 40), np.full(shape, -(1 << 40))
    for down, right in offsets:
        inside = ((rows + down >= 0) & (rows + down < height))[:, None] & (
            (columns + right >= 0) & (columns + right < width)
        )
        part = known[
            np.clip(rows + down, 0, height - 1)[:, None], np.clip(columns + right, 0, width - 1)
        ]
        total += np.where(inside, part, 0)
        count += inside
        least = np.where(inside, np.minimum(least, part), least)
        most = np.where(inside, np.maximum(most, part), most)
    mean = (2 * total + count) // (2 * count)
    return mean.astype(np.int32), np.minimum(most - least, 2047).astype(np.int32)


def code(
    coder: Coder, place: Place, levels: int, others: Sequence[Wide], band: Band | None
) -> tuple[Bits, Integers]:
    """Send the band as a picture; ``others`` are earlier planes of it."""
    true: Wide | None = None
    grids = _grids(place.height, place.width)
    slopes: Integers | None = None
    weights: Integers | None = None
    if band is not None:
        true = picture(band)
        slopes = _fit_slopes(true, others, grids)
        weights = _fit(true, others, slopes, grids, levels)
    coder.part = "parameters"
    slopes = models.code_weights(coder, np.zeros(len(others), dtype=np.int32), slopes)
    weights = models.code_weights(coder, _START, weights)
    found = np.zeros((place.height, place.width), dtype=np.int64)
    for number, grid in enumerate(grids):
        part = found[grid[0] :: grid[2], grid[1] :: grid[2]]
        guess, spread = _corrected(found, others, slopes, grid, levels)
        error = None if true is None else true[grid[0] :: grid[2], grid[1] :: grid[2]] - guess
        coder.part = "magnitudes"
        scores = _contexts(number, len(grids), spread) @ weights[:-4]
        size = models.code_magnitudes(
            coder,
            scores.__getitem__,
            weights,
            2 * levels,
            len(scores),
            None if error is None else np.abs(error).ravel().astype(np.int32),
        )
        coder.part = "signs"
        some = np.flatnonzero(size)
        negative = coder.bits(
            np.zeros(some.size, dtype=np.int32), None if error is None else error.ravel()[some] < 0
        )
        size[some[negative]] *= -1
        part[...] = guess + size.reshape(part.shape)
        if np.abs(part).max(initial=0) > levels:
            raise CoderError(f"a value lies beyond its band's levels, {levels}")
    mask = found != 0
    return mask, found[mask].astype(np.int32)[:, None]


def picture(band: Band) -> Wide:
    """The band's values with zeros between them."""
    found = np.zeros(band.mask.shape, dtype=np.int64)
    found[band.mask] = band.values[:, 0]
    return found


def _corrected(
    known: Wide, others: Sequence[Wide], slopes: Integers, grid: Grid, levels: int
) -> tuple[Wide, Integers]:
    """What is expected on a grid, and how much the neighbours differ."""
    guess, spread = _predicted(known, *grid)
    shift = np.zeros(guess.shape, dtype=np.int64)
    for other, slope in zip(others, slopes.tolist(), strict=True):
        error = other[grid[0] :: grid[2], grid[1] :: grid[2]] - _predicted(other, *grid)[0]
        shift += slope * error
    guess = guess + ((shift + (1 << (_SLOPE_BITS - 1))) >> _SLOPE_BITS)
    return np.clip(guess, -levels, levels), spread


def _fit_slopes(true: Wide, others: Sequence[Wide], grids: list[Grid]) -> Integers:
    """Least squares over all grids, with little trust in few positions."""

    def errors(plane: Wide) -> npt.NDArray[np.float64]:
        parts = [
            (plane[one[0] :: one[2], one[1] :: one[2]] - _predicted(plane, *one)[0]).ravel()
            for one in grids[1:]
        ]
        return np.concatenate([np.zeros(0), *parts])

    if not others:
        return np.zeros(0, dtype=np.int32)
    given = np.array([errors(one) for one in others])
    gram = given @ given.T + np.eye(len(others))
    slopes = np.linalg.solve(gram, given @ errors(true)) * (1 << _SLOPE_BITS)
    whole = np.rint(np.clip(slopes, -models.WEIGHT_LIMIT, models.WEIGHT_LIMIT))
    found: Integers = whole.astype(np.int32)
    return found


def _contexts(number: int, grids: int, spread: Integers) -> Integers:
    flat = spread.ravel().astype(np.int16)
    columns = [compressed(flat), compressed(compressed(flat))]
    columns += [np.full(flat.size, 8 * (number == grids - 1 - one), np.int16) for one in (0, 1)]
    columns += [np.full(flat.size, 2 * min(grids - 1 - number, 12), np.int16)]
    return np.stack(columns, axis=1).astype(np.int32)


def _fit(
    true: Wide,
    others: Sequence[Wide],
    slopes: Integers,
    grids: list[Grid],
    levels: int,
) -> Integers:
    samples = []
    for number, grid in enumerate(grids):
        guess, spread = _corrected(true, others, slopes, grid, levels)
        error = np.abs(true[grid[0] :: grid[2], grid[1] :: grid[2]] - guess).ravel()
        samples.append(
            models.magnitude_samples(
                _contexts(number, len(grids), spread), error.astype(np.int32), 2 * levels
            )
        )
    merged = models.Samples(*(np.concatenate(parts) for parts in zip(*samples, strict=True)))
    return models.fit(merged, _START)

"""Baselines without training: the largest coefficients of a fixed transform.

Under the paper's rate model. An atom is a coefficient's red, green and blue; the k with the largest
energy are kept. A level costs log2 C(places, atoms) bits for the addresses and one bit depth b per
channel for the values, which are rounded to 2^b levels between minus and plus the level's largest
magnitude. k is the largest that the budget allows. b is fixed beforehand, or the one of several
that suits the picture best. Nothing is written: the rate is counted, without a header.

The transforms are the orthonormal Haar wavelet, and the plain coder's own blocks as they are before
training: each holds its average less that of the block it lies in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .blocks import address_bits
from .code import HALVINGS
from .colour import psnr

TRANSFORMS = ("haar", "blocks")
DEPTHS = range(2, 11)

Values = npt.NDArray[np.float64]


class TopK(NamedTuple):
    """What is kept of a picture."""

    picture: npt.NDArray[np.uint8]
    bits: float
    atoms: int
    depth: int


class _Ranked:
    """The atoms of all levels, by energy."""

    def __init__(self, levels: list[Values], norms: list[float]) -> None:
        self.levels = levels  # each [..., planes]
        self.energies = [
            norm * np.square(level).sum(axis=-1) for level, norm in zip(levels, norms, strict=True)
        ]
        together = np.concatenate([energy.ravel() for energy in self.energies])
        self.ranked = np.sort(together)[::-1]

    def bits(self, atoms: int, value_bits: int) -> float:
        """Of so many atoms, and those that tie with the last."""
        least = self.ranked[atoms - 1]
        counts = [int((energy >= least).sum()) for energy in self.energies]
        return value_bits * sum(counts) + sum(
            address_bits(count, energy.size)
            for count, energy in zip(counts, self.energies, strict=True)
        )

    def most(self, value_bits: int, budget: float) -> int:
        """The most atoms that the budget allows."""
        fits, over = 0, min(self.ranked.size, math.ceil(budget / value_bits)) + 1
        while over - fits > 1:
            middle = (fits + over) // 2
            if self.bits(middle, value_bits) <= budget:
                fits = middle
            else:
                over = middle
        return fits

    def quantised(self, atoms: int, depth: int) -> list[Values]:
        """The levels with all other atoms at 0."""
        found = []
        for level, energy in zip(self.levels, self.energies, strict=True):
            kept = np.zeros_like(level)
            on = energy >= self.ranked[atoms - 1]
            if on.any():
                largest = float(np.abs(level[on]).max())
                step = 2 * largest / (2**depth - 1) or 1.0
                kept[on] = np.rint((level[on] + largest) / step) * step - largest
            found.append(kept)
        return found


def top_k(
    picture: npt.NDArray[np.uint8],
    budget: float,
    transform: str,
    depths: Iterable[int] = DEPTHS,
) -> TopK | None:
    """The code of at most ``budget`` bits; None where not even one atom fits.

    Of the bit depths, one or several, the one with the smallest error is taken. A
    picture whose sides are no multiples of 512 is continued by its last rows and columns.
    """
    height, width, planes = picture.shape
    halvings = min(HALVINGS, (max(height, width) - 1).bit_length())
    margins = ((0, -height % (1 << halvings)), (0, -width % (1 << halvings)), (0, 0))
    padded = np.pad(picture, margins, mode="edge").astype(np.float64) - 128
    if transform == "haar":
        ranked = _Ranked(_haar(padded, halvings), [1.0] * (halvings + 1))
    else:
        areas = [4.0 ** (halvings - level) for level in range(halvings + 1)]
        ranked = _Ranked(_blocks(padded, halvings), areas)
    best: tuple[float, TopK] | None = None
    for depth in depths:
        atoms = ranked.most(planes * depth, budget)
        if not atoms:
            continue
        levels = ranked.quantised(atoms, depth)
        sums = _from_haar(levels) if transform == "haar" else _from_blocks(levels)
        again = np.rint(sums[:height, :width] + 128).clip(0, 255).astype(np.uint8)
        quality = psnr(picture, again)
        if best is None or quality > best[0]:
            best = quality, TopK(again, ranked.bits(atoms, planes * depth), atoms, depth)
    return best[1] if best else None


def _haar(picture: Values, halvings: int) -> list[Values]:
    """The averages [1, h, w, C] and the details [3, h, w, C] of each level, coarse to fine."""
    levels = []
    for _ in range(halvings):
        a, b = picture[0::2, 0::2], picture[0::2, 1::2]
        c, d = picture[1::2, 0::2], picture[1::2, 1::2]
        levels.append(np.stack([a - b + c - d, a + b - c - d, a - b - c + d]) / 2)
        picture = (a + b + c + d) / 2
    return [picture[None], *levels[::-1]]


def _from_haar(levels: list[Values]) -> Values:
    picture: Values = levels[0][0]
    for across, down, both in levels[1:]:
        height, width, planes = picture.shape
        finer = np.empty((2 * height, 2 * width, planes))
        finer[0::2, 0::2] = (picture + across + down + both) / 2
        finer[0::2, 1::2] = (picture - across + down - both) / 2
        finer[1::2, 0::2] = (picture + across - down - both) / 2
        finer[1::2, 1::2] = (picture - across - down + both) / 2
        picture = finer
    return picture


def _blocks(picture: Values, halvings: int) -> list[Values]:
    averages = [picture]
    for _ in range(halvings):
        height, width, planes = averages[-1].shape
        cells = averages[-1].reshape(height // 2, 2, width // 2, 2, planes)
        averages.append(cells.mean(axis=(1, 3)))
    coarse = averages[::-1]
    return [coarse[0], *(fine - _enlarged(one) for one, fine in pairwise(coarse))]


def _from_blocks(levels: list[Values]) -> Values:
    picture = levels[0]
    for level in levels[1:]:
        picture = _enlarged(picture) + level
    return picture


def _enlarged(picture: Values) -> Values:
    return picture.repeat(2, axis=0).repeat(2, axis=1)

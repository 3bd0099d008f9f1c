"""The smooth dictionary: the CDF 9/7 wavelet by lifting, on pictures of any size.

Nothing is scaled between levels: the norms of the atoms, which then grow by a constant per level,
are divided out where values enter (:data:`GAINS`). Borders are mirrored. Three versions of one
scheme: float synthesis and its adjoint for training, float analysis for the start, integers for the
decoder.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

_LIFT_BITS = 14
# delta, gamma, beta, alpha of the synthesis, in its order, times 2^14. Training uses the same
# rounded numbers. The first and third change the even samples, the others the odd ones.
_LIFTS = (-7266, -14466, 868, 25987)

GAIN_BITS = 16
# 2^16 / norm of a one-dimensional atom, by depth 1, 2, ...: averages and details.
_LOW_GAINS = (57501, 48850, 42058, 36476, 31705, 27575, 23986, 20865, 18151)
_HIGH_GAINS = (73860, 66637, 55912, 47828, 41400, 35967, 31277, 27206, 23666)


class Quarters(NamedTuple):
    """Samples of a picture [C, H, W] by row and column parity: the four bands of a level."""

    low: Tensor  # even rows, even columns: averages
    across: Tensor  # even rows, odd columns
    down: Tensor  # odd rows, even columns
    diagonal: Tensor  # odd rows, odd columns


def gain(depth: int, kind: int) -> int:
    """2^16 / norm of the atoms of a kind, ``depth`` decompositions below the picture."""
    if depth == 0:
        return 1 << GAIN_BITS
    across = (_HIGH_GAINS if kind & 1 else _LOW_GAINS)[depth - 1]
    down = (_HIGH_GAINS if kind & 2 else _LOW_GAINS)[depth - 1]
    return (across * down + (1 << (GAIN_BITS - 1))) >> GAIN_BITS


def synthesise(quarters: Quarters) -> Tensor:
    """The picture of one level's bands. Overwrites them."""
    low, across, down, diagonal = quarters
    for index, lift in enumerate(_LIFTS):
        _lift(low, down, 1, index, lift, adjoint=False)
        _lift(across, diagonal, 1, index, lift, adjoint=False)
    for index, lift in enumerate(_LIFTS):
        _lift(low, across, 2, index, lift, adjoint=False)
        _lift(down, diagonal, 2, index, lift, adjoint=False)
    shape = (low.shape[0], low.shape[1] + down.shape[1], low.shape[2] + across.shape[2])
    picture = low.new_empty(shape)
    for part, quarter in zip(_parities(picture), quarters, strict=True):
        part.copy_(quarter)
    return picture


def adjoint(picture: Tensor) -> Quarters:
    """The adjoint of :func:`synthesise`: inner products of a picture with each atom."""
    low, across, down, diagonal = quarters = Quarters(*(q.clone() for q in _parities(picture)))
    for index, lift in reversed(tuple(enumerate(_LIFTS))):
        _lift(low, across, 2, index, lift, adjoint=True)
        _lift(down, diagonal, 2, index, lift, adjoint=True)
    for index, lift in reversed(tuple(enumerate(_LIFTS))):
        _lift(low, down, 1, index, lift, adjoint=True)
        _lift(across, diagonal, 1, index, lift, adjoint=True)
    return quarters


def analyse(picture: Tensor) -> Quarters:
    """The inverse of :func:`synthesise`: the bands that give the picture."""
    low, across, down, diagonal = quarters = Quarters(*(q.clone() for q in _parities(picture)))
    for index, lift in reversed(tuple(enumerate(_LIFTS))):
        _lift(low, across, 2, index, -lift, adjoint=False)
        _lift(down, diagonal, 2, index, -lift, adjoint=False)
    for index, lift in reversed(tuple(enumerate(_LIFTS))):
        _lift(low, down, 1, index, -lift, adjoint=False)
        _lift(across, diagonal, 1, index, -lift, adjoint=False)
    return quarters


def _parities(picture: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    even, odd = picture[:, 0::2], picture[:, 1::2]
    return even[:, :, 0::2], even[:, :, 1::2], odd[:, :, 0::2], odd[:, :, 1::2]


def _spans(evens: int, odds: int, to_even: bool) -> list[tuple[int, int, int]]:
    """The two neighbours of each sample, mirrored: (first target, first source, how many)."""
    if odds == 0:
        return []
    if to_even:  # neighbours odd i - 1 and i of even i
        spans = [(0, 0, odds), (1, 0, evens - 1), (0, 0, 1)]
        return [*spans, (odds, odds - 1, 1)] if evens > odds else spans
    spans = [(0, 0, odds), (0, 1, min(odds, evens - 1))]  # even i and i + 1 of odd i
    return [*spans, (odds - 1, evens - 1, 1)] if evens == odds else spans


def _lift(even: Tensor, odd: Tensor, dim: int, index: int, lift: int, adjoint: bool) -> None:
    """Add a multiple of the neighbours to the samples of one parity, in place."""
    to_even = index % 2 == 0
    target, source = (even, odd) if to_even else (odd, even)
    factor = lift / 2**_LIFT_BITS
    for to, of, count in _spans(even.shape[dim], odd.shape[dim], to_even):
        if count == 0:
            continue
        receives, gives = target.narrow(dim, to, count), source.narrow(dim, of, count)
        if adjoint:
            receives, gives = gives, receives
        receives.add_(gives, alpha=factor)


Whole = type[np.int32] | type[np.int64]
Integers = npt.NDArray[np.int32 | np.int64]
_GROWTH = 256  # one level makes no sample more than 140 times as large as the largest before
_STRIP = 1 << 17  # samples that are lifted at a time


def storage(largest: int) -> Whole:
    """What holds the samples of a level whose bands have magnitudes up to ``largest``."""
    return np.int32 if _GROWTH * (largest + 1) < 1 << 31 else np.int64


def synthesise_integers(samples: Integers) -> None:
    """:func:`synthesise` of the decoder, in place: each lift rounds its sum once, in integers.

    ``samples`` [H, W] holds the four bands where :class:`Quarters` says. Products are in 64 bits
    whatever the samples are, part by part.
    """
    height, width = samples.shape
    for first in range(0, width, max(1, _STRIP // height)):
        _lift_integers(samples[:, first : first + max(1, _STRIP // height)])
    for first in range(0, height, max(1, _STRIP // width)):
        _lift_integers(samples[first : first + max(1, _STRIP // width)].T)


def _lift_integers(strip: Integers) -> None:
    """Rows of both parities [., W] to samples, in place."""
    even, odd = strip[0::2], strip[1::2]
    most = max(1, _STRIP // strip.shape[1])
    for index, lift in enumerate(_LIFTS):
        to_even = index % 2 == 0
        target, source = (even, odd) if to_even else (odd, even)
        spans = _spans(len(even), len(odd), to_even)
        for first in range(0, len(target) if spans else 0, most):
            last = min(len(target), first + most)
            total = np.zeros((last - first, strip.shape[1]), dtype=np.int64)
            for to, of, count in spans:
                begin, end = max(to, first), min(to + count, last)
                if begin < end:
                    total[begin - first : end - first] += source[of + begin - to : of + end - to]
            total *= lift
            total += 1 << (_LIFT_BITS - 1)
            total >>= _LIFT_BITS
            target[first:last] += total.astype(target.dtype, copy=False)

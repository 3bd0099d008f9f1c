"""From values of atoms to a picture: floats with an adjoint for training, integers for decoding.

Training keeps the atoms of all bands in one row, in the order of :func:`layout`: values are
[channels, N], where atoms of the paper's RGB dictionary have three channels and all others one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import pyramid, wavelet
from .code import Band, Code, Place, halved, layout
from .colour import to_picture
from .tiles import tiles


class Dictionary:
    """The atoms of a picture's layout.

    ``synthesise`` is linear and ``correlate`` its adjoint. Wavelet atoms have norm 1 up to a few
    per cent; a block's squared norm is the number of its pixels inside the picture.
    """

    def __init__(
        self, name: str, colour: str, height: int, width: int, planes: int, device: torch.device
    ) -> None:
        self.name = name
        self.colour = colour
        self.planes = planes
        self.height = height
        self.width = width
        self.device = device
        self.places = layout(name, colour, height, width, planes)
        self.channels = self.places[0].planes
        self.sizes = [place.height * place.width for place in self.places]
        self.count = sum(self.sizes)
        self.depth = self.places[-1].level
        gains = [_gain(name, place, self.depth) for place in self.places]
        self.scales = [gain / 2**wavelet.GAIN_BITS for gain in gains]

    def squared_norms(self) -> Tensor:
        """Squared norm of each atom [N]."""
        if self.name == "wavelet":
            return torch.ones(self.count, device=self.device)
        ones = torch.ones(self.planes, self.height, self.width, device=self.device)
        return self.correlate(ones)[0]

    def synthesise(self, values: Tensor) -> Tensor:
        """The picture [C, H, W] of the atoms' values [channels, N]."""
        bands = [
            band.view(self.channels, place.height, place.width)
            for place, band in zip(self.places, torch.split(values, self.sizes, 1), strict=True)
        ]
        if self.name == "blocks":
            return pyramid.synthesise(self._stacked(bands))
        level_bands: dict[tuple[int, int, int], Tensor] = {}
        for place, band, scale in zip(self.places, bands, self.scales, strict=True):
            level_bands[place.level, place.kind, place.plane] = band[0] * scale
        low = torch.stack([level_bands[0, 0, plane] for plane in range(self.planes)])
        for level in range(1, self.depth + 1):
            details = []
            for kind in (1, 2, 3):
                nothing = torch.zeros_like(level_bands[level, kind, 0])
                planes = [level_bands.get((level, kind, p), nothing) for p in range(self.planes)]
                details.append(torch.stack(planes))
            low = wavelet.synthesise(wavelet.Quarters(low, *details))
        return low

    def correlate(self, picture: Tensor) -> Tensor:
        """Inner products [channels, N] of a picture [C, H, W] with each atom."""
        if self.name == "blocks":
            levels = pyramid.sums(picture, self.depth + 1)
            bands = [
                levels[place.level][place.plane : place.plane + place.planes].reshape(
                    place.planes, -1
                )
                for place in self.places
            ]
            return torch.cat(bands, 1)
        return self._wavelet_bands(picture, inverse=False)

    def start(self, picture: Tensor) -> Tensor:
        """Values [channels, N] to start from: what each atom takes of what coarser ones leave.

        Blocks hold the average of what remains after the next coarser level; the wavelet its
        coefficients, which give the picture when all are on.
        """
        if self.name == "wavelet":
            return self._wavelet_bands(picture, inverse=True)
        averages = self.correlate(picture) / self.squared_norms()
        bands = [
            band.view(self.channels, place.height, place.width)
            for place, band in zip(self.places, torch.split(averages, self.sizes, 1), strict=True)
        ]
        levels = self._stacked(bands)
        coarser = [torch.zeros_like(levels[0]), *levels[:-1]]
        remains = [
            level - pyramid.synthesise([coarse, torch.zeros_like(level)]) if index else level
            for index, (coarse, level) in enumerate(zip(coarser, levels, strict=True))
        ]
        return torch.cat(
            [
                remains[place.level][place.plane : place.plane + place.planes].reshape(
                    place.planes, -1
                )
                for place in self.places
            ],
            1,
        )

    def _stacked(self, bands: list[Tensor]) -> list[Tensor]:
        """Bands of one level joined to [C, h, w]."""
        if self.channels == self.planes:
            return bands
        return [torch.cat(bands[i : i + self.planes]) for i in range(0, len(bands), self.planes)]

    def _wavelet_bands(self, picture: Tensor, inverse: bool) -> Tensor:
        """Coefficients of all bands: the inverse of the synthesis, or its adjoint."""
        levels = []
        low = picture
        for _ in range(self.depth):
            quarters = wavelet.analyse(low) if inverse else wavelet.adjoint(low)
            levels.append(quarters)
            low = quarters.low
        levels = [wavelet.Quarters(low, low, low, low), *levels[::-1]]
        bands = []
        for place, scale in zip(self.places, self.scales, strict=True):
            band = levels[place.level][place.kind][place.plane].reshape(1, -1)
            bands.append(band / scale if inverse else band * scale)
        return torch.cat(bands, 1)


def _gain(dictionary: str, place: Place, depth: int) -> int:
    """2^16 times the amount that a value of 1 adds, in a pyramid that is so deep."""
    if dictionary == "blocks":
        return 1 << wavelet.GAIN_BITS
    return wavelet.gain(depth - place.level + 1 if place.kind else depth, place.kind)


def decode_picture(code: Code) -> npt.NDArray[np.uint8]:
    """The picture [H, W, C] of a code, in integers only: the same bytes on every platform.

    Example:
        >>> import numpy as np
        >>> from fast_lapsum.apps.coder.code import Band, Code
        >>> mask, values = np.ones((1, 1), bool), np.array([[-7]], np.int32)
        >>> code = Code(1, 1, 1, "blocks", "rgb", 0, (Band(0, 0, 0, mask, values, 4096, 10),))
        >>> decode_picture(code)
        array([[[121]]], dtype=uint8)
    """
    places = layout(code.dictionary, code.colour, code.height, code.width, code.planes)
    depth = places[-1].level
    synthesise = _blocks if code.dictionary == "blocks" else _wavelet

    def plane_of(plane: int) -> wavelet.Integers:
        parts = {
            (place.level, place.kind): _Part.of(code, place, band, plane - place.plane, depth)
            for place, band in zip(places, code.bands, strict=True)
            if place.plane <= plane < place.plane + place.planes
        }
        return synthesise(parts, depth, code.height, code.width)

    if code.matrix:
        return to_picture([plane_of(plane) for plane in range(code.planes)], code.matrix)
    picture = np.empty((code.height, code.width, code.planes), dtype=np.uint8)
    for plane in range(code.planes):  # bytes before the next one: a third of the memory
        picture[:, :, plane : plane + 1] = to_picture([plane_of(plane)], ())
    return picture


class _Part(NamedTuple):
    """What a band's atoms add to one plane, in fixed point."""

    mask: npt.NDArray[np.bool_]
    values: npt.NDArray[np.int32]  # where the mask is on
    step: int
    shrink: int
    gain: int

    @staticmethod
    def of(code: Code, place: Place, band: Band, plane: int, depth: int) -> _Part:
        """Of the band's ``plane``-th plane."""
        gain = _gain(code.dictionary, place, depth)
        return _Part(band.mask, band.values[:, plane], band.step, code.shrink, gain)

    @property
    def largest(self) -> int:
        """No amount is larger."""
        least, most = int(self.values.min(initial=0)), int(self.values.max(initial=0))
        if least == most == 0:
            return 0
        value = max(most, -least)
        return ((value * self.step + abs(self.shrink)) * self.gain >> wavelet.GAIN_BITS) + 1

    def amounts(self, part: slice) -> npt.NDArray[np.int64]:
        """Of some atoms."""
        values = self.values[part].astype(np.int64)
        found = values * self.step
        found -= np.sign(values) * self.shrink
        found *= self.gain
        found += 1 << (wavelet.GAIN_BITS - 1)
        found >>= wavelet.GAIN_BITS
        return found

    def add_to(self, samples: wavelet.Integers) -> None:
        """Add all amounts at their places, a tile at a time."""
        first = 0
        for tile in tiles(*self.mask.shape):
            mask = self.mask[tile]
            count = int(np.count_nonzero(mask))
            if count:
                amounts = self.amounts(slice(first, first + count))
                samples[tile][mask] += amounts.astype(samples.dtype, copy=False)
                first += count


def _blocks(
    parts: dict[tuple[int, int], _Part], depth: int, height: int, width: int
) -> wavelet.Integers:
    """One plane of the paper's dictionary: level by level, each cell over the four below it."""
    # The sum of all levels' largest amounts is as far as any sample can get.
    fits = sum(part.largest for part in parts.values()) < 1 << 31
    kind: wavelet.Whole = np.int32 if fits else np.int64
    top = (halved(height, depth + 1), halved(width, depth + 1))
    samples: wavelet.Integers = np.zeros(top, dtype=kind)
    for level in range(depth + 1):
        rows, columns = halved(height, depth - level), halved(width, depth - level)
        larger: wavelet.Integers = np.empty((rows, columns), dtype=kind)
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
            corner = larger[row::2, column::2]
            corner[...] = samples[: corner.shape[0], : corner.shape[1]]
        parts[level, 0].add_to(larger)
        samples = larger
    return samples


def _wavelet(
    parts: dict[tuple[int, int], _Part], depth: int, height: int, width: int
) -> wavelet.Integers:
    """One plane of the wavelet's dictionary, from the averages down."""
    samples: wavelet.Integers = np.zeros(parts[0, 0].mask.shape, dtype=np.int64)
    parts[0, 0].add_to(samples)
    for level in range(1, depth + 1):
        details = {kind: parts[level, kind] for kind in (1, 2, 3) if (level, kind) in parts}
        largest = max(
            int(samples.max(initial=0)),
            -int(samples.min(initial=0)),
            *(part.largest for part in details.values()),
            0,
        )
        shape = (halved(height, depth - level), halved(width, depth - level))
        larger: wavelet.Integers = np.zeros(shape, dtype=wavelet.storage(largest))
        if largest:  # lifting zeros leaves zeros
            larger[0::2, 0::2] = samples
            for kind, part in details.items():
                part.add_to(larger[kind >> 1 :: 2, kind & 1 :: 2])
            wavelet.synthesise_integers(larger)
        samples = larger
    return samples

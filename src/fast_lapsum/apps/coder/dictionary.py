"""From values of atoms to a picture: floats with an adjoint for training, integers for decoding.

Training keeps the atoms of all bands in one row, in the order of :func:`layout`: values are
[channels, N], where atoms of the paper's RGB dictionary have three channels and all others one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import pyramid, wavelet
from .code import Band, Code, Place, layout
from .colour import to_picture


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
    found = {
        (place.level, place.kind, place.plane): _dequantise(code, place, band, depth)
        for place, band in zip(places, code.bands, strict=True)
    }

    def joined(level: int, kind: int) -> npt.NDArray[np.int64]:
        nothing = np.zeros_like(found[level, kind, 0])
        planes = range(0, code.planes, len(nothing))
        return np.concatenate([found.get((level, kind, plane), nothing) for plane in planes])

    if code.dictionary == "blocks":
        levels = [joined(level, 0) for level in range(depth + 1)]
        return to_picture(pyramid.synthesise_integers(levels), code.matrix)
    low = joined(0, 0)
    for level in range(1, depth + 1):
        low = wavelet.synthesise_integers(low, joined(level, 1), joined(level, 2), joined(level, 3))
    return to_picture(low, code.matrix)


def _dequantise(code: Code, place: Place, band: Band, depth: int) -> npt.NDArray[np.int64]:
    """What a band's atoms add [planes, h, w], in fixed point."""
    values = band.values.astype(np.int64)
    amounts = values * band.step - np.sign(values) * code.shrink
    gain = _gain(code.dictionary, place, depth)
    amounts = (amounts * gain + (1 << (wavelet.GAIN_BITS - 1))) >> wavelet.GAIN_BITS
    dense = np.zeros((place.planes, place.height, place.width), dtype=np.int64)
    dense[:, band.mask] = amounts.T
    return dense

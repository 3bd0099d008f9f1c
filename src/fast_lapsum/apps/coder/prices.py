"""What an atom of the wavelet would cost, estimated from what surrounds it.

The file's context models are fitted when it is written. Training needs their prices for millions of
atoms many times over, and gets them from tables: activity around an atom (its neighbours, its
parent, the same place in other bands and planes) in a few bins, and per bin how often an atom is on
and how large it is then. The activity looks to all sides where a decoder has seen only some, and
models and headers are left out, so that the mere sum is 16 to 26% below the file's at 512 x 512.
What matters for an atom is which one is dearer; the sum is multiplied by the ratio that the entropy
coder itself measures now and then (:meth:`Prices.calibrate`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .dictionary import Dictionary

_BINS = 24
_BINS_PER_UNIT = 3.0
_MOST_SCALE = 2.0
_PARENT, _SIBLING = 1.5, 0.6


class Prices:
    """Bits per atom [N]: of switching it on at magnitude 1, sign included, and of each step up."""

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        self.index = {
            (place.level, place.plane, place.kind): i for i, place in enumerate(dictionary.places)
        }
        # The few atoms of the coarsest levels share their statistics.
        groups = [max(place.level, 3) * 2 + (place.plane > 0) for place in dictionary.places]
        device = dictionary.device
        self.first_bin = torch.tensor(groups, device=device) * _BINS
        self.tables = (max(groups) + 1) * _BINS
        direct, diagonal = 1.0, 0.5
        kernel = [[diagonal, direct, diagonal], [direct, 0.0, direct], [diagonal, direct, diagonal]]
        self.kernel = torch.tensor(kernel, device=device)[None, None]
        zeros = torch.zeros(dictionary.count, device=device)
        self.on, self.more, self.total = zeros, zeros, torch.zeros((), device=device)
        self.scale, self.overhead = 1.0, 0.0

    def calibrate(self, bits: float) -> None:
        """Scale the count from now on, so that for the last magnitudes it is what a file takes.

        What a scale of 2 leaves is no price of atoms: header and models of a picture with next to
        none. It is added to every count.
        """
        counted = (float(self.total) - self.overhead) / self.scale
        self.scale = min(_MOST_SCALE, max(1 / _MOST_SCALE, bits / max(1.0, counted)))
        self.overhead = max(0.0, bits - self.scale * counted) if self.scale == _MOST_SCALE else 0.0
        self.total = self.total.new_tensor(counted * self.scale + self.overhead)

    def update(self, magnitudes: Tensor) -> None:
        """Prices given the magnitudes [N] of all atoms, 0 where they are off."""
        bins = self._bins(magnitudes)
        size = self.tables
        count = torch.bincount(bins, minlength=size)
        ons = torch.bincount(bins, weights=(magnitudes > 0).double(), minlength=size)
        sums = torch.bincount(bins, weights=magnitudes.double(), minlength=size)
        chance = (ons + 0.4) / (count + 0.8)
        growth = ((sums - ons + 0.2) / (sums + 0.5)).clamp(1e-3, 0.9995)
        on, off = -torch.log2(chance), -torch.log2(1 - chance)
        first, more = 1 - torch.log2(1 - growth), -torch.log2(growth)
        bits = (off * (count - ons) + (on + first) * ons + more * (sums - ons)).sum()
        self.total = bits * self.scale + self.overhead
        self.on = (on - off + first).float()[bins]
        self.more = more.float()[bins]

    def _bins(self, magnitudes: Tensor) -> Tensor:
        dictionary = self.dictionary
        sizes = torch.split(torch.log2(1 + magnitudes), dictionary.sizes)
        bands = [s.view(p.height, p.width) for p, s in zip(dictionary.places, sizes, strict=True)]
        found = []
        for i, (place, band) in enumerate(zip(dictionary.places, bands, strict=True)):
            if band.numel() == 0:
                continue
            activity = F.conv2d(band[None, None], self.kernel, padding=1)[0, 0]
            parent = self.index.get((place.level - 1, place.plane, place.kind))
            if parent is not None and bands[parent].numel():
                enlarged = F.interpolate(bands[parent][None, None], scale_factor=2, mode="bilinear")
                _add(activity, enlarged[0, 0], _PARENT)
            siblings = [(place.level, place.plane, kind) for kind in range(1, place.kind)]
            siblings += [(place.level, plane, place.kind) for plane in range(place.plane)]
            for key in siblings:
                _add(activity, bands[self.index[key]], _SIBLING)
            bins = (activity * _BINS_PER_UNIT).clamp_(max=_BINS - 1).long()
            found.append(bins.flatten() + self.first_bin[i])
        return torch.cat(found)


def _add(activity: Tensor, other: Tensor, factor: float) -> None:
    """Add where the two overlap: bands of one level differ by a row or a column."""
    height = min(activity.shape[0], other.shape[0])
    width = min(activity.shape[1], other.shape[1])
    activity[:height, :width].add_(other[:height, :width], alpha=factor)

"""What a code costs, without writing it."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .bands import code_bands
from .bitstream import COST, Bits, Counter, Integers, table_index
from .code import Code
from .container import CHECKSUM_BYTES, check, header
from .contexts import PHASES

_FIRST_ATOM_BITS = 60.0  # what the models of a band cost that had no atoms


class Rate(NamedTuple):
    """Bits of a file."""

    total: float  # headers included
    by_part: dict[str, float]
    by_band: list[float]

    @property
    def heads(self) -> float:
        """Of the header, the checksum and the bands' heads, whatever the atoms are."""
        return self.by_part["header"] + self.by_part["band heads"]


def estimate(code: Code, mode: str = "context") -> Rate:
    """The bits of ``to_bytes(code, mode)``, within a range coder's word or two."""
    counter = Counter()
    code_bands(counter, mode, check(code), code.bands, counter.watch)
    by_part: defaultdict[str, float] = defaultdict(float)
    by_band = [0.0] * len(code.bands)
    for (band, part), bits in counter.counted.items():
        by_part[part] += bits
        by_band[band] += bits
    words = math.ceil(sum(by_band) / 32)
    by_part["header"] = 8.0 * (len(header(code, mode, words)) + CHECKSUM_BYTES)
    return Rate(sum(by_part.values()), dict(by_part), by_band)


class _Recorder(Counter):
    """Keeps the scores of the masks, phase after phase."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: defaultdict[int, list[Integers]] = defaultdict(list)

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """Count, and keep the scores of addresses."""
        if self.part == "addresses":
            self.scores[self.band].append(scores)
        return super().bits(scores, symbols)


def atom_bits(code: Code) -> list[npt.NDArray[np.float32]]:
    """For each band and position, about how many bits an atom costs there in context mode.

    The address is priced by the models that the code itself would get, the value at the band's
    mean. What an atom changes for its neighbours is left out.
    """
    recorder = _Recorder()
    code_bands(recorder, "context", check(code), code.bands, recorder.watch)
    found = []
    for index, band in enumerate(code.bands):
        count = max(1, int(band.mask.sum()))
        value = sum(recorder.counted[index, part] for part in ("magnitudes", "signs")) / count
        bits = np.full(band.mask.shape, value, dtype=np.float32)
        if index in recorder.scores:
            scores, first = np.concatenate(recorder.scores[index]), 0
            for phase in PHASES:
                part = bits[phase.row :: phase.spacing, phase.column :: phase.spacing]
                here = table_index(scores[first : first + part.size])
                part += (COST[1] - COST[0])[here].reshape(part.shape)
                first += part.size
        elif not band.mask.any():
            bits += np.float32(_FIRST_ATOM_BITS + np.log2(max(1, band.mask.size)))
        found.append(bits)
    return found

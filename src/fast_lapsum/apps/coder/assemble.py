"""From integers of all atoms in one row to a code."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .code import FRACTION_BITS, MAX_STEP, Band, Code
from .dictionary import Dictionary


def assemble(
    dictionary: Dictionary,
    integers: Tensor,
    on: Tensor,
    widths: list[float],
    levels: list[int],
    shrink: float = 0.0,
    matrix: tuple[int, ...] = (),
) -> Code:
    """The code of integers [channels, N] where ``on`` [N]; widths and shrink in grey levels."""
    sizes = dictionary.sizes
    selected = on.cpu().numpy()
    rows = integers.detach().cpu().numpy()
    bands = []
    first = 0
    for place, size, width, level in zip(dictionary.places, sizes, widths, levels, strict=True):
        mask = selected[first : first + size]
        values = rows[:, first : first + size][:, mask].T
        step = min(MAX_STEP, max(1, round(width * 2**FRACTION_BITS)))
        bands.append(
            Band(
                place.level,
                place.plane,
                place.kind,
                mask.reshape(place.height, place.width).copy(),
                np.ascontiguousarray(values, dtype=np.int32),
                step,
                level,
            )
        )
        first += size
    return Code(
        dictionary.height,
        dictionary.width,
        dictionary.planes,
        dictionary.name,
        dictionary.colour,
        round(shrink * 2**FRACTION_BITS),
        tuple(bands),
        matrix,
    )

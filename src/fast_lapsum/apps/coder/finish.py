"""From a trained support to the plain coder's code: bit depths that keep the budget, real rounding.

Blocks of one band do not overlap, so that rounding a band to what remains of the picture is exactly
optimal while the others stand still. Sweeping over the bands, coarse to fine, the error can only
fall; sweeps end when one gains less than 0.01 dB.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .assemble import assemble
from .blocks import address_bits
from .code import FRACTION_BITS, Code
from .dictionary import Dictionary

_MOST_LEVELS = 127
_LEAST_GAIN = 0.01  # dB
_MOST_SWEEPS = 20


def counted_bits(counts: list[int], places: list[int], levels: list[int], channels: int) -> float:
    """The rate of a finished code: exact addresses, and log2(2 levels + 1) per value."""
    return sum(
        address_bits(count, place) + channels * count * math.log2(2 * level + 1)
        for count, place, level in zip(counts, places, levels, strict=True)
    )


def within_budget(scores: Tensor, on: Tensor, dictionary: Dictionary, bits: float) -> Tensor:
    """The support, less the lowest scores where even the coarsest values would not fit."""
    while bool(on.any()):
        counts = [int(part.sum()) for part in torch.split(on, dictionary.sizes)]
        coarsest = [1] * len(counts)
        if counted_bits(counts, dictionary.sizes, coarsest, dictionary.channels) <= bits:
            break
        left = sum(counts)
        lowest = scores.masked_fill(~on, math.inf).topk(max(1, left // 20), largest=False).indices
        on = on.clone()
        on[lowest] = False
    return on


def allocate(
    counts: list[int],
    places: list[int],
    widths: list[float],
    areas: list[float],
    channels: int,
    bits: float,
) -> list[int]:
    """Levels per band by steepest descent of the rounding error per bit, until the budget is spent.

    ``widths`` are the bands' amplitudes, ``areas`` the sums of their atoms' squared norms.
    """
    levels = [1] * len(counts)
    spent = counted_bits(counts, places, levels, channels)
    open_bands = {i for i, count in enumerate(counts) if count}

    def error(band: int, level: int) -> float:
        return areas[band] * (2 * widths[band] / (2 * level + 1)) ** 2

    def price(band: int) -> float:
        level = levels[band]
        return channels * counts[band] * math.log2((2 * level + 3) / (2 * level + 1))

    while open_bands:
        best = max(
            open_bands, key=lambda i: (error(i, levels[i]) - error(i, levels[i] + 1)) / price(i)
        )
        if spent + price(best) > bits or levels[best] == _MOST_LEVELS:
            open_bands.remove(best)
            continue
        spent += price(best)
        levels[best] += 1
    return levels


def finish(
    dictionary: Dictionary,
    planes: Tensor,
    values: Tensor,
    on: Tensor,
    amplitudes: list[float],
    bits: float,
    polish: bool = True,
) -> tuple[Code, float]:
    """The code of a support and its values, and its counted rate, which is at most ``bits``."""
    norms = dictionary.squared_norms()
    parts = torch.split(on, dictionary.sizes)
    counts = [int(part.sum()) for part in parts]
    areas = [
        float((norm * part).sum())
        for norm, part in zip(torch.split(norms, dictionary.sizes), parts, strict=True)
    ]
    levels = allocate(counts, dictionary.sizes, amplitudes, areas, dictionary.channels, bits)
    widths = [a / level for a, level in zip(amplitudes, levels, strict=True)]
    integers = _rounded(dictionary, planes, values * on, widths, levels, on, norms, polish)
    code = assemble(dictionary, integers, on, widths, levels)
    return code, counted_bits(counts, dictionary.sizes, levels, dictionary.channels)


def _rounded(
    dictionary: Dictionary,
    planes: Tensor,
    values: Tensor,
    widths: list[float],
    levels: list[int],
    on: Tensor,
    norms: Tensor,
    polish: bool,
) -> Tensor:
    """Integers [channels, N]: rounded values, polished by sweeps over the bands.

    A sweep also sets each band's width, in ``widths``, to the least-squares one.
    """
    scale = values.new_tensor(widths).repeat_interleave(
        torch.tensor(dictionary.sizes, device=values.device)
    )
    limit = values.new_tensor(levels).repeat_interleave(
        torch.tensor(dictionary.sizes, device=values.device)
    )
    integers = (values / scale).round().clamp(-limit, limit)
    bands = [
        band for band, part in enumerate(torch.split(on, dictionary.sizes)) if bool(part.any())
    ]
    starts = np.cumsum([0, *dictionary.sizes])
    before = math.inf
    for _ in range(_MOST_SWEEPS if polish else 0):
        error = 0.0
        for band in bands:
            span = slice(int(starts[band]), int(starts[band + 1]))
            residual = planes - dictionary.synthesise(integers * scale)
            error = float(residual.square().sum())
            remains = dictionary.correlate(residual)[:, span] / norms[span]
            q, width = integers[:, span], widths[band]
            wanted = (q * width + remains) * on[span]
            q.copy_((wanted / width).round().clamp(-levels[band], levels[band]))
            power = float((norms[span] * q.square()).sum())
            if power > 0:
                width = max(float((norms[span] * q * wanted).sum()) / power, 2.0**-FRACTION_BITS)
                widths[band] = width
                scale[span] = width
        if 10 * math.log10(max(before, 1e-9) / max(error, 1e-9)) < _LEAST_GAIN:
            break
        before = error
    return integers

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


def levels_of(depth: float) -> int:
    """The levels whose 2 levels + 1 values take about ``depth`` bits.

    >>> [levels_of(depth) for depth in (1.0, 1.6, 2.4, 7.0)]
    [1, 1, 2, 64]
    """
    return min(_MOST_LEVELS, max(1, round((2**depth - 1) / 2)))


def cell_width(amplitude: float, levels: int) -> float:
    """The quantiser's step: values are its multiples, and the outermost ones the amplitude."""
    return amplitude / levels


def allocate(
    counts: list[int],
    places: list[int],
    amplitudes: list[float],
    areas: list[float],
    channels: int,
    bits: float,
    start: list[int],
) -> list[int]:
    """Levels per band that keep the budget and spend it: from ``start``, which training learned.

    While they are over budget, the band gives up a level that loses least in rounding error per
    bit; then those gain one that gain most. ``areas`` are sums of the atoms' squared norms.
    """
    levels = [max(1, level) for level in start]
    spent = counted_bits(counts, places, levels, channels)
    bands = [i for i, count in enumerate(counts) if count]

    def price(band: int, level: int) -> float:
        return channels * counts[band] * math.log2((2 * level + 3) / (2 * level + 1))

    def gain(band: int, level: int) -> float:
        """Of the step from a level to the next: error saved per bit."""
        now, then = (cell_width(amplitudes[band], one) for one in (level, level + 1))
        return areas[band] * (now**2 - then**2) / price(band, level)

    while spent > bits:
        some = [i for i in bands if levels[i] > 1]
        if not some:
            break
        least = min(some, key=lambda i: gain(i, levels[i] - 1))
        levels[least] -= 1
        spent -= price(least, levels[least])
    growing = set(bands)
    while growing:
        most = max(growing, key=lambda i: gain(i, levels[i]))
        if spent + price(most, levels[most]) > bits or levels[most] >= _MOST_LEVELS:
            growing.remove(most)
            continue
        spent += price(most, levels[most])
        levels[most] += 1
    return levels


def finish(
    dictionary: Dictionary,
    planes: Tensor,
    values: Tensor,
    on: Tensor,
    amplitudes: list[float],
    depths: list[float],
    bits: float,
    polish: bool = True,
) -> tuple[Code, float]:
    """The code of a support and its values, and its counted rate, which is at most ``bits``.

    ``amplitudes`` and ``depths`` are those that training learned for each band.
    """
    norms = dictionary.squared_norms()
    parts = torch.split(on, dictionary.sizes)
    counts = [int(part.sum()) for part in parts]
    areas = [
        float((norm * part).sum())
        for norm, part in zip(torch.split(norms, dictionary.sizes), parts, strict=True)
    ]
    start = [levels_of(depth) for depth in depths]
    levels = allocate(counts, dictionary.sizes, amplitudes, areas, dictionary.channels, bits, start)
    widths = [cell_width(a, level) for a, level in zip(amplitudes, levels, strict=True)]
    integers = _rounded(dictionary, planes, values * on, widths, levels, on, norms, polish)
    code = assemble(dictionary, integers, on, widths, levels)
    return code, counted_bits(counts, dictionary.sizes, levels, dictionary.channels)


def counted_rate(code: Code) -> float:
    """:func:`counted_bits` of a block code."""
    return counted_bits(
        [len(band.values) for band in code.bands],
        [band.mask.size for band in code.bands],
        [band.levels for band in code.bands],
        code.bands[0].values.shape[1],
    )


def polished(code: Code, planes: Tensor) -> Code:
    """A block code with values and steps refitted to its atoms: for when some were dropped."""
    height, width = code.height, code.width
    dictionary = Dictionary("blocks", code.colour, height, width, code.planes, planes.device)
    on = torch.from_numpy(np.concatenate([band.mask.ravel() for band in code.bands]))
    on = on.to(planes.device)
    widths = [band.step / 2**FRACTION_BITS for band in code.bands]
    values = planes.new_zeros(dictionary.channels, dictionary.count)
    held = np.concatenate([band.values * one for band, one in zip(code.bands, widths, strict=True)])
    values[:, on] = torch.from_numpy(held.T).to(values)
    levels = [band.levels for band in code.bands]
    norms = dictionary.squared_norms()
    integers = _rounded(dictionary, planes, values, widths, levels, on, norms, polish=True)
    return assemble(dictionary, integers, on, widths, levels)


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

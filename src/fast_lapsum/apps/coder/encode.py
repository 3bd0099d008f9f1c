"""From a picture to the bytes of a file that keeps a limit, in bytes or in quality."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from . import rate
from .bitstream import CoderError
from .code import MAX_STEP, Band, Code, layout
from .colour import psnr, to_planes
from .container import to_bytes
from .dictionary import decode_picture
from .finish import counted_rate, polished
from .floor import MODE, block_code
from .settings import Fit, ProgressCallback, Settings
from .train import fit

_FITS = 6  # of a search for a quality
_CLOSE = 0.1  # dB above the wanted quality that end it
_DECIBELS_PER_DOUBLING = 2.5  # a first guess
_MOST_BITS_PER_PIXEL = 16.0
_WORD_BITS = 64  # what the range coder may take beyond the estimate
#: A plain file over the rate that training counts, at megapixels. Small pictures may be off by half
#: a per cent either way; where a file is too long, a few atoms are dropped and the others refitted.
_PLAIN_OVER_COUNTED = 1.002

Picture = npt.NDArray[np.uint8]


class Encoded(NamedTuple):
    """A finished file and where it comes from."""

    data: bytes
    code: Code
    fit: Fit  # of this code: atoms that the limit had no room for are in none of its numbers


def encode(
    picture: Picture, settings: Settings, limit: int, progress: ProgressCallback | None = None
) -> Encoded:
    """A file of at most ``limit`` bytes; ``settings.bits`` is replaced by what that leaves."""
    mode = "plain" if settings.plain else "context"
    least = smallest(picture, mode)
    if limit < least:
        height, width = picture.shape[:2]
        raise CoderError(
            f"a file of {limit} bytes is too small: {width} x {height} pixels need at least {least}"
        )
    # Beside what training counts: the header, the heads of the bands, and half a word.
    spent = 8 * least + (_WORD_BITS if settings.plain else 0)
    bits = 8.0 * limit - _WORD_BITS / 2
    if settings.plain:
        bits = max(1.0, (8.0 * limit - spent) / _PLAIN_OVER_COUNTED)
    found = fit(picture, replace(settings, bits=bits), progress)
    code, data = found.code, to_bytes(found.code, mode)
    if len(data) > limit:
        code, data = trimmed(code, limit, mode)
        if settings.plain:
            code, data = _refitted(picture, code, data, limit)
            found = found._replace(bits=counted_rate(code))
        reached = psnr(picture, decode_picture(code))
        found = found._replace(code=code, psnr=reached, atoms=_atoms(code))
    found = found._replace(file_bits=8.0 * len(data))
    return _at_least_blocks(picture, settings, limit, Encoded(data, code, found))


def _at_least_blocks(picture: Picture, settings: Settings, limit: int, found: Encoded) -> Encoded:
    """What was found, or one colour per block where that is nearer to the picture."""
    simple = block_code(picture, limit)
    if simple is None:
        return found
    code, data = simple
    if settings.atoms is not None and _atoms(code) > settings.atoms:  # k was asked for
        return found
    reached = psnr(picture, decode_picture(code))
    if reached <= found.fit.psnr:
        return found
    file = rate.estimate(code, MODE)
    taken = found.fit._replace(
        code=code,
        psnr=reached,
        atoms=_atoms(code),
        bits=counted_rate(code),
        head_bits=file.heads,
        file_bits=8.0 * len(data),
    )
    return Encoded(data, code, taken)


def _refitted(picture: Picture, code: Code, data: bytes, limit: int) -> tuple[Code, bytes]:
    """The values that suit the atoms that are left, where their file keeps the limit as well."""
    planes = to_planes(picture, (), torch.device("cpu"))
    again = polished(code, planes)
    shown = to_bytes(again, "plain")
    better = psnr(picture, decode_picture(again)) > psnr(picture, decode_picture(code))
    return (again, shown) if better and len(shown) <= limit else (code, data)


def _atoms(code: Code) -> int:
    return sum(len(band.values) for band in code.bands)


def encode_to_quality(
    picture: Picture, settings: Settings, quality: float, progress: ProgressCallback | None = None
) -> Encoded:
    """The smallest file found that reaches ``quality`` in dB: a search over the size."""
    pixels = picture.shape[0] * picture.shape[1]
    mode = "plain" if settings.plain else "context"
    least, most = smallest(picture, mode), max(4096, int(pixels * _MOST_BITS_PER_PIXEL / 8))
    limit = min(most, max(2 * least, int(pixels * 0.1 / 8)))
    tried: dict[int, float] = {}
    best: Encoded | None = None
    for _ in range(_FITS):
        found = encode(picture, settings, limit, progress)
        reached = psnr(picture, decode_picture(found.code))
        tried[limit] = reached
        if reached >= quality and (best is None or len(found.data) < len(best.data)):
            best = found
        if 0 <= reached - quality <= _CLOSE:
            break
        following = min(most, max(least, _next_limit(tried, quality)))
        if following in tried:
            break
        limit = following
    if best is None:
        raise CoderError(
            f"{quality:g} dB were not reached: {max(tried.values()):.2f} dB at most, in files of up"
            f" to {max(tried):,} bytes"
        )
    return best


def _next_limit(tried: dict[int, float], quality: float) -> int:
    """Aims a little above the quality, on the line through the two sizes nearest to it."""
    aim = quality + _CLOSE / 2
    below = max((size for size, found in tried.items() if found < quality), default=None)
    above = min((size for size, found in tried.items() if found >= quality), default=None)
    if below is None or above is None:
        one = above if below is None else below
        assert one is not None
        doublings = (aim - min(tried[one], 100.0)) / _DECIBELS_PER_DOUBLING
        return round(one * 2 ** min(3.0, max(-3.0, doublings)))
    share = (aim - tried[below]) / (min(tried[above], 100.0) - tried[below])
    return round(below * math.pow(above / below, min(0.95, max(0.05, share))))


def smallest(picture: Picture, mode: str) -> int:
    """Bytes of a file without any atom, at the most expensive step."""
    height, width, planes = picture.shape
    dictionary = "blocks" if mode == "plain" else "wavelet"
    colour = "rgb" if planes == 1 or mode == "plain" else "opponent"
    bands = tuple(
        Band(
            place.level,
            place.plane,
            place.kind,
            np.zeros((place.height, place.width), dtype=np.bool_),
            np.zeros((0, place.planes), dtype=np.int32),
            step=MAX_STEP,
            levels=0,
        )
        for place in layout(dictionary, colour, height, width, planes)
    )
    matrix = (0,) * 9 if colour == "opponent" else ()
    code = Code(height, width, planes, dictionary, colour, 0, bands, matrix)
    return len(to_bytes(code, mode))


def trimmed(code: Code, limit: int, mode: str) -> tuple[Code, bytes]:
    """The code without the atoms that do least for their bits, until the file fits ``limit``."""
    data = to_bytes(code, mode)
    worth = _worth(code, mode)
    order = np.argsort(worth, kind="stable")
    dropped = 0
    while len(data) > limit and dropped < len(order):
        excess = 1 - limit / len(data)
        dropped += max(1, math.ceil(excess * (len(order) - dropped)))
        keep = np.ones(len(order), dtype=np.bool_)
        keep[order[:dropped]] = False
        shorter = _kept(code, keep)
        data = to_bytes(shorter, mode)
    if len(data) > limit:
        raise CoderError(f"a file of {limit} bytes is too small, at least {len(data)} are needed")
    return (code if dropped == 0 else shorter), data


def _worth(code: Code, mode: str) -> npt.NDArray[np.float64]:
    """Squared error that each atom takes away, per bit, band after band in reading order."""
    prices = rate.atom_bits(code) if mode == "context" else None
    found = []
    for index, band in enumerate(code.bands):
        energy = np.square(band.values.astype(np.float64) * band.step).sum(axis=1)
        if code.dictionary == "blocks" and band.mask.size:
            energy *= code.height * code.width / band.mask.size
        if prices is not None:
            energy /= np.maximum(1.0, prices[index][band.mask])
        found.append(energy)
    return np.concatenate(found)


def _kept(code: Code, keep: npt.NDArray[np.bool_]) -> Code:
    bands: list[Band] = []
    first = 0
    for band in code.bands:
        part = keep[first : first + len(band.values)]
        first += len(band.values)
        mask = band.mask.copy()
        mask[band.mask] = part
        values = band.values[part]
        step, levels = band.step, band.levels
        if code.dictionary == "wavelet":
            levels = int(np.abs(values).max(initial=0))
        elif not len(values):  # the cheapest to send
            step, levels = (bands[-1].step if bands else step), 0
        bands.append(band._replace(mask=mask, values=values, step=step, levels=levels))
    return code._replace(bands=tuple(bands))

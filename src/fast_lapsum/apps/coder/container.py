"""The file: a header of a few bytes, the range coder's words, a checksum.

===========  ====================================================================================
bytes        meaning
===========  ====================================================================================
4            ``93 4C 41 50``: not text, then "LAP"
1            version, 1
1            bit 0 entropy mode, bit 1 colour picture, bits 2-4 dictionary, bits 5-7 colour
varints      height, width, shrink (0, -1, 1, -2 ... as 0, 1, 2, 3 ...), words of payload;
             7 bits a byte, the lowest first
18           only where colours are "opponent": the matrix, nine signed integers of two bytes
4 per word   payload
4            CRC-32 of all bytes before, the lowest first
===========  ====================================================================================
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .bands import MODES, code_bands
from .bitstream import CoderError, Counter, Reader, Writer, most_symbols
from .code import (
    COLOURS,
    DICTIONARIES,
    MATRIX_BITS,
    MAX_LEVELS,
    MAX_STEP,
    Band,
    Code,
    Place,
    layout,
)

MAGIC = b"\x93LAP"
VERSION = 1
MAX_PIXELS = 1 << 26
"""Larger pictures are refused unless the caller allows them."""
CHECKSUM_BYTES = 4
_MATRIX_BYTES = 18
_LONGEST_VARINT = 5


class Contents(NamedTuple):
    """A file taken apart."""

    code: Code
    mode: str
    bits: dict[tuple[int, str], float]  # by band and part
    header_bytes: int  # magic number, header and checksum
    payload_bytes: int


def to_bytes(code: Code, mode: str = "context") -> bytes:
    """The whole file. Modes: "plain" and "context"."""
    places = check(code)
    writer = Writer()
    code_bands(writer, mode, places, code.bands)
    payload = writer.finish()
    most = most_symbols(code.height * code.width, len(payload))
    if writer.symbols > most:
        raise CoderError(f"code takes {writer.symbols:,} symbols, expected at most {most:,}")
    body = header(code, mode, len(payload) // 4) + payload
    return body + zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little")


def header(code: Code, mode: str, words: int) -> bytes:
    """What comes before a payload of so many words."""
    flags = (
        MODES.index(mode)
        | (code.planes == 3) << 1
        | DICTIONARIES.index(code.dictionary) << 2
        | COLOURS.index(code.colour) << 5
    )
    shrink = 2 * code.shrink if code.shrink >= 0 else -2 * code.shrink - 1
    numbers = b"".join(map(_varint, (code.height, code.width, shrink, words)))
    matrix = np.array(code.matrix, dtype="<i2").tobytes()
    return MAGIC + bytes([VERSION, flags]) + numbers + matrix


def from_bytes(data: bytes, name: str = "the file", max_pixels: int = MAX_PIXELS) -> Code:
    """The code in a file; CoderError for anything that :func:`to_bytes` does not write."""
    return take_apart(data, name, max_pixels).code


def read(path: Path, max_pixels: int = MAX_PIXELS) -> Code:
    """The code in the file ``path``."""
    return from_bytes(path.read_bytes(), str(path), max_pixels)


def take_apart(
    data: bytes, name: str = "the file", max_pixels: int = MAX_PIXELS, count: bool = False
) -> Contents:
    """The code in a file and, where they are counted, the bits that its parts take."""
    try:
        return _take_apart(data, max_pixels, count)
    except CoderError as error:
        raise CoderError(f"{name}: {error}") from error.__cause__


def _take_apart(data: bytes, max_pixels: int, count: bool) -> Contents:
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        raise CoderError("not a .lap file, its first bytes are others")
    if len(data) < len(MAGIC) + 2:
        raise CoderError("the file ends in its header")
    version, flags = data[len(MAGIC)], data[len(MAGIC) + 1]
    if version != VERSION:
        raise CoderError(f"version {version} of the format, expected {VERSION}")
    place = len(MAGIC) + 2
    numbers = []
    for _ in range(4):
        number, place = _read_varint(data, place)
        numbers.append(number)
    height, width, shrink, words = numbers
    shrink = -(shrink + 1 >> 1) if shrink & 1 else shrink >> 1
    colour = flags >> 5
    first, place = place, place + _MATRIX_BYTES * (colour == COLOURS.index("opponent"))
    expected = place + 4 * words + CHECKSUM_BYTES
    if len(data) != expected:
        kind = "cut short" if len(data) < expected else "followed by something else"
        raise CoderError(f"{kind}: {len(data)} bytes, the header says {expected}")
    body = memoryview(data)[:-CHECKSUM_BYTES]
    if zlib.crc32(body) != int.from_bytes(data[-CHECKSUM_BYTES:], "little"):
        raise CoderError("damaged, the checksum is wrong")
    mode, planes = MODES[flags & 1], 3 if flags & 2 else 1
    dictionary = flags >> 2 & 7
    if dictionary >= len(DICTIONARIES) or colour >= len(COLOURS):
        raise CoderError(f"dictionary {dictionary} and colour {colour} are not both known")
    if not (height and width and height * width <= max_pixels):
        raise CoderError(f"{width} x {height} pixels, expected 1 to {max_pixels:,} in all")
    try:
        places = layout(DICTIONARIES[dictionary], COLOURS[colour], height, width, planes)
    except ValueError as error:
        raise CoderError(str(error)) from error
    reader = Reader(body[place:], height * width)
    counter = Counter(reader)
    if count:
        bands = code_bands(counter, mode, places, None, counter.watch)
    else:
        bands = code_bands(reader, mode, places, None)
    reader.finish()
    matrix = tuple(np.frombuffer(body[first:place], dtype="<i2").tolist())
    code = Code(
        height, width, planes, DICTIONARIES[dictionary], COLOURS[colour], shrink, bands, matrix
    )
    _check_constants(code)
    overhead = place + CHECKSUM_BYTES
    return Contents(code, mode, dict(counter.counted), overhead, 4 * words)


def check(code: Code) -> tuple[Place, ...]:
    """The places of a code's bands; CoderError where they do not fit."""
    try:
        places = layout(code.dictionary, code.colour, code.height, code.width, code.planes)
    except ValueError as error:
        raise CoderError(str(error)) from error
    if len(code.bands) != len(places):
        raise CoderError(f"code has {len(code.bands)} bands, expected {len(places)}")
    for band, place in zip(code.bands, places, strict=True):
        _check_band(band, place)
    _check_constants(code)
    return places


def _check_band(band: Band, place: Place) -> None:
    where = f"band of level {place.level}, plane {place.plane}, kind {place.kind}"
    if (band.level, band.plane, band.kind) != (place.level, place.plane, place.kind):
        raise CoderError(f"{where}: found {(band.level, band.plane, band.kind)} in its place")
    if band.mask.dtype != np.bool_ or band.mask.shape != (place.height, place.width):
        raise CoderError(
            f"{where}: mask is {band.mask.dtype} {list(band.mask.shape)}, "
            f"expected bool {[place.height, place.width]}"
        )
    shape = (int(band.mask.sum()), place.planes)
    if band.values.dtype != np.int32 or band.values.shape != shape:
        raise CoderError(
            f"{where}: values are {band.values.dtype} {list(band.values.shape)}, "
            f"expected int32 {list(shape)}"
        )
    if not (1 <= band.step <= MAX_STEP and 0 <= band.levels <= MAX_LEVELS):
        raise CoderError(f"{where}: step {band.step} or levels {band.levels} out of range")
    largest = int(np.abs(band.values).max(initial=0))
    if largest > band.levels:
        raise CoderError(f"{where}: a value of {largest}, expected at most {band.levels}")


def _check_constants(code: Code) -> None:
    entries = 9 if code.colour == "opponent" else 0
    if len(code.matrix) != entries or any(abs(one) > 1 << MATRIX_BITS for one in code.matrix):
        raise CoderError(
            f"matrix is {code.matrix}, expected {entries} numbers within 2^{MATRIX_BITS}"
        )
    least = min((band.step for band in code.bands if band.values.size), default=MAX_STEP)
    if abs(code.shrink) >= (1 if code.dictionary == "blocks" else least):
        raise CoderError(f"shrink is {code.shrink}, expected 0 or, in wavelets, within {least}")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The number and the place after it. Only the shortest form counts."""
    number = 0
    for index in range(_LONGEST_VARINT):
        if place + index >= len(data):
            raise CoderError("the file ends in its header")
        byte = data[place + index]
        number |= (byte & 127) << 7 * index
        if byte < 128:
            if byte == 0 and index:
                break
            return number, place + index + 1
    raise CoderError("a number of the header has too many bytes")

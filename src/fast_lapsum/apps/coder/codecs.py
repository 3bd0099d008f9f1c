"""Other codecs, through Pillow: the largest file that keeps a budget, at the best scale.

At low rates a picture that is made smaller first and enlarged after decoding may be closer to the
original. Both ways with Lanczos' filter, at 1, 1/2 and 1/4, and the closest in PSNR is taken.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from .colour import psnr

SCALES = (1, 2, 4)

Picture = npt.NDArray[np.uint8]
Options = dict[str, Any]


class Attempt(NamedTuple):
    """One file, and how it was made."""

    data: bytes
    level: int
    options: Options
    divisor: int
    seconds: float  # of encoding it


class Search(NamedTuple):
    """The best file that keeps the budget, if there is one, and the smallest at each scale."""

    found: Attempt | None
    reached: dict[int, float]  # dB by scale, where the budget was kept
    missed: dict[int, int]  # bytes of the smallest file by scale, where it was not
    encodes: int


@dataclass(frozen=True)
class Codec:
    """A format of Pillow.

    Attributes:
        name: for tables.
        format: Pillow's name of it.
        suffix: of its files.
        options: of an encode at a level; levels go from 0 to ``levels``, larger ones to larger
            files. A codec without levels is asked for a size in bytes instead.
        levels: the largest.
        variants: further options, each tried at every scale; a colour picture only.
        slower: options that take longer, tried last, at the scale and variant that is best.
        missing: says what to install, where the codec is not there.
    """

    name: str
    format: str
    suffix: str
    options: Callable[[Image.Image, int], Options]
    levels: int | None
    variants: tuple[Options, ...] = ()
    slower: Options | None = None
    missing: str | None = None

    def encode(self, image: Image.Image, level: int, variant: Options, divisor: int) -> Attempt:
        """One file."""
        options = {**self.options(image, level), **variant}
        stream = io.BytesIO()
        begin = time.perf_counter()
        image.save(stream, format=self.format, **options)
        seconds = time.perf_counter() - begin
        return Attempt(stream.getvalue(), level, options, divisor, seconds)


def _jpeg_2000(image: Image.Image, size: int) -> Options:
    return {
        "quality_mode": "rates",
        "quality_layers": [image.width * image.height * len(image.getbands()) / size],
        "irreversible": True,
        "mct": int(image.mode == "RGB"),
        "no_jp2": True,  # the codestream without the container's 85 bytes
        "num_resolutions": min(8, min(image.size).bit_length()),
    }


def _without(feature: str) -> str | None:
    return None if features.check(feature) else f"this Pillow has no {feature}"


def _without_jxl() -> str | None:
    if find_spec("pillow_jxl") is None:
        return "pip install pillow-jxl-plugin"
    __import__("pillow_jxl")
    return None


def _avif_variants() -> tuple[Options, ...]:
    """4:4:4, and where the encoder knows it the tuning for PSNR: its own is for the eye."""
    full: Options = {"subsampling": "4:4:4"}
    tuned: Options = {"advanced": {"tune": "psnr"}}
    try:
        Image.new("RGB", (16, 16)).save(io.BytesIO(), format="AVIF", **tuned)
    except (KeyError, OSError, ValueError):  # no AVIF at all, or not from libaom
        return (full,)
    return (full, tuned, {**full, **tuned})


def codecs() -> tuple[Codec, ...]:
    """Those that are compared, with their options."""
    return (
        Codec(
            "JPEG",
            "JPEG",
            ".jpg",
            lambda image, level: {"quality": level + 1, "optimize": True, "progressive": True},
            99,
            variants=({"subsampling": "4:4:4"},),
        ),
        Codec("JPEG 2000", "JPEG2000", ".j2k", _jpeg_2000, None, missing=_without("jpg_2000")),
        Codec(
            "WebP",
            "WEBP",
            ".webp",
            lambda image, level: {"quality": level / 4, "method": 6},
            400,
            missing=_without("webp"),
        ),
        Codec(
            "AVIF",
            "AVIF",
            ".avif",
            lambda image, level: {"quality": level, "speed": 5},
            100,
            variants=_avif_variants(),
            slower={"speed": 3},
            missing=_without("avif"),
        ),
        Codec(
            "JPEG XL",
            "JXL",
            ".jxl",
            lambda image, level: {"quality": level, "effort": 7},
            99,
            variants=({"effort": 3},),
            slower={"effort": 9},
            missing=_without_jxl(),
        ),
    )


def search(codec: Codec, picture: Picture, budget: int) -> Search:
    """The file of at most ``budget`` bytes that is closest to the picture."""
    best: tuple[float, Attempt, Options] | None = None
    reached: dict[int, float] = {}
    missed: dict[int, int] = {}
    encodes = 0

    def consider(divisor: int, variant: Options, start: int | None = None) -> int | None:
        nonlocal best, encodes
        if start is None:  # most budgets of interest are low
            start = (codec.levels or 0) // 4
        found, tries, smallest = _largest(
            codec, _smaller(picture, divisor), budget, variant, divisor, start
        )
        encodes += tries
        if found is None:
            missed[divisor] = min(smallest, missed.get(divisor, smallest))
            return None
        quality = psnr(picture, decoded(found.data, picture.shape))
        reached[divisor] = max(quality, reached.get(divisor, 0.0))
        if best is None or quality > best[0]:
            best = quality, found, variant
        return found.level

    for divisor in SCALES:
        if min(picture.shape[:2]) >= 16 * divisor:
            level = consider(divisor, {})
            for variant in codec.variants if picture.shape[2] == 3 else ():
                consider(divisor, variant, level)  # ends close to what it varies
    if best is not None and codec.slower is not None:
        consider(best[1].divisor, {**best[2], **codec.slower}, best[1].level)
    missed = {divisor: size for divisor, size in missed.items() if divisor not in reached}
    return Search(best[1] if best else None, reached, missed, encodes)


def _largest(
    codec: Codec, image: Image.Image, budget: int, variant: Options, divisor: int, start: int
) -> tuple[Attempt | None, int, int]:
    """The largest file within the budget, the encodes it took, and the smallest file seen."""
    if codec.levels is None:
        return _by_size(codec, image, budget, variant, divisor)
    fits, over, found, tries, smallest = -1, codec.levels + 1, None, 0, 1 << 62
    level, stride = start, 4  # first outwards from the start, then into the middle
    while over - fits > 1:
        attempt = codec.encode(image, level, variant, divisor)
        tries += 1
        smallest = min(smallest, len(attempt.data))
        if len(attempt.data) <= budget:
            fits, found = level, attempt
            level = level + stride if over > codec.levels else over
        else:
            over = level
            level = level - stride if fits < 0 else fits
        stride *= 2
        if not fits < level < over:
            level = (fits + over) // 2
    return found, tries, smallest


def _by_size(
    codec: Codec, image: Image.Image, budget: int, variant: Options, divisor: int
) -> tuple[Attempt | None, int, int]:
    size, smallest = budget, 1 << 62
    for tries in range(1, 9):
        attempt = codec.encode(image, size, variant, divisor)
        smallest = min(smallest, len(attempt.data))
        if len(attempt.data) <= budget:
            return attempt, tries, smallest
        size -= max(len(attempt.data) - budget, 1 + budget * tries // 2000)
        if size < 1:
            break
    return None, tries, smallest


def decoded(data: bytes, shape: tuple[int, ...]) -> Picture:
    """The picture of a file, enlarged to ``shape``."""
    height, width, planes = shape
    with Image.open(io.BytesIO(data)) as image:
        full = image.convert("L" if planes == 1 else "RGB")
    if full.size != (width, height):
        full = full.resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(full).reshape(shape)


def _smaller(picture: Picture, divisor: int) -> Image.Image:
    image = Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture)
    if divisor == 1:
        return image
    size = (math.ceil(image.width / divisor), math.ceil(image.height / divisor))
    return image.resize(size, Image.Resampling.LANCZOS)


def versions() -> dict[str, str | None]:
    """Of Pillow and the libraries behind it."""
    from importlib import metadata

    found: dict[str, str | None] = {"pillow": metadata.version("pillow")}
    for feature in ("jpg", "jpg_2000", "webp", "avif"):
        found[feature] = features.version(feature) if features.check(feature) else None
    try:
        found["pillow-jxl-plugin"] = metadata.version("pillow-jxl-plugin")
    except metadata.PackageNotFoundError:
        found["pillow-jxl-plugin"] = None
    return found

"""Pictures from and to files, through Pillow: what is read as what, and what is refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor, ImageOps, UnidentifiedImageError

from fast_lapsum.bench.results import finished_file

from .bitstream import CoderError
from .container import MAX_PIXELS

Picture = npt.NDArray[np.uint8]  # [height, width, 1 or 3]

_GREY = ("1", "L")
_COLOUR = ("RGB", "P", "YCbCr", "HSV", "LAB", "RGBX")
_BITS_PER_SAMPLE = 258  # of TIFF
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def read(path: Path, background: str | None = None, max_pixels: int = MAX_PIXELS) -> Picture:
    """A picture of bytes [height, width, 1 or 3], turned as its EXIF data says.

    Greyscale and 1-bit pictures have one channel, all others three. Palettes and other 8-bit colour
    spaces are converted. Transparency needs a ``background`` colour to be laid over unless nothing
    is transparent. Refused: animations, CMYK, and more than 8 bits per channel.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own limit warns; ours is checked below
            with Image.open(path) as image:
                return _read(image, background, max_pixels)
    except CoderError as error:
        raise CoderError(f"{path}: {error}") from None
    except UnidentifiedImageError:
        raise CoderError(f"{path}: not a picture, or of a kind that Pillow cannot read") from None
    except Image.DecompressionBombError as error:
        raise CoderError(f"{path}: too large ({error})") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CoderError(f"{path}: cannot be read, {reason}") from error
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise CoderError(f"{path}: damaged ({error})") from error


def _read(image: Image.Image, background: str | None, max_pixels: int) -> Picture:
    width, height = image.size
    if not 0 < width * height <= max_pixels:
        raise CoderError(f"{width} x {height} pixels, expected 1 to {max_pixels:,} in all")
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise CoderError(f"has {frames} frames, expected a single picture")
    known = image.mode in (*_GREY, *_COLOUR, *_WITH_ALPHA)
    refused = _deep(image) if known else image.mode
    if refused is not None:
        remedy = "convert it to 8-bit greyscale or RGB first"
        raise CoderError(f"mode {refused} (CMYK, or more than 8 bits a channel): {remedy}")
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        image = _opaque(image, background)
    image = image.convert("L" if image.mode in _GREY else "RGB")
    found = np.array(image)
    return np.ascontiguousarray(found.reshape(*found.shape[:2], -1))


def _deep(image: Image.Image) -> str | None:
    """What the file holds, where that is more than the 8 bits that Pillow would cut it down to.

    Looked up before anything is decoded: the raw mode of the tiles (PNG, TIFF, SGI ...), the
    largest value (PPM) and the bits per sample (TIFF).
    """
    for tile in getattr(image, "tile", ()):
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        raw = str(arguments[0])
        if re.search(r";16[BLN]", raw):  # without the letter a pixel of 5, 6 and 5 bits
            return raw
        if tile[0] in ("ppm", "ppm_plain") and len(arguments) == 2 and arguments[1] > 255:
            return f"{image.mode} up to {arguments[1]}"
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, 8)
    most = max(bits) if isinstance(bits, tuple) else bits
    return f"{image.mode};{most}" if most > 8 else None


def _opaque(image: Image.Image, background: str | None) -> Image.Image:
    grey = image.mode in ("L", "LA", "La", "1")
    image = image.convert("RGBA")
    lowest = image.getchannel("A").getextrema()[0]
    if lowest != 255:
        if background is None:
            raise CoderError("partly transparent: say what to lay it over, --background white")
        below = Image.new("RGBA", image.size, background_colour(background))
        image = Image.alpha_composite(below, image)
        grey = grey and len(set(background_colour(background)[:3])) == 1
    return image.convert("RGB").convert("L") if grey else image.convert("RGB")


def background_colour(name: str) -> tuple[int, int, int, int]:
    """A colour by its CSS name or as #rrggbb.

    >>> background_colour("white")
    (255, 255, 255, 255)
    """
    try:
        red, green, blue = ImageColor.getrgb(name)[:3]
    except ValueError:
        shown = re.sub(r"\s+", " ", name)
        raise CoderError(f"'{shown}' is no colour, expected a name or #rrggbb") from None
    return red, green, blue, 255


def write(path: Path, picture: Picture) -> None:
    """Write a PNG that appears whole or not at all."""
    grey = picture.shape[2] == 1
    image = Image.fromarray(picture[:, :, 0] if grey else picture)
    with finished_file(path) as unfinished:
        image.save(unfinished, format="PNG", optimize=False)

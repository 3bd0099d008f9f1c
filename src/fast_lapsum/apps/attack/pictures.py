"""Pictures and region masks from files, attacked pictures to files (through Pillow)."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fast_lapsum.bench.results import finished_file

from ..whole_png import CUT_SHORT, is_cut_short

#: Smaller pictures are no photographs, and classifiers fail on them in many ways.
LEAST_SIDE = 8
_COLOUR = ("RGB", "P", "YCbCr")


class PictureError(Exception):
    """A picture cannot be used; the message names the file, what it is and what was expected."""


def read(path: Path) -> Tensor:
    """[3, H, W] in whole 255ths, turned as its EXIF data says; 8-bit colour without alpha."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about large pictures, which are the point
        image = _opened(path)
        transparent = "transparency" in image.info
        if image.mode not in _COLOUR or transparent:
            raise PictureError(
                f"{path}: mode {image.mode}{' with transparency' if transparent else ''}, expected"
                " 8-bit RGB without alpha; convert it first, and attack what you converted"
            )
        turned = ImageOps.exif_transpose(image).convert("RGB")
    width, height = turned.size
    if min(width, height) < LEAST_SIDE:
        raise PictureError(
            f"{path}: {width} x {height} pixels, expected at least {LEAST_SIDE} x {LEAST_SIDE}"
        )
    return torch.from_numpy(np.array(turned)).permute(2, 0, 1).float() / 255


def read_mask(path: Path, height: int, width: int) -> Tensor:
    """Booleans [H, W]: True where the mask is brighter than middle grey."""
    image = ImageOps.exif_transpose(_opened(path)).convert("L")
    if image.size != (width, height):
        found = f"{image.size[0]} x {image.size[1]}"
        raise PictureError(f"{path}: the region is {found}, the picture {width} x {height}")
    mask = torch.from_numpy(np.array(image)) > 127
    if not mask.any():
        raise PictureError(f"{path}: the region is empty, expected some pixels brighter than 127")
    return mask


def digest(path: Path) -> str | None:
    """SHA-256 of the file, None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def levels(image: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Bytes [H, W, 3] of a picture [3, H, W] in [0, 1]."""
    found = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    return np.asarray(found.permute(1, 2, 0).cpu().numpy())


def write(path: Path, image: Tensor) -> None:
    """A PNG of ``image`` [3, H, W] that appears whole or not at all."""
    with finished_file(path) as unfinished:
        Image.fromarray(levels(image)).save(unfinished, format="PNG")


def _opened(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1:  # Pillow would hand out the first one without a word
                raise PictureError(f"{path}: has {frames} frames, expected a single picture")
            image.load()
        if is_cut_short(path):
            raise PictureError(f"{path}: {CUT_SHORT}")
        return image
    except PictureError:
        raise
    except FileNotFoundError:
        raise PictureError(f"{path}: there is no such file") from None
    except UnidentifiedImageError:
        raise PictureError(f"{path}: not a picture, or of a kind that Pillow cannot read") from None
    except Image.DecompressionBombError as error:
        raise PictureError(f"{path}: too large ({error})") from None
    except OSError as error:
        raise PictureError(f"{path}: cannot be read, {error.strerror or error}") from error
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise PictureError(f"{path}: damaged ({error})") from error

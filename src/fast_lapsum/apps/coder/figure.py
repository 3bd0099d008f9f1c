"""The build-up picture: each level's code above the running reconstruction, coarse to fine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from fast_lapsum.bench.display import number_of
from fast_lapsum.bench.results import finished_file

from .code import Code
from .colour import psnr
from .dictionary import decode_picture

_TILE = 320  # pixels of the longer side
_GAP = 12
_LINE = 20
_GREY = 128

Picture = npt.NDArray[np.uint8]


def draw(path: Path, code: Code, picture: Picture, bits_per_pixel: float) -> None:
    """Write the figure as a PNG. Levels without atoms are left out."""
    levels = sorted({band.level for band in code.bands if len(band.values)}) or [0]
    height, width = code.height, code.width
    scale = _TILE / max(height, width)
    tile = (max(1, round(width * scale)), max(1, round(height * scale)))
    column = max(tile[0], 170) + _GAP
    sheet = Image.new(
        "RGB", (_GAP + column * len(levels), 3 * _GAP + 4 * _LINE + 2 * tile[1]), "white"
    )
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    atoms = sum(len(band.values) for band in code.bands)
    reached = psnr(picture, decode_picture(code))
    title = f"{width} x {height}, {number_of(atoms, 'atom')}, {bits_per_pixel:.3f} bpp"
    title += f", {reached:.2f} dB"
    pen.text((_GAP, _GAP), title, fill="black", font=font)
    for index, level in enumerate(levels):
        left, top = _GAP + column * index, _GAP + 2 * _LINE
        own = decode_picture(_with_levels(code, level, level)).astype(np.int32) - _GREY
        own = _strongest(own, tile)
        gain = max(1, int((_GREY - 1) / max(1.0, float(np.percentile(np.abs(own), 99.8)))))
        sheet.paste(_tile(np.clip(_GREY + gain * own, 0, 255).astype(np.uint8), tile), (left, top))
        here = [band for band in code.bands if band.level == level]
        count = sum(len(band.values) for band in here)
        contrast = f", contrast x {gain}" if gain > 1 else ""
        cells = " x ".join(str(size) for size in here[0].mask.shape[::-1])
        pen.text((left, top - _LINE), f"level {level}, {cells} cells", fill="black", font=font)
        caption = f"{number_of(count, 'atom')}{contrast}"
        pen.text((left, top + tile[1] + 2), caption, fill="black", font=font)
        top += tile[1] + _LINE + _GAP
        running = decode_picture(_with_levels(code, 0, level))
        sheet.paste(_tile(running, tile), (left, top))
        caption = f"up to level {level}: {psnr(picture, running):.2f} dB"
        pen.text((left, top + tile[1] + 2), caption, fill="black", font=font)
    with finished_file(path) as unfinished:
        sheet.save(unfinished, format="PNG")


def _tile(picture: Picture, size: tuple[int, int]) -> Image.Image:
    image = Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture)
    return image.convert("RGB").resize(size, Image.Resampling.BOX)


def _strongest(values: npt.NDArray[np.int32], size: tuple[int, int]) -> npt.NDArray[np.int32]:
    """Made smaller by the largest magnitude of each cell: averages of fine atoms would be 0."""
    rows = np.linspace(0, values.shape[0], min(size[1], values.shape[0]), endpoint=False)
    columns = np.linspace(0, values.shape[1], min(size[0], values.shape[1]), endpoint=False)
    lowest, highest = (
        pick.reduceat(
            pick.reduceat(values, rows.astype(np.intp), axis=0), columns.astype(np.intp), axis=1
        )
        for pick in (np.minimum, np.maximum)
    )
    return np.where(-lowest > highest, lowest, highest)


def _with_levels(code: Code, first: int, last: int) -> Code:
    """The code with the atoms of some levels only."""
    return code._replace(
        bands=tuple(
            band
            if first <= band.level <= last
            else band._replace(mask=np.zeros_like(band.mask), values=band.values[:0])
            for band in code.bands
        )
    )

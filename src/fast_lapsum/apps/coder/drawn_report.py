"""``fast-lapsum coder-drawn``: the coder on drawn pictures, beside others and the simplest code.

That one is the mean colour of every block, a byte for each plane and no header, with the smallest
blocks of 16 pixels and more that the budget holds. A row is written as soon as it is there, and a
run that was ended goes on where it stopped.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.results import write_json

from . import codecs, container, drawn
from .bitstream import CoderError
from .colour import psnr
from .dictionary import decode_picture
from .encode import encode
from .floor import block_means
from .settings import Settings

FORMAT = "fast-lapsum coder-drawn"
SIZES = (64, 256, 512)
METHODS = ("trivial", "best", "plain", "WebP", "AVIF", "PNG")
LEAST_SIDE = 16  # of the simplest code's blocks
#: Bits per pixel beside the default; at this rate the budget holds blocks of 16 pixels.
_RATE = 0.1
_DEFAULT_RATE, _DEFAULT_LEAST = 0.05, 512  # of ``fast-lapsum encode``

Picture = npt.NDArray[np.uint8]
Row = dict[str, Any]


def limits(size: int) -> tuple[int, ...]:
    """The budgets in bytes of a picture of that size.

    >>> [limits(size) for size in SIZES]
    [(512,), (512, 819), (1638, 3276)]
    """
    default = max(_DEFAULT_LEAST, int(_DEFAULT_RATE * size**2 / 8))
    return tuple(sorted({default, max(default, int(_RATE * size**2 / 8))}))


def cases() -> Iterator[tuple[int, int, str, str]]:
    """Size, budget, picture and method of every row."""
    for size in SIZES:
        for limit in limits(size):
            for name in drawn.NAMES:
                for method in METHODS:
                    yield size, limit, name, method


def run(path: Path, console: Console, fresh: bool = False) -> dict[str, Any]:
    """Measure what is not in the file ``path`` yet."""
    record = _opened(path, fresh)
    done = {_key(row) for row in record["rows"]}
    wanted = list(cases())
    begin, made = time.perf_counter(), 0
    with console.status("starting") as status:
        for number, (size, limit, name, method) in enumerate(wanted, 1):
            if (size, limit, name, method) in done:
                continue
            left = (time.perf_counter() - begin) / max(1, made) * (len(wanted) - number + 1)
            when = f", {left / 60:.0f} min left" if made else ""
            label = f"{number}/{len(wanted)} {name}, {size}, {limit:,} bytes, {method}"
            status.update(label + when)
            row = {"size": size, "limit": limit, "picture": name, "method": method}
            row |= measured(drawn.draw(name, size), limit, method)
            record["rows"].append(row)
            made += 1
            write_json(path, record)
            console.print(f"{label}: {_said(row)}", highlight=False, markup=False, soft_wrap=True)
    return record


def _key(row: Row) -> tuple[int, int, str, str]:
    return row["size"], row["limit"], row["picture"], row["method"]


def _opened(path: Path, fresh: bool) -> dict[str, Any]:
    made_by = sources.describe("coder-drawn", "cpu")
    record: dict[str, Any] = {"format": FORMAT, "sources": made_by, "rows": []}
    if path.exists() and not fresh:
        try:
            record = json.loads(path.read_text())
            known = record["format"] == FORMAT and isinstance(record["rows"], list)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoderError(f"{path}: not a results file ({error}); --fresh replaces it") from None
        if not known or record.get("sources") != made_by:
            raise CoderError(
                f"{path}: made by other sources, {sources.mark(record)}, than these,"
                f" {made_by['hash']}; --fresh starts over"
            )
    now = environment.describe()
    before = record.get("environment")
    if before is not None and before | {"load_average": None} != now | {"load_average": None}:
        record.setdefault("earlier_environments", []).append(before)
    record["environment"] = now
    record["codecs"] = codecs.versions()
    return record


def measured(picture: Picture, limit: int, method: str) -> Row:
    """Bytes, PSNR (None: exact) and seconds; the reason where there is no file."""
    begin = time.perf_counter()
    row: Row
    shown: Picture | None
    if method == "trivial":
        row, shown = _trivial(picture, limit)
    elif method in ("best", "plain"):
        row, shown = _ours(picture, limit, method == "plain")
    elif method == "PNG":  # of any size
        stream = io.BytesIO()
        _image(picture).save(stream, format="PNG", optimize=True)
        row, shown = {"bytes": len(stream.getvalue())}, picture
    else:
        row, shown = _codec(picture, limit, method)
    if shown is not None:
        exact = np.array_equal(picture, shown)
        row["psnr"] = None if exact else round(psnr(picture, shown), 4)
    return row | {"seconds": round(time.perf_counter() - begin, 2)}


def _image(picture: Picture) -> Image.Image:
    return Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture)


def trivial_side(height: int, width: int, planes: int, limit: int) -> int:
    """The smallest blocks whose colours the budget holds, of 16 pixels or twice that and so on.

    >>> trivial_side(512, 512, 3, 3072), trivial_side(512, 512, 3, 3071)
    (16, 32)
    """
    side = LEAST_SIDE
    while side < max(height, width) and planes * -(-height // side) * -(-width // side) > limit:
        side *= 2
    return side


def _trivial(picture: Picture, limit: int) -> tuple[Row, Picture]:
    height, width, planes = picture.shape
    side = trivial_side(height, width, planes, limit)
    means = block_means(picture, side)
    shown = means.repeat(side, axis=0).repeat(side, axis=1)[:height, :width]
    return {"bytes": means.size, "side": side}, shown


def _ours(picture: Picture, limit: int, plain: bool) -> tuple[Row, Picture | None]:
    try:
        found = encode(picture, Settings(bits=1.0, plain=plain), limit)
    except CoderError as error:
        return {"reason": str(error)}, None
    row = {
        "bytes": len(found.data),
        "atoms": found.fit.atoms,
        "counted_bits": round(found.fit.counted, 1),
        "dictionary": found.code.dictionary,
    }
    # What counts is what the file alone gives.
    return row, decode_picture(container.from_bytes(found.data))


def _codec(picture: Picture, limit: int, name: str) -> tuple[Row, Picture | None]:
    codec = next(one for one in codecs.codecs() if one.name == name)
    if codec.missing is not None:
        return {"reason": codec.missing}, None
    # The last variant is 4:4:4 and, where there is such a tuning, for PSNR: drawn edges want both.
    codec = replace(codec, variants=codec.variants[-1:], slower=None)
    found = codecs.search(codec, picture, limit).found
    if found is None:
        return {"reason": "no file keeps the budget"}, None
    row = {"bytes": len(found.data), "divisor": found.divisor}
    return row, codecs.decoded(found.data, picture.shape)


def quality(row: Row) -> float:
    """PSNR in dB, infinite where the picture is exact; below all others where there is none."""
    if "reason" in row:
        return -1.0
    return float("inf") if row["psnr"] is None else float(row["psnr"])


def _said(row: Row) -> str:
    if "reason" in row:
        return str(row["reason"])
    shown = "exact" if row["psnr"] is None else f"{row['psnr']:.2f} dB"
    return f"{row['bytes']:,} bytes, {shown}, {row['seconds']:.1f} s"

"""``fast-lapsum coder-report``: this coder beside others at equal bytes, row by row.

Every row is written to the results file as soon as it is there, with the file that it measures, so
that a run that was ended goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.display import duration
from fast_lapsum.bench.results import finished_file, write_json

from . import codecs, container, picture, untrained
from .bitstream import CoderError
from .codecs import Codec
from .colour import psnr
from .dictionary import decode_picture
from .encode import encode
from .quality import ms_ssim
from .settings import Settings

FORMAT = 1
PLAIN, BEST = "plain", "best"
BLOCKS = "blocks top-k"
FIXED_DEPTH = 8  # bits per channel, as the picture itself has
HAAR_FIXED, HAAR_BEST = f"Haar top-k, {FIXED_DEPTH} bits", "Haar top-k, best depth"
_OLD_NAMES = {"Haar top-k": HAAR_BEST}  # in results files from before there were two
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")

Picture = npt.NDArray[np.uint8]
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured; rows of a results file with other choices are not mixed in."""

    crop: int = 512  # sides are cut to multiples of it, top left; 0 leaves them
    seed: int = 0
    steps: int | None = None
    device: str = "cpu"


def photographs(paths: Sequence[Path]) -> list[Path]:
    """The files, and those of the folders, in order; each name once."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
            if not inside:
                raise CoderError(f"{path}: no picture in this folder")
        elif path.is_file():
            inside = [path]
        else:
            raise CoderError(f"{path}: no such file or folder")
        for one in inside:
            if found.setdefault(one.stem, one) != one:
                raise CoderError(f"{one}: {found[one.stem]} has the same name")
    return list(found.values())


def cropped(original: Picture, multiple: int) -> Picture:
    """The top left part whose sides are multiples; a shorter side is left as it is."""
    if multiple == 0:
        return original
    height, width = (size // multiple * multiple or size for size in original.shape[:2])
    return np.ascontiguousarray(original[:height, :width])


class Results:
    """The results file, with the files that its rows measure beside it."""

    def __init__(self, folder: Path, plan: Plan, fresh: bool) -> None:
        self.folder = folder
        self.path = folder / "results.json"
        made_by = sources.describe("coder-report", plan.device)
        if self.path.exists() and not fresh:
            self.record = self._read(plan, made_by)
        else:
            self.record = {
                "format": FORMAT,
                "settings": asdict(plan),
                "sources": made_by,
                "pictures": {},
                "rows": [],
            }
        self._note_environment(environment.describe())
        self.record["codecs"] = codecs.versions()

    def _read(self, plan: Plan, made_by: dict[str, str]) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self.path.read_text())
            settings, _, _ = record["settings"], record["pictures"], record["rows"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoderError(
                f"{self.path}: not a results file ({error}); --fresh replaces it"
            ) from error
        if record.get("format") != FORMAT or settings != asdict(plan):
            raise CoderError(
                f"{self.path}: has settings {settings}, asked for {asdict(plan)}; --fresh starts"
                " over"
            )
        # A file from before there were sources stays without: nobody knows those of its rows.
        if record.get("sources", made_by) != made_by:
            raise CoderError(
                f"{self.path}: the sources that its rows depend on were {sources.mark(record)}, are"
                f" {made_by['hash']}, and rows of both would mix; --fresh starts over"
            )
        for row in record["rows"]:
            row["method"] = _OLD_NAMES.get(row["method"], row["method"])
        return record

    def _note_environment(self, now: dict[str, Any]) -> None:
        """This run's environment, beside those of the runs that it goes on from."""
        before = self.record.get("environment")
        if before is not None and before | {"load_average": None} != now | {"load_average": None}:
            self.record.setdefault("earlier_environments", []).append(before)
        self.record["environment"] = now

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        found: list[Row] = self.record["rows"]
        return found

    def forget(self, methods: Sequence[str], known: Sequence[str]) -> None:
        """Drop the rows of these methods, which are measured anew."""
        for method in methods:
            if method not in known:
                raise CoderError(f"'{method}' is no method, expected one of {', '.join(known)}")
        if methods:
            self.record["rows"] = [row for row in self.rows if row["method"] not in methods]

    def add_picture(self, name: str, original: Picture, shown: Picture) -> None:
        """Note a picture; rows of another one with its name are dropped."""
        known = {
            "width": shown.shape[1],
            "height": shown.shape[0],
            "planes": shown.shape[2],
            "original": list(original.shape[1::-1]),
            "sha256": hashlib.sha256(shown.tobytes()).hexdigest(),
        }
        if self.record["pictures"].get(name) != known:
            self.record["pictures"][name] = known
            self.record["rows"] = [row for row in self.rows if row["picture"] != name]

    def has(self, name: str, bpp: float, method: str) -> bool:
        """Whether that row is there, and its file."""
        return any(
            (row["picture"], row["target_bpp"], row["method"]) == (name, bpp, method)
            and row["status"] != "missing"
            and ("file" not in row or (self.folder / row["file"]).is_file())
            for row in self.rows
        )

    def add(self, row: Row, data: bytes | None, suffix: str) -> None:
        """Write the row's file, then the row."""
        if data is not None:
            method = re.sub(r"\W+", "-", row["method"].lower())
            row["file"] = f"files/{row['picture']}-{row['target_bpp']:g}-{method}{suffix}"
            with finished_file(self.folder / row["file"]) as unfinished:
                unfinished.write_bytes(data)
        key = ("picture", "target_bpp", "method")
        self.record["rows"] = [
            one for one in self.rows if any(one[part] != row[part] for part in key)
        ] + [row]
        write_json(self.path, self.record)


def run(
    paths: Sequence[Path],
    folder: Path,
    rates: Sequence[float],
    plan: Plan,
    console: Console,
    fresh: bool = False,
    again: Sequence[str] = (),
) -> Results:
    """Measure what is not measured yet, and the methods named in ``again`` anew."""
    found = photographs(paths)
    results = Results(folder, plan, fresh)
    peers = codecs.codecs()
    methods = (HAAR_FIXED, HAAR_BEST, BLOCKS, *(peer.name for peer in peers), BEST, PLAIN)
    results.forget(again, methods)
    total, done = len(found) * len(rates) * len(methods), 0
    begin, fresh_rows = time.perf_counter(), 0

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with console.status("starting") as status:
        for path in found:
            original = picture.read(path)
            shown = cropped(original, plan.crop)
            results.add_picture(path.stem, original, shown)
            for bpp in rates:
                for method, measure in _measures(shown, bpp, plan, peers):
                    done += 1
                    if results.has(path.stem, bpp, method):
                        continue
                    left = (time.perf_counter() - begin) / max(1, fresh_rows) * (total - done + 1)
                    when = f", {duration(left)} left" if fresh_rows else ""
                    status.update(f"{done}/{total} {path.stem}, {bpp:g} bpp, {method}{when}")
                    row, data, suffix = _timed(path.stem, bpp, method, shown, measure)
                    results.add(row, data, suffix)
                    fresh_rows += 1
                    say(f"{done}/{total} {path.stem}, {bpp:g} bpp, {method}: {outcome(row)}")
    return results


Measured = tuple[Row, Picture | None, bytes | None, str]


def _measures(
    shown: Picture, bpp: float, plan: Plan, peers: Sequence[Codec]
) -> Iterator[tuple[str, Callable[[], Measured]]]:
    budget = int(bpp * shown.shape[0] * shown.shape[1] / 8)
    bits = 8.0 * budget
    yield HAAR_FIXED, lambda: _untrained(shown, bits, "haar", (FIXED_DEPTH,))
    yield HAAR_BEST, lambda: _untrained(shown, bits, "haar", untrained.DEPTHS)
    yield BLOCKS, lambda: _untrained(shown, bits, "blocks", untrained.DEPTHS)
    for peer in peers:
        yield peer.name, lambda peer=peer: _codec(peer, shown, budget)  # type: ignore[misc]
    for name in (BEST, PLAIN):
        yield name, lambda name=name: _ours(shown, budget, name, plan)  # type: ignore[misc]


def _timed(
    name: str, bpp: float, method: str, shown: Picture, measure: Callable[[], Measured]
) -> tuple[Row, bytes | None, str]:
    begin = time.perf_counter()
    details, again, data, suffix = measure()
    pixels = shown.shape[0] * shown.shape[1]
    row: Row = {"picture": name, "target_bpp": bpp, "method": method}
    row["budget_bytes"] = int(bpp * pixels / 8)
    row |= {"status": "ok"} | details
    row["total_seconds"] = round(time.perf_counter() - begin, 2)
    if again is not None:
        row["bpp"] = round(8 * row["bytes"] / pixels, 5)
        exact = bool(np.array_equal(shown, again))
        row["psnr"] = None if exact else round(psnr(shown, again), 4)
        row["ms_ssim"] = round(ms_ssim(shown, again), 6)
    return row, data, suffix


def _untrained(shown: Picture, bits: float, transform: str, depths: Sequence[int]) -> Measured:
    begin = time.perf_counter()
    found = untrained.top_k(shown, bits, transform, depths)
    if found is None:
        return {"status": "missed", "reason": "no atom fits the budget"}, None, None, ""
    row = {
        "bytes": -(-int(found.bits) // 8),
        "atoms": found.atoms,
        "depth": found.depth,
        "seconds": round(time.perf_counter() - begin, 2),
    }
    return row, found.picture, None, ""


def _codec(codec: Codec, shown: Picture, budget: int) -> Measured:
    if codec.missing is not None:
        return {"status": "missing", "reason": codec.missing}, None, None, ""
    found = codecs.search(codec, shown, budget)
    scales = {
        "psnr_by_divisor": {str(one): round(value, 4) for one, value in found.reached.items()},
        "smallest_by_divisor": {str(one): size for one, size in found.missed.items()},
        "encodes": found.encodes,
    }
    if found.found is None:
        smallest = min(found.missed.values(), default=0)
        reason = f"its smallest file has {smallest:,} bytes, the budget is {budget:,}"
        return {"status": "missed", "reason": reason, **scales}, None, None, ""
    data = found.found.data
    row = {
        "bytes": len(data),
        "divisor": found.found.divisor,
        "options": found.found.options,
        "seconds": round(found.found.seconds, 2),
        **scales,
    }
    return row, codecs.decoded(data, shown.shape), data, codec.suffix


def _ours(shown: Picture, budget: int, name: str, plan: Plan) -> Measured:
    settings = Settings(
        bits=1.0, plain=name == PLAIN, steps=plan.steps, seed=plan.seed, device=plan.device
    )
    begin = time.perf_counter()
    try:
        found = encode(shown, settings, budget)
    except CoderError as error:
        return {"status": "missed", "reason": str(error)}, None, None, ""
    row = {
        "bytes": len(found.data),
        "atoms": found.fit.atoms,
        "counted_bits": round(found.fit.counted, 1),
        "seconds": round(time.perf_counter() - begin, 2),
    }
    # What counts is what the file alone gives.
    return row, decode_picture(container.from_bytes(found.data)), found.data, ".lap"


def outcome(row: Row) -> str:
    """A row in a few words.

    >>> outcome({"status": "missing", "reason": "pip install it"})
    'missing, pip install it'
    """
    if row["status"] != "ok":
        return f"{row['status']}, {row['reason']}"
    quality = "exact" if row["psnr"] is None else f"{row['psnr']:.2f} dB"
    scale = f" at 1/{row['divisor']}" if row.get("divisor", 1) > 1 else ""
    return (
        f"{row['bytes']:,} bytes{scale}, {quality}, MS-SSIM {row['ms_ssim']:.4f},"
        f" {row['total_seconds']:.1f} s"
    )


def reconstruction(results: Results, row: Row, shape: tuple[int, ...]) -> Picture | None:
    """The picture of a row, from its file; None for a row without one."""
    if "file" not in row:
        return None
    data = (results.folder / row["file"]).read_bytes()
    if row["file"].endswith(".lap"):
        return decode_picture(container.from_bytes(data, row["file"]))
    return codecs.decoded(data, shape)

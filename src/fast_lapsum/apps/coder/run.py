"""What ``fast-lapsum encode``, ``decode`` and ``inspect`` do; options are in commands.py."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.table import Table

from fast_lapsum.bench.display import LiveBar, duration, number_of
from fast_lapsum.bench.results import finished_file

from . import container, figure, picture, record
from .bitstream import CoderError
from .code import layout
from .colour import psnr
from .dictionary import decode_picture
from .encode import Encoded, encode, encode_to_quality
from .settings import Profile, Settings
from .settings import Progress as Step

DEFAULT_BITS_PER_PIXEL = 0.05
LEAST_BYTES = 512
"""Where no size is asked for, small pictures get this much."""
_SECONDS_BETWEEN_LINES = 5.0


class Target(NamedTuple):
    """At most one of them; none takes 0.05 bits per pixel, and 512 bytes at least."""

    bits_per_pixel: float | None = None
    size: int | None = None  # bytes
    quality: float | None = None  # dB

    def limit(self, pixels: int) -> int:
        """Bytes of the file."""
        if self.size is not None:
            return self.size
        if self.bits_per_pixel is not None:
            return int(self.bits_per_pixel * pixels / 8)
        return max(LEAST_BYTES, int(DEFAULT_BITS_PER_PIXEL * pixels / 8))


def run_encode(
    source: Path,
    out: Path,
    target: Target,
    settings: Settings,
    console: Console,
    background: str | None = None,
    figure_path: Path | None = None,
    profile: bool = False,
    max_pixels: int = container.MAX_PIXELS,
    record_path: Path | None = None,
) -> None:
    """Train, write, read the file back, and say what came out."""
    if record_path is not None:
        record.check_path(record_path, source, out)
    begin = time.perf_counter()
    original = picture.read(source, background, max_pixels)
    pixels = original.shape[0] * original.shape[1]
    with _Display(console, pixels) as display:
        found: Encoded
        if target.quality is None:
            found = encode(original, settings, target.limit(pixels), display.step)
        else:
            found = encode_to_quality(original, settings, target.quality, display.step)
    with finished_file(out) as unfinished:
        unfinished.write_bytes(found.data)
        code = container.from_bytes(unfinished.read_bytes(), str(out), max_pixels)
        reached = psnr(original, decode_picture(code))
    atoms = sum(len(band.values) for band in code.bands)
    seconds = time.perf_counter() - begin
    outcome = record.Outcome(original.shape, len(found.data), atoms, reached, seconds, found.fit)
    _say(console, f"{out}: {_summary(outcome)}")
    if profile:
        _say(console, _profile_line(found.fit.profile))
    if record_path is not None:
        record.write(record_path, source, target._asdict(), settings, outcome)
        _say(console, f"Record: {record_path}")
    if figure_path is not None:
        figure.draw(figure_path, code, original, outcome.bits_per_pixel)
        _say(console, f"Figure: {figure_path}")


def _summary(outcome: record.Outcome) -> str:
    """Size, quality and time, and the rate in training and in the file."""
    counted, taken = outcome.fit.counted, 8 * outcome.size
    return (
        f"{outcome.size:,} bytes, {outcome.bits_per_pixel:.4f} bpp, {outcome.psnr:.2f} dB,"
        f" {number_of(outcome.atoms, 'atom')}, {outcome.seconds:.1f} s\n"
        f"rate: {counted:,.0f} bits by training's count, {taken:,} in the file"
        f" ({taken / max(1.0, counted) - 1:+.1%})"
    )


def _profile_line(times: Profile) -> str:
    """The operator's part of a step."""
    if not times.steps:
        return "profile: nothing to count, the first step pays for the warm-up and was the only one"
    return (
        f"profile: {number_of(times.steps, 'step')} of {times.step_ms:.1f} ms, without the first,"
        f" which pays for the warm-up; the operator takes {times.operator_ms:.1f} ms of each,"
        f" {times.share:.1%}"
    )


def run_decode(source: Path, out: Path, console: Console, max_pixels: int) -> None:
    """Turn a file back into a picture."""
    begin = time.perf_counter()
    found = decode_picture(container.from_bytes(_bytes(source), str(source), max_pixels))
    picture.write(out, found)
    height, width, planes = found.shape
    kind = "grey" if planes == 1 else "RGB"
    _say(console, f"{out}: {width} x {height}, {kind}, {time.perf_counter() - begin:.1f} s")


def run_inspect(source: Path, console: Console, max_pixels: int) -> None:
    """Show what a file holds: the header, the size by part, the levels."""
    data = _bytes(source)
    contents = container.take_apart(data, str(source), max_pixels, count=True)
    code, pixels = contents.code, contents.code.height * contents.code.width
    atoms = sum(len(band.values) for band in code.bands)
    kind = "grey" if code.planes == 1 else "RGB"
    _say(
        console,
        f"{source}: format {container.VERSION}, {code.width} x {code.height}, {kind}\n"
        f"{len(data):,} bytes, {8 * len(data) / pixels:.4f} bpp, {number_of(atoms, 'atom')},"
        f" {8 * len(data) / max(1, atoms):.2f} bits each\n"
        f"dictionary {code.dictionary}, colours {code.colour}, entropy coding {contents.mode}",
    )
    console.print(_parts_table(contents, len(data)))
    console.print(_levels_table(contents))


def _parts_table(contents: container.Contents, total: int) -> Table:
    parts: defaultdict[str, float] = defaultdict(float)
    for (_, part), bits in contents.bits.items():
        parts[part] += bits / 8
    parts["header and checksum"] = contents.header_bytes
    parts["rounding"] = total - sum(parts.values())
    table = Table(title="Size by part", title_justify="left")
    table.add_column("part")
    for name in ("bytes", "share"):
        table.add_column(name, justify="right")
    for part, size in parts.items():
        table.add_row(part, f"{size:,.1f}", f"{size / total:.1%}")
    return table


def _levels_table(contents: container.Contents) -> Table:
    code = contents.code
    places = layout(code.dictionary, code.colour, code.height, code.width, code.planes)
    table = Table(title="Levels, coarse to fine", title_justify="left")
    for name in ("level", "cells", "places", "atoms", "bits", "bits per atom"):
        table.add_column(name, justify="right")
    for level in sorted({place.level for place in places}):
        bands = [index for index, place in enumerate(places) if place.level == level]
        bits = sum(size for (band, _), size in contents.bits.items() if band in bands)
        atoms = sum(len(code.bands[index].values) for index in bands)
        table.add_row(
            str(level),
            f"{places[bands[0]].width} x {places[bands[0]].height}",
            f"{sum(code.bands[index].mask.size for index in bands):,}",
            f"{atoms:,}",
            f"{bits:,.0f}",
            f"{bits / atoms:.2f}" if atoms else "",
        )
    return table


class _Display(LiveBar):
    """Progress of training: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console, pixels: int) -> None:
        columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(bar_width=20))
        super().__init__(console, *columns, start="starting")
        self._pixels = pixels
        self._last = time.monotonic()

    def step(self, step: Step) -> None:
        """Show where training stands."""
        now = time.monotonic()
        text = (
            f"{step.psnr:.2f} dB, {step.bits / self._pixels:.4f} bpp,"
            f" {duration(step.seconds_left)} left"
        )
        self._bar.update(self._task, completed=step.step, total=step.steps, description=text)
        if not self._console.is_terminal and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            _say(self._console, f"step {step.step}/{step.steps}: {text}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CoderError(f"{path}: cannot be read, {error.strerror or error}") from error


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)

"""``fast-lapsum coder-study``: the paper's remarks on straight-through training, measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from .colour import psnr
from .dictionary import decode_picture
from .picture import read
from .settings import Settings
from .train import train_plain


class Outcome(NamedTuple):
    """One way to train."""

    name: str
    trained: float  # dB of what training saw at its last step
    hardened: float  # of the hard code with rounded values
    polished: float  # and after its values were refitted to the hard mask


def ways(settings: Settings) -> dict[str, Settings]:
    """The ways to train that the study compares: those with the slope first, the coder's own last.

    The slope is the paper's for atoms that are on; see ``Settings.switching`` for the others.
    """
    warm, cold = settings.start_temperature, settings.end_temperature
    own, settings = settings, replace(settings, switching=False)
    return {
        "hard mask, annealed": settings,
        "soft mask, annealed": replace(settings, hard=False),
        f"soft mask, temperature {warm:g}": replace(settings, hard=False, end_temperature=warm),
        f"hard mask, temperature {warm:g}": replace(settings, end_temperature=warm),
        f"hard mask, temperature {cold:g}": replace(settings, start_temperature=cold),
        "hard mask, annealed, switching": own,
        f"hard mask, temperature {warm:g}, switching": replace(own, end_temperature=warm),
    }


def study(picture: npt.NDArray[np.uint8], settings: Settings) -> Iterator[Outcome]:
    """Train the plain coder in each way, on the same picture with the same budget and steps."""
    for name, way in ways(settings).items():
        trainer = train_plain(picture, way, None)
        codes = (trainer.finish(polish)[0] for polish in (False, True))
        hardened, polished = (psnr(picture, decode_picture(code)) for code in codes)
        yield Outcome(name, trainer.psnr(), hardened, polished)


def run(
    picture: Path, console: Console, *, bpp: float, size: int, steps: int, seed: int, device: str
) -> None:
    """Train on the top-left crop in every way and print what each is worth."""
    pixels = np.ascontiguousarray(read(picture)[:size, :size])
    height, width = pixels.shape[:2]
    settings = Settings(
        bits=bpp * height * width, plain=True, steps=steps, seed=seed, device=device
    )
    table = Table(title=f"{picture.name}, {width} x {height}, {bpp:g} bits per pixel: PSNR in dB")
    table.add_column("training")
    for column in ("at the last step", "hard and rounded", "values refitted"):
        table.add_column(column, justify="right")
    outcomes = []
    with console.status("training") as status:
        for outcome in study(pixels, settings):
            outcomes.append(outcome)
            status.update(f"{len(outcomes)} of {len(ways(settings))} trained")
            table.add_row(outcome.name, *(f"{value:.2f}" for value in outcome[1:]))
    console.print(table)
    first, *others = outcomes
    for other in others:
        gain = first.hardened - other.hardened
        console.print(f"{first.name} over {other.name}: {gain:+.2f} dB, hard and rounded")

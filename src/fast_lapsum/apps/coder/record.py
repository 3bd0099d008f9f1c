"""The record of one encode: what was asked for, what came out, how long it took, as JSON."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.results import write_json

from .bitstream import CoderError
from .settings import Fit, Profile, Settings

FORMAT = "fast-lapsum encode"
VERSION = 1


class Outcome(NamedTuple):
    """What an encode came to; atoms and PSNR are those of the file, read back."""

    shape: tuple[int, ...]  # height, width, planes
    size: int  # bytes of the file
    atoms: int
    psnr: float  # dB
    seconds: float  # from reading the picture to decoding the file
    fit: Fit

    @property
    def bits_per_pixel(self) -> float:
        """Of the file, headers included."""
        return 8 * self.size / (self.shape[0] * self.shape[1])


def check_path(path: Path, *taken: Path) -> None:
    """Refuse what cannot be written, before a training is spent on it."""
    if path.suffix.lower() != ".json":
        raise CoderError(f"{path}: a record is written as JSON, end it in .json")
    if path.is_dir():
        raise CoderError(f"{path}: a folder, a record needs a file")
    if not path.parent.is_dir():
        raise CoderError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CoderError(f"{path}: the folder {path.parent} cannot be written to")
    if path.resolve() in {one.resolve() for one in taken}:
        raise CoderError(f"{path}: the record would replace the picture or its code")


def write(
    path: Path, picture: Path, target: dict[str, Any], settings: Settings, outcome: Outcome
) -> None:
    """Write the record; of the picture's path it has the name alone."""
    height, width, planes = outcome.shape
    exact = math.isinf(outcome.psnr)
    write_json(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "environment": environment.describe(),
            "sources": sources.describe("encode", settings.device),
            "picture": {"name": picture.name, "width": width, "height": height, "planes": planes},
            "settings": {"target": target, **_asked(settings)},
            "bytes": outcome.size,
            "bpp": round(outcome.bits_per_pixel, 5),
            "atoms": outcome.atoms,
            "counted_bits": round(outcome.fit.counted, 1),
            "file_bits": 8 * outcome.size,
            "psnr": None if exact else round(outcome.psnr, 4),
            "seconds": round(outcome.seconds, 2),
            "profile": _profile(outcome.fit.profile),
        },
    )


def _asked(settings: Settings) -> dict[str, Any]:
    """The settings; the budget in bits is not among them, as it follows from the target."""
    found = asdict(settings) | {"steps": settings.step_count}
    del found["bits"]
    return found


def _profile(profile: Profile) -> dict[str, Any]:
    """Of the steps after the first; None for times where there was no other."""
    if not profile.steps:
        return {"steps": 0, "step_ms": None, "operator_ms": None, "share": None}
    return {
        "steps": profile.steps,
        "step_ms": round(profile.step_ms, 3),
        "operator_ms": round(profile.operator_ms, 3),
        "share": round(profile.share, 4),
    }

"""Wrong rows in two files: what each was called with (.json) and its scores (.npz)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fast_lapsum.bench.results import finished_file

from .rows import Batch, Spec


class Found:
    """A wrong row on its way from a worker to the files."""

    def __init__(self, spec: Spec, index: int, batch: Batch, error: float, reasons: str) -> None:
        one = batch.row(index)
        # float32 holds half-precision scores exactly, and numpy has no bfloat16.
        wide = torch.float64 if one.scores.dtype == torch.float64 else torch.float32
        self.scores = one.scores[0].to(wide).cpu().numpy()
        self.mask = None if one.mask is None else one.mask[0].cpu().numpy()
        self.entry: dict[str, Any] = {
            "n": spec.n,
            "scores": spec.kind,
            "call": spec.call,
            "dtype": spec.dtype,
            "temperature": float(one.temperature),
            "k": float(one.k),
            "largest": one.largest,
            "budget_error": error,
            "reasons": reasons,
            "seed": spec.seed,
            "batch": spec.number,
            "index": index,
        }


def name(entry: dict[str, Any]) -> str:
    """A wrong row for people, on one line."""
    return (
        f"{entry.get('row', '')} {entry['n']:,} scores, {entry['scores']}, "
        f"{entry.get('dtype', 'float32')}, k = {entry['k']:.17g}, t = {entry['temperature']:.9g}, "
        f"{entry.get('call', 'numbers')}: {entry.get('reasons', '')}"
    ).strip()


def write(path: Path, found: list[Found]) -> None:
    """Both files, whole or not at all; ``path`` is that of the .json."""
    arrays = {}
    entries = []
    for number, row in enumerate(found):
        label = f"row{number:02}"
        arrays[label] = row.scores
        if row.mask is not None:
            arrays[f"{label}_mask"] = row.mask
        entries.append({"row": label, **row.entry})
    with finished_file(path.with_suffix(".npz")) as unfinished:
        np.savez_compressed(unfinished, **arrays)
    with finished_file(path) as unfinished:
        unfinished.write_text(json.dumps(entries, indent=1) + "\n")


def read(path: Path) -> list[tuple[dict[str, Any], Batch]]:
    """What :func:`write` wrote, each row as a batch of one; ``path`` is that of the .json."""
    try:
        entries = json.loads(path.read_text())
        stored = np.load(path.with_suffix(".npz"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} and its .npz are no rows that a hunt kept: {error}") from error
    rows = []
    with stored as arrays:
        for entry in entries:
            label = entry["row"]
            dtype = getattr(torch, entry.get("dtype", "float32"))
            scores = torch.from_numpy(arrays[label])[None].to(dtype)
            mask = f"{label}_mask"
            rows.append(
                (
                    entry,
                    Batch(
                        scores,
                        float(entry["k"]),
                        float(entry["temperature"]),
                        torch.from_numpy(arrays[mask])[None] if mask in arrays else None,
                        entry.get("largest", True),
                    ),
                )
            )
    return rows

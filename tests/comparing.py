"""A small comparison: pictures in a folder, a plan for them, a classifier."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from attack_models import confident_pictures, trained_classifier
from fast_lapsum.apps.attack import (
    pictures,
)
from fast_lapsum.apps.attack.protocol import Classifier
from fast_lapsum.apps.attack.rows import Plan

CPU = torch.device("cpu")
PLAN = Plan("small", ("sigma-zero", "pgd-l0"), (None,), (8, 16), 60.0, 4.0, 0, 0.8, False)


def folder_of_pictures(path: Path, count: int = 2, manifest: bool = True) -> Path:
    path.mkdir()
    images, labels = confident_pictures(count)
    for index, image in enumerate(images):
        pictures.write(path / f"{index}.png", image)
    if manifest:
        with (path / "manifest.csv").open("w", newline="") as lines:
            writer = csv.writer(lines)
            writer.writerow(["file", "label", "class_index"])
            for index, label in enumerate(labels.tolist()):
                writer.writerow([f"{index}.png", "shape", label])
            writer.writerow(["unlabelled.png", "", ""])
    return path


def load(resize: int | None) -> Classifier:
    return trained_classifier()


def quiet(text: str) -> None:
    pass

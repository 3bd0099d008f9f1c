"""The attack's commands in this process: with the small network for a model, on its pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from click.testing import Result
from torch import Tensor
from typer.testing import CliRunner

from attack_models import SHAPES, SmallNet, confident_pictures, trained_classifier, trained_net
from fast_lapsum.apps.attack import classifiers, commands, picture_run, pictures
from fast_lapsum.apps.attack.classifiers import Resize
from fast_lapsum.apps.attack.protocol import Classifier

app = typer.Typer()
commands.register(app)


class ChoosyNet(SmallNet):
    """The trained network, for pictures of at least 24 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(trained_net().state_dict())

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] < 24:
            raise RuntimeError("Kernel size can't be greater\nthan actual input size")
        return super().forward(images)


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str, resize: Resize, device: torch.device) -> Classifier:
        if model == "choosy":
            return Classifier(ChoosyNet(), SHAPES, name="choosy net")
        if model == "sized":  # 32 in its configuration
            size = 32 if resize == "config" else resize
            return classifiers.from_module(trained_net(), resize=size, labels=SHAPES)
        if model != "small":
            return classifiers.load_classifier(model, resize=resize, device=device)
        return trained_classifier()

    monkeypatch.setattr(picture_run, "load", load)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    images, _ = confident_pictures(1)
    pictures.write(tmp_path / "photo.png", images[0])
    return tmp_path / "photo.png"


def run(*arguments: object) -> Result:
    words = ["attack", *map(str, arguments), "--device", "cpu"]
    if "--model" not in words:
        words += ["--model", "small"]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, words)


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())

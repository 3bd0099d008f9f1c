"""``fast-lapsum attack``: what is wrong with pictures, models and arguments; a batch goes on."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from attack_models import SHAPES, confident_pictures
from attack_runs import app, photo, run, said, small_model
from fast_lapsum.apps.attack import figures, pictures
from fast_lapsum.apps.attack.baselines import sigma_zero
from fast_lapsum.apps.attack.protocol import Classifier
from fast_lapsum.bench import options

__all__ = ["photo", "small_model"]  # fixtures


def test_a_batch_goes_on_past_bad_pictures(tmp_path: Path, photo: Path) -> None:
    grey, alpha, tiny = (tmp_path / f"{name}.png" for name in ("grey", "alpha", "tiny"))
    Image.new("L", (32, 32)).save(grey)
    Image.new("RGBA", (32, 32)).save(alpha)
    Image.new("RGB", (1, 1)).save(tiny)
    text = tmp_path / "text.png"
    text.write_text("no picture")
    cut = tmp_path / "cut.png"
    cut.write_bytes(photo.read_bytes()[:400])
    end = tmp_path / "end.png"
    end.write_bytes(photo.read_bytes()[:-1])
    bad = [tmp_path / "missing.png", text, tiny, grey, alpha, cut, end]
    out = tmp_path / "out"
    result = run(*bad, photo, "--out", out, "--method", "sigma-zero", "--calls", 40)
    assert result.exit_code == 2
    words = said(result)
    for message in (
        "missing.png: there is no such file",
        "text.png: not a picture",
        "tiny.png: 1 x 1 pixels, expected at least 8 x 8",
        "grey.png: mode L, expected 8-bit RGB",
        "alpha.png: mode RGBA, expected 8-bit RGB",
        "cut.png: ",
        "end.png: cut short: the end of the PNG is missing",
    ):
        assert message in words
    assert words.count("Not attacked:") == 7
    assert {path.name.partition("-")[0].partition(".")[0] for path in out.iterdir()} == {"photo"}


def test_no_picture_at_all_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.png", "--model", "somebody/no-such-model")
    assert result.exit_code == 2
    assert "missing.png" in said(result)
    assert "does not exist" in said(result)
    assert "no-such-model" not in said(result)


@pytest.fixture
def small_and_photo(tmp_path: Path, photo: Path) -> Path:
    """A folder with photo.png, and a.png that the choosy model fails on."""
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    return tmp_path


def test_a_batch_goes_on_where_the_model_fails(tmp_path: Path, small_and_photo: Path) -> None:
    images, out = (small_and_photo / "a.png", small_and_photo / "photo.png"), tmp_path / "out"
    result = run(*images, "--model", "choosy", "--out", out, "--method", "sigma-zero")
    assert result.exit_code == 2
    assert (
        "a.png: choosy net fails on 16 x 16 pixels (RuntimeError: Kernel size can't be greater than"
        " actual input size); --resize N may give it a size that it takes"
    ) in said(result)
    assert len(list(out.iterdir())) == 5
    assert (out / "photo-attacked.png").exists()


def test_bench_goes_on_where_the_model_fails(tmp_path: Path, small_and_photo: Path) -> None:
    words: list[Any] = ["attack-bench", small_and_photo, "--model", "choosy", "--calls", "4"]
    words += ["--out", tmp_path / "out", "--methods", "sigma-zero", "--settings", "native"]
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert result.exit_code == 2
    assert "Left out: " in said(result)
    assert "a.png: choosy net fails on 16 x 16 pixels" in said(result)
    assert "--settings N may give it" in said(result)
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["key"]["picture"] for row in record["rows"]] == ["photo.png"]
    assert record["complete"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("mask must be None"), "sigma-zero fails on {}: ValueError: mask must be None"),
        (RuntimeError("CUDA out of memory. Tried"), "{}: more memory is needed than there is;"),
    ],
)
def test_a_batch_goes_on_where_the_method_fails(
    tmp_path: Path,
    photo: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    pictures.write(tmp_path / "second.png", pictures.read(photo))
    real, errors = sigma_zero._descend, [error]

    def broken_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(sigma_zero, "_descend", broken_once)
    out = tmp_path / "out"
    result = run(photo, tmp_path / "second.png", "--out", out, "--method", "sigma-zero")
    assert result.exit_code == 2
    assert message.format(photo) in said(result)
    names = {path.name.partition("-")[0].partition(".")[0] for path in out.iterdir()}
    assert names == {"second"}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_size_that_does_not_fit_is_no_end_of_the_process(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "memory", lambda device: 2**28)
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--model", "sized", "--resize", 8000)
    assert result.exit_code == 2
    assert (
        "photo.png: more memory is needed than there is; the short side is resized to 8000, and a"
        " smaller one may take less"
    ) in said(result)
    assert run(photo, "--out", out, "--model", "sized", "--calls", 1).exit_code in (0, 1)


def test_probabilities_that_are_no_numbers(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_numbers(self: Classifier, images: Tensor) -> Tensor:
        return torch.full((len(images), len(SHAPES)), torch.nan)

    monkeypatch.setattr(Classifier, "predict", no_numbers)
    result = run(photo, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "small net gives probabilities that are no numbers" in said(result)


def test_what_the_model_does_not_say_is_not_attacked(tmp_path: Path, photo: Path) -> None:
    label = int(confident_pictures(1)[1][0])
    out = tmp_path / "out"
    wrong = run(photo, "--out", out, "--label", SHAPES[(label + 2) % 4], "--method", "pgd-l0")
    assert wrong.exit_code == 2
    assert "the model already says" in said(wrong)
    unsure = run(photo, "--out", out, "--least-confidence", 1, "--method", "pgd-l0")
    assert unsure.exit_code == 2
    assert "--least-confidence 0 attacks all the same" in said(unsure)
    unknown = run(photo, "--out", out, "--least-confidence", 1, "--target", "dics")
    assert "--target 'dics' is no class of small net" in said(unknown)
    same = run(photo, "--out", out, "--target", label, "--method", "pgd-l0")
    assert "is what the model says" in said(same)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--label", "bars"), "'bars' is no class of small net; near: horizontal bars"),
        (("--label", "9"), "--label 9: expected 0 to 3"),
        (("--label", "²"), "--label '²' is no class of small net"),
        (("--method", "magic"), "'magic' is no method; expected"),
        (("--resize", "huge"), "'huge' is not a whole number"),
        (("--calls", "0"), "'0' is not a whole number of at least 1"),
        (("--least-confidence", "2"), "'2' is not a number from 0 to 1"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, photo: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(photo, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    plain = said(result).replace("│ ", "").replace(" │", "")
    assert message in plain
    assert not (tmp_path / "out").exists()


def test_regions_of_another_size_or_empty(tmp_path: Path, photo: Path) -> None:
    region = tmp_path / "region.png"
    Image.new("L", (16, 32), 255).save(region)
    result = run(photo, "--out", tmp_path / "out", "--region", region, "--method", "pgd-l0")
    assert result.exit_code == 2
    assert "the region is 16 x 32, the picture 32 x 32" in said(result)
    Image.new("L", (32, 32), 0).save(region)
    result = run(photo, "--out", tmp_path / "out", "--region", region, "--method", "pgd-l0")
    assert "the region is empty" in said(result)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_are_refused(tmp_path: Path, kind: str) -> None:
    """The first frame was attacked without a word."""
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "green")]
    moving = tmp_path / f"moving.{kind.lower()}"
    frames[0].save(moving, format=kind, save_all=True, append_images=frames[1:])
    result = run(moving, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{moving.name}: has 3 frames, expected a single picture" in said(result)
    assert not (tmp_path / "out").exists()
    still = tmp_path / f"still.{kind.lower()}"
    frames[0].save(still, format=kind)
    assert pictures.read(still).shape == (3, 16, 16)


def test_models_that_cannot_be_had(tmp_path: Path, photo: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    result = run(photo, "--model", folder, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Error: model" in said(result)
    assert not (tmp_path / "out").exists()


def test_two_pictures_of_one_name(tmp_path: Path, photo: Path) -> None:
    result = run(photo, tmp_path / "other" / "photo.jpg", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "under one name" in said(result).replace("│ ", "").replace(" │", "")


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figures, "write_side_by_side", full)
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 40)
    assert result.exit_code == 2
    assert "No space left on device" in said(result)
    assert list(out.iterdir()) == []

"""``fast-lapsum encode``, ``decode`` and ``inspect``, from picture to file and back."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from coder_runs import names, photo, run
from fast_lapsum.apps.coder import container
from fast_lapsum.apps.coder import run as coder_run
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import decode_picture
from fast_lapsum.apps.coder.settings import Settings
from fast_lapsum.bench import environment, sources

__all__ = ["photo"]  # a fixture


@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_from_picture_to_file_and_back(photo, tmp_path, plain):
    lap, png = tmp_path / "photo.lap", tmp_path / "again.png"
    said = run("encode", photo, "-o", lap, "--bytes", 2000, "--steps", 4, "--device", "cpu", *plain)
    assert lap.stat().st_size <= 2000
    run("decode", lap, "-o", png)
    original, again = np.asarray(Image.open(photo)), np.asarray(Image.open(png))
    assert np.array_equal(again, decode_picture(container.read(lap)))
    found = re.search(r"([\d,]+) bytes, ([\d.]+) bpp, ([\d.]+) dB", said)
    assert int(found[1].replace(",", "")) == lap.stat().st_size
    assert float(found[2]) == pytest.approx(8 * lap.stat().st_size / 3072, abs=1e-4)
    assert float(found[3]) == pytest.approx(psnr(original, again), abs=0.006)
    assert float(found[3]) > 25
    rates = re.search(r"rate: ([\d,]+) bits by training's count, ([\d,]+) in the file", said)
    counted, taken = (int(one.replace(",", "")) for one in rates.groups())
    assert taken == 8 * lap.stat().st_size
    assert counted == pytest.approx(taken, rel=0.5)  # a tiny picture, a short training
    shown = run("inspect", lap)
    for word in (
        "64 x 48, RGB",
        "checksum",
        "addresses",
        "Levels",
        "plain" if plain else "context",
    ):
        assert word in shown
    assert names(tmp_path) == ["again.png", "photo.lap", "photo.png"]


def test_names_follow_the_source(photo, tmp_path):
    run("encode", photo, "--steps", 2, "--plain", "--device", "cpu")
    assert (tmp_path / "photo.lap").stat().st_size <= coder_run.LEAST_BYTES
    original = photo.read_bytes()
    assert "maybe the original" in run("decode", tmp_path / "photo.lap", code=2)
    assert "not a .lap file" in run("decode", photo, code=1)
    assert photo.read_bytes() == original
    run("decode", tmp_path / "photo.lap", "--overwrite")
    assert photo.read_bytes() != original
    photo.unlink()
    run("decode", tmp_path / "photo.lap")
    assert names(tmp_path) == ["photo.lap", "photo.png"]
    assert "end it in .png" in run("decode", tmp_path / "photo.lap", "-o", "a.jpg", code=2)


def test_what_nobody_named_is_not_replaced(photo, tmp_path):
    """A file that follows from the source's name; one that is named by --out is replaced."""
    lap = tmp_path / "photo.lap"
    options = ("--steps", 1, "--plain", "--device", "cpu")
    run("encode", photo, *options)
    first = lap.read_bytes()
    said = " ".join(run("encode", photo, "--bytes", 400, *options, code=2).split())
    assert "--overwrite" in said
    assert lap.read_bytes() == first
    run("encode", photo, "--bytes", 400, "--overwrite", *options)
    second = lap.read_bytes()
    assert len(second) <= 400 < len(first)
    run("encode", photo, "-o", lap, *options)
    assert lap.read_bytes() == first
    again = tmp_path / "again.png"
    for _ in range(2):
        run("decode", lap, "-o", again)


def test_bits_per_pixel_are_a_limit(photo, tmp_path):
    lap = tmp_path / "photo.lap"
    run("encode", photo, "-o", lap, "--bpp", 1.2, "--steps", 2, "--plain", "--device", "cpu")
    assert lap.stat().st_size <= 1.2 * 3072 / 8


def test_quality_is_reached(photo, tmp_path):
    lap = tmp_path / "photo.lap"
    options = ("--steps", 3, "--plain", "--device", "cpu")
    run("encode", photo, "-o", lap, "--psnr", 28, *options)
    again = decode_picture(container.read(lap))
    assert psnr(np.asarray(Image.open(photo)), again) >= 28


def test_figure_and_profile(photo, tmp_path):
    figure = tmp_path / "figure.png"
    options = ("--plain", "--steps", 2, "--device", "cpu", "--figure", figure, "--profile")
    said = run("encode", photo, "-o", tmp_path / "photo.lap", *options)
    assert re.search(r"profile: 1 step of [\d.]+ ms, without the first", said)
    assert re.search(r"the operator takes [\d.]+ ms of each, [\d.]+%", said)
    with Image.open(figure) as image:
        assert image.width > 3 * 170


def test_a_single_step_has_no_profile(photo):
    options = ("--plain", "--steps", 1, "--device", "cpu", "--profile")
    assert "profile: nothing to count" in run("encode", photo, *options)


def recorded(photo, path, steps=3, target=None):
    settings = Settings(bits=1.0, plain=True, steps=steps, atoms=40)
    target = target or coder_run.Target(size=600)
    out = photo.with_suffix(".lap")
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        coder_run.run_encode(photo, out, target, settings, console, record_path=path)
    return out


def test_a_record_of_what_was_made(photo, tmp_path):
    path = tmp_path / "record.json"
    lap = recorded(photo, path)
    text = path.read_text()
    found = json.loads(text)
    assert (found["format"], found["version"]) == ("fast-lapsum encode", 1)
    assert found["environment"].keys() == environment.describe().keys()
    assert found["sources"] == sources.describe("encode", "cpu")
    assert found["picture"] == {"name": "photo.png", "width": 64, "height": 48, "planes": 3}
    assert str(tmp_path) not in text
    asked = found["settings"]
    assert asked["target"] == {"bits_per_pixel": None, "size": 600, "quality": None}
    assert (asked["plain"], asked["atoms"], asked["steps"], asked["seed"]) == (True, 40, 3, 0)
    assert "bits" not in asked
    size, code = lap.stat().st_size, container.read(lap)
    assert (found["bytes"], found["file_bits"]) == (size, 8 * size)
    assert found["bpp"] == pytest.approx(8 * size / 3072, abs=1e-5)
    assert found["atoms"] == sum(len(band.values) for band in code.bands) <= 40
    assert found["counted_bits"] == pytest.approx(8 * size, rel=0.5)
    reached = psnr(np.asarray(Image.open(photo)), decode_picture(code))
    assert found["psnr"] == pytest.approx(reached, abs=1e-4)
    assert found["seconds"] > 0
    times = found["profile"]
    assert times["steps"] == 2
    assert 0 < times["operator_ms"] < times["step_ms"]
    assert times["share"] == pytest.approx(times["operator_ms"] / times["step_ms"], abs=0.01)
    assert names(tmp_path) == ["photo.lap", "photo.png", "record.json"]


def test_the_option_writes_a_record(photo, tmp_path):
    path = tmp_path / "record.json"
    options = ("--plain", "--steps", 2, "--bytes", 700, "--device", "cpu", "--record", path)
    assert f"Record: {path}" in run("encode", photo, *options)
    found = json.loads(path.read_text())
    assert found["settings"]["target"]["size"] == 700
    assert found["bytes"] == photo.with_suffix(".lap").stat().st_size


def test_a_record_without_numbers_has_none(tmp_path):
    """An exact file has no PSNR, a single step no profile."""
    photo, path = tmp_path / "grey.png", tmp_path / "record.json"
    Image.fromarray(np.full((16, 16), 128, dtype=np.uint8)).save(photo)
    recorded(photo, path, steps=1)
    found = json.loads(path.read_text())
    assert found["psnr"] is None
    assert found["profile"] == {"steps": 0, "step_ms": None, "operator_ms": None, "share": None}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/record.json", "the folder .*nowhere does not exist"),
        ("record.txt", "end it in .json"),
        ("folder.json", "a folder"),
        ("photo.json", "would replace"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_first(photo, tmp_path, name, message):
    (tmp_path / "folder.json").mkdir()
    settings, taken = Settings(bits=1.0, plain=True), tmp_path / "photo.json"
    with pytest.raises(CoderError, match=message):
        coder_run.run_encode(
            photo, taken, coder_run.Target(), settings, Console(), record_path=tmp_path / name
        )
    assert names(tmp_path) == ["folder.json", "photo.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_not_read_before_its_picture_is(photo, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(photo.read_bytes()), daemon=True)
    writer.start()
    run("encode", pipe, "-o", tmp_path / "photo.lap", "--steps", 2)
    writer.join(10)
    assert (tmp_path / "photo.lap").stat().st_size > 0


def test_bytes_after_the_end_of_a_picture_are_none_of_it(photo, tmp_path):
    photo.write_bytes(photo.read_bytes() + b"some more")
    run("encode", photo, "--steps", 2)
    assert names(tmp_path) == ["photo.lap", "photo.png"]


def test_one_atom_is_one(photo, tmp_path):
    out = tmp_path / "photo.lap"
    assert " dB, 1 atom, " in run("encode", photo, "-o", out, "--plain", "--k", 1, "--steps", 2)
    assert " bpp, 1 atom, " in run("inspect", out)

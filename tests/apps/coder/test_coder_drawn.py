"""Drawn pictures: none is destroyed, none is below one colour per block, none takes for ever."""

from __future__ import annotations

import hashlib
import json
import math
import time

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fast_lapsum.apps.coder import container, drawn, drawn_report, drawn_text, encode, floor
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import decode_picture
from fast_lapsum.apps.coder.settings import Settings
from fast_lapsum.cli import app
from places import ROOT


def coded(picture: np.ndarray, limit: int, plain: bool = False, steps: int | None = None):
    """The file of a picture, and the picture of the file."""
    found = encode.encode(picture, Settings(bits=1, plain=plain, steps=steps), limit)
    assert len(found.data) <= limit
    again = decode_picture(container.from_bytes(found.data))
    assert psnr(picture, again) == found.fit.psnr
    return found, again


def flat(size: int, *colour: int) -> np.ndarray:
    return np.full((size, size, len(colour)), colour, dtype=np.uint8)


@pytest.mark.parametrize(
    "picture",
    [flat(512, 255, 255, 255), flat(64, 0, 0, 0), flat(64, 200, 30, 30), flat(64, 255)],
    ids=["white", "black", "red", "white, grey"],
)
def test_flat_pictures_come_back_exactly(picture):
    """White of 512 x 512 came back as 198: its average had more levels than the format has."""
    found, again = coded(picture, 1638, steps=3)
    assert np.array_equal(again, picture)
    assert len(found.data) < 250  # there were 1,623, most of them for rounding noise
    # After so short a training; it was 7 times as much.
    assert found.fit.counted == pytest.approx(found.fit.file_bits, rel=0.35)


QUICK = ("window", "page, grey", "noise", "colour pixels")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        pytest.param(name, plain, marks=[pytest.mark.slow] * (not plain and name not in QUICK))
        for plain in (False, True)
        for name in drawn.NAMES
    ],
)
def test_no_picture_is_below_one_colour_per_block(name, plain):
    picture = drawn.draw(name, 64)
    begin = time.process_time()
    _, again = coded(picture, 200, plain, steps=1)
    blocks = floor.block_means(picture, 16).repeat(16, axis=0).repeat(16, axis=1)
    assert psnr(picture, again) >= psnr(picture, blocks)
    assert time.process_time() - begin < 30


@pytest.mark.parametrize("plain", [False, True], ids=["best", "plain"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (2, 7), (9, 5), (16, 1)], ids=str)
def test_tiny_pictures(shape, plain):
    random = np.random.default_rng(0)
    for planes in (1, 3):
        picture = random.integers(0, 256, (*shape, planes), dtype=np.uint8)
        _, again = coded(picture, 300, plain, steps=2)
        blocks = floor.block_means(picture, 16).repeat(16, axis=0).repeat(16, axis=1)
        shown = blocks[: shape[0], : shape[1]]
        assert psnr(picture, again) >= psnr(picture, shown)


def test_a_bad_training_is_replaced_by_blocks(monkeypatch):
    """Whatever training comes to, the file is one colour per block at least."""
    picture = drawn.draw("noise", 64)
    real = encode.fit

    def spoiled(picture, settings, progress):
        found = real(np.zeros_like(picture), settings, progress)
        return found._replace(psnr=psnr(picture, decode_picture(found.code)))

    monkeypatch.setattr(encode, "fit", spoiled)
    found, again = coded(picture, 100, steps=1)
    blocks = floor.block_means(picture, 16).repeat(16, axis=0).repeat(16, axis=1)
    assert np.array_equal(again, blocks)
    assert found.fit.atoms == 16
    assert found.fit.code is found.code
    assert found.fit.counted == pytest.approx(found.fit.file_bits, rel=0.3)
    assert floor.block_code(picture, 20) is None
    asked = Settings(bits=1, plain=True, steps=1, atoms=15)
    assert encode.encode(picture, asked, 100).fit.atoms <= 15  # a k that was asked for holds


@pytest.mark.parametrize("limit", [48 + 40, 192 + 40, 3 * 64 * 64 + 80])
def test_blocks_are_as_small_as_the_file_holds(limit):
    """What a file takes beside its colours is at most 40 bytes for up to 256 of them."""
    picture = drawn.draw("noise", 64)
    code, data = floor.block_code(picture, limit)
    side = {88: 16, 232: 8, 12368: 1}[limit]
    assert len(data) <= limit
    shown = floor.block_means(picture, side).repeat(side, axis=0).repeat(side, axis=1)
    assert np.array_equal(decode_picture(code), shown)


@pytest.mark.parametrize("limit", [600, 3000])
def test_plain_grey_spends_its_bytes(limit):
    """One atom per 16 bits, as in colours, left a fifth of a grey file empty."""
    rows, columns = np.mgrid[:128, :128] / 128
    scene = 120 + 60 * np.sin(9 * rows * columns) + 40 * (np.hypot(rows - 0.4, columns - 0.5) < 0.3)
    scene = scene + np.random.default_rng(0).normal(0, 6, scene.shape)
    picture = np.clip(scene, 0, 255).astype(np.uint8)[:, :, None]
    found, _ = coded(picture, limit, plain=True, steps=30)
    assert len(found.data) > 0.98 * limit


def test_pictures_are_the_same_everywhere():
    found = hashlib.sha256()
    for size in drawn_report.SIZES:
        for name in drawn.NAMES:
            picture = drawn.draw(name, size)
            assert picture.shape[:2] == (size, size)
            found.update(picture.tobytes())
    assert found.hexdigest()[:16] == "a91ab89e8445b173"


def test_pictures_that_are_not_there():
    with pytest.raises(ValueError, match=r"name must be one of white, .*got 'green'"):
        drawn.draw("green", 64)
    with pytest.raises(ValueError, match="size must be at least 8, got size=7"):
        drawn.draw("white", 7)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(drawn_report, "SIZES", (64,))
    monkeypatch.setattr(drawn_text, "SIZES", (64,))
    monkeypatch.setattr(drawn, "NAMES", ("white",))


def test_a_table_goes_on_where_it_stopped(tmp_path, monkeypatch, few):
    path, calls = tmp_path / "drawn.json", []
    real = drawn_report.measured

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(drawn_report, "measured", stopping)
    words = ["coder-drawn", "--out", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 130
    assert len(json.loads(path.read_text())["rows"]) == 3
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert len(record["rows"]) == len(drawn_report.METHODS) == len(calls) - 1
    assert not drawn_text.below(record["rows"])
    text = path.with_suffix(".md").read_text()
    assert "0 are below the simplest code" in text
    assert "| white | exact (16) | exact (" in text
    record["sources"]["hash"] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(CoderError, match=r"made by other sources.*--fresh"):
        drawn_report.run(path, Console())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["drawn.json", "drawn.md"]


def test_rows_below_the_simplest_code_are_found():
    key = {"size": 64, "limit": 512, "picture": "white"}
    rows = [
        key | {"method": "trivial", "psnr": None, "bytes": 48},
        key | {"method": "best", "psnr": 61.0, "bytes": 440},
        key | {"method": "plain", "psnr": None, "bytes": 60},
    ]
    assert [row["method"] for row in drawn_text.below(rows)] == ["best"]
    assert (
        drawn_report.quality({"reason": "too small"})
        < 0
        < math.inf
        == drawn_report.quality(rows[0])
    )


RESULTS = ROOT / "results" / "coder" / "drawn.json"


@pytest.mark.skipif(not RESULTS.exists(), reason="the committed results are not here")
def test_the_committed_table():
    rows = json.loads(RESULTS.read_text())["rows"]
    assert len(rows) == len(list(drawn_report.cases()))
    assert not drawn_text.below(rows)
    assert max(row["seconds"] for row in rows if row["method"] in drawn_text.OURS) < 60

"""Files made by hand: memory and time of decoding them are bounded, and by what the docs say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from coder_cases import random_code
from fast_lapsum.apps.coder import container, limits, tiles
from fast_lapsum.apps.coder.bitstream import CoderError, most_symbols
from fast_lapsum.apps.coder.code import MAX_LEVELS
from fast_lapsum.apps.coder.dictionary import decode_picture
from hostile import forge, measure
from places import ROOT

measured = pytest.mark.skipif(not measure.STATUS.exists(), reason="this system has no /proc")
ROW, COLUMN, SQUARE = (1, 1 << 20), (1 << 20, 1), (1024, 1024)


def full(
    shape: tuple[int, int], dictionary: str, colour: str, mode: str, magnitudes: str = "low"
) -> forge.Plan:
    """Every atom on."""
    step, levels = (4096, 1) if magnitudes == "low" else (1 << 24, MAX_LEVELS * 3 // 4)
    return forge.Plan(
        1, *shape, 3, dictionary, colour, mode, "all", magnitudes, step, levels, shrink=0
    )


@measured
@pytest.mark.parametrize(
    "plan",
    [
        full(ROW, "blocks", "opponent", "context"),
        full(ROW, "wavelet", "rgb", "context"),
        full(SQUARE, "blocks", "rgb", "plain", "tall"),
        full((512, 512), "wavelet", "opponent", "context", "tall"),
        full(COLUMN, "wavelet", "opponent", "plain", "tall"),
    ],
    ids=lambda plan: f"{plan.dictionary} {plan.colour} {plan.mode} {plan.magnitudes}",
)
def test_every_atom_on(plan, monkeypatch):
    """A row with every atom on took 108 bytes a pixel where 40 were promised."""
    # Little beside, so that a megapixel is enough to see what a pixel takes.
    monkeypatch.setattr(limits, "BYTES_BESIDE", 24 << 20)
    monkeypatch.setattr(measure, "make", lambda kind, seed: forge.crafted(plan))
    found = measure.cost("crafted", 0)
    assert found.ending == "decoded"
    assert found.pixels == plan.height * plan.width
    assert found.memory_share < 1
    assert found.time_share < 1


@measured
@pytest.mark.parametrize("kind", ["crafted", "mutated"])
def test_a_slice_of_the_hostile_files(kind, monkeypatch):
    monkeypatch.setattr(forge, "MOST_PIXELS", 1 << 18)
    found = [measure.cost(kind, seed) for seed in range(12)]
    assert all(one.memory_share < 1 and one.time_share < 1 for one in found)
    assert kind == "mutated" or any(one.ending == "decoded" for one in found)
    assert len({one.file_bytes for one in found}) > 6


@measured
@pytest.mark.slow
def test_more_of_the_hostile_files():
    for kind, count in (("crafted", 60), ("mutated", 300)):
        for seed in range(count):
            found = measure.cost(kind, seed)
            assert max(found.memory_share, found.time_share) < 1, found


def test_most_crafted_files_are_well_formed():
    decoded = 0
    for seed in range(60):
        plan = forge.plan(seed)
        if plan.height * plan.width > 5000:
            continue
        try:
            code = container.from_bytes(forge.crafted(plan))
        except CoderError:
            continue
        decoded += 1
        assert decode_picture(code).shape == (plan.height, plan.width, plan.planes)
    assert decoded > 10


def test_plans_have_the_sizes_that_are_asked_for():
    pixels = [plan.height * plan.width for plan in map(forge.plan, range(2000))]
    octaves, _ = np.histogram(np.log2(pixels), bins=13, range=(0, 26))
    assert octaves.min() > 60  # log-uniform: 154 each on average
    assert max(pixels) <= container.MAX_PIXELS
    for seed in range(50):
        plan = forge.plan(seed, at_limit=True)
        assert 0.99 * container.MAX_PIXELS < plan.height * plan.width <= container.MAX_PIXELS


def test_a_file_of_too_many_symbols_is_refused(monkeypatch):
    """Tall magnitudes that a model is sure of cost no bits, and minutes to read."""
    plan = full((64, 64), "blocks", "rgb", "context", "tall")
    monkeypatch.setattr(forge, "most_symbols", lambda pixels, size: 10**9)
    monkeypatch.setattr(forge, "_CHEAP_PIXELS", 0)
    data = forge.crafted(plan)
    assert len(data) < 6000
    with pytest.raises(CoderError, match=r"tall.lap: more than [\d,]+ symbols"):
        container.from_bytes(data, "tall.lap")


def test_an_encoder_writes_nothing_that_is_refused(monkeypatch):
    code = random_code(3, (20, 31))
    assert container.to_bytes(code)
    monkeypatch.setattr(container, "most_symbols", lambda pixels, size: 100)
    with pytest.raises(CoderError, match=r"code takes [\d,]+ symbols, expected at most 100"):
        container.to_bytes(code)
    assert most_symbols(100, 10) == 1600 + 640 + 65536


def test_the_size_of_parts_does_not_matter(monkeypatch):
    codes = [random_code(seed, size) for seed in range(4) for size in ((1, 300), (40, 35))]
    files = [container.to_bytes(code, mode) for code in codes for mode in ("plain", "context")]
    pictures = [decode_picture(container.from_bytes(data)) for data in files]
    monkeypatch.setattr(tiles, "MOST", 61)
    again = [container.to_bytes(code, mode) for code in codes for mode in ("plain", "context")]
    assert again == files
    for data, picture in zip(files, pictures, strict=True):
        assert np.array_equal(decode_picture(container.from_bytes(data)), picture)


def test_the_docs_name_the_limits():
    text = (ROOT / "docs" / "coder.md").read_text()
    words = re.sub(r"\s+", " ", text)
    assert f"{limits.BYTES_PER_PIXEL} bytes a pixel" in words
    assert "three times the file" in words
    assert limits.BYTES_PER_FILE_BYTE == 3
    assert f"{limits.BYTES_BESIDE >> 20} MiB" in words
    assert f"{1e6 * limits.SECONDS_PER_PIXEL:.0f} s a megapixel" in words
    assert f"{1e6 * limits.SECONDS_PER_FILE_BYTE:.0f} s a megabyte" in words

"""Encoding within limits: odd sizes come back, and what is trimmed is in no number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coder_runs import scene
from fast_lapsum.apps.coder import container, encode
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import decode_picture
from fast_lapsum.apps.coder.settings import Settings


def test_quality_that_cannot_be_reached():
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    with pytest.raises(CoderError, match="90 dB were not reached"):
        encode.encode_to_quality(noise, Settings(bits=1, plain=True, steps=1, atoms=3), 90)


def check_round_trip(seed: int, plain: bool) -> None:
    random = np.random.default_rng(seed)
    sizes = ((1, 1), (7, 33), (1, 9), (12, 1), (17, 15), (32, 32), (5, 40))
    height, width = (7, 513) if seed == 0 else sizes[seed % len(sizes)]
    planes = (1, 3)[seed // 2 % 2]
    picture = scene(height, width, planes)
    picture = picture + random.integers(-8, 8, picture.shape)
    picture = np.clip(picture, 0, 255).astype(np.uint8)
    settings = Settings(bits=1, plain=plain, steps=1, seed=seed)
    found = encode.encode(picture, settings, int(random.integers(250, 900)))
    again = container.from_bytes(found.data)
    assert np.array_equal(decode_picture(again), decode_picture(found.code))
    assert decode_picture(again).shape == picture.shape


def test_pictures_of_odd_sizes_come_back():
    for seed in range(40):
        check_round_trip(seed, plain=True)
    for seed in range(4):
        check_round_trip(seed, plain=False)


@pytest.mark.slow
def test_two_hundred_pictures_come_back():
    for seed in range(200):
        check_round_trip(seed, plain=seed % 2 == 0)


def test_trimmed_to_a_limit():
    picture = scene(64, 64)
    for plain in (True, False):
        mode = "plain" if plain else "context"
        found = encode.encode(picture, Settings(bits=1, plain=plain, steps=2), 700)
        full = found.code
        limit = len(found.data) * 2 // 3
        shorter, data = encode.trimmed(full, limit, mode)
        assert len(data) <= limit
        container.check(shorter)
        assert 15 < psnr(picture, decode_picture(shorter)) < psnr(picture, decode_picture(full))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
def test_what_is_trimmed_is_in_no_number(monkeypatch, plain):
    picture = scene(64, 64)
    settings, limit = Settings(bits=1, plain=plain, steps=3), 600
    real = encode.fit
    # Training gets a third more than the file has room for.
    monkeypatch.setattr(
        encode, "fit", lambda p, s, progress: real(p, replace(s, bits=1.35 * s.bits), progress)
    )
    trimmed = []
    drop = encode.trimmed
    monkeypatch.setattr(encode, "trimmed", lambda *a: trimmed.append(drop(*a)) or trimmed[-1])
    found = encode.encode(picture, settings, limit)
    shorter = trimmed[0][0]
    assert len(found.data) <= limit
    assert found.fit.code is found.code
    assert found.fit.atoms == sum(int(band.mask.sum()) for band in found.code.bands)
    assert found.fit.psnr == psnr(picture, decode_picture(found.code))
    assert found.fit.file_bits == 8 * len(found.data)
    again = decode_picture(container.from_bytes(found.data))
    assert np.array_equal(again, decode_picture(found.code))
    if plain:  # values are refitted to the atoms that are left
        assert found.fit.psnr > psnr(picture, decode_picture(shorter))
        assert found.fit.counted == pytest.approx(8 * len(found.data), rel=0.05)

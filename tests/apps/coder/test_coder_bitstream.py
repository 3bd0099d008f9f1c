"""The image coder's bitstream: bit-exact both ways, as small as it says, the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coder_cases import random_code, same
from fast_lapsum.apps.coder import container, models, rate
from fast_lapsum.apps.coder.bitstream import (
    COST,
    PRECISION,
    PROBABILITY,
    SCORE_LIMIT,
    CoderError,
    Counter,
    Reader,
    Writer,
)
from fast_lapsum.apps.coder.code import Band, Code, layout


@pytest.mark.parametrize("mode", ["plain", "context"])
def test_random_codes_come_back(mode):
    for seed in range(72):  # after which sizes, dictionaries, planes and colours come round again
        code = random_code(seed)
        if code.height * code.width > 2000 and seed % 4:
            continue
        assert same(container.from_bytes(container.to_bytes(code, mode)), code), seed


@pytest.mark.parametrize("mode", ["plain", "context"])
@given(
    seed=st.integers(0, 10**6),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_any_size_and_density(mode, seed, height, width, density):
    code = random_code(seed, (height, width), density=density)
    assert same(container.from_bytes(container.to_bytes(code, mode)), code)


@pytest.mark.parametrize("mode", ["plain", "context"])
def test_the_estimate_is_the_size(mode):
    for seed in (2, 5, 6, 11, 24):
        code = random_code(seed)
        found = rate.estimate(code, mode)
        assert found.total / 8 == pytest.approx(len(container.to_bytes(code, mode)), abs=8)
        assert found.total == pytest.approx(sum(found.by_part.values()))
        assert sum(found.by_band) + found.by_part["header"] == pytest.approx(found.total)


def clustered(height: int, width: int, seed: int = 0) -> Code:
    """Atoms where the coarser level has some, as in pictures: a disc and the place around it."""
    random = np.random.default_rng(seed)
    bands = []
    for place in layout("wavelet", "rgb", height, width, 1):
        rows = (np.arange(place.height) + 0.5)[:, None] / max(1, place.height) - 0.5
        columns = (np.arange(place.width) + 0.5) / max(1, place.width) - 0.5
        near = np.exp(-np.square((np.hypot(rows, columns) - 0.3) * 2**place.level))
        mask = random.random((place.height, place.width)) < 0.8 * near
        values = 1 + random.geometric(0.6, (int(mask.sum()), 1))
        values = (values * random.choice([-1, 1], values.shape)).astype(np.int32)
        largest = int(np.abs(values).max(initial=0))
        bands.append(Band(place.level, place.plane, place.kind, mask, values, 4096, largest))
    return Code(height, width, 1, "wavelet", "rgb", 0, tuple(bands))


def test_plain_mode_is_the_counted_rate():
    code = clustered(512, 512)
    counted = 0.0
    for band in code.bands:
        n, k = band.mask.size, len(band.values)
        counted += math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        counted += k * math.log(2 * band.levels + 1)
    counted /= math.log(2)
    found = rate.estimate(code, "plain")
    assert found.by_part["addresses"] + found.by_part["values"] <= 1.01 * counted
    assert found.total <= 1.05 * counted
    assert found.total >= counted


def test_contexts_save_bits():
    code = clustered(512, 512)
    assert rate.estimate(code).total < 0.75 * rate.estimate(code, "plain").total


def test_price_of_an_atom():
    code = clustered(256, 256)
    prices = rate.atom_bits(code)
    assert [one.shape for one in prices] == [band.mask.shape for band in code.bands]
    likely, unlikely = prices[-1][code.bands[-1].mask], prices[-1][~code.bands[-1].mask]
    assert likely.mean() < unlikely.mean() - 1
    # The last atom of the finest level, taken away: what it cost is about what was said.
    last = code.bands[-1]
    mask = last.mask.copy()
    place = np.argwhere(mask)[-1]
    mask[tuple(place)] = False
    without = code._replace(
        bands=(*code.bands[:-1], last._replace(mask=mask, values=last.values[:-1]))
    )
    saved = rate.estimate(code).total - rate.estimate(without).total
    assert saved == pytest.approx(prices[-1][tuple(place)], abs=4)


def test_empty_bands_cost_next_to_nothing():
    code = random_code(0, (512, 512), "wavelet", density=0.0)
    assert len(container.to_bytes(code)) < 60


def test_probabilities_are_exact_and_symmetric():
    counts = PROBABILITY * 2**PRECISION
    assert np.array_equal(counts, np.rint(counts))
    assert counts.min() >= 1
    assert counts.max() <= 2**PRECISION - 1
    assert np.all(np.diff(counts) >= 0)
    assert np.abs(counts + counts[::-1] - 2**PRECISION).max() <= 1
    assert COST.shape == (2, 2 * SCORE_LIMIT + 1)


def test_the_format_stays_the_same():
    # Written by the first version: another file for this code would be another format.
    assert container.to_bytes(clustered(20, 33), "plain").hex() == GOLDEN["plain"]
    for text in GOLDEN.values():
        assert same(container.from_bytes(bytes.fromhex(text)), clustered(20, 33))


GOLDEN = {
    "plain": (
        "934c415001041421000fbffdc859f29bf5130fc6d9f3f6bb3b99a870938da0f549bc3f907f2dbda0"
        "3ef7db232233f32e1c4ef91a1d22fb1104988fa1af7f94066aa2cedfef0f54f0ae2f"
    ),
    "context": (
        "934c4150010514210015c3aaacfd0ef870f4e158e251c6bf6f0b9d10735a387473fe0bbb4b373430"
        "f5dd7e6b26e83b9151f72a6dad75be605705e2c3aa9119e2aa10fc9cb0c4589c050dd4f6aa108b00"
        "2a1d8dce317d038ca1879153b04721b3046e"
    ),
}


@given(st.lists(st.integers(-models.WEIGHT_LIMIT, models.WEIGHT_LIMIT), min_size=1, max_size=9))
def test_weights_come_back(values):
    weights = np.array(values, dtype=np.int32)
    expected = np.zeros(len(weights), dtype=np.int32)
    writer, counter = Writer(), Counter()
    models.code_weights(writer, expected, weights)
    models.code_weights(counter, expected, weights)
    data = writer.finish()
    reader = Reader(data, pixels=1)
    assert np.array_equal(models.code_weights(reader, expected, None), weights)
    reader.finish()
    assert sum(counter.counted.values()) == pytest.approx(8 * len(data), abs=40)


def test_buckets_cover_the_integers():
    values = np.arange(5000, dtype=np.int32)
    buckets = models.bucket_of(values)
    offsets = values - models.BUCKET_START[buckets]
    assert np.all(offsets >= 0)
    assert np.all(offsets < models.BUCKET_SIZE[buckets])


def test_a_fit_finds_the_odds():
    random = np.random.default_rng(0)
    features = np.stack([np.full(20000, 8), 8 * random.integers(0, 2, 20000)], axis=1)
    chance = 1 / (1 + 2.0 ** -((-16 * 8 + 12 * features[:, 1]) / 32))
    samples = models.Samples(
        features.astype(np.int32), random.random(20000) < chance, np.ones(20000)
    )
    found = models.fit(samples, np.zeros(2, dtype=np.int32))
    assert np.abs(found - [-16, 12]).max() <= 2


def test_a_fit_never_costs_more_than_what_was_expected():
    random = np.random.default_rng(1)
    features = random.integers(-200, 200, (50, 3)).astype(np.int32)
    symbols = features[:, 0] > 0  # separable: the best weights are infinite
    for expected in ([0, 0, 0], [900, -900, 900], [-900, 0, 0]):
        start = np.array(expected, dtype=np.int32)
        found = models.fit(models.Samples(features, symbols, np.ones(50)), start)
        costs = []
        for weights in (found, start):
            counter = Counter()
            counter.bits(features @ weights, symbols)
            costs.append(sum(counter.counted.values()))
        assert costs[0] <= costs[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planes": 2}, "planes must be 1 or 3"),
        ({"shrink": -(1 << 30)}, "shrink is"),
        ({"bands": ()}, "0 bands"),
        ({"matrix": (1, 2)}, "matrix is"),
        ({"dictionary": "fourier"}, "dictionary must be"),
    ],
)
def test_codes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(CoderError, match=message):
        container.to_bytes(random_code(2)._replace(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": 99}, "in its place"),
        ({"mask": np.zeros((2, 2), bool)}, "mask is bool"),
        ({"values": np.zeros((1, 7), np.int32)}, "values are int32"),
        ({"step": 0}, "step 0"),
        ({"levels": -1}, "levels -1"),
        ({"levels": 0}, "expected at most 0"),
    ],
)
def test_bands_that_do_not_fit_are_refused(change, message):
    code = clustered(64, 64)
    index = next(index for index, band in enumerate(code.bands) if len(band.values) > 3)
    bands = list(code.bands)
    bands[index] = bands[index]._replace(**change)
    with pytest.raises(CoderError, match=message):
        container.to_bytes(code._replace(bands=tuple(bands)))

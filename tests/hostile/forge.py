"""Files with valid checksums that no encoder writes, made from a seed.

A :class:`Forger` walks over the bands as a reader does, but it makes the symbols up, by a plan, and
writes them down: the file is well formed to its last bit, however absurd it is. What a reader would
refuse on the way (a band without atoms that is said to have some) ends the walk, and the file too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from fast_lapsum.apps.coder import bands, container, models
from fast_lapsum.apps.coder.bitstream import Bits, CoderError, Integers, Writer, most_symbols
from fast_lapsum.apps.coder.code import MAX_LEVELS, Code, Place, layout

MOST_PIXELS = container.MAX_PIXELS
_CHEAP_PIXELS = 1 << 20  # larger pictures keep to what their models expect: the file stays small


class Plan(NamedTuple):
    """One file to be."""

    seed: int
    height: int
    width: int
    planes: int
    dictionary: str
    colour: str
    mode: str
    density: str  # all, one, few, half, none: atoms of a band
    magnitudes: str  # tall, low, any
    step: int
    levels: int
    shrink: int


def plan(seed: int, at_limit: bool = False) -> Plan:
    """The file of a seed: size log-uniform up to the limit, or at it."""
    random = np.random.default_rng([seed, at_limit])
    pixels = MOST_PIXELS if at_limit else int(2 ** random.uniform(0, np.log2(MOST_PIXELS)))
    # One row, one column, or anything between.
    shape = random.integers(4)
    share = (0.0, 1.0, 0.5, random.random())[shape]
    height = max(1, min(pixels, round(pixels**share)))
    if at_limit:  # a power of two, so that the width leaves nothing over
        height = 1 << round(share * np.log2(pixels))
    width = max(1, pixels // height)
    planes = int(random.choice([1, 3], p=[0.25, 0.75]))
    dictionary = str(random.choice(["blocks", "wavelet"]))
    colour = "rgb" if planes == 1 or random.random() < 0.5 else "opponent"
    step = int(2 ** random.uniform(0, 24))
    levels = int(random.choice([1, 2**7, MAX_LEVELS, int(2 ** random.uniform(0, 17))]))
    shrink = 0
    if dictionary == "wavelet" and random.random() < 0.5:
        shrink = int(random.integers(1 - step, step)) if step > 1 else 0
    return Plan(
        seed,
        height,
        width,
        planes,
        dictionary,
        colour,
        str(random.choice(bands.MODES, p=[0.3, 0.7])),
        str(random.choice(["all", "one", "few", "half", "none"], p=[0.4, 0.2, 0.15, 0.15, 0.1])),
        str(random.choice(["tall", "low", "any"], p=[0.3, 0.4, 0.3])),
        step,
        levels,
        shrink,
    )


class Forger(Writer):
    """Makes up what it is asked for."""

    def __init__(self, plan: Plan, places: tuple[Place, ...]) -> None:
        super().__init__()
        self.plan = plan
        self.places = places
        self.random = np.random.default_rng(plan.seed)
        self.cheap = plan.height * plan.width > _CHEAP_PIXELS
        # Close to what a reader takes, so that few are refused and the others take long.
        self.most = 0.9 * most_symbols(plan.height * plan.width, 0)
        self.band = 0
        self.count: int | None = None  # of atoms, once it was sent
        self.any_on = False
        self.has_flag = False

    def watch(self, band: int) -> None:
        """Hear which band is next."""
        self.band, self.count, self.any_on, self.has_flag = band, None, False, False

    def density(self) -> str:
        """Of this band."""
        return "none" if self.random.random() < 0.05 else self.plan.density

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """Write bits, made up where they are not given."""
        return super().bits(scores, self._bits(scores) if symbols is None else symbols)

    def _bits(self, scores: Integers) -> Bits:
        size, random = scores.size, self.random
        if self.part == "band heads":
            return np.full(size, self._flag())
        if self.part == "addresses":
            return self._addresses(size)
        if self.part == "magnitudes":
            kind = self.plan.magnitudes if self.symbols < self.most else "low"
            if kind != "any":
                return np.full(size, kind == "tall")
            return scores > 0 if self.cheap else random.random(size) < 0.7
        if self.cheap and size > 1:
            return scores > 0
        return random.random(size) < 0.5

    def _flag(self) -> bool:
        """Whether a band has atoms; then whether it is a picture of averages, or has no zeros."""
        first, self.has_flag = not self.has_flag, True
        if first:
            return self.density() != "none"
        # As a picture, a tall value would lie beyond its band's levels, and end the walk.
        return self.random.random() < (0.5 if self.plan.magnitudes == "low" else 0.01)

    def _addresses(self, size: int) -> Bits:
        density = self.plan.density
        if density in ("all", "half") and (density == "all" or self.cheap):
            return np.ones(size, dtype=np.bool_)
        if density == "half":
            found = self.random.random(size) < 0.5
        else:
            found = np.zeros(size, dtype=np.bool_)
            if density == "few":
                found[self.random.integers(0, size, 1 + min(size // 1000, 100))] = True
        if not self.any_on:
            found[0] = self.any_on = True
        return found

    def chances(self, chance: int, count: int, symbols: Bits | None) -> Bits:
        """The first or the last places are on."""
        assert self.count is not None
        found = np.arange(count) < self.count
        return super().chances(chance, count, found if self.random.random() < 0.5 else found[::-1])

    def uniform(self, sizes: Integers, symbols: Integers | None) -> Integers:
        """Write numbers, made up where they are not given."""
        if symbols is None:
            kind = self.plan.magnitudes
            symbols = sizes - 1 if kind == "tall" else np.zeros_like(sizes)
            if kind == "any":
                symbols = self.random.integers(0, sizes).astype(np.int32)
            if self.part == "band heads":  # the levels, within their bucket
                symbols = self._levels_in_bucket(sizes)
        return super().uniform(sizes, symbols)

    def _levels_in_bucket(self, sizes: Integers) -> Integers:
        start = models.BUCKET_START[models.bucket_of(np.array([self.plan.levels], np.int32))]
        return np.clip(self.plan.levels - start, 0, sizes - 1).astype(np.int32)

    def chosen(self, expected: Integers) -> Integers:
        """Numbers that are sent as differences: counts of atoms, heads of bands, weights."""
        if self.part == "band heads":
            place = self.places[self.band]
            if self.plan.mode == "plain" and self.count is None and place.height * place.width:
                self.count = self._count(place.height * place.width)
                return np.array(divmod(self.count, bands._COUNT_PART), dtype=np.int32)
            bucket = models.bucket_of(np.array([self.plan.levels], dtype=np.int32))[0]
            return np.array([self.plan.step, bucket], dtype=np.int32)
        return self._weights(expected)

    def _count(self, places: int) -> int:
        density = self.density()
        few = 1 + int(self.random.integers(min(places, 1000)))
        counts = {"all": places, "half": -(-places // 2), "one": 1, "none": 0, "few": few}
        if self.cheap and density == "half":
            return places
        return min(places, counts[density])

    def _weights(self, expected: Integers) -> Integers:
        """Such that what the plan wants is what the model expects, or anything at all."""
        most = models.WEIGHT_LIMIT
        if not self.cheap and self.random.random() < 0.5:
            return self.random.integers(-most, most + 1, len(expected)).astype(np.int32)
        found = np.zeros_like(expected)
        if len(expected) == 14:  # of the mask, with a constant
            found[12] = most if self.plan.density in ("all", "half") else -most
        elif len(expected) == 9:  # of magnitudes
            found[5] = {"tall": most, "low": -most, "any": -2}[self.plan.magnitudes]
        return found


@contextmanager
def _made_up() -> Iterator[None]:
    """Numbers that are sent as differences come from the forger, too."""
    real = models.code_changes

    def changes(coder: Forger, expected: Integers, values: Integers | None) -> Integers:
        return real(coder, expected, coder.chosen(expected) if values is None else values)

    models.code_changes = changes  # type: ignore[assignment]
    try:
        yield
    finally:
        models.code_changes = real


def crafted(plan: Plan) -> bytes:
    """The file of a plan."""
    places = layout(plan.dictionary, plan.colour, plan.height, plan.width, plan.planes)
    forger = Forger(plan, places)
    with _made_up(), suppress(CoderError):  # what is written so far is the file
        bands.code_bands(forger, plan.mode, places, None, forger.watch)
    payload = forger.finish()
    matrix: tuple[int, ...] = ()
    if plan.colour == "opponent":
        matrix = tuple(forger.random.integers(-(1 << 14), 1 << 14, 9).tolist())
    code = Code(
        plan.height, plan.width, plan.planes, plan.dictionary, plan.colour, plan.shrink, (), matrix
    )
    body = container.header(code, plan.mode, len(payload) // 4) + payload
    return body + zlib.crc32(body).to_bytes(container.CHECKSUM_BYTES, "little")

"""The walk over a code's bands: what is sent, in which order, with which model.

With bands given it writes or counts them; without, it reads them. Both ways run the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from . import averages, contexts, models
from .bitstream import PRECISION, Bits, Coder, CoderError, Integers
from .code import MAX_LEVELS, MAX_STEP, Band, Place
from .contexts import PHASES, PLANES_COLUMN, Field, Surroundings, whole_window, windows
from .tiles import spans

MODES = ("plain", "context")
_COUNT_PART = 1 << 24  # counts are sent as a multiple of this and the rest
_MOST_NEGATIVES = 60_000  # positions without an atom that a model is fitted to

Weights = dict[str, Integers]


class Head(NamedTuple):
    """What is sent of a band before its atoms."""

    atoms: int  # how many; in context mode only whether there are any
    step: int
    levels: int


def code_bands(
    coder: Coder,
    mode: str,
    places: Sequence[Place],
    bands: Sequence[Band] | None,
    watch: Callable[[int], None] = lambda index: None,
) -> tuple[Band, ...]:
    """Send all bands, coarse to fine, and return them; ``watch`` hears which one is next."""
    known: dict[tuple[int, int, int], Field] = {}
    learned: dict[tuple[int, ...], Weights] = {}
    found: list[Band] = []
    step, buckets = 1, dict[tuple[int, ...], int]()
    for index, place in enumerate(places):
        watch(index)
        for older in [key for key in known if key[0] < place.level - 2]:
            del known[older]  # nobody's grandparent any more
        given = None if bands is None else bands[index]
        bucket = next((buckets[key] for key in _keys(place) if key in buckets), 0)
        head = _code_head(coder, mode, place, step, bucket, given)
        step = head.step
        if head.atoms == 0:
            mask = np.zeros((place.height, place.width), dtype=np.bool_)
            values = np.zeros((0, place.planes), dtype=np.int32)
        elif mode == "plain":
            mask, values = _code_plain(coder, place, head, given)
        elif averages.fits(place, head.levels) and models.code_flag(coder, averages.allowed(given)):
            others = [averages.picture(one) for one in found]
            mask, values = averages.code(coder, place, head.levels, others, given)
        else:
            around = contexts.surroundings(known, place)
            expected = _expected(learned, place)
            mask, values, field, weights = _code_atoms(coder, place, head, around, expected, given)
            known[place.level, place.plane, place.kind] = field
            for key in _keys(place):
                learned[key] = weights
        if head.atoms:
            levels = np.array([head.levels], dtype=np.int32)
            buckets.update(dict.fromkeys(_keys(place), int(models.bucket_of(levels)[0])))
        found.append(Band(place.level, place.plane, place.kind, mask, values, *head[1:]))
    return tuple(found)


def _code_head(
    coder: Coder, mode: str, place: Place, step: int, bucket: int, band: Band | None
) -> Head:
    """``step`` is the one before, ``bucket`` that of the levels of a band like this one."""
    coder.part = "band heads"
    atoms = _code_count(coder, mode, place.height * place.width, band)
    expected = np.array([step, bucket if atoms else 0], dtype=np.int32)
    levels, true = None, None
    if band is not None:
        levels = np.array([band.levels], dtype=np.int32)
        true = np.array([band.step, models.bucket_of(levels)[0]], dtype=np.int32)
    step, bucket = (int(one) for one in models.code_changes(coder, expected, true))
    if not (1 <= step <= MAX_STEP and 0 <= bucket < models.BUCKETS):
        raise CoderError(f"a band has step {step} and levels of bucket {bucket}, out of range")
    start = models.BUCKET_START[bucket]
    offset = coder.uniform(
        models.BUCKET_SIZE[bucket : bucket + 1], None if levels is None else levels - start
    )
    if start + offset[0] > MAX_LEVELS:
        raise CoderError(f"a band has {start + offset[0]} levels, expected at most {MAX_LEVELS}")
    return Head(atoms, step, int(start + offset[0]))


def _code_count(coder: Coder, mode: str, places: int, band: Band | None) -> int:
    if places == 0:
        return 0
    if mode == "context":
        return int(models.code_flag(coder, None if band is None else bool(band.mask.any())))
    true = None
    if band is not None:
        true = np.array(divmod(int(band.mask.sum()), _COUNT_PART), dtype=np.int32)
    high, low = models.code_changes(coder, np.zeros(2, dtype=np.int32), true)
    count = int(high) * _COUNT_PART + int(low)
    if not 0 <= count <= places:
        raise CoderError(f"a band has {count} atoms in {places} places")
    return count


def _code_plain(coder: Coder, place: Place, head: Head, band: Band | None) -> tuple[Bits, Integers]:
    """Addresses at log2 C(places, count) and a few bits, values uniform."""
    places = place.height * place.width
    coder.part = "addresses"
    if head.atoms == places:
        mask = np.ones(places, dtype=np.bool_)
    else:
        chance = max(1, (head.atoms << PRECISION) // places)
        mask = coder.chances(chance, places, None if band is None else band.mask.ravel())
    if mask.sum() != head.atoms:
        raise CoderError(f"a band has {mask.sum()} atoms instead of {head.atoms}")
    coder.part = "values"
    values = np.empty(head.atoms * place.planes, dtype=np.int32)
    true = None if band is None else band.values.ravel()
    for part in spans(values.size):
        sizes = np.full(part.stop - part.start, 2 * head.levels + 1, dtype=np.int32)
        values[part] = coder.uniform(sizes, None if true is None else true[part] + head.levels)
    values -= head.levels
    return mask.reshape(place.height, place.width), values.reshape(head.atoms, place.planes)


def _keys(place: Place) -> tuple[tuple[int, ...], ...]:
    """Whose weights are expected: the last band's of the first plane or the others, or of all."""
    return (min(place.plane, 1),), ()


def _expected(learned: dict[tuple[int, ...], Weights], place: Place) -> Weights:
    """Weights of the band most like this one that was coded before."""
    for key in _keys(place):
        if key in learned:
            return learned[key]
    return {
        "mask": contexts.MASK_START,
        "magnitude": models.MAGNITUDE_START,
        "sign": contexts.SIGN_START,
    }


def _code_atoms(
    coder: Coder,
    place: Place,
    head: Head,
    around: Surroundings,
    expected: Weights,
    band: Band | None,
) -> tuple[Bits, Integers, Field, Weights]:
    """The mask phase by phase, each followed by its values."""
    if head.levels == 0:
        lowest = 0
    else:
        lowest = int(
            models.code_flag(coder, None if band is None else bool((band.values != 0).all()))
        )
    shape = (place.height, place.width)
    fitted: Weights | None = None
    whole = np.zeros((*shape, place.planes), dtype=np.int32)
    if band is not None:
        whole[band.mask] = band.values
        fitted = _fit(place, head, lowest, around, expected, band.mask, whole)
    weights = {
        name: models.code_weights(coder, start, None if fitted is None else fitted[name])
        for name, start in expected.items()
    }
    own = Field.empty(*shape)
    mask = np.zeros(shape, dtype=np.bool_)
    for index, phase in enumerate(PHASES):
        coder.part = "addresses"
        parts = list(windows(phase, *shape))
        for window in parts:
            scores = _scores(contexts.mask_features(index, window, around, own), weights["mask"])
            part = window.of(mask)
            true = None if band is None else window.of(band.mask).ravel()
            part[...] = coder.bits(np.broadcast_to(scores, part.shape).ravel(), true).reshape(
                part.shape
            )
        if not phase.of(mask).any():
            continue
        values = _Values(coder, place, head, lowest, weights)
        for window in parts:
            values.expect(*contexts.value_features(index, window, around, own, window.of(mask)))
        found = values.code(None if band is None else phase.of(whole)[phase.of(mask)])
        first = 0
        for window in parts:
            on = window.of(mask)
            here = found[first : first + int(on.sum())]
            window.of(whole)[on] = here
            own.reveal(window, on, here)
            first += len(here)
    if not mask.any():
        raise CoderError("a band without atoms is said to have some")
    values_on = whole.reshape(-1, place.planes) if mask.all() else whole[mask]
    return mask, values_on, own, weights


class _Values:
    """The values of a phase, plane by plane: the first one says something about the others.

    What is expected of an atom is kept as two scores and, of each, the part that the plane before
    takes over from other bands' planes.
    """

    def __init__(
        self, coder: Coder, place: Place, head: Head, lowest: int, weights: Weights
    ) -> None:
        self._coder = coder
        self._planes = place.planes
        self._lowest = lowest
        self._levels = head.levels - lowest
        self._weights = weights
        self._magnitudes: list[tuple[Integers, contexts.Small]] = []
        self._signs: list[tuple[Integers, contexts.Small]] = []

    def expect(self, magnitude: Integers, sign: Integers) -> None:
        """The features of some more atoms."""
        for features, name, scores in (
            (magnitude, "magnitude", self._magnitudes),
            (sign, "sign", self._signs),
        ):
            others = features[:, PLANES_COLUMN].astype(np.int16)
            features[:, PLANES_COLUMN] = 0
            scores.append((features @ self._weights[name][: features.shape[1]], others))

    def code(self, given: Integers | None) -> Integers:
        """Send the values [atoms, planes] of all that was expected."""
        magnitude, others = (np.concatenate(one) for one in zip(*self._magnitudes, strict=True))
        sign, other_signs = (np.concatenate(one) for one in zip(*self._signs, strict=True))
        self._magnitudes.clear()
        self._signs.clear()
        found = np.zeros((len(magnitude), self._planes), dtype=np.int32)
        for plane in range(self._planes):
            true = None if given is None else given[:, plane]
            self._code_plane(magnitude, others, sign, other_signs, found[:, plane], true)
            if plane + 1 < self._planes:
                for part in spans(len(found)):
                    values = found[part, plane]
                    others[part] = np.where(values == 0, 0, contexts.sizes_of(np.abs(values)))
                    other_signs[part] = 8 * np.sign(values)
        return found

    def _code_plane(
        self,
        magnitude: Integers,
        others: contexts.Small,
        sign: Integers,
        other_signs: contexts.Small,
        found: Integers,
        true: Integers | None,
    ) -> None:
        coder, lowest = self._coder, self._lowest
        coder.part = "magnitudes"
        weights = self._weights["magnitude"]
        found[:] = models.code_magnitudes(
            coder,
            lambda part: magnitude[part] + _weighted(others[part], weights[PLANES_COLUMN]),
            weights,
            self._levels,
            len(found),
            None if true is None else np.abs(true) - lowest,
        )
        found += lowest
        coder.part = "signs"
        weight = self._weights["sign"][PLANES_COLUMN]
        for part in spans(len(found)):
            values = found[part]
            some = np.flatnonzero(values)
            scores = -(sign[part][some] + _weighted(other_signs[part][some], weight))
            negative = coder.bits(scores, None if true is None else true[part][some] < 0)
            values[some[negative]] *= -1


def _weighted(features: contexts.Small, weight: np.int32) -> Integers:
    found: Integers = np.multiply(features, weight, dtype=np.int32)
    return found


def _with_plane(magnitude: Integers, sign: Integers, values: Integers) -> tuple[Integers, Integers]:
    """Planes that share an atom: the last one coded takes the place of other bands' planes."""
    magnitude, sign = magnitude.copy(), sign.copy()
    magnitude[:, PLANES_COLUMN] = np.where(values == 0, 0, contexts.sizes_of(np.abs(values)))
    sign[:, PLANES_COLUMN] = 8 * np.sign(values)
    return magnitude, sign


def _scores(features: list[contexts.Feature], weights: Integers) -> Integers:
    """The sum of weight times feature; a single number where no feature has positions."""
    total: Integers = np.zeros(1, dtype=np.int32)
    for feature, weight in zip(features, weights.tolist(), strict=True):
        if weight != 0 and feature is not None:
            total = total + np.multiply(feature, weight, dtype=np.int32)
    return total


def _fit(
    place: Place,
    head: Head,
    lowest: int,
    around: Surroundings,
    expected: Weights,
    mask: Bits,
    whole: Integers,
) -> Weights:
    """Models for a band that is known."""
    own = Field.empty(place.height, place.width)
    stride = 1 + mask.size // _MOST_NEGATIVES
    samples: dict[str, list[models.Samples]] = {"mask": [], "magnitude": [], "sign": []}
    for index, phase in enumerate(PHASES):
        window = whole_window(phase, *mask.shape)
        if not window.rows * window.columns:
            continue
        on = phase.of(mask)
        features = contexts.mask_features(index, window, around, own)
        samples["mask"].append(_mask_samples(features, on, stride))
        values = phase.of(whole)[on]
        magnitude, sign = contexts.value_features(index, window, around, own, on)
        for plane in range(place.planes):
            column = values[:, plane]
            samples["magnitude"].append(
                models.magnitude_samples(magnitude, np.abs(column) - lowest, head.levels - lowest)
            )
            some = column != 0
            samples["sign"].append(
                models.Samples(-sign[some], column[some] < 0, np.ones(int(some.sum())))
            )
            magnitude, sign = _with_plane(magnitude, sign, column)
        own.reveal(window, on, values)
    return {
        name: models.fit(
            models.Samples(*(np.concatenate(parts) for parts in zip(*samples[name], strict=True))),
            start,
        )
        for name, start in expected.items()
    }


def _mask_samples(features: list[contexts.Feature], on: Bits, stride: int) -> models.Samples:
    """All atoms, and every so many positions without one."""
    flat = on.ravel()
    chosen = np.concatenate([np.flatnonzero(flat), np.flatnonzero(~flat)[::stride]])
    rows = np.zeros((len(chosen), len(features)), dtype=np.int32)
    for column, feature in enumerate(features):
        if isinstance(feature, int):
            rows[:, column] = feature
        elif feature is not None:
            rows[:, column] = feature.ravel()[chosen]
    symbols = flat[chosen]
    return models.Samples(rows, symbols, np.where(symbols, 1.0, float(stride)))

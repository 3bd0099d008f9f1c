"""Logistic models with small integer weights: fitted by the writer, sent, applied in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .bitstream import COST, SCORE_LIMIT, SCORE_UNIT, Bits, Coder, CoderError, Integers
from .tiles import spans

Floats = npt.NDArray[np.float64]

WEIGHT_LIMIT = 1 << 10
"""Weights lie in [-1024, 1024]."""
_STEPS = 25  # of Newton's method
_CAUTIONS = (0, 0.003, 0.03, 0.3, 1)  # tried in turn, each with shorter steps
_MOST_SAMPLES = 200_000  # more of them are thinned out
_SWEEPS = 4  # over the weights, to round them
_RIDGE = 0.05  # bits for a weight's squared distance from the expected one
_FIRST_SCORE = -8  # that a weight is not the expected one
_NEXT_SCORE = 8  # that it is another bucket away


class Samples(NamedTuple):
    """What a model is fitted to."""

    features: Integers  # [samples, weights]
    symbols: Bits  # [samples]
    counts: Floats  # how many positions a sample stands for


def fit(samples: Samples, expected: Integers) -> Integers:
    """Weights that make the symbols cheap, themselves included: near ``expected`` they are cheap.

    Newton's method on the bits plus a ridge, with shorter steps where a full one would not help.
    """
    stride = 1 + len(samples.symbols) // _MOST_SAMPLES
    samples = Samples(
        samples.features[::stride], samples.symbols[::stride], samples.counts[::stride] * stride
    )
    nats = np.log(2) / SCORE_UNIT
    features = samples.features.astype(np.float64) * nats
    target = samples.symbols.astype(np.float64)
    ridge = 2 * np.log(2) * _RIDGE
    start = expected.astype(np.float64)

    def loss(at: Floats) -> float:
        logits = features @ at
        bits = np.logaddexp(0, logits) - target * logits
        return float(samples.counts @ bits + 0.5 * ridge * np.square(at - expected).sum())

    # No curvature is above a quarter: a step as if it were so everywhere never makes things worse.
    steepest = features.T @ (features * (0.25 * samples.counts)[:, None])
    weights = min((start, np.zeros_like(start)), key=loss)
    best = loss(weights)
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        slope = features.T @ (samples.counts * (chance - target)) + ridge * (weights - expected)
        curvature = samples.counts * chance * (1 - chance)
        hessian = features.T @ (features * curvature[:, None]) + ridge * np.eye(len(weights))
        for caution in _CAUTIONS:
            step = np.linalg.solve(hessian + caution * steepest, slope)
            found = loss(weights - step)
            if found < best:
                break
        else:
            break
        weights, gain, best = weights - step, best - found, found
        if gain < 0.1:
            break
    rounded = _rounded(weights, hessian / np.log(2), expected)
    price = float(_change_bits(np.abs(rounded - expected)).sum()) * np.log(2)
    return rounded if loss(rounded.astype(np.float64)) + price < loss(start) else expected


def _rounded(best: Floats, hessian: Floats, expected: Integers) -> Integers:
    """Whole weights with the fewest bits in all, near a minimum: coordinates in turn.

    A weight gives up its expected value only where that saves more than the difference costs.
    """
    chosen = np.rint(np.clip(best, -WEIGHT_LIMIT, WEIGHT_LIMIT))
    for _ in range(_SWEEPS):
        before = chosen.copy()
        for one in range(len(chosen)):
            pull = hessian[one] @ (chosen - best) - hessian[one, one] * (chosen[one] - best[one])
            centre = best[one] - pull / hessian[one, one]
            middle = np.rint(np.clip(centre, -WEIGHT_LIMIT, WEIGHT_LIMIT))
            step = np.sign(expected[one] - middle)
            choices = np.array([middle, middle + step, middle + 2 * step, expected[one]])
            bits = 0.5 * hessian[one, one] * np.square(choices - centre)
            bits += _change_bits(np.abs(choices - expected[one]).astype(np.int32))
            chosen[one] = choices[np.argmin(bits)]
        if np.array_equal(chosen, before):
            break
    return chosen.astype(np.int32)


# Integers are sent as a bucket, one bit per bucket passed, and a place in it: 0, 1, 2, 3, then two
# buckets for each octave, up to 2^25.
BUCKETS = 50
_index = np.arange(BUCKETS)
BUCKET_SIZE = np.where(_index < 4, 1, 1 << np.maximum(_index // 2 - 1, 0)).astype(np.int32)
BUCKET_START = np.concatenate([[0], np.cumsum(BUCKET_SIZE)]).astype(np.int32)
del _index


def bucket_of(magnitudes: Integers) -> Integers:
    """The bucket of each integer of at least 0."""
    return (np.searchsorted(BUCKET_START, magnitudes, side="right") - 1).astype(np.int32)


def _change_bits(changes: Integers) -> Floats:
    """What :func:`code_weights` spends on differences of that size."""
    buckets = bucket_of(changes)
    first, following = COST[:, SCORE_LIMIT + _FIRST_SCORE], COST[:, SCORE_LIMIT + _NEXT_SCORE]
    passed = first[1] + (buckets - 1) * following[1] + following[0]
    total: Floats = np.where(buckets == 0, first[0], passed + np.log2(BUCKET_SIZE[buckets]) + 1)
    return total


def code_flag(coder: Coder, flag: bool | None) -> bool:
    """Send one bit."""
    score = np.zeros(1, dtype=np.int32)
    return bool(coder.bits(score, None if flag is None else np.array([flag]))[0])


def code_changes(coder: Coder, expected: Integers, values: Integers | None) -> Integers:
    """Send integers as differences from the expected ones, small ones being cheap."""
    change = None if values is None else (values - expected).astype(np.int32)
    goal = None if change is None else bucket_of(np.abs(change))
    buckets = np.zeros(len(expected), dtype=np.int32)
    active = np.arange(len(expected))
    for bucket in range(BUCKETS - 1):
        score = _FIRST_SCORE if bucket == 0 else _NEXT_SCORE
        scores = np.full(active.size, score, dtype=np.int32)
        active = active[coder.bits(scores, None if goal is None else goal[active] > bucket)]
        buckets[active] = bucket + 1
        if not active.size:
            break
    start = BUCKET_START[buckets]
    found = start + coder.uniform(
        BUCKET_SIZE[buckets], None if change is None else np.abs(change) - start
    )
    moved = np.flatnonzero(found)
    negative = coder.bits(
        np.zeros(moved.size, dtype=np.int32), None if change is None else change[moved] < 0
    )
    found[moved[negative]] *= -1
    return expected + found


def code_weights(coder: Coder, expected: Integers, weights: Integers | None) -> Integers:
    """Send the weights of a model."""
    coder.part = "parameters"
    if not code_flag(coder, None if weights is None else not np.array_equal(weights, expected)):
        return expected
    found = code_changes(coder, expected, weights)
    if np.abs(found).max(initial=0) > WEIGHT_LIMIT:
        raise CoderError(f"a model's weight lies beyond {WEIGHT_LIMIT}")
    return found


MAGNITUDE_START = np.array([0, 2, 1, 2, 1, -14, -7, -4, -5], dtype=np.int32)
"""Five contexts, a constant, the first two buckets, and the number of the bucket."""


def bucket_constants(bucket: int) -> Integers:
    """The last four columns of what a model of magnitudes sees, the same for all atoms."""
    constants = [8, 8 * (bucket == 0), 8 * (bucket == 1), 4 * min(bucket, 24)]
    return np.array(constants, dtype=np.int32)


def magnitude_rows(contexts: Integers, bucket: int) -> Integers:
    """What the model of "the next bucket or a later one" sees."""
    block = np.broadcast_to(bucket_constants(bucket), (len(contexts), 4))
    return np.concatenate([contexts, block], axis=1)


def magnitude_samples(contexts: Integers, magnitudes: Integers, largest: int) -> Samples:
    """One sample for each bucket that an atom passes or stops at."""
    goal, last = bucket_of(magnitudes), int(bucket_of(np.array([largest], dtype=np.int32))[0])
    rows, symbols = [], []
    for bucket in range(last):
        active = goal >= bucket
        rows.append(magnitude_rows(contexts[active], bucket))
        symbols.append(goal[active] > bucket)
    features = np.concatenate(rows) if rows else np.zeros((0, len(MAGNITUDE_START)), np.int32)
    found = np.concatenate(symbols) if symbols else np.zeros(0, np.bool_)
    return Samples(features, found, np.ones(len(found)))


def code_magnitudes(
    coder: Coder,
    scores: Callable[[slice], Integers],
    weights: Integers,
    largest: int,
    count: int,
    magnitudes: Integers | None,
) -> Integers:
    """Send ``count`` integers from 0 to ``largest``, by bucket and place in it.

    ``scores`` are the sums of the contexts by their weights, of the atoms asked for.
    """
    last = int(bucket_of(np.array([largest], dtype=np.int32))[0])
    buckets = np.zeros(count, dtype=np.int8)
    for bucket in range(last):
        constant = int(bucket_constants(bucket) @ weights[-4:])
        some = False
        for part in spans(count):
            here = buckets[part]
            active = np.flatnonzero(here == bucket)
            if not active.size:
                continue
            goal = None if magnitudes is None else bucket_of(magnitudes[part][active])
            further = coder.bits(
                scores(part)[active] + np.int32(constant), None if goal is None else goal > bucket
            )
            here[active[further]] = bucket + 1
            some = some or bool(further.any())
        if not some:
            break
    found = np.empty(count, dtype=np.int32)
    for part in spans(count):
        start = BUCKET_START[buckets[part]]
        sizes = np.minimum(BUCKET_SIZE[buckets[part]], largest + 1 - start)
        true = None if magnitudes is None else magnitudes[part] - start
        found[part] = start + coder.uniform(sizes, true)
    return found

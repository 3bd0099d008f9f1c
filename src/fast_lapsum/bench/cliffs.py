"""Calls that are far slower than others of their shape, by scores, budget and temperature.

Every kind of scores that the hunt makes, and rows with infinities and NaN, at budgets and
temperatures from one end to the other: device times of the forward pass, their median, and the
slowest calls by name. Scores may lie in the cache: a shape is compared with itself alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from fast_lapsum import soft_topk

from . import environment, gpu_timing, sources
from .cliff_timing import QueuedClock
from .score_kinds import KINDS, NOT_FINITE, Draw

Shape = tuple[int, int]

SHAPES: tuple[Shape, ...] = (
    (1, 3_000_000),
    (64, 200_000),
    (256, 30_000),
    (1, 100_000),
    (1024, 4096),
    (128, 200_000),
)
#: So small that the figures mean nothing.
QUICK_SHAPES: tuple[Shape, ...] = ((1, 3000), (8, 200))
TEMPERATURES = (0.0, 1e-4, 0.01, 0.3, 3.0)
#: The slowest call takes at most so many times the median of its shape.
LIMIT = 3.0
#: How many of a shape's slowest calls are named.
NAMED = 10
#: Largest |sum p - k| / k (of k, or of 1 for less): whether a time is worth having, while the hunt
#: is what judges rounding.
BUDGET_TOLERANCE = 1e-5
NOT_RIGHT = "a row's mass is not k, or it should be NaN and is not, or the other way round"
SEED = 0

Report = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]
#: Hears the name of a finished shape, how many are done, and how many there are.
Advance = Callable[[str, int, int], None]


class Measured(NamedTuple):
    """One call and its device time; ``wrong`` says what is wrong with its answer."""

    kind: str
    temperature: float
    k: float
    seconds: float
    wrong: str = ""


def budgets(n: int) -> tuple[float, ...]:
    """From nothing to all.

    >>> budgets(4096)
    (0.0, 1.0, 50.5, 4.096, 256.0, 2048.0, 4093.0, 4096.0)
    """
    return (0.0, 1.0, 50.5, n / 1000, n / 16, n / 2, n - 3.0, float(n))


def run(
    *,
    device: torch.device,
    samples: int = 3,
    quick: bool = False,
    report: Report = lambda step: None,
    save: Save = lambda record: None,
    advance: Advance = lambda name, done, total: None,
) -> dict[str, Any]:
    """Measure every shape and return the results record.

    Args:
        device: where to measure; on a CPU the figures are the host's, for tests.
        samples: samples of each timing.
        quick: tiny shapes.
        report: hears what is being done.
        save: gets the record after every shape; ``complete`` says whether it was the last.
        advance: hears of every shape that is done.
    """
    record: dict[str, Any] = {
        "benchmark": "cliffs",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "quick": quick,
        "samples": samples,
        "environment": environment.describe(),
        "sources": sources.describe("cliffs", "cuda"),
        "device": gpu_timing.describe(device),
        "limit": LIMIT,
        "temperatures": list(TEMPERATURES),
        "shapes": [],
    }
    shapes = QUICK_SHAPES if quick else SHAPES
    for done, shape in enumerate(shapes, start=1):
        record["shapes"].append(summarise(shape, _measure(shape, device, samples, report)))
        record["complete"] = done == len(shapes)
        save(record)
        advance(name_of(shape), done, len(shapes))
    return record


def name_of(shape: Shape | list[int]) -> str:
    """A shape for people.

    >>> name_of((64, 200_000))
    '64 x 200,000'
    """
    return " x ".join(f"{size:,}" for size in shape)


def summarise(shape: Shape, calls: list[Measured]) -> dict[str, Any]:
    """The record of a shape: its median, its slowest calls, and all times.

    ``microseconds`` has, for every kind of scores, a list for each temperature with a time for each
    budget. A call with a wrong answer has none, and stands under ``wrong``.
    """
    right = [call for call in calls if not call.wrong]
    median = statistics.median(call.seconds for call in right) if right else None
    slowest = sorted(right, key=lambda call: call.seconds, reverse=True)[:NAMED]
    return {
        "shape": list(shape),
        "budgets": list(budgets(shape[1])),
        "calls": len(calls),
        "median": median,
        "slowest": [
            {**_name(call), "seconds": call.seconds, "ratio": call.seconds / median}
            for call in slowest
            if median
        ],
        "met": slowest[0].seconds <= LIMIT * median if median else None,
        "wrong": [{**_name(call), "wrong": call.wrong} for call in calls if call.wrong],
        "microseconds": _by_kind(calls),
    }


def summary(record: dict[str, Any]) -> str:
    """On how many shapes there is no cliff.

    >>> summary({"shapes": [{"met": True}, {"met": False}], "limit": 3.0})
    'The slowest call takes at most 3 times the median of its shape on 1 of 2 shapes.'
    """
    held = sum(entry["met"] is True for entry in record["shapes"])
    return (
        f"The slowest call takes at most {record['limit']:g} times the median of its shape on"
        f" {held} of {len(record['shapes'])} shapes."
    )


def failures(record: dict[str, Any]) -> list[str]:
    """Calls whose answer is wrong."""
    return [
        f"{name_of(entry['shape'])}, {call['kind']}, t = {call['temperature']:g},"
        f" k = {call['k']:,.10g}: {call['wrong']}"
        for entry in record["shapes"]
        for call in entry["wrong"]
    ]


def _name(call: Measured) -> dict[str, Any]:
    return {"kind": call.kind, "temperature": call.temperature, "k": call.k}


def _by_kind(calls: list[Measured]) -> dict[str, list[list[float | None]]]:
    found: dict[str, dict[float, list[float | None]]] = {}
    for call in calls:
        row = found.setdefault(call.kind, {}).setdefault(call.temperature, [])
        row.append(None if call.wrong else round(call.seconds * 1e6, 2))
    return {kind: list(rows.values()) for kind, rows in found.items()}


def _measure(shape: Shape, device: torch.device, samples: int, report: Report) -> list[Measured]:
    clock = QueuedClock(device, samples)
    generator = Generator(device).manual_seed(SEED)
    draw = Draw(*shape, torch.float32, generator)
    calls = []
    for kind, make in {**KINDS, **NOT_FINITE}.items():
        report(f"{name_of(shape)}: {kind}")
        calls += _measure_kind(kind, make(draw), clock)
    return calls


def _measure_kind(kind: str, scores: Tensor, clock: QueuedClock) -> list[Measured]:
    """All calls on some scores; the device is asked about their answers once, in the end."""
    takes_part = (scores != -math.inf).sum(-1)
    has_nan = scores.isnan().any(-1)
    calls, rights = [], []
    for t in TEMPERATURES:
        for k in budgets(scores.shape[-1]):
            has_answer = (takes_part >= k) & ~has_nan
            seconds, is_right, complaint = _measure_call(scores, k, t, has_answer, clock)
            calls.append(Measured(kind, t, k, seconds, complaint))
            rights.append(is_right)
    told = torch.stack(rights).tolist()
    return [
        call if is_right or call.wrong else call._replace(wrong=NOT_RIGHT)
        for call, is_right in zip(calls, told, strict=True)
    ]


def _measure_call(
    scores: Tensor, k: float, temperature: float, has_answer: Tensor, clock: QueuedClock
) -> tuple[float, Tensor, str]:
    """Seconds, whether the answer is right (on the device), and the error where there is none."""
    try:
        # The first call of its sort may compile. Its answer is the one that is checked.
        is_right = answers(soft_topk(scores, k, temperature), k, has_answer)
        return clock.seconds(lambda: soft_topk(scores, k, temperature)), is_right, ""
    except (RuntimeError, ValueError) as error:  # the other calls' times are worth having
        return math.inf, has_answer.new_zeros(()), gpu_timing.one_line(error)


def answers(p: Tensor, k: float, has_answer: Tensor) -> Tensor:
    """Whether all rows of a mask are as they should be: of mass k, or NaN without an answer."""
    mass = p.sum(-1, dtype=torch.float64)
    is_met = (mass - k).abs() <= BUDGET_TOLERANCE * max(k, 1.0)
    return torch.where(has_answer, is_met, mass.isnan()).all()

"""Forward and backward under torch.compile, beside the eager call and softmax: wall times.

What is timed is what a caller waits, many calls in a row, with ``torch.autograd.grad``. Whoever
shares the machine only ever adds, so runs are taken apart from each other and the median of their
medians counts.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from . import environment, sources
from .gpu_case import draw, time_walls
from .gpu_timing import describe, one_line
from .parity import ParityError

TEMPERATURE = 0.1
#: Temperatures of a call whose temperature falls: a number that the compiler holds as a variable.
FALLING = (0.4, 0.3, 0.2, 0.1)
RUNS = 5

SOFTMAX = "softmax"
COMPILED_SOFTMAX = "softmax, compiled"
REDUCED_SOFTMAX = "softmax, reduce-overhead"
EAGER = "soft_topk"
COMPILED = "soft_topk, compiled"
FALLING_TEMPERATURE = "soft_topk, compiled, t falls"
REDUCED = "soft_topk, reduce-overhead"

Report = Callable[[str], None]
Operator = Callable[[Tensor], Tensor]


class Limit(NamedTuple):
    """A call takes at most ``factor`` times the slowest of ``bases``."""

    call: str
    factor: float
    bases: tuple[str, ...]

    def describe(self) -> str:
        """The limit in words.

        >>> Limit("a", 1.3, ("b", "c")).describe()
        '1.3 x the slower of b; c'
        """
        slower = "the slower of " if len(self.bases) > 1 else ""
        return f"{self.factor:g} x {slower}{'; '.join(self.bases)}"


_LIMITS = (
    Limit(COMPILED, 1.3, (COMPILED_SOFTMAX, EAGER)),
    Limit(FALLING_TEMPERATURE, 1.3, (COMPILED_SOFTMAX, EAGER)),
    Limit(REDUCED, 1.0, (COMPILED,)),
)
#: Shape and k of every case, and its limits.
GPU_CASES = (
    ((1000,), 62, (*_LIMITS, Limit(EAGER, 2.5, (SOFTMAX,)))),
    ((16_384, 64), 6, _LIMITS),
    ((1_000_000,), 62_500, _LIMITS),
)
CPU_CASES = (((8, 1000), 62, _LIMITS), ((1_000_000,), 62_500, _LIMITS))
#: For tests of the benchmark itself.
QUICK_CASES = (((4, 50), 5, _LIMITS),)


def run(
    *,
    device: torch.device,
    repeats: int = 30,
    runs: int = RUNS,
    quick: bool = False,
    report: Report = lambda step: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    advance: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Any]:
    """Measure all cases of the device; ``save`` gets the record after each."""
    cases = QUICK_CASES if quick else GPU_CASES if device.type == "cuda" else CPU_CASES
    record: dict[str, Any] = {
        "benchmark": "compiled",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "temperature": TEMPERATURE,
        "runs": runs,
        "seconds": "forward and backward, wall time per call: the median of the runs' medians",
        "environment": environment.describe(),
        "sources": sources.describe("compiled", str(device)),
        "device": describe(device),
        "cases": [],
    }
    for number, (shape, k, limits) in enumerate(cases):
        name = f"{' x '.join(f'{size:,}' for size in shape)}, k = {k:,}"
        entry: dict[str, Any] = {"case": name, "shape": list(shape), "k": k, "failed": {}}
        found = _runs(entry, shape, k, device, repeats, runs, report)
        entry["runs"] = found
        entry["seconds"] = {call: statistics.median(each) for call, each in found.items()}
        entry["lines"] = [_line(limit, entry["seconds"]) for limit in limits]
        record["cases"].append(entry)
        save(record)
        advance(name, number + 1, len(cases))
    return record


def _runs(
    entry: dict[str, Any],
    shape: tuple[int, ...],
    k: int,
    device: torch.device,
    repeats: int,
    runs: int,
    report: Report,
) -> dict[str, list[float]]:
    """The median of every call in every run."""
    torch._dynamo.reset()
    inputs = draw(shape, device)
    scores, weights = inputs.scores[0], inputs.weights[0]
    leaf = scores.clone().requires_grad_()
    calls: dict[str, Callable[[], object]] = {}
    for name, operator in _operators(k).items():
        report(f"{entry['case']}: {name}")
        try:
            _check(name, operator, scores, k)
            calls[name] = _with_backward(operator, leaf, weights)
            for _ in range(3):  # compiles, and records where there are graphs of launches
                calls[name]()
        except Exception as error:  # whatever the compiler met, the rest of the run stands
            entry["failed"][name] = one_line(error)
            calls.pop(name, None)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(runs):
        report(f"{entry['case']}: run {number + 1} of {runs}")
        for name, timing in time_walls(calls, repeats, device).items():
            found[name].append(timing.p50)
    return found


def _operators(k: int) -> dict[str, Operator]:
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def eager(x: Tensor) -> Tensor:
        return soft_topk(x, k, TEMPERATURE)

    falling = torch.compile(lambda x, t: soft_topk(x, k, t))
    temperatures = itertools.cycle(FALLING)
    return {
        SOFTMAX: softmax,
        COMPILED_SOFTMAX: torch.compile(softmax),
        REDUCED_SOFTMAX: torch.compile(softmax, mode="reduce-overhead"),
        EAGER: eager,
        COMPILED: torch.compile(eager),
        FALLING_TEMPERATURE: lambda x: falling(x, next(temperatures)),
        REDUCED: torch.compile(eager, mode="reduce-overhead"),
    }


def _check(name: str, operator: Operator, scores: Tensor, k: int) -> None:
    """A compiled mask has the eager one's bits."""
    if name not in (COMPILED, FALLING_TEMPERATURE, REDUCED):
        return
    masks = {t: soft_topk(scores, k, t) for t in FALLING}
    turns = FALLING if name == FALLING_TEMPERATURE else (TEMPERATURE,) * 3
    for t in turns:
        if not torch.equal(operator(scores), masks[t]):
            raise ParityError(f"the mask of {name} at t = {t:g} is not the eager one")


def _with_backward(operator: Operator, leaf: Tensor, weights: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(operator(leaf), leaf, weights)


def _line(limit: Limit, seconds: dict[str, float]) -> dict[str, Any]:
    """A limit beside what was measured; ``met`` is None where one side of it was not."""
    measured, bases = seconds.get(limit.call), [seconds.get(base) for base in limit.bases]
    known = [base for base in bases if base is not None]
    base = max(known) if len(known) == len(bases) else None
    allowed = None if base is None else limit.factor * base
    met = None if measured is None or allowed is None else measured <= allowed
    return {
        "call": limit.call,
        "at_most": limit.describe(),
        "measured": measured,
        "base": base,
        "limit": allowed,
        "met": met,
    }


def failures(record: dict[str, Any]) -> list[str]:
    """What is wrong rather than slow."""
    return [
        f"{entry['case']}: {name}: {reason}"
        for entry in record["cases"]
        for name, reason in entry["failed"].items()
    ]

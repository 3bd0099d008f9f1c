"""Soft ranks and sorts beside torch.sort and published packages, forward and backward, and limits.

A limit is so many times what another call takes on the same scores in the same run. On a GPU it is
about device time, out of a CUDA graph. What a caller waits for all launches is beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import environment, sources
from .functions import FunctionCase, Limit
from .functions import lines as lines_of
from .gpu_case import PEER_SETS, Inputs, draw
from .gpu_timing import describe, device_timing, one_line
from .parity import ParityError
from .ranking_methods import METHODS, RANK, SORT, TORCH_SORT, check
from .timing import measure, wall_clock
from .timing import summary as percentiles

Report = Callable[[str], None]
TEMPERATURE = 0.1
#: What a call may take of torch.sort.
SORTS = 2.0
#: A method that takes longer than this, in seconds, is timed once, after one call before.
SLOW_SECONDS = 2.0


class RankingCase(NamedTuple):
    """One shape, rows along the last dimension, and whether torch.sort is a limit there."""

    shape: tuple[int, ...]
    is_limited: bool

    @property
    def name(self) -> str:
        """The shape.

        >>> RankingCase((4096, 4096), True).name
        '4,096 x 4,096'
        """
        return " x ".join(f"{size:,}" for size in self.shape)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Twice torch.sort, and faster than every package that runs."""
        found = [Limit(name, SORTS, TORCH_SORT) for name in (RANK, SORT) if self.is_limited]
        found += [Limit(method.rival, 1, name) for name, method in METHODS.items() if method.rival]
        return tuple(found)


GPU_CASES = (
    RankingCase((1_000_000,), True),
    RankingCase((4096, 4096), True),
    RankingCase((64, 1000), False),
    RankingCase((10_000_000,), False),
)
CPU_CASES = (
    RankingCase((1_000_000,), True),
    RankingCase((64, 1000), False),
    RankingCase((10_000_000,), False),
)
#: Shapes so small that the figures mean nothing: for tests of the benchmark itself.
QUICK_CASES = (RankingCase((500,), True), RankingCase((4, 60), False))


def run(
    *,
    device: torch.device,
    repeats: int = 10,
    quick: bool = False,
    report: Report = lambda step: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    advance: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Any]:
    """Measure all cases of the device; ``save`` gets the record after each."""
    cases = QUICK_CASES if quick else GPU_CASES if device.type == "cuda" else CPU_CASES
    record: dict[str, Any] = {
        "benchmark": "ranking",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "temperature": TEMPERATURE,
        "seconds": "of forward and backward, percentiles 20, 50 and 80: device time on a GPU, where"
        " `wall` has what a caller waits; wall time on a CPU",
        # On a CPU what runs beside it only ever adds.
        "compared": "p50" if device.type == "cuda" else "p20",
        "environment": environment.describe(),
        "sources": sources.describe("ranking", str(device)),
        "device": describe(device),
        "cases": [],
    }
    for number, case in enumerate(cases):
        record["cases"].append(_run_case(case, device, repeats, report, record["compared"]))
        save(record)
        advance(case.name, number + 1, len(cases))
    return record


def _run_case(
    case: RankingCase, device: torch.device, repeats: int, report: Report, compared: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"case": case.name, "shape": list(case.shape), "not_measured": {}}
    inputs = draw(case.shape, device)
    scores, weights = inputs.scores[0], inputs.weights[0]
    report(f"{case.name}: parity")
    try:
        entry["parity"] = check(scores, TEMPERATURE)
    except ParityError as error:
        return {**entry, "failed": one_line(error), "timings": {}, "lines": _lines(case, {})}
    leaf = scores.clone().requires_grad_()
    slow: dict[str, float] = {}
    calls: dict[str, Callable[[], object]] = {}
    for name, method in METHODS.items():
        report(f"{case.name}: {name}")
        reason = method.obstacle(scores)
        if reason is None:
            call = _with_backward(method.function, leaf, weights)
            reason, seconds = _try(call, device)
            if reason is None and seconds > SLOW_SECONDS:
                slow[name] = seconds
            elif reason is None:
                calls[name] = call
        if reason is not None:
            entry["not_measured"][name] = reason
    found = measure(
        calls,
        repeats=repeats,
        device=device,
        report=lambda name: report(f"{case.name}: timing {name}"),
        clock=wall_clock(device),
    )
    timings = {name: timing._asdict() for name, timing in found.items()}
    timings |= {name: percentiles([seconds])._asdict() for name, seconds in slow.items()}
    if device.type == "cuda":
        entry["wall"] = _in_order(timings)
        timings |= _device_timings(case, inputs, list(calls), repeats, report)
    entry["timings"] = _in_order(timings)
    entry["lines"] = _lines(case, {name: x[compared] for name, x in timings.items()})
    return entry


def _device_timings(
    case: RankingCase, inputs: Inputs, names: list[str], repeats: int, report: Report
) -> dict[str, Any]:
    """Out of graphs, on inputs that take turns so that none is found in the cache."""
    leaves = [x.clone().requires_grad_() for x in inputs.scores]
    timings = {}
    for name in names:
        report(f"{case.name}: device time of {name}")
        pairs = list(zip(leaves, inputs.weights, strict=True))
        if METHODS[name].rival:
            pairs = pairs[:PEER_SETS]
        made = [_with_backward(METHODS[name].function, x, w) for x, w in pairs]
        timing = device_timing(made, repeats=repeats, device=leaves[0].device)
        timings[name] = timing._asdict()
    return timings


def _in_order(timings: dict[str, Any]) -> dict[str, Any]:
    return {name: timings[name] for name in METHODS if name in timings}


def _lines(case: RankingCase, seconds: dict[str, float]) -> list[dict[str, Any]]:
    return lines_of(FunctionCase(case.shape, 0, case.limits), seconds)


def _try(call: Callable[[], object], device: torch.device) -> tuple[str | None, float]:
    """Why a method cannot be measured, and what its second call takes."""
    clock = wall_clock(device)
    try:
        call()
        return None, clock(call, 1)
    except torch.OutOfMemoryError:
        return "out of memory", 0.0
    except Exception as error:  # whatever a package met, the rest of the run stands
        text = one_line(error)
        return ("out of memory" if "allocate" in text else text), 0.0


def _with_backward(
    function: Callable[[Tensor, float], Tensor], leaf: Tensor, weights: Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(leaf, TEMPERATURE), leaf, weights)


def failures(record: dict[str, Any]) -> list[str]:
    """What is wrong rather than slow."""
    return [f"{x['case']}: {x['failed']}" for x in record["cases"] if "failed" in x]


def summary(record: dict[str, Any]) -> str:
    """How many limits hold, of those that were measured.

    >>> summary({"cases": [{"lines": [{"met": True}, {"met": False}, {"met": None}]}]})
    'Ranking: 1 of 2 limits hold; 1 could not be measured.'
    """
    verdicts = [line["met"] for entry in record["cases"] for line in entry["lines"]]
    known = len(verdicts) - verdicts.count(None)
    rest = f"; {verdicts.count(None)} could not be measured" if None in verdicts else ""
    return f"Ranking: {verdicts.count(True)} of {known} limits hold{rest}."

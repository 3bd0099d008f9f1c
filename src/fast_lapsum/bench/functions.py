"""Every function beside the soft mask: hard, log, threshold, sample, select, and their limits.

A limit is a time, or so many times what another call takes on the same scores in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import environment, sources
from .function_calls import (
    CALLS,
    FIRST_DIM,
    HARD,
    HARD_ALONE,
    LOG,
    LOG_WITH_BACKWARD,
    MASK,
    MASK_WITH_BACKWARD,
    SAMPLE,
    SELECT,
    SOFTMAX,
    TEMPERATURE,
    THRESHOLD,
    TOPK,
    TRANSPOSED,
    check,
)
from .gpu_case import PEER_REPEATS, PEER_SETS, Inputs, draw, shortage
from .gpu_timing import describe, device_timing, one_line
from .parity import ParityError
from .timing import measure

Report = Callable[[str], None]


class Limit(NamedTuple):
    """What a call may take: ``factor`` times what ``base`` takes, or microseconds."""

    call: str
    factor: float = 0.0
    base: str = ""
    microseconds: float = 0.0

    def describe(self) -> str:
        """The limit in words.

        >>> Limit("hard", 1.3, "mask").describe(), Limit("hard", microseconds=28).describe()
        ('1.3 x mask', '28 us')
        """
        return f"{self.factor:g} x {self.base}" if self.base else f"{self.microseconds:g} us"


class FunctionCase(NamedTuple):
    """One shape and k, rows along the last dimension, with the limits that hold for it."""

    shape: tuple[int, ...]
    k: int
    limits: tuple[Limit, ...]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """Shape, k, and the dtype if it is not float32.

        >>> FunctionCase((2048, 131072), 64, (), torch.bfloat16).name
        '2,048 x 131,072 bfloat16, k = 64'
        """
        shape = " x ".join(f"{size:,}" for size in self.shape)
        dtype = str(self.dtype).removeprefix("torch.")
        kind = "" if self.dtype == torch.float32 else f" {dtype}"
        return f"{shape}{kind}, k = {self.k:,}"

    @property
    def calls(self) -> list[str]:
        """What is timed: what the limits are about, and what they are multiples of."""
        named = {x for limit in self.limits for x in (limit.call, limit.base) if x}
        return [name for name in CALLS if name in named | {TOPK, SOFTMAX}]


def _functions(hard: float, threshold: float = 1.0) -> tuple[Limit, ...]:
    """What every function may take against the soft mask."""
    return (
        Limit(HARD, hard, MASK),
        Limit(LOG, 1.3, MASK),
        Limit(LOG_WITH_BACKWARD, 1.3, MASK_WITH_BACKWARD),
        Limit(THRESHOLD, threshold, MASK),
        Limit(SAMPLE, 3, MASK),
    )


def _selection(microseconds: float) -> tuple[Limit, ...]:
    """What a hard mask may take, and a selection against it and against torch.topk."""
    return (
        Limit(HARD_ALONE, microseconds=microseconds),
        Limit(SELECT, 1.2, HARD_ALONE),
        Limit(SELECT, 1, TOPK),
    )


_GPU_ROWS = (((64, 65_536), 28), ((64, 131_072), 32), ((256, 262_144), 165))
GPU_CASES = (
    FunctionCase((16_384, 64), 6, _functions(1.3)),
    FunctionCase((4096, 16_384), 64, _functions(1.3)),
    FunctionCase((4096, 65_536), 64, _functions(1.3)),
    FunctionCase((1, 3_000_000), 9000, _functions(1.3)),
    FunctionCase((100_000_000,), 6_250_000, (*_functions(1.3, 0.8), *_selection(380))),
    *(FunctionCase(shape, k, _selection(us)) for shape, us in _GPU_ROWS for k in (64, 2048)),
    *(FunctionCase((2048, 131_072), k, _selection(470), torch.bfloat16) for k in (64, 2048)),
    FunctionCase((10_000_000,), 625_000, _selection(65)),
)
_FOUR_SOFTMAXES = (Limit(MASK, 4, SOFTMAX),)
CPU_CASES = (
    FunctionCase((16_384, 64), 6, (*_functions(2), *_FOUR_SOFTMAXES)),
    FunctionCase((1024, 4096), 64, _functions(2)),
    FunctionCase((64, 65_536), 64, _functions(2)),
    FunctionCase((1, 3_000_000), 9000, _functions(2)),
    FunctionCase((65_536, 8), 2, _FOUR_SOFTMAXES),
    FunctionCase((16_384, 256), 8, _FOUR_SOFTMAXES),
    FunctionCase((256, 197), 16, _FOUR_SOFTMAXES),
    FunctionCase((256, 4096), 16, (Limit(FIRST_DIM, 2, TRANSPOSED),)),
)
#: Shapes so small that the figures mean nothing: for tests of the benchmark itself.
QUICK_CASES = (
    FunctionCase((32, 64), 6, (*_functions(1.3), *_selection(28), *_FOUR_SOFTMAXES)),
    FunctionCase((4, 500), 8, _selection(470), torch.bfloat16),
    FunctionCase((20_000,), 300, _functions(1.3, 0.8)),
    FunctionCase((64, 48), 5, (Limit(FIRST_DIM, 2, TRANSPOSED),)),
)


def run(
    *,
    device: torch.device,
    repeats: int = 15,
    quick: bool = False,
    report: Report = lambda step: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    advance: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Any]:
    """Measure all cases of the device; ``save`` gets the record after each."""
    on_gpu = device.type == "cuda"
    cases = QUICK_CASES if quick else GPU_CASES if on_gpu else CPU_CASES
    record: dict[str, Any] = {
        "benchmark": "functions",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "temperature": TEMPERATURE,
        "seconds": "per call, percentiles 20, 50 and 80: device time on a GPU, wall time on a CPU",
        # On a CPU what runs beside it only ever adds.
        "compared": _percentile(device),
        "environment": environment.describe(),
        "sources": sources.describe("functions", str(device)),
        "device": describe(device),
        "cases": [],
    }
    for number, case in enumerate(cases):
        record["cases"].append(_run_case(case, device, repeats, report))
        save(record)
        advance(case.name, number + 1, len(cases))
    return record


def _percentile(device: torch.device) -> str:
    return "p50" if device.type == "cuda" else "p20"


def _run_case(
    case: FunctionCase, device: torch.device, repeats: int, report: Report
) -> dict[str, Any]:
    entry: dict[str, Any] = {"case": case.name, "shape": list(case.shape), "k": case.k}
    entry["lines"] = lines(case, {})
    reason = shortage(case.shape, device)
    if reason is not None:
        return {**entry, "skipped": reason}
    try:
        report(f"{case.name}: parity")
        inputs = _inputs(case, device)
        entry["parity"] = check(inputs.scores[0], min(case.k, case.shape[-1]))
        entry["timings"] = _timings(case, inputs, device, repeats, report)
    except (ParityError, RuntimeError) as error:  # what was measured before it stands
        entry["failed"] = one_line(error)
    found = entry.get("timings", {})
    entry["lines"] = lines(case, {name: x[_percentile(device)] for name, x in found.items()})
    return entry


def _inputs(case: FunctionCase, device: torch.device) -> Inputs:
    inputs = draw(case.shape, device, case.dtype)
    if FIRST_DIM in case.calls:
        return Inputs(inputs.scores, [x.mT.contiguous() for x in inputs.scores])
    return inputs


def _timings(
    case: FunctionCase, inputs: Inputs, device: torch.device, repeats: int, report: Report
) -> dict[str, Any]:
    if device.type != "cuda":  # in turns: what runs beside it meets all of them
        x, w = inputs.scores[0], inputs.weights[0]
        calls = {name: _call(name, x, w, case.k) for name in case.calls}
        found = measure(
            calls,
            repeats=repeats,
            device=device,
            report=lambda name: report(f"{case.name}: timing {name}"),
        )
        return {name: timing._asdict() for name, timing in found.items()}
    timings = {}
    for name in case.calls:
        report(f"{case.name}: device time of {name}")
        pairs = list(zip(*inputs, strict=True))[: PEER_SETS if name == TOPK else None]
        timing = device_timing(
            [_call(name, x, w, case.k) for x, w in pairs],
            repeats=min(repeats, PEER_REPEATS) if name == TOPK else repeats,
            device=device,
        )
        timings[name] = timing._asdict()
    return timings


def _call(name: str, scores: Tensor, weights: Tensor, k: int) -> Callable[[], object]:
    return lambda: CALLS[name](scores, weights, k)


def lines(case: FunctionCase, seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Every limit beside what was measured; ``met`` is None where one side of it was not."""
    found = []
    for limit in case.limits:
        measured = seconds.get(limit.call)
        base = seconds.get(limit.base) if limit.base else None
        allowed = limit.microseconds * 1e-6 if not limit.base else None
        if base is not None:
            allowed = limit.factor * base
        known = measured is not None and allowed is not None
        found.append(
            {
                "call": limit.call,
                "at_most": limit.describe(),
                "measured": measured,
                "base": base,
                "limit": allowed,
                "met": measured <= allowed if known else None,  # type: ignore[operator]
            }
        )
    return found


def failures(record: dict[str, Any]) -> list[str]:
    """What is wrong rather than slow."""
    return [f"{x['case']}: {x['failed']}" for x in record["cases"] if "failed" in x]


def summary(record: dict[str, Any]) -> str:
    """How many limits hold, of all that there are.

    >>> summary({"cases": [{"lines": [{"met": True}, {"met": False}, {"met": None}]}]})
    'Functions: 1 of 3 limits hold, 1 does not, 1 was not measured.'
    """
    verdicts = [line["met"] for entry in record["cases"] for line in entry["lines"]]
    held, missed, unknown = (verdicts.count(x) for x in (True, False, None))
    told = [f"{held} of {len(verdicts)} limits hold"]
    if missed:
        told.append(f"{missed} {'does' if missed == 1 else 'do'} not")
    if unknown:
        told.append(f"{unknown} {'was' if unknown == 1 else 'were'} not measured")
    return f"Functions: {', '.join(told)}."

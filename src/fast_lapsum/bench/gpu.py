"""The GPU benchmark: soft_topk beside a copy, torch.softmax, torch.topk and torch.sort in one run.

Every call passes its parity check in this process before it is timed. The record is handed on
after every part, so that a run that is cut off leaves what it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timezone
from typing import Any

import torch

from . import environment, gpu_timing, sources
from .gpu_bars import BUDGET_SHARE, CASES, QUICK_CASES, Case
from .gpu_budget import budgets, check_budgets
from .gpu_case import Report, draw, run_case, shortage, time_ours
from .gpu_overhead import EAGER, run_overhead
from .gpu_timing import one_line
from .gpu_users import QUICK_USER_CASES, USER_CASES, UserCase, run_user_case
from .gpu_users import describe as describe_user_case
from .parity import ParityError

SWEEP_TEMPERATURES = (10.0, 1.0, 0.1, 0.01, 0.001, 1e-6)
SWEEP_SIZES = (1_000_000, 10_000_000)
OVERHEAD_SIZES = (10_000, 1000)
HALF_SIZE = 100_000_000
#: bfloat16 moves half the bytes: at least this many times faster than float32.
HALF_GAIN = 1.6
GRID_SHAPES = ((1_000_000,), (256, 4096), (64, 65536), (10_000_000,))

#: What a run is made of.
SECTIONS = ("cases", "users", "overhead", "half", "sweeps", "budgets")

#: The same run on shapes so small that the figures mean nothing.
QUICK_SWEEP_SIZES = (20_000,)
QUICK_HALF_SIZE = 20_000
QUICK_OVERHEAD_SIZES = (1000,)
QUICK_GRID_SHAPES = ((20_000,), (8, 512))
QUICK_COPY_BYTES = 1 << 22

Save = Callable[[dict[str, Any]], None]
#: Hears the name of a finished part, how many are done, and how many there are.
Advance = Callable[[str, int, int], None]
Part = tuple[str, str, Callable[[], Any]]


def run(
    *,
    device: torch.device,
    repeats: int = 15,
    max_n: int | None = None,
    quick: bool = False,
    only: Collection[str] = SECTIONS,
    report: Report = lambda step: None,
    save: Save = lambda record: None,
    advance: Advance = lambda name, done, total: None,
) -> dict[str, Any]:
    """Measure everything and return the results record.

    A part that fails stands in the record under ``failures`` and does not end the run.

    Args:
        device: where to measure; on a CPU the figures are the host's, for tests.
        repeats: graph replays per timing.
        max_n: shapes with more scores are left out.
        quick: tiny shapes.
        only: which of the ``SECTIONS`` to measure.
        report: hears what is being done.
        save: gets the record after every part; ``complete`` says whether it was the last.
        advance: hears of every part that is done.
    """
    record: dict[str, Any] = {
        "benchmark": "gpu",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "quick": quick,
        "max_n": max_n,
        "sections": [name for name in SECTIONS if name in only],
        "seconds": "per call, percentiles 20, 50 and 80; eager: wall time, else device time",
        "environment": environment.describe(),
        "sources": sources.describe("gpu", "cuda"),
        "device": gpu_timing.describe(device),
        "failures": {},
        "cases": [],
        "users": [],
        "overhead": [],
        "half": [],
        "sweeps": [],
        "budgets": [],
    }
    report("copy bandwidth")
    size = QUICK_COPY_BYTES if quick else gpu_timing.COPY_BYTES
    record["copy"] = gpu_timing.copy_bandwidth(device, repeats, size)
    parts = [
        part for part in _parts(record, device, repeats, max_n, quick, report) if part[0] in only
    ]
    for done, (section, name, part) in enumerate(parts, start=1):
        try:
            found = part()
            record[section].extend(found if isinstance(found, list) else [found])
        except Exception as error:  # the other parts' figures are worth having
            record["failures"][name] = one_line(error)
        save(record)
        advance(name, done, len(parts))
    record["complete"] = True
    save(record)
    return record


def failures(record: dict[str, Any]) -> list[str]:
    """Everything that is wrong rather than slow: failed parts and failed parity checks."""
    found = [f"{name}: {text}" for name, text in record["failures"].items()]
    for case in (*record["cases"], *record.get("users", ())):
        if "failed" in case:
            found.append(f"{case['case']}: {case['failed']}")
        for temperature, errors in case.get("parity", {}).items():
            if "failed" in errors:
                found.append(f"{case['case']}, {temperature}: {errors['failed']}")
    for entry in (*record["sweeps"], *record["half"]):
        if "failed" in entry:
            found.append(f"n = {entry['n']:,}, k = {entry['k']:g}: {entry['failed']}")
    for entry in record["overhead"]:  # where a peer or a compiler may fail
        if EAGER in entry["failed"]:
            found.append(f"n = {entry['n']:,}: {entry['failed'][EAGER]}")
    return found


def _parts(
    record: dict[str, Any],
    device: torch.device,
    repeats: int,
    max_n: int | None,
    quick: bool,
    report: Report,
) -> Iterator[Part]:
    """Section of the record, name, and work of every part, in the order of the run."""
    rate = record["copy"]["bytes_per_second"]
    for case in QUICK_CASES if quick else CASES:
        yield (
            "cases",
            case.name,
            lambda case=case: _case(case, device, rate, repeats, max_n, report),  # type: ignore[misc]
        )
    for user_case in QUICK_USER_CASES if quick else USER_CASES:
        yield (
            "users",
            user_case.name,
            lambda case=user_case: _user_case(case, device, repeats, max_n, report),  # type: ignore[misc]
        )
    for n in QUICK_OVERHEAD_SIZES if quick else OVERHEAD_SIZES:
        yield (
            "overhead",
            f"overhead at n = {n:,}",
            lambda n=n: run_overhead(n, device, repeats, report),  # type: ignore[misc]
        )
    half = QUICK_HALF_SIZE if quick else HALF_SIZE
    yield "half", "bfloat16", lambda: _half(half, device, repeats, max_n, report)
    for n in QUICK_SWEEP_SIZES if quick else SWEEP_SIZES:
        yield (
            "sweeps",
            f"sweep at n = {n:,}",
            lambda n=n: _sweep(n, device, repeats, max_n, report),  # type: ignore[misc]
        )
    for shape in QUICK_GRID_SHAPES if quick else GRID_SHAPES:
        yield (
            "budgets",
            f"budgets of {' x '.join(map(str, shape))}",
            lambda shape=shape: _budgets(shape, device, max_n, report),  # type: ignore[misc]
        )


def _over(shape: tuple[int, ...], max_n: int | None) -> str | None:
    scores = math.prod(shape)
    return None if max_n is None or scores <= max_n else f"{scores:,} scores, over the ceiling"


def _case(
    case: Case,
    device: torch.device,
    rate: float,
    repeats: int,
    max_n: int | None,
    report: Report,
) -> dict[str, Any]:
    ceiling = _over(case.shape, max_n)
    if ceiling:
        return {"case": case.name, "shape": list(case.shape), "skipped": ceiling}
    return run_case(case, device, rate, repeats, report)


def _user_case(
    case: UserCase, device: torch.device, repeats: int, max_n: int | None, report: Report
) -> dict[str, Any]:
    ceiling = _over(case.shape, max_n)
    if ceiling:
        return {**describe_user_case(case), "skipped": ceiling}
    return run_user_case(case, device, repeats, report)


def _budgets(
    shape: tuple[int, ...], device: torch.device, max_n: int | None, report: Report
) -> list[dict[str, Any]]:
    reason = _over(shape, max_n) or shortage(shape, device)
    if reason:
        return [{"shape": list(shape), "skipped": reason}]
    return check_budgets(shape, device, report)


def _half(
    n: int, device: torch.device, repeats: int, max_n: int | None, report: Report
) -> dict[str, Any]:
    """bfloat16 beside float32 at t = 1."""
    k = n * BUDGET_SHARE
    entry: dict[str, Any] = {"n": n, "k": k, "temperature": 1.0}
    reason = _over((n,), max_n) or shortage((n,), device)
    if reason:
        return {**entry, "skipped": reason}
    medians = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        report(f"n = {n:,}: {name}")
        try:
            errors, timings = time_ours(
                draw((n,), device, dtype), k, 1.0, repeats=repeats, device=device
            )
        except ParityError as error:
            return {**entry, "failed": f"{name}: {error}"}
        entry[name] = {
            "parity": errors,
            "timings": {part: timing._asdict() for part, timing in timings.items()},
        }
        medians[name] = timings["forward"].p50
    limit = medians["float32"] / HALF_GAIN
    entry["bar"] = {
        "part": "bfloat16 forward",
        "at_most": f"{1 / HALF_GAIN:g} x float32",
        "measured": medians["bfloat16"],
        "limit": limit,
        "met": medians["bfloat16"] <= limit,
    }
    return entry


def _sweep(
    n: int, device: torch.device, repeats: int, max_n: int | None, report: Report
) -> list[dict[str, Any]]:
    """Device time of the forward pass over budgets and temperatures."""
    reason = _over((n,), max_n) or shortage((n,), device)
    if reason:
        return [{"n": n, "skipped": reason}]
    inputs = draw((n,), device)
    entries = []
    for k in budgets(n):
        for t in SWEEP_TEMPERATURES:
            report(f"n = {n:,}: k = {k:g}, t = {t:g}")
            entry: dict[str, Any] = {"n": n, "k": k, "temperature": t}
            try:
                entry["parity"], timings = time_ours(
                    inputs, k, t, repeats=repeats, device=device, backward=False
                )
                entry["forward"] = timings["forward"]._asdict()
            except ParityError as error:
                entry["failed"] = str(error)
            entries.append(entry)
    return entries

"""The CPU benchmark: soft_topk beside torch.softmax, torch.topk and torch.sort in one run.

Every case passes its parity check in this process before it is timed, and k = n / 16 throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from . import environment, memory, parity, sources
from .timing import Timing, measure

TEMPERATURES = (1.0, 0.01)
BUDGET_SHARE = 1 / 16
MEMORY_LIMIT = 0.05  # of the input's bytes
SEED = 0

Report = Callable[[str], None]


class Bar(NamedTuple):
    """How soft_topk must compare: peer / ours at least, or ours / peer at most, ``limit``."""

    ours: Literal["forward", "forward+backward"]
    peer: str
    sense: Literal["times faster, at least", "times the time, at most"]
    limit: float


class Case(NamedTuple):
    """One shape, rows along its last dimension, with the bars that hold for it."""

    name: str
    shape: tuple[int, ...]
    bars: tuple[Bar, ...]


VECTOR_BARS = (
    Bar("forward", "torch.topk", "times faster, at least", 10),
    Bar("forward", "torch.sort", "times faster, at least", 40),
    Bar("forward", "torch.softmax forward", "times the time, at most", 2.5),
    Bar("forward+backward", "torch.softmax forward+backward", "times the time, at most", 3),
)
ROW_BARS = (
    Bar("forward", "torch.softmax forward", "times the time, at most", 3),
    Bar("forward+backward", "torch.softmax forward+backward", "times the time, at most", 3),
)
OVERHEAD_BARS = ROW_BARS[1:]

CASES = (
    Case("n = 1e7", (10_000_000,), VECTOR_BARS),
    Case("n = 1e6", (1_000_000,), VECTOR_BARS),
    Case("256 x 4096", (256, 4096), ROW_BARS),
    Case("n = 1000", (1000,), OVERHEAD_BARS),
)
#: The same run on shapes so small that the figures mean nothing: for tests of the benchmark itself.
QUICK_CASES = (
    Case("n = 1e5", (100_000,), VECTOR_BARS),
    Case("n = 2e4", (20_000,), VECTOR_BARS),
    Case("16 x 512", (16, 512), ROW_BARS),
    Case("n = 1000", (1000,), OVERHEAD_BARS),
)


def run(
    *, repeats: int = 25, quick: bool = False, report: Report = lambda step: None
) -> dict[str, Any]:
    """Measure all cases and return the results record; ParityError where an answer is wrong."""
    cases = QUICK_CASES if quick else CASES
    record: dict[str, Any] = {
        "benchmark": "cpu",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": "per call, percentiles 20, 50 and 80",
        "environment": environment.describe(),
        "sources": sources.describe("cpu", "cpu"),
        "cases": [_run_case(case, repeats, report) for case in cases],
    }
    largest, second = cases[0].shape[0], cases[1].shape[0]
    record["memory"] = [
        _not_measured(largest, t) if quick else _memory(largest, t, report) for t in TEMPERATURES
    ]
    shapes = ((second,), cases[2].shape)
    record["determinism"] = [_determinism(s, t, report) for s in shapes for t in TEMPERATURES]
    return record


def _run_case(case: Case, repeats: int, report: Report) -> dict[str, Any]:
    scores, weights = _inputs(case.shape)
    k = case.shape[-1] * BUDGET_SHARE
    errors = {}
    for t in TEMPERATURES:
        report(f"{case.name}: checking against the reference at t = {t:g}")
        errors[f"t={t:g}"] = parity.check(scores, k, t, weights)
    timings = measure(
        _calls(scores, weights, k),
        repeats=repeats,
        device=scores.device,
        report=lambda name: report(f"{case.name}: timing {name}"),
    )
    return {
        "case": case.name,
        "shape": list(case.shape),
        "k": k,
        "parity": errors,
        "timings": {name: timing._asdict() for name, timing in timings.items()},
        "bars": [_compare(bar, t, timings) for t in TEMPERATURES for bar in case.bars],
    }


def _inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    scores = torch.randn(shape, generator=generator)
    return scores, torch.randn(shape, generator=generator)


def _calls(scores: Tensor, weights: Tensor, k: float) -> dict[str, Callable[[], object]]:
    leaf = scores.clone().requires_grad_()

    def with_backward(operator: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(operator(leaf), leaf, weights)

    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    calls: dict[str, Callable[[], object]] = {}
    for t in TEMPERATURES:

        def ours(x: Tensor, t: float = t) -> Tensor:
            return soft_topk(x, k, t)

        calls[_ours("forward", t)] = lambda ours=ours: ours(scores)  # type: ignore[misc]
        calls[_ours("forward+backward", t)] = with_backward(ours)
    calls["torch.softmax forward"] = lambda: softmax(scores)
    calls["torch.softmax forward+backward"] = with_backward(softmax)
    calls["torch.topk"] = lambda: torch.topk(scores, int(k))
    calls["torch.sort"] = lambda: torch.sort(scores)
    return calls


def _ours(part: str, temperature: float) -> str:
    return f"soft_topk {part} t={temperature:g}"


def _compare(bar: Bar, temperature: float, timings: dict[str, Timing]) -> dict[str, Any]:
    ours, peer = timings[_ours(bar.ours, temperature)].p50, timings[bar.peer].p50
    if bar.sense == "times faster, at least":
        ratio = peer / ours
        met = ratio >= bar.limit
    else:
        ratio = ours / peer
        met = ratio <= bar.limit
    return {"temperature": temperature, **bar._asdict(), "ratio": ratio, "met": met}


def _memory(n: int, temperature: float, report: Report) -> dict[str, Any]:
    report(f"n = {n:,}: peak memory at t = {temperature:g}")
    figures = memory.peak_beyond_output(n, n * BUDGET_SHARE, temperature)
    if figures is None:
        return _not_measured(n, temperature)
    shares = {
        part: figures[f"{part}_bytes"] / figures["input_bytes"] for part in ("forward", "backward")
    }
    return {
        "n": n,
        "temperature": temperature,
        "measured": True,
        **figures,
        "share_of_input": shares,
        "limit": MEMORY_LIMIT,
        "met": max(shares.values()) <= MEMORY_LIMIT,
    }


def _not_measured(n: int, temperature: float) -> dict[str, Any]:
    """No /proc to ask, or so few scores that the system's own pages are most of what is seen."""
    return {"n": n, "temperature": temperature, "measured": False}


def _determinism(shape: tuple[int, ...], temperature: float, report: Report) -> dict[str, Any]:
    """Whether mask and gradient are the same bits over repeated runs and over thread counts."""
    report(f"{'x'.join(map(str, shape))}: same bits over runs and threads, t = {temperature:g}")
    scores, weights = _inputs(shape)
    scores.requires_grad_()
    threads_before = torch.get_num_threads()
    thread_counts = sorted({1, 2, 3, threads_before})
    runs: list[tuple[Tensor, Tensor]] = []
    try:
        for threads in thread_counts:
            torch.set_num_threads(threads)
            for _ in range(3):
                mask = soft_topk(scores, shape[-1] * BUDGET_SHARE, temperature)
                (gradient,) = torch.autograd.grad(mask, scores, weights)
                runs.append((mask.detach(), gradient))
    finally:
        torch.set_num_threads(threads_before)
    first = runs[0]
    same = all(torch.equal(a, b) for run in runs[1:] for a, b in zip(first, run, strict=True))
    return {
        "shape": list(shape),
        "temperature": temperature,
        "runs_per_thread_count": 3,
        "thread_counts": thread_counts,
        "met": same,
    }

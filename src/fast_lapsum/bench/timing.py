"""Timings of several functions in one run, interleaved so that drift hits all of them equally."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

#: A sample repeats a short call until it lasts about this long: the clock's grain is then small.
SAMPLE_SECONDS = 1e-3
#: Calls shorter than this run once untimed before each sample, to find their own data in the cache.
SETTLE_SECONDS = 0.1


#: Seconds that so many calls in a row take.
Clock = Callable[[Callable[[], object], int], float]


class Timing(NamedTuple):
    """Seconds per call: the 20th, 50th and 80th percentile over ``samples`` samples."""

    p20: float
    p50: float
    p80: float
    samples: int


def measure(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    device: torch.device,
    report: Callable[[str], None] = lambda name: None,
    clock: Clock | None = None,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, Timing]:
    """Time every call ``repeats`` times after a warm-up, taking turns; ``report`` hears each name.

    Without a ``clock`` it is the device's own: events on a GPU, the host's clock on a CPU.

    >>> timings = measure({"nothing": lambda: None}, repeats=3, device=torch.device("cpu"))
    >>> timings["nothing"].samples
    3
    """
    clock = clock or device_clock(device)
    loops: dict[str, int] = {}
    for name, call in calls.items():
        report(name)
        clock(call, 1)  # the first call pays for lazy set-up
        seconds = clock(call, 1)
        loops[name] = max(1, math.ceil(sample_seconds / max(seconds, 1e-7)))

    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(repeats):
        start = turn % max(len(names), 1)  # nobody always follows the same neighbour's cache
        for name in names[start:] + names[:start]:
            report(name)
            if not samples[name] or samples[name][-1] < SETTLE_SECONDS:
                calls[name]()
            samples[name].append(clock(calls[name], loops[name]) / loops[name])
    return {name: summary(values) for name, values in samples.items()}


def device_clock(device: torch.device) -> Clock:
    """Events on a GPU, which see no host; the host's clock on a CPU."""
    return _cuda_seconds if device.type == "cuda" else _cpu_seconds


def wall_clock(device: torch.device) -> Clock:
    """What a caller waits: the host's clock, with the device idle at both ends."""
    return _synchronised_seconds if device.type == "cuda" else _cpu_seconds


def busy_clock(device: torch.device) -> Clock:
    """Events on a GPU that is busy when they start: the host's first launch is not counted."""
    return _busy_seconds if device.type == "cuda" else _cpu_seconds


def summary(values: list[float]) -> Timing:
    """The percentiles of some samples."""
    quantiles = torch.tensor(values, dtype=torch.float64).quantile(
        torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    )
    p20, p50, p80 = quantiles.tolist()
    return Timing(p20, p50, p80, len(values))


def _cpu_seconds(call: Callable[[], object], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return time.perf_counter() - start


def _synchronised_seconds(call: Callable[[], object], loops: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _busy_seconds(call: Callable[[], object], loops: int) -> float:
    call()
    return _event_seconds(call, loops)


def _cuda_seconds(call: Callable[[], object], loops: int) -> float:
    torch.cuda.synchronize()
    return _event_seconds(call, loops)


def _event_seconds(call: Callable[[], object], loops: int) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(loops):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3

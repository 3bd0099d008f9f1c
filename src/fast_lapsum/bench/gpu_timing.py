"""What only a GPU can be asked: device time out of a graph, copy bandwidth, waits, scratch memory.

On a CPU everything here falls back to the host's clock or to nothing, so that the benchmark's own
logic runs without a GPU.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .timing import SAMPLE_SECONDS, busy_clock, measure, summary

Call = Callable[[], object]

#: Inputs in rotation are this many times the L2 cache, so that none is found there.
CACHE_MULTIPLE = 4
MOST_SETS = 128
ASSUMED_CACHE = 64 << 20
WARM_UP_SECONDS = 0.01
COPY_BYTES = 1 << 30


class DeviceTiming(NamedTuple):
    """Seconds per call on the device: percentiles over ``samples`` replays of ``calls`` calls."""

    p20: float
    p50: float
    p80: float
    samples: int
    calls: int
    source: Literal["graph", "eager"]


def device_timing(
    calls: Sequence[Call], *, repeats: int, device: torch.device, most_seconds: float = 1.0
) -> DeviceTiming:
    """Time the calls as one CUDA graph; eagerly where they cannot be captured.

    Repeats are fewer where they would take longer than ``most_seconds``.
    """
    graph = _capture(calls) if device.type == "cuda" else None

    def eagerly() -> None:
        for call in calls:
            call()

    replay = eagerly if graph is None else graph.replay
    clock = busy_clock(device)
    spent = clock(replay, 1)
    last = max(clock(replay, 1), 1e-7)
    while spent < WARM_UP_SECONDS and device.type == "cuda":  # the clocks need a while to rise
        spent += max(clock(replay, 1), 1e-5)
    loops = math.ceil(SAMPLE_SECONDS / last)
    repeats = max(3, min(repeats, int(most_seconds / (last * loops))))
    timing = summary([clock(replay, loops) / loops / len(calls) for _ in range(repeats)])
    return DeviceTiming(*timing, len(calls), "eager" if graph is None else "graph")


def _capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph | None:
    """The calls as one graph, each with outputs of its own; None where they cannot be captured."""
    stream = torch.cuda.current_stream()
    for call in calls[:2]:  # what first calls load and compile must not happen in a capture
        call()
    if sync_error(calls[0]) is not None:
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            outputs = [call() for call in calls]
        del outputs
    except RuntimeError:
        # A failed end of the capture leaves its stream as the current one.
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        return None
    return graph


def sync_error(call: Call) -> str | None:
    """The complaint of a call that waits for the device; None for one that does not."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return one_line(error)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return None


def set_count(input_bytes: int, device: torch.device) -> int:
    """How many inputs of that size must take turns to find nothing in the cache."""
    if device.type != "cuda":
        return 2
    cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    return sets_beyond(cache or ASSUMED_CACHE, input_bytes)


def sets_beyond(cache_bytes: int, input_bytes: int) -> int:
    """The fewest inputs that exceed the cache CACHE_MULTIPLE times, at least 1.

    >>> sets_beyond(50 << 20, 4_000_000), sets_beyond(50 << 20, 4_000_000_000)
    (53, 1)
    """
    return min(MOST_SETS, CACHE_MULTIPLE * cache_bytes // input_bytes + 1)


def copy_bandwidth(device: torch.device, repeats: int, size: int = COPY_BYTES) -> dict[str, Any]:
    """Bytes per second, read and written, of torch's fastest elementwise copy."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    timings = measure(
        {
            "copy_": lambda: target.copy_(source),
            "mul": lambda: torch.mul(source, 1, out=target),
        },
        repeats=repeats,
        device=device,
        clock=busy_clock(device),
    )
    fastest = min(timing.p50 for timing in timings.values())
    return {
        "bytes": 2 * source.nbytes,
        "timings": {name: timing._asdict() for name, timing in timings.items()},
        "bytes_per_second": 2 * source.nbytes / fastest,
    }


def peak_beyond_result(call: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, int]:
    """What the call returns, and the bytes it held at its peak beyond that (0 on a CPU)."""
    if device.type != "cuda":
        return call(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    return result, torch.cuda.max_memory_allocated() - before - result.nbytes


def free_memory(device: torch.device) -> int | None:
    """Bytes that a run may still take on a GPU; None where there is no such limit to ask for."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def describe(device: torch.device) -> dict[str, Any]:
    """The device's properties that figures depend on."""
    if device.type != "cuda":
        return {"name": str(device)}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cache_bytes": int(getattr(properties, "L2_cache_size", 0)) or None,
    }


def one_line(error: BaseException) -> str:
    """An exception fit for a results file: its type and the beginning of its text.

    >>> one_line(ValueError("first\\nsecond"))
    'ValueError: first second'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"

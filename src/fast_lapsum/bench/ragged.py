"""Rows of several lengths, and one budget over many tensors, beside what else one could call.

Segments have lengths log-uniform over a range; k is a sixteenth of each. They are timed beside as
many rows of the mean length, and beside rows padded to the longest with a mask. Many tensors are
those of a ResNet-50, timed beside one tensor of all their scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..functional import soft_topk
from ..many import soft_topk_list
from . import environment, sources
from .functions import FunctionCase, Limit, Report, lines
from .gpu_timing import describe, device_timing, one_line
from .parity import ParityError
from .timing import measure

TEMPERATURE = 0.1
SEGMENTS, KNOWN = "segments", "segments, longest known"
DENSE, PADDED = "rows of the mean length", "padded rows and a mask"
LIST, ONE, JOINED = "list", "one tensor", "joined, then one tensor"
BOTH = " + backward"
Calls = dict[str, Callable[[], object]]


class RaggedCase(NamedTuple):
    """What is timed, and the limits that hold for it."""

    name: str
    make: Callable[[torch.device], Calls]
    limits: tuple[Limit, ...]


def lengths_of(count: int, least: int, most: int) -> list[int]:
    """So many lengths, log-uniform, in a drawn order.

    >>> lengths = lengths_of(1000, 16, 4096)
    >>> min(lengths), max(lengths), sum(length < 256 for length in lengths)
    (16, 4096, 500)
    """
    steps = torch.linspace(math.log(least), math.log(most), count, dtype=torch.float64)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [round(math.exp(x)) for x in steps[order].tolist()]


def segments(lengths: Sequence[int], device: torch.device, padded: bool = True) -> Calls:
    """Calls on segments of these lengths, and on rows that take their place."""
    count, longest, total = len(lengths), max(lengths), sum(lengths)
    mean = round(total / count)
    values = _normal(total, device).requires_grad_()
    rows = _normal(count * mean, device).view(count, mean).requires_grad_()
    sizes = torch.tensor(lengths, device=device)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    k = sizes.double() / 16
    calls: dict[str, Callable[[], Tensor]] = {
        SEGMENTS: lambda: soft_topk(values, k, TEMPERATURE, cu_seqlens=offsets),
        KNOWN: lambda: soft_topk(values, k, TEMPERATURE, cu_seqlens=offsets, max_seqlen=longest),
        DENSE: lambda: soft_topk(rows, mean / 16, TEMPERATURE),
    }
    if padded:
        wide = _normal(count * longest, device).view(count, longest)
        mask = torch.arange(longest, device=device) < sizes[:, None]
        calls[PADDED] = lambda: soft_topk(wide, k, TEMPERATURE, mask=mask)
    with torch.no_grad():
        _check(calls[SEGMENTS](), values, offsets, k)
    found: Calls = {}
    for name, call in calls.items():
        found[name] = _forward(call)
        if name in (SEGMENTS, KNOWN, DENSE):
            leaf = rows if name == DENSE else values
            found[name + BOTH] = _with_backward(call, leaf)
    return found


def many(shapes: Sequence[tuple[int, ...]], device: torch.device) -> Calls:
    """Calls on tensors of these shapes, and on all of their scores in one."""
    tensors = [_normal(math.prod(shape), device).view(shape).requires_grad_() for shape in shapes]
    row = torch.cat([x.detach().view(-1) for x in tensors]).requires_grad_()
    k = row.numel() // 10

    def joined() -> list[Tensor]:
        mask = soft_topk(torch.cat([x.view(-1) for x in tensors]), k, TEMPERATURE)
        return list(mask.split_with_sizes([x.numel() for x in tensors]))

    def with_backward(call: Callable[[], Sequence[Tensor]], leaves: list[Tensor]) -> object:
        with torch.enable_grad():
            masks = call()
            return torch.autograd.grad(masks, leaves, [x.detach() for x in leaves])

    with torch.no_grad():
        masks = soft_topk_list(tensors, k, TEMPERATURE)
        error = (torch.cat([x.view(-1) for x in masks]) - soft_topk(row, k, TEMPERATURE)).abs()
    if not float(error.max()) <= 1e-5:
        raise ParityError(f"masks of a list are off by {float(error.max()):.3g}")

    def one() -> list[Tensor]:
        return [soft_topk(row, k, TEMPERATURE)]

    def listed() -> list[Tensor]:
        return soft_topk_list(tensors, k, TEMPERATURE)

    return {
        LIST: _forward(listed),
        ONE: _forward(one),
        JOINED: _forward(joined),
        LIST + BOTH: lambda: with_backward(listed, tensors),
        ONE + BOTH: lambda: with_backward(one, [row]),
    }


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of a ResNet-50's parameters.

    >>> shapes = resnet50()
    >>> len(shapes), sum(math.prod(shape) for shape in shapes)
    (161, 25557032)
    """
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            kernels = [(width, inside, 1, 1), (width, width, 3, 3), (out, width, 1, 1)]
            kernels += [(out, inside, 1, 1)] if block == 0 else []
            for kernel in kernels:
                shapes += [kernel, (kernel[0],), (kernel[0],)]
            inside = out
    return [*shapes, (1000, inside), (1000,)]


def _normal(count: int, device: torch.device) -> Tensor:
    return torch.randn(count, device=device, generator=torch.Generator(device).manual_seed(0))


def _forward(call: Callable[[], object]) -> Callable[[], object]:
    return torch.no_grad()(call)


def _with_backward(call: Callable[[], Tensor], leaf: Tensor) -> Callable[[], object]:
    def both() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(call(), leaf, leaf.detach())

    return both


def _check(mask: Tensor, values: Tensor, offsets: Tensor, k: Tensor) -> None:
    """Some segments against the call on each alone."""
    ends, ks = offsets.tolist(), k.tolist()
    for i in range(0, len(ks), max(1, len(ks) // 20)):
        row = slice(ends[i], ends[i + 1])
        error = (mask[row] - soft_topk(values[row], ks[i], TEMPERATURE)).abs().max()
        if not float(error) <= 1e-5:
            raise ParityError(f"segment {i} of {row.stop - row.start} is off by {float(error):.3g}")


_SEGMENT_LIMITS = (
    Limit(SEGMENTS, 1.3, DENSE),
    Limit(KNOWN, 1.3, DENSE),
    Limit(SEGMENTS + BOTH, 1.3, DENSE + BOTH),
    Limit(KNOWN + BOTH, 1.3, DENSE + BOTH),
)
_FASTER = (Limit(SEGMENTS, 1, PADDED),)
_LIST_LIMITS = (Limit(LIST, 1.5, ONE), Limit(LIST + BOTH, 1.5, ONE + BOTH))


def _segment_case(
    count: int, least: int, most: int, limits: tuple[Limit, ...] = _SEGMENT_LIMITS
) -> RaggedCase:
    lengths = lengths_of(count, least, most)
    name = f"{count:,} segments of {least:,} to {most:,}"
    return RaggedCase(name, lambda device: segments(lengths, device), (*limits, *_FASTER))


def _one_long(longest: int, count: int, length: int) -> RaggedCase:
    """One long segment among short ones, beside rows of the mean length: what it costs."""
    lengths = [longest, *(length for _ in range(count))]
    name = f"one of {longest:,} and {count:,} of {length:,}"
    return RaggedCase(name, lambda device: segments(lengths, device, padded=False), ())


def cases_of(device: torch.device, quick: bool) -> tuple[RaggedCase, ...]:
    """All cases of a device."""
    if quick:
        shapes = [(8, 4), (3,), (40, 10)]
        few = RaggedCase("a few tensors", lambda device: many(shapes, device), _LIST_LIMITS)
        return _segment_case(16, 4, 64), few
    layers = RaggedCase("ResNet-50", lambda device: many(resnet50(), device), _LIST_LIMITS)
    if device.type == "cuda":
        return _segment_case(4096, 16, 65_536), _one_long(10_000_000, 64, 1000), layers
    return _segment_case(256, 16, 65_536), _segment_case(4096, 4, 512, ()), layers


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
    cases = cases_of(device, quick)
    record: dict[str, Any] = {
        "benchmark": "ragged",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "temperature": TEMPERATURE,
        "seconds": "per call, percentiles 20, 50 and 80: device time on a GPU, wall time on a CPU",
        "compared": "p50" if device.type == "cuda" else "p20",
        "environment": environment.describe(),
        "sources": sources.describe("ragged", str(device)),
        "device": describe(device),
        "cases": [],
    }
    for number, case in enumerate(cases):
        record["cases"].append(_run_case(case, device, repeats, report, record["compared"]))
        save(record)
        advance(case.name, number + 1, len(cases))
    return record


def _run_case(
    case: RaggedCase, device: torch.device, repeats: int, report: Report, compared: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"case": case.name}
    try:
        report(f"{case.name}: parity")
        calls = case.make(device)
        if device.type == "cuda":
            entry["timings"] = {}
            for name, call in calls.items():
                report(f"{case.name}: device time of {name}")
                timing = device_timing([call], repeats=repeats, device=device)
                entry["timings"][name] = timing._asdict()
        else:
            found = measure(calls, repeats=repeats, device=device)
            entry["timings"] = {name: timing._asdict() for name, timing in found.items()}
    except RuntimeError as error:
        entry["failed"] = one_line(error)
    seconds = {name: x[compared] for name, x in entry.get("timings", {}).items()}
    entry["lines"] = lines(FunctionCase((0,), 0, case.limits), seconds)
    return entry

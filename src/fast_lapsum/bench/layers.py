"""Layers from their scores, eager and compiled, beside the usual way to the same choice.

A router begins with its logits: what comes before is a matrix product, which both ways have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from . import environment, sources
from .functions import FunctionCase, Limit, Report, lines
from .gpu_case import PEER_REPEATS, SEED, time_walls
from .gpu_timing import Call, describe, device_timing, free_memory, one_line, set_count, sync_error
from .layer_calls import (
    Timed,
    activation,
    attention,
    batch_topk,
    checked,
    checked_gradient,
    gate,
    router,
    tokens,
)
from .records import changed
from .timing import measure

LAYER, USUAL = "layer", "usual"
COMPILED, USUAL_COMPILED = "layer, compiled", "usual, compiled"
BOTH = " + backward"
#: Tensors in the shape of a call's largest that it holds at once at most, beside its inputs.
TENSORS_NEEDED = 12

#: As fast as the usual way that a compiler has fused.
_AS_FAST = tuple(Limit(name + BOTH, 1, USUAL_COMPILED + BOTH) for name in (LAYER, COMPILED))
#: Each three times as fast as its own usual way.
_THREE_TIMES = tuple(
    Limit(name + part, round(1 / 3, 4), base + part)
    for part in ("", BOTH)
    for name, base in ((LAYER, USUAL), (COMPILED, USUAL_COMPILED))
)


class LayerCase(NamedTuple):
    """A layer at one shape of scores, k, and the limits that hold for it."""

    layer: str
    make: Callable[[tuple[int, ...], int, torch.device], Timed]
    shape: tuple[int, ...]
    k: int
    limits: tuple[Limit, ...] = ()
    dtype: torch.dtype = torch.float32
    #: Numbers of the largest tensor for each score.
    width: int = 1
    note: str = ""

    @property
    def name(self) -> str:
        """The layer, and what it was given.

        >>> LayerCase("TopKRouter", router, (16384, 64), 6, dtype=torch.bfloat16).name
        'TopKRouter, 16,384 x 64 bfloat16, k = 6'
        """
        shape = FunctionCase(self.shape, self.k, (), self.dtype).name
        return f"{self.layer}, {shape}" + (f", {self.note}" if self.note else "")


def _router(
    shape: tuple[int, int], k: int, dtype: torch.dtype = torch.float32, normalize: bool = False
) -> LayerCase:
    make = functools.partial(router, normalize=normalize)
    note = "normalized" if normalize else ""
    return LayerCase("TopKRouter", make, shape, k, _AS_FAST, dtype, note=note)


def _batch_topk(
    shape: tuple[int, int], k: int, dtype: torch.dtype = torch.float32, temperature: float = 0.1
) -> LayerCase:
    make = functools.partial(batch_topk, temperature=temperature)
    note = "" if temperature else "t = 0"
    return LayerCase("BatchTopK", make, shape, k, _THREE_TIMES, dtype, note=note)


def _tokens(shape: tuple[int, int], k: int, width: int) -> LayerCase:
    make = functools.partial(tokens, width=width)
    return LayerCase("TokenSelect", make, shape, k, width=width, note=f"width {width:,}")


def cases_of(device: torch.device, quick: bool) -> tuple[LayerCase, ...]:
    """All cases of a device."""
    half = torch.bfloat16
    if quick:
        return (
            _router((32, 8), 2, normalize=True),
            _batch_topk((16, 64), 4),
            LayerCase("TopKActivation", activation, (16, 64), 4),
            LayerCase("BudgetGate", gate, (16, 64), 4),
            _tokens((2, 32), 8, 4),
            LayerCase("SparseAttentionBias", attention, (1, 2, 16, 16), 4),
        )
    if device.type == "cuda":
        return (
            _router((16_384, 64), 6),
            _router((65_536, 8), 2),
            _batch_topk((4096, 16_384), 100),
            _batch_topk((16_384, 32_768), 32),
            _router((16_384, 64), 6, normalize=True),
            _router((16_384, 64), 6, half),
            _router((16_384, 64), 2),
            _router((16_384, 256), 8),
            _router((65_536, 8), 2, normalize=True),
            _batch_topk((4096, 16_384), 100, temperature=0.0),
            _batch_topk((4096, 16_384), 32),
            _batch_topk((4096, 16_384), 100, half),
            LayerCase("TopKActivation", activation, (4096, 16_384), 100),
            LayerCase("BudgetGate", gate, (4096, 16_384), 100),
            _tokens((8, 8192), 1024, 1024),
            LayerCase("SparseAttentionBias", attention, (1, 8, 4096, 4096), 64),
        )
    return (
        _router((4096, 64), 6),
        _router((16_384, 8), 2),
        _router((4096, 64), 6, normalize=True),
        _router((4096, 64), 6, half),
        _batch_topk((256, 4096), 32),
        _batch_topk((1024, 4096), 100),
        LayerCase("TopKActivation", activation, (256, 4096), 32),
        LayerCase("BudgetGate", gate, (256, 4096), 32),
        _tokens((4, 1024), 128, 128),
        LayerCase("SparseAttentionBias", attention, (1, 4, 256, 256), 32),
    )


def run(
    *,
    device: torch.device,
    repeats: int = 15,
    quick: bool = False,
    before: dict[str, Any] | None = None,
    report: Report = lambda step: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    advance: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Any]:
    """Measure all cases of the device; ``save`` gets the record after each.

    ``before`` is the record of a run that was interrupted: where it is of the same sources,
    environment and settings, its cases are taken from there.
    """
    cases = cases_of(device, quick)
    record: dict[str, Any] = {
        "benchmark": "layers",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "repeats": repeats,
        "timed": "layers in training, with the update of their thresholds; TopKRouter.route, from "
        "logits, without the product that makes them, to weights and map; the usual way takes "
        "torch.topk without sorting, and makes no map of a router's weights",
        "seconds": "per call, percentiles 20, 50 and 80: device time on a GPU, wall time on a CPU; "
        "'wall' is what a caller of a GPU waits",
        "compared": "p50" if device.type == "cuda" else "p20",
        "environment": environment.describe(),
        "sources": sources.describe("layers", str(device)),
        "device": describe(device),
        "cases": [],
    }
    done = measured_before(record, before, {case.name for case in cases})
    for number, case in enumerate(cases):
        entry = done.get(case.name) or _run_case(case, device, repeats, report, record["compared"])
        record["cases"].append(entry)
        save(record)
        advance(case.name, number + 1, len(cases))
    return record


def measured_before(
    record: dict[str, Any], before: dict[str, Any] | None, names: set[str]
) -> dict[str, Any]:
    """The cases of an interrupted run of the same; none of one that was finished, or failed.

    The same are sources, settings, device, and versions: times of another torch or Triton would
    stand beside new ones in one table.
    """
    same = ("quick", "repeats", "sources", "device")
    if before is None or any(before.get(part) != record[part] for part in same):
        return {}
    if changed(before, record["environment"], record["sources"]):
        return {}
    whole = {entry["case"]: entry for entry in before["cases"] if "failed" not in entry}
    return {} if names <= set(whole) else whole


def _run_case(
    case: LayerCase, device: torch.device, repeats: int, report: Report, compared: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"case": case.name, "lines": _lines(case, {}, {})}
    if (reason := _shortage(case, device)) is not None:
        return {**entry, "skipped": reason}
    torch._dynamo.reset()
    timings: dict[str, Any] = {}
    waits: dict[str, str | None] = {}
    entry |= {"parity": {}, "timings": timings}
    try:
        report(f"{case.name}: drawing inputs")
        timed = case.make(case.shape, case.k, device)
        scores = _draw(case, device)
        calls = _calls(case.name, timed, scores, entry, report)
        if device.type == "cuda":
            entry |= {"wall": {}, "waits": waits}
            _on_gpu(case.name, calls, entry, device, repeats, report)
        else:
            first = {name: of_name[0] for name, of_name in calls.items()}
            found = measure(first, repeats=repeats, device=device)
            timings |= {name: timing._asdict() for name, timing in found.items()}
    except Exception as error:  # what was measured before it stands
        entry.setdefault("failed", one_line(error))
    entry["lines"] = _lines(case, {name: x[compared] for name, x in timings.items()}, waits)
    return entry


def _calls(
    case: str, timed: Timed, scores: list[Tensor], entry: dict[str, Any], report: Report
) -> dict[str, list[Call]]:
    """Every call on every input; a compiled one that fails is left out."""
    calls: dict[str, list[Call]] = {}
    for name, function in (
        (LAYER, timed.layer),
        (USUAL, timed.usual),
        (COMPILED, torch.compile(timed.layer)),
        (USUAL_COMPILED, torch.compile(timed.usual)),
    ):
        is_layer = name in (LAYER, COMPILED)
        report(f"{case}: {name}, parity")
        try:
            if is_layer:
                entry["parity"][name] = checked(timed, scores[0], function)
            of_name = _of_function(name, function, timed, scores)
            for of_part in of_name.values():
                of_part[0]()  # compiles
            if name == COMPILED:
                eager, compiled = calls[LAYER + BOTH][0], of_name[COMPILED + BOTH][0]
                entry["parity"][name] |= checked_gradient(_gradient(eager), _gradient(compiled))
        except Exception as error:  # whatever the compiler met, the rest of the case stands
            if name == LAYER:
                raise
            entry.setdefault("failed", f"{name}: {one_line(error)}")
            continue
        calls |= of_name
    return calls


def _of_function(
    name: str, function: Callable[[Tensor], Any], timed: Timed, scores: list[Tensor]
) -> dict[str, list[Call]]:
    is_layer = name in (LAYER, COMPILED)

    def tensor(x: Tensor) -> Tensor:
        out = function(x)
        return timed.tensor(out) if is_layer else out

    found: dict[str, list[Call]] = {name: [_forward(function, x) for x in scores]}
    if is_layer or timed.has_usual_backward:
        with torch.no_grad():
            out = tensor(scores[0])
        drawn = torch.Generator(out.device).manual_seed(SEED + 1)
        found[name + BOTH] = [
            _with_backward(tensor, x, _normal(out.shape, out.device, drawn, out.dtype))
            for x in scores
        ]
    return found


def _forward(function: Callable[[Tensor], Any], scores: Tensor) -> Call:
    return torch.no_grad()(lambda: function(scores))


def _with_backward(tensor: Callable[[Tensor], Tensor], scores: Tensor, weights: Tensor) -> Call:
    leaf = scores.detach().requires_grad_()

    def both() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(tensor(leaf), leaf, weights)

    return both


def _gradient(call: Call) -> Tensor:
    """What a call with backward returns."""
    (found,) = cast(tuple[Tensor], call())
    return found


def _on_gpu(
    case: str,
    calls: dict[str, list[Call]],
    entry: dict[str, Any],
    device: torch.device,
    repeats: int,
    report: Report,
) -> None:
    """Device times, waits of the layers, and what a caller waits, into the entry."""
    for name, of_name in calls.items():
        report(f"{case}: device time of {name}")
        often = min(repeats, PEER_REPEATS) if name.startswith(USUAL) else repeats
        timing = device_timing(of_name, repeats=often, device=device)
        entry["timings"][name] = timing._asdict()
        if timing.source == "eager":
            entry["timings"][name]["not_captured"] = why_not_captured(of_name[0])
        if name in (LAYER + BOTH, COMPILED + BOTH):
            entry["waits"][name] = sync_error(of_name[0])
    report(f"{case}: wall times")
    walls = time_walls({name: of[0] for name, of in calls.items()}, PEER_REPEATS, device)
    entry["wall"] = {name: timing._asdict() for name, timing in walls.items()}


def why_not_captured(call: Call) -> str:
    """What stands in the way of a CUDA graph of a call."""
    if (complaint := sync_error(call)) is not None:
        return f"waits for the device: {complaint}"
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()
    except RuntimeError as error:
        torch.cuda.set_stream(stream)  # a failed end of the capture leaves its own
        torch.cuda.synchronize()
        return one_line(error)
    return "one call can be captured, all inputs in a row cannot"


def _lines(
    case: LayerCase, seconds: dict[str, float], waits: dict[str, str | None]
) -> list[dict[str, Any]]:
    """Every limit beside what was measured, and that a layer waits for nothing."""
    found = lines(FunctionCase((0,), 0, case.limits), seconds)
    nothing = {"at_most": "no host wait", "measured": None, "base": None, "limit": None}
    for name, complaint in waits.items():
        found.append({"call": name, **nothing, "met": complaint is None})
    return found


def _draw(case: LayerCase, device: torch.device) -> list[Tensor]:
    """Gaussian scores from a fixed seed, as many as exceed the cache."""
    generator = torch.Generator(device).manual_seed(SEED)
    sets = set_count(_largest_bytes(case), device) if device.type == "cuda" else 1
    return [_normal(case.shape, device, generator, case.dtype) for _ in range(sets)]


def _normal(
    shape: Sequence[int], device: torch.device, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, device=device).to(dtype)


def _largest_bytes(case: LayerCase) -> int:
    return math.prod(case.shape) * case.width * case.dtype.itemsize


def _shortage(case: LayerCase, device: torch.device) -> str | None:
    """Why a case is left out: the memory that it needs and that there is; None if it fits."""
    free = free_memory(device)
    size = math.prod(case.shape) * case.width * 4
    needed = size * TENSORS_NEEDED * set_count(size, device)
    if free is None or needed <= free:
        return None
    return f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"

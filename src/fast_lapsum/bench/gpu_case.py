"""One shape on the GPU: parity, device times of soft_topk and its peers, wall times, bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from . import gpu_parity
from .gpu_bars import (
    BUDGET_SHARE,
    SOFTMAX,
    SORT,
    TEMPERATURES,
    TOPK,
    Case,
    compare,
    floors,
    forward_floor,
    ours,
)
from .gpu_timing import (
    DeviceTiming,
    device_timing,
    free_memory,
    one_line,
    peak_beyond_result,
    set_count,
    sync_error,
)
from .parity import ParityError
from .timing import Timing, measure, wall_clock

SEED = 0
#: Tensors in the shape of the input that a case holds at once at most, inputs included.
TENSORS_NEEDED = 9
#: Peers that take long are repeated less, on fewer inputs, and not at every size.
PEER_REPEATS = 5
PEER_SETS = 4
LONGEST_SORT = 300_000_000
#: Scratch memory: this share of the input and a constant.
MEMORY_SHARE = 0.01
MEMORY_BYTES = 16 << 20
RUNS = 3
#: A wall time is that of many calls between two waits, which are not the call's.
WALL_SECONDS = 1e-2

Report = Callable[[str], None]
#: What a peer does with scores and, if it has a gradient, the weights that it is taken against.
Peer = Callable[[Tensor, Tensor], object]


class Inputs(NamedTuple):
    """Scores and gradients in rotation, so that no call finds its input in the cache."""

    scores: list[Tensor]
    weights: list[Tensor]


def draw(shape: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32) -> Inputs:
    """Gaussian inputs from a fixed seed, as many as the cache asks for."""
    generator = torch.Generator(device).manual_seed(SEED)
    sets = set_count(math.prod(shape) * dtype.itemsize, device)

    def normal() -> Tensor:
        return torch.randn(tuple(shape), generator=generator, device=device).to(dtype)

    return Inputs([normal() for _ in range(sets)], [normal() for _ in range(sets)])


def shortage(shape: Sequence[int], device: torch.device) -> str | None:
    """Why a shape is left out: the memory that it needs and that there is; None if it fits."""
    size = 4 * math.prod(shape)
    needed = size * (TENSORS_NEEDED + 2 * set_count(size, device))
    free = free_memory(device)
    if free is None or needed <= free:
        return None
    return f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"


def time_ours(
    inputs: Inputs,
    k: float,
    temperature: float,
    *,
    repeats: int,
    device: torch.device,
    backward: bool = True,
) -> tuple[dict[str, float], dict[str, DeviceTiming]]:
    """Errors of the call, and only then its device times; ParityError where it is wrong."""
    scores, weights = inputs
    errors = gpu_parity.check(scores[0], k, temperature, weights[0])

    def forward_call(x: Tensor) -> Callable[[], object]:
        return lambda: soft_topk(x, k, temperature)

    calls = [forward_call(x) for x in scores]
    timings = {"forward": device_timing(calls, repeats=repeats, device=device)}
    if backward:
        timings["backward"] = _time_gradients(_backward_call, inputs, k, temperature, repeats)
    return errors, timings


def time_with_backward(
    inputs: Inputs, k: float, temperature: float, *, repeats: int
) -> DeviceTiming:
    """Device time of mask and gradient in one graph; ``time_ours`` has checked the call before."""
    return _time_gradients(_forward_backward_call, inputs, k, temperature, repeats)


def _time_gradients(
    make_call: Callable[[Tensor, Tensor, float, float], Callable[[], Tensor]],
    inputs: Inputs,
    k: float,
    temperature: float,
    repeats: int,
) -> DeviceTiming:
    scores, weights = inputs
    calls = [make_call(x, w, k, temperature) for x, w in zip(scores, weights, strict=True)]
    if not torch.equal(calls[0](), _through_autograd(scores[0], weights[0], k, temperature)):
        raise ParityError("the backward operator and autograd give different bits")
    return device_timing(calls, repeats=repeats, device=scores[0].device)


def _backward_call(
    scores: Tensor, weights: Tensor, k: float, temperature: float
) -> Callable[[], Tensor]:
    """The backward operator alone."""
    _, threshold = _forward(scores, k, temperature)
    return lambda: _backward(scores, weights, temperature, threshold)


def _forward_backward_call(
    scores: Tensor, weights: Tensor, k: float, temperature: float
) -> Callable[[], Tensor]:
    def call() -> Tensor:
        _, threshold = _forward(scores, k, temperature)
        return _backward(scores, weights, temperature, threshold)

    return call


# Operators, because autograd's own threads and streams would hinder a capture.
def _forward(scores: Tensor, k: float, temperature: float) -> tuple[Tensor, Tensor]:
    mask, threshold = torch.ops.fast_lapsum.soft_topk(
        scores, None, k, None, temperature, None, None, True, "mask", scores.dtype, "auto"
    )
    return mask, threshold


def _backward(scores: Tensor, weights: Tensor, temperature: float, threshold: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.fast_lapsum.soft_topk_backward(
        weights, scores, None, temperature, None, threshold, True, "mask", False
    )[0]
    return gradient


def _through_autograd(scores: Tensor, weights: Tensor, k: float, temperature: float) -> Tensor:
    leaf = scores.detach().requires_grad_()
    return torch.autograd.grad(soft_topk(leaf, k, temperature), leaf, weights)[0]


def run_case(
    case: Case, device: torch.device, bytes_per_second: float, repeats: int, report: Report
) -> dict[str, Any]:
    """The record of one shape; ``failed`` says why it ends early, if it does."""
    k = case.shape[-1] * BUDGET_SHARE
    entry: dict[str, Any] = {"case": case.name, "shape": list(case.shape), "k": k}
    reason = shortage(case.shape, device)
    if reason is not None:
        return {**entry, "skipped": reason}
    entry["floors"] = floors(math.prod(case.shape), bytes_per_second)
    entry["forward_floor"] = forward_floor(case.shape[-1])
    try:
        _fill(entry, case, device, repeats, report)
    except Exception as error:  # what was measured before it stands
        entry["failed"] = one_line(error)
    return entry


def _fill(
    entry: dict[str, Any], case: Case, device: torch.device, repeats: int, report: Report
) -> None:
    report(f"{case.name}: drawing inputs")
    inputs, k = draw(case.shape, device), entry["k"]
    entry["parity"], entry["timings"] = {}, {}
    passed = []
    for t in TEMPERATURES:
        report(f"{case.name}: parity and device time at t = {t:g}")
        try:
            errors, timings = time_ours(inputs, k, t, repeats=repeats, device=device)
        except ParityError as error:
            entry["parity"][f"t={t:g}"] = {"failed": str(error)}
            continue
        passed.append(t)
        entry["parity"][f"t={t:g}"] = errors
        for part, timing in timings.items():
            entry["timings"][ours(part, t)] = timing._asdict()
    entry["peers_skipped"] = _time_peers(case.name, inputs, int(k), repeats, entry, report)
    medians = {name: timing["p50"] for name, timing in entry["timings"].items()}
    entry["bars"] = [
        compare(bar, t, medians, entry["floors"])
        for t in TEMPERATURES
        for bar in case.bars
        if bar.holds_at(t)
    ]
    report(f"{case.name}: wall times")
    entry["eager"] = _wall_times(inputs, k, passed, repeats, device)
    report(f"{case.name}: memory, waiting, same bits")
    entry["memory"] = [_memory(inputs, k, t, device) for t in TEMPERATURES]
    entry["determinism"] = [_determinism(inputs, k, t) for t in TEMPERATURES]
    if device.type == "cuda":
        scores, weights = inputs.scores[0], inputs.weights[0]
        entry["sync_complaint"] = sync_error(lambda: _through_autograd(scores, weights, k, 1.0))
        entry["sync_free"] = entry["sync_complaint"] is None


def _time_peers(
    case: str, inputs: Inputs, k: int, repeats: int, entry: dict[str, Any], report: Report
) -> dict[str, str]:
    """Put the peers' times into the entry; return why some are missing."""
    peers: dict[str, Peer] = {
        SOFTMAX: lambda x, w: torch.softmax(x, -1),
        TOPK: lambda x, w: torch.topk(x, k),
        SORT: lambda x, w: torch.sort(x),
    }
    skipped = {}
    for name, peer in peers.items():
        if name == SORT and inputs.scores[0].numel() > LONGEST_SORT:
            skipped[name] = f"takes too long above {LONGEST_SORT:,} scores"
            continue
        report(f"{case}: {name}")
        try:
            timing = time_peer(peer, inputs, repeats, is_slow=name != SOFTMAX)
        except RuntimeError as error:  # out of memory above all
            skipped[name] = one_line(error)
            continue
        entry["timings"][name] = timing._asdict()
    return skipped


def time_peer(peer: Peer, inputs: Inputs, repeats: int, *, is_slow: bool) -> DeviceTiming:
    """Device time of a peer on the same inputs, fewer of them and less often for a slow one."""
    pairs = list(zip(*inputs, strict=True))[: PEER_SETS if is_slow else None]
    return device_timing(
        [lambda x=x, w=w: peer(x, w) for x, w in pairs],  # type: ignore[misc]
        repeats=min(repeats, PEER_REPEATS) if is_slow else repeats,
        device=pairs[0][0].device,
    )


def _wall_times(
    inputs: Inputs, k: float, temperatures: Sequence[float], repeats: int, device: torch.device
) -> dict[str, Any]:
    scores, weights = inputs.scores[0], inputs.weights[0]
    calls: dict[str, Callable[[], object]] = {}
    for t in temperatures:
        calls[ours("forward", t)] = lambda t=t: soft_topk(scores, k, t)  # type: ignore[misc]
        calls[ours("forward+backward", t)] = lambda t=t: _through_autograd(  # type: ignore[misc]
            scores, weights, k, t
        )
    return {name: timing._asdict() for name, timing in time_walls(calls, repeats, device).items()}


def time_walls(
    calls: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, Timing]:
    """What a caller waits per call, many calls in a row, in turns."""
    return measure(
        calls,
        repeats=repeats,
        device=device,
        clock=wall_clock(device),
        sample_seconds=WALL_SECONDS,
    )


def _memory(inputs: Inputs, k: float, temperature: float, device: torch.device) -> dict[str, Any]:
    leaf = inputs.scores[0].detach().requires_grad_()
    mask, forward = peak_beyond_result(lambda: soft_topk(leaf, k, temperature), device)
    _, backward = peak_beyond_result(
        lambda: torch.autograd.grad(mask, leaf, inputs.weights[0])[0], device
    )
    limit = MEMORY_SHARE * leaf.nbytes + MEMORY_BYTES
    return {
        "temperature": temperature,
        "measured": device.type == "cuda",
        "forward_bytes": forward,
        "backward_bytes": backward,
        "limit_bytes": int(limit),
        "met": max(forward, backward) <= limit,
    }


def _determinism(inputs: Inputs, k: float, temperature: float) -> dict[str, Any]:
    """Whether mask and gradient are the same bits over repeated runs."""
    leaf = inputs.scores[0].detach().requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        mask = soft_topk(leaf, k, temperature)
        (gradient,) = torch.autograd.grad(mask, leaf, inputs.weights[0])
        return mask.detach(), gradient

    first = run()
    same = all(
        torch.equal(a, b) for _ in range(RUNS - 1) for a, b in zip(first, run(), strict=True)
    )
    return {"temperature": temperature, "runs": RUNS, "met": same}

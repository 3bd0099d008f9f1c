"""Short rows, where the host's share is all there is: eager, compiled, and as a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .gpu_bars import BUDGET_SHARE
from .gpu_case import Report, draw, time_ours, time_walls
from .gpu_parity import MASK_TOLERANCE
from .gpu_timing import device_timing, one_line
from .parity import ParityError
from .peers.dftopk import dftopk

TEMPERATURE = 0.1
#: soft_topk with its gradient takes at most this share of DFTopK's time.
LIMIT = 0.5
EAGER = "soft_topk"
COMPILED = "soft_topk, torch.compile"
PEER = "DFTopK"

Operator = Callable[[Tensor], Tensor]


def compiled(operator: Operator) -> Operator:
    """The operator under torch.compile in its default mode."""
    return torch.compile(operator)


def run_overhead(n: int, device: torch.device, repeats: int, report: Report) -> dict[str, Any]:
    """Wall times of forward and backward at n scores, and device times of the forward graph."""
    report(f"n = {n:,}: parity and device time")
    inputs = draw((n,), device)
    k = n * BUDGET_SHARE
    scores, weights = inputs.scores[0], inputs.weights[0]
    leaf = scores.clone().requires_grad_()
    entry: dict[str, Any] = {"n": n, "k": k, "temperature": TEMPERATURE, "failed": {}}
    try:
        entry["parity"], timings = time_ours(inputs, k, TEMPERATURE, repeats=repeats, device=device)
    except ParityError as error:
        entry["failed"][EAGER] = one_line(error)
        return entry
    entry["device"] = {f"{EAGER} {part}": timing._asdict() for part, timing in timings.items()}

    def plain(x: Tensor) -> Tensor:
        return soft_topk(x, k, TEMPERATURE)

    operators: dict[str, Operator] = {EAGER: plain}
    report(f"n = {n:,}: DFTopK")
    try:
        _with_backward(lambda x: dftopk(x, int(k), TEMPERATURE), leaf, weights)()
        operators[PEER] = lambda x: dftopk(x, int(k), TEMPERATURE)
    except Exception as error:  # a peer's failure is a finding, not the end of the run
        entry["failed"][PEER] = one_line(error)
    report(f"n = {n:,}: torch.compile")
    try:
        fast = compiled(plain)
        _with_backward(fast, leaf, weights)()
        apart = float((fast(scores) - plain(scores)).abs().max())
        if not apart <= MASK_TOLERANCE:
            raise ParityError(f"the compiled mask differs from the eager one by {apart:.3g}")
        calls = [lambda x=x: fast(x) for x in inputs.scores]
        timing = device_timing(calls, repeats=repeats, device=device)
        entry["device"][f"{COMPILED} forward"] = timing._asdict()
        operators[COMPILED] = fast
    except Exception as error:  # whatever the compiler met, the rest of the run stands
        entry["failed"][COMPILED] = one_line(error)
    report(f"n = {n:,}: wall times")
    walls = time_walls(
        {name: _with_backward(operator, leaf, weights) for name, operator in operators.items()},
        repeats,
        device,
    )
    entry["eager"] = {
        f"{name} forward+backward": timing._asdict() for name, timing in walls.items()
    }
    ours, peer = walls[EAGER].p50, walls[PEER].p50 if PEER in walls else None
    entry["bar"] = {
        "part": "forward+backward, wall time",
        "at_most": f"{LIMIT:g} x {PEER}",
        "measured": ours,
        "limit": None if peer is None else LIMIT * peer,
        "met": None if peer is None else ours <= LIMIT * peer,
    }
    return entry


def _with_backward(operator: Operator, leaf: Tensor, weights: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(operator(leaf), leaf, weights)

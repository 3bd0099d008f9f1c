"""Shapes that users have (routers, sparse autoencoders, vocabularies, long rows) and their limits.

A limit is a time, or so many times torch.softmax on the same scores in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gpu_bars import (
    BUDGET_SHARE,
    SOFTMAX,
    SOFTMAX_WITH_BACKWARD,
    TEMPERATURES,
    TOPK,
    Bar,
    Part,
    Temperatures,
    compare,
    ours,
)
from .gpu_case import (
    Inputs,
    Peer,
    Report,
    draw,
    shortage,
    time_ours,
    time_peer,
    time_with_backward,
)
from .gpu_timing import one_line
from .parity import ParityError

WITH_BACKWARD: Part = "forward+backward"
#: What a part is compared with where its limit is a multiple of a softmax.
SOFTMAX_OF = {"forward": SOFTMAX, WITH_BACKWARD: SOFTMAX_WITH_BACKWARD}


class UserCase(NamedTuple):
    """One shape and budget, rows along the last dimension, with the limits that hold for it."""

    shape: tuple[int, ...]
    k: float
    temperatures: tuple[float, ...]
    bars: tuple[Bar, ...]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """Shape, budget, and the dtype if it is not float32.

        >>> UserCase((16384, 256), 8, (1.0,), (), torch.bfloat16).name
        '16,384 x 256 bfloat16, k = 8'
        """
        shape = " x ".join(f"{size:,}" for size in self.shape)
        dtype = "" if self.dtype == torch.float32 else f" {dtype_name(self.dtype)}"
        return f"{shape}{dtype}, k = {self.k:,.10g}"


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype without its module."""
    return str(dtype).removeprefix("torch.")


def _softmaxes(factor: float, at: Temperatures = "every t", part: Part = "forward") -> Bar:
    return Bar(part, at, factor, SOFTMAX_OF[part])


def _with_backward(factor: float) -> Bar:
    return _softmaxes(factor, "t = 0.1", WITH_BACKWARD)


def _warmer_and_colder(warm: float, cold: float) -> tuple[Bar, ...]:
    return _softmaxes(warm, "t = 1"), _softmaxes(cold, "other t")


def _sixteenth(shape: tuple[int, ...], warm: float, cold: float) -> UserCase:
    """A sixteenth of the scores, with limits in microseconds at t = 1 and below."""
    bars = (
        Bar("forward", "t = 1", microseconds=warm),
        Bar("forward", "other t", microseconds=cold),
    )
    return UserCase(shape, shape[-1] * BUDGET_SHARE, TEMPERATURES, bars)


_SHORT_ROWS = (1.0, 0.1)
_LONG_ROWS = (1.0, 0.1, 0.01)
USER_CASES = (
    UserCase((65_536, 8), 2, _SHORT_ROWS, (_softmaxes(4),)),
    UserCase((16_384, 64), 6, _SHORT_ROWS, (_softmaxes(3), _with_backward(2.5))),
    UserCase((16_384, 128), 8, _SHORT_ROWS, (_softmaxes(3),)),
    UserCase((16_384, 256), 8, _SHORT_ROWS, (_softmaxes(2.5), _with_backward(2)), torch.bfloat16),
    UserCase((4096, 16_384), 32, _LONG_ROWS, (_softmaxes(1), _with_backward(1.1))),
    UserCase((4096, 16_384), 1024, _LONG_ROWS, (_softmaxes(1),)),
    UserCase((4096, 32_768), 64, _LONG_ROWS, (_softmaxes(1), _with_backward(1.1))),
    UserCase((4096, 65_536), 64, _LONG_ROWS, (*_warmer_and_colder(1.1, 1.4), _with_backward(1.1))),
    UserCase((256, 131_072), 2048, _LONG_ROWS, _warmer_and_colder(1.4, 1.6)),
    UserCase((512, 1_000_000), 100, _LONG_ROWS, _warmer_and_colder(1.4, 1.6)),
    UserCase((2048, 131_072), 64, _LONG_ROWS, _warmer_and_colder(1.4, 1.6), torch.bfloat16),
    _sixteenth((64, 65_536), 28, 28),
    _sixteenth((100_000,), 14, 14),
    _sixteenth((200_000,), 14, 14),
    _sixteenth((1_000_000,), 14, 20),
    _sixteenth((2_000_000,), 17, 24),
    _sixteenth((10_000_000,), 50, 65),
    _sixteenth((100_000_000,), 310, 380),
    _sixteenth((1_000_000_000,), 2900, 3500),
)
#: Shapes so small that the figures mean nothing: for tests of the benchmark itself.
QUICK_USER_CASES = (
    UserCase((32, 8), 2, _SHORT_ROWS, (_softmaxes(4), _with_backward(2.5))),
    UserCase((8, 256), 8, _SHORT_ROWS, (_softmaxes(2.5), _with_backward(2)), torch.bfloat16),
    UserCase((4, 500), 10.5, _LONG_ROWS, _warmer_and_colder(1.4, 1.6)),
    _sixteenth((20_000,), 14, 20),
)


def run_user_case(
    case: UserCase, device: torch.device, repeats: int, report: Report
) -> dict[str, Any]:
    """The record of one shape; ``failed`` says why it ends early, if it does."""
    entry = describe(case)
    reason = shortage(case.shape, device)
    if reason is not None:
        return {**entry, "skipped": reason}
    try:
        _fill(entry, case, device, repeats, report)
    except Exception as error:  # what was measured before it stands
        entry["failed"] = one_line(error)
    return entry


def describe(case: UserCase) -> dict[str, Any]:
    """What a record says of a case before anything is measured."""
    return {
        "case": case.name,
        "shape": list(case.shape),
        "dtype": dtype_name(case.dtype),
        "k": case.k,
        "lines": lines(case, {}),
    }


def _fill(
    entry: dict[str, Any], case: UserCase, device: torch.device, repeats: int, report: Report
) -> None:
    report(f"{case.name}: drawing inputs")
    inputs = draw(case.shape, device, case.dtype)
    entry["parity"], entry["timings"], entry["peers_skipped"] = {}, {}, {}
    for name, peer in _peers(case).items():
        report(f"{case.name}: {name}")
        try:
            timing = time_peer(peer, inputs, repeats, is_slow=name == TOPK)
            entry["timings"][name] = timing._asdict()
        except RuntimeError as error:  # out of memory above all
            entry["peers_skipped"][name] = one_line(error)
    for t in case.temperatures:
        report(f"{case.name}: parity and device time at t = {t:g}")
        try:
            entry["parity"][f"t={t:g}"] = _time_at(entry["timings"], case, inputs, t, repeats)
        except ParityError as error:
            entry["parity"][f"t={t:g}"] = {"failed": str(error)}
    medians = {name: timing["p50"] for name, timing in entry["timings"].items()}
    entry["lines"] = lines(case, medians)


def _time_at(
    timings: dict[str, Any], case: UserCase, inputs: Inputs, temperature: float, repeats: int
) -> dict[str, float]:
    """Errors of the call at one temperature; its device times go into ``timings``."""
    device = inputs.scores[0].device
    errors, found = time_ours(
        inputs, case.k, temperature, repeats=repeats, device=device, backward=False
    )
    timings[ours("forward", temperature)] = found["forward"]._asdict()
    if any(bar.part == WITH_BACKWARD and bar.holds_at(temperature) for bar in case.bars):
        timing = time_with_backward(inputs, case.k, temperature, repeats=repeats)
        timings[ours(WITH_BACKWARD, temperature)] = timing._asdict()
    return errors


def _peers(case: UserCase) -> dict[str, Peer]:
    """The softmaxes that limits are multiples of, and torch.topk for a whole budget."""
    softmaxes: dict[str, Peer] = {
        SOFTMAX: lambda x, w: torch.softmax(x, -1),
        SOFTMAX_WITH_BACKWARD: softmax_gradient,
    }
    bases = {bar.base for bar in case.bars}
    peers = {name: peer for name, peer in softmaxes.items() if name in bases}
    if float(case.k).is_integer():
        peers[TOPK] = lambda x, w: torch.topk(x, int(case.k))
    return peers


def softmax_gradient(scores: Tensor, weights: Tensor) -> Tensor:
    """Softmax and its gradient by the operators that autograd takes, fit for a capture."""
    p = torch.softmax(scores, -1)
    gradient: Tensor = torch.ops.aten._softmax_backward_data(weights, p, -1, scores.dtype)
    return gradient


def lines(case: UserCase, medians: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every limit beside what was measured; ``met`` is None where one side of it was not."""
    return [
        {
            **compare(bar, t, medians, {}),
            "softmax": medians.get(SOFTMAX_OF[bar.part]),
            "topk": medians.get(TOPK) if bar.part == "forward" else None,
        }
        for bar in case.bars
        for t in case.temperatures
        if bar.holds_at(t)
    ]


def summary(record: dict[str, Any]) -> str:
    """How many limits hold, of all that there are.

    >>> summary({"users": [{"lines": [{"met": True}, {"met": False}, {"met": None}]}]})
    "Users' shapes: 1 of 3 lines hold, 1 misses, 1 was not measured."
    """
    verdicts = [line["met"] for entry in record["users"] for line in entry["lines"]]
    held, missed = verdicts.count(True), verdicts.count(False)
    told = [f"{held} of {len(verdicts)} lines hold"]
    if missed:
        told.append(f"{missed} {'misses' if missed == 1 else 'miss'}")
    if unknown := verdicts.count(None):
        told.append(f"{unknown} {'was' if unknown == 1 else 'were'} not measured")
    return f"Users' shapes: {', '.join(told)}."

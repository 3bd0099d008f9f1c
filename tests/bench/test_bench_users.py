"""Users' shapes in the GPU benchmark, on a CPU: which limits they have, and which of them hold."""

import json
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from fast_lapsum import soft_topk
from fast_lapsum.bench import gpu, gpu_case, gpu_parity, gpu_tables, gpu_users
from fast_lapsum.bench.gpu_bars import SOFTMAX, SOFTMAX_WITH_BACKWARD, TOPK, Bar
from fast_lapsum.bench.gpu_users import UserCase
from fast_lapsum.bench.parity import ParityError

CPU = torch.device("cpu")
CASE = UserCase(
    (4, 8),
    2,
    (1.0, 0.1),
    (
        Bar("forward", "t = 1", 2, SOFTMAX),
        Bar("forward", "other t", microseconds=30),
        Bar("forward+backward", "t = 0.1", 1.5, SOFTMAX_WITH_BACKWARD),
    ),
)


def run(**settings: Any) -> dict[str, Any]:
    return gpu.run(device=CPU, quick=True, repeats=1, only=["users"], **settings)


def rendered(record: dict[str, Any]) -> str:
    console = Console(width=250, no_color=True)
    with console.capture() as capture:
        for table in gpu_tables.all_tables(record):
            console.print(table)
    return capture.get()


def limits() -> dict[tuple[Any, ...], str]:
    """Every limit by what it is about."""
    return {
        (case.shape, case.k, line["part"], line["temperature"]): line["at_most"]
        for case in gpu_users.USER_CASES
        for line in gpu_users.lines(case, {})
    }


@pytest.mark.parametrize(
    ("shape", "k", "part", "expected"),
    [
        ((65536, 8), 2, "forward", {1: "4 x", 0.1: "4 x"}),
        ((16384, 64), 6, "forward", {1: "3 x", 0.1: "3 x"}),
        ((16384, 128), 8, "forward", {1: "3 x", 0.1: "3 x"}),
        ((16384, 256), 8, "forward", {1: "2.5 x", 0.1: "2.5 x"}),
        ((4096, 16384), 32, "forward", {1: "1 x", 0.1: "1 x", 0.01: "1 x"}),
        ((4096, 16384), 1024, "forward", {1: "1 x", 0.1: "1 x", 0.01: "1 x"}),
        ((4096, 32768), 64, "forward", {1: "1 x", 0.1: "1 x", 0.01: "1 x"}),
        ((4096, 65536), 64, "forward", {1: "1.1 x", 0.1: "1.4 x", 0.01: "1.4 x"}),
        ((256, 131072), 2048, "forward", {1: "1.4 x", 0.1: "1.6 x", 0.01: "1.6 x"}),
        ((512, 1_000_000), 100, "forward", {1: "1.4 x", 0.1: "1.6 x", 0.01: "1.6 x"}),
        ((2048, 131072), 64, "forward", {1: "1.4 x", 0.1: "1.6 x", 0.01: "1.6 x"}),
        ((16384, 64), 6, "forward+backward", {0.1: "2.5 x"}),
        ((16384, 256), 8, "forward+backward", {0.1: "2 x"}),
        ((4096, 16384), 32, "forward+backward", {0.1: "1.1 x"}),
        ((4096, 32768), 64, "forward+backward", {0.1: "1.1 x"}),
        ((4096, 65536), 64, "forward+backward", {0.1: "1.1 x"}),
        ((64, 65536), 4096, "forward", dict.fromkeys((1, 0.1, 0.01, 0.001), "28 us")),
        ((100_000,), 6250, "forward", dict.fromkeys((1, 0.1, 0.01, 0.001), "14 us")),
        ((200_000,), 12_500, "forward", dict.fromkeys((1, 0.1, 0.01, 0.001), "14 us")),
        ((10**6,), 10**6 / 16, "forward", {1: "14 us", 0.1: "20 us", 0.001: "20 us"}),
        ((2 * 10**6,), 125_000, "forward", {1: "17 us", 0.01: "24 us", 0.001: "24 us"}),
        ((10**7,), 10**7 / 16, "forward", {1: "50 us", 0.1: "65 us", 0.001: "65 us"}),
        ((10**8,), 10**8 / 16, "forward", {1: "310 us", 0.1: "380 us", 0.001: "380 us"}),
        ((10**9,), 10**9 / 16, "forward", {1: "2900 us", 0.1: "3500 us", 0.001: "3500 us"}),
    ],
)
def test_the_limits_are_those_that_were_asked_for(
    shape: tuple[int, ...], k: float, part: str, expected: dict[float, str]
) -> None:
    found = limits()
    for t, limit in expected.items():
        assert found[shape, k, part, t].startswith(limit)


def test_there_are_no_other_lines_and_half_precision_is_where_it_belongs() -> None:
    assert len(limits()) == 66
    halves = {case.shape for case in gpu_users.USER_CASES if case.dtype == torch.bfloat16}
    assert halves == {(16384, 256), (2048, 131072)}


@pytest.mark.parametrize(
    ("medians", "met"),
    [
        ({}, [None, None, None]),
        ({"soft_topk forward t=1": 20e-6, SOFTMAX: 10e-6}, [True, None, None]),
        ({"soft_topk forward t=1": 20.1e-6, SOFTMAX: 10e-6}, [False, None, None]),
        ({"soft_topk forward t=1": 20e-6}, [None, None, None]),
        ({"soft_topk forward t=0.1": 30.1e-6, SOFTMAX: 1.0}, [None, False, None]),
        ({"soft_topk forward t=0.1": 29.9e-6}, [None, True, None]),
        (
            {"soft_topk forward+backward t=0.1": 16e-6, SOFTMAX: 1.0, SOFTMAX_WITH_BACKWARD: 10e-6},
            [None, None, False],
        ),
        (
            {"soft_topk forward+backward t=0.1": 14e-6, SOFTMAX_WITH_BACKWARD: 10e-6},
            [None, None, True],
        ),
    ],
)
def test_a_line_holds_or_misses_by_its_own_softmax_or_time(
    medians: dict[str, float], met: list[bool | None]
) -> None:
    assert [line["met"] for line in gpu_users.lines(CASE, medians)] == met


def test_a_quick_run_has_every_line_with_its_peers() -> None:
    record = run()
    json.dumps(record, allow_nan=False)
    assert gpu.failures(record) == []
    assert [e["case"] for e in record["users"]] == [c.name for c in gpu_users.QUICK_USER_CASES]
    short, half, fractional, long = record["users"]
    for entry in (short, half):
        assert {SOFTMAX, SOFTMAX_WITH_BACKWARD, TOPK} < set(entry["timings"])
        assert [line["part"] for line in entry["lines"]].count("forward+backward") == 1
    assert half["dtype"] == "bfloat16"
    assert {SOFTMAX, TOPK} & set(fractional["timings"]) == {SOFTMAX}  # 10.5 is no number of scores
    assert {SOFTMAX, TOPK} & set(long["timings"]) == {TOPK}  # its limit is a time
    for entry in record["users"]:
        assert all(errors["budget_error"] < 0.01 for errors in entry["parity"].values())
        for line in entry["lines"]:
            assert line["met"] == (line["measured"] <= line["limit"])
    printed = rendered(record)
    for expected in ("8 x 256 bfloat16, k = 8", "2.5 x softmax", "20 us", "misses"):
        assert expected in printed
    assert "Bars" not in printed  # of sections that were not asked for


def test_what_fails_its_check_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_when_cold(scores: Tensor, k: float, temperature: float, **kwargs: Any) -> Any:
        found = soft_topk(scores, k, temperature, **kwargs)
        return found * 1.001 if temperature == 0.1 and not kwargs else found

    monkeypatch.setattr(gpu_parity, "soft_topk", wrong_when_cold)
    entry = gpu_users.run_user_case(CASE, CPU, 1, lambda step: None)
    assert [line["met"] in (True, False) for line in entry["lines"]] == [True, False, False]
    assert not any("t=0.1" in name for name in entry["timings"])
    empty: dict[str, Any] = {name: [] for name in gpu.SECTIONS}
    (failure,) = gpu.failures({**empty, "failures": {}, "users": [entry]})
    assert failure.startswith("4 x 8, k = 2, t=0.1: budget_error is 0.001")


def test_a_gradient_of_other_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = gpu_case.draw((4, 8), CPU)
    assert gpu_case.time_with_backward(inputs, 2, 0.1, repeats=1).p50 > 0
    monkeypatch.setattr(gpu_case, "_through_autograd", lambda scores, *rest: scores)
    with pytest.raises(ParityError, match="different bits"):
        gpu_case.time_with_backward(inputs, 2, 0.1, repeats=1)


def test_what_is_left_out_has_a_reason_and_counts_as_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = run(max_n=3000)
    assert record["users"][3]["skipped"] == "20,000 scores, over the ceiling"
    assert "over the ceiling" in rendered(record)
    assert gpu_users.summary(record).endswith("4 were not measured.")
    monkeypatch.setattr(gpu_users, "shortage", lambda shape, device: "needs more")
    record = run()
    assert [entry["skipped"] for entry in record["users"]] == ["needs more"] * 4
    assert "0 of 13 lines hold" in gpu_users.summary(record)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peer_with_a_gradient_is_autograds(dtype: torch.dtype) -> None:
    (scores, *_), (weights, *_) = gpu_case.draw((5, 9), CPU, dtype)
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.softmax(leaf, -1), leaf, weights)
    assert gpu_users.softmax_gradient(scores, weights).equal(expected)

"""`fast-lapsum bench ranking` on a CPU: what it times, which limits there are, what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum import cli
from fast_lapsum.bench import ranking, ranking_methods
from fast_lapsum.bench.gpu_timing import DeviceTiming
from fast_lapsum.bench.parity import ParityError
from fast_lapsum.bench.ranking_commands import timings_table
from fast_lapsum.bench.ranking_methods import METHODS, RANK, SORT, TORCH_SORT, Method
from fast_lapsum.bench.timing import _cpu_seconds

CPU = torch.device("cpu")


def run(**settings: Any) -> dict[str, Any]:
    return ranking.run(device=CPU, quick=True, repeats=1, **settings)


def test_ours_and_torch_sort_are_timed_and_compared() -> None:
    record = run()
    assert not ranking.failures(record)
    for entry in record["cases"]:
        assert {TORCH_SORT, RANK, SORT} <= set(entry["timings"])
        assert set(entry["timings"]) | set(entry["not_measured"]) == set(METHODS)
    limited = [line for line in record["cases"][0]["lines"] if "torch.sort" in line["at_most"]]
    assert [(line["call"], line["at_most"]) for line in limited] == [
        (RANK, "2 x torch.sort"),
        (SORT, "2 x torch.sort"),
    ]
    assert all(line["met"] in (True, False) for line in limited)
    json.dumps(record, allow_nan=False)


def test_limits_are_about_device_time_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose clock is said to be a GPU's, and whose graphs take ten seconds."""

    class Gpu:
        type = "cuda"

    ten = DeviceTiming(10.0, 10.0, 10.0, 3, 2, "graph")
    monkeypatch.setattr(ranking, "device_timing", lambda calls, **settings: ten)
    monkeypatch.setattr(ranking, "wall_clock", lambda device: _cpu_seconds)
    inputs = ranking.draw((4, 60), CPU)
    monkeypatch.setattr(ranking, "draw", lambda shape, device: inputs)
    case = ranking.QUICK_CASES[0]
    entry = ranking._run_case(case, Gpu(), 1, lambda step: None, "p50")  # type: ignore[arg-type]
    assert entry["timings"][RANK]["p50"] == entry["lines"][0]["measured"] == 10.0
    assert 0 < entry["wall"][RANK]["p50"] < 10.0
    assert set(entry["wall"]) == set(entry["timings"])
    record = {"cases": [entry], "compared": "p50"}
    assert timings_table(record).title == "Forward and backward, on the device"
    assert timings_table(record, "wall").title == "Forward and backward, as a caller waits"


def test_the_shapes_that_have_limits() -> None:
    assert [case.shape for case in ranking.GPU_CASES if case.is_limited] == [
        (1_000_000,),
        (4096, 4096),
    ]
    assert [case.shape for case in ranking.CPU_CASES if case.is_limited] == [(1_000_000,)]
    assert (10_000_000,) in [case.shape for case in ranking.CPU_CASES]


def test_what_stands_in_the_way_of_a_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(scores: Tensor, _: float) -> Tensor:
        raise torch.OutOfMemoryError("no more")

    matrix = Method(lambda scores, _: scores, RANK, matrices=10**12)
    monkeypatch.setitem(METHODS, "matrix", matrix)
    monkeypatch.setitem(METHODS, "too large", Method(too_large, RANK))
    entry = run()["cases"][0]
    assert entry["not_measured"]["matrix"].startswith("out of memory: needs")
    assert entry["not_measured"]["too large"] == "out of memory"


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = ranking_methods.soft_rank
    monkeypatch.setattr(ranking_methods, "soft_rank", lambda x, t: wrong(x, t) * (1 + 1e-5))
    with pytest.raises(ParityError, match="rank_error"):
        ranking_methods.check(torch.randn(100), 0.1)
    out = tmp_path / "ranking.json"
    arguments = ["bench", "ranking", "--quick", "--device", "cpu", "--repeats", "1"]
    found = CliRunner().invoke(cli.app, [*arguments, "--out", str(out)])
    assert found.exit_code == 1
    assert "rank_error" in json.loads(out.read_text())["cases"][0]["failed"]

"""`fast-lapsum bench compiled` on a CPU: what it times, which limits there are, which hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum import cli
from fast_lapsum.bench import compiled, sources
from fast_lapsum.bench.compiled import COMPILED, EAGER, FALLING_TEMPERATURE, REDUCED, Limit

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def light_compiler(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> None:
    """Graphs without code generation, which takes longer than the benchmark."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, backend="aot_eager"))


def _run(**settings: Any) -> dict[str, Any]:
    return compiled.run(device=CPU, quick=True, repeats=1, runs=2, **settings)


def test_every_call_is_timed_in_every_run() -> None:
    saved: list[int] = []
    record = _run(save=lambda record: saved.append(len(record["cases"])))
    assert saved == [1]
    assert not compiled.failures(record)
    assert record["sources"]["kind"] == "compiled"
    entry = record["cases"][0]
    assert set(entry["runs"]) == set(compiled._operators(5))
    assert all(len(each) == 2 for each in entry["runs"].values())
    assert all(line["met"] in (True, False) for line in entry["lines"])
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("cases", [compiled.GPU_CASES, compiled.CPU_CASES])
def test_the_limits(cases: Any) -> None:
    for _, _, limits in cases:
        told = {(limit.call, limit.describe()) for limit in limits}
        slower = "1.3 x the slower of softmax, compiled; soft_topk"
        assert told >= {(COMPILED, slower), (FALLING_TEMPERATURE, slower)}
        assert (REDUCED, "1 x soft_topk, compiled") in told
    assert any(limit[:2] == (EAGER, 2.5) for limit in compiled.GPU_CASES[0][2])


def test_which_limits_hold() -> None:
    limit = Limit("a", 1.3, ("b", "c"))
    assert compiled._line(limit, {"a": 1.3, "b": 0.5, "c": 1.0})["met"] is True
    assert compiled._line(limit, {"a": 1.4, "b": 0.5, "c": 1.0})["met"] is False
    assert compiled._line(limit, {"a": 1.0, "b": 0.5})["met"] is None
    assert compiled._line(limit, {"b": 0.5, "c": 1.0})["met"] is None


def test_a_wrong_answer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(scores: Tensor, k: int, t: float) -> Tensor:
        return right(scores, k, 0.25 if torch.compiler.is_compiling() else t)

    right = compiled.soft_topk
    monkeypatch.setattr(compiled, "soft_topk", stuck)
    record = _run()
    assert set(record["cases"][0]["failed"]) == {COMPILED, FALLING_TEMPERATURE, REDUCED}
    assert COMPILED not in record["cases"][0]["seconds"]
    assert "not the eager one" in compiled.failures(record)[0]


def test_the_command_prints_limits_and_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "compiled.json"
    arguments = ["bench", "compiled", "--device", "cpu", "--quick", "--repeats", "1", "--runs", "1"]
    done = CliRunner().invoke(cli.app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "soft_topk, compiled" in done.output
    assert sources.state(json.loads(out.read_text())) == sources.CURRENT

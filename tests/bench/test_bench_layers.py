"""``fast-lapsum bench layers``: what it writes, which limits there are, and what is not timed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum.bench import layer_calls, layers
from fast_lapsum.bench.layers import BOTH, COMPILED, LAYER, USUAL, USUAL_COMPILED
from fast_lapsum.cli import app

CPU = torch.device("cpu")
NAMES = [LAYER, USUAL, COMPILED, USUAL_COMPILED]


def calls_of(*names: str) -> list[str]:
    """Forward, and with backward."""
    return [name + part for name in names for part in ("", BOTH)]


@pytest.fixture
def light_compiler(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> None:
    """Graphs without code generation, which takes longer than the benchmark."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, backend="aot_eager"))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is done with timings, whatever is timed."""
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)


def test_the_command_writes_every_case(tmp_path: Path, light_compiler: None) -> None:
    path = tmp_path / "layers.json"
    arguments = ["bench", "layers", "--device", "cpu", "--quick", "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(path)])
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["sources"]["kind"] == "layers"
    assert [len(entry["lines"]) for entry in record["cases"]] == [2, 4, 0, 0, 0, 0]
    assert all(line["met"] is not None for entry in record["cases"] for line in entry["lines"])
    for entry in record["cases"]:
        wanted = set(calls_of(*NAMES))
        if entry["case"].startswith("SparseAttentionBias"):  # topk has no gradient for the indexer
            wanted -= {USUAL + BOTH, USUAL_COMPILED + BOTH}
        assert set(entry["timings"]) == wanted
        assert set(entry["parity"]) == {LAYER, COMPILED}
        assert entry["parity"][COMPILED]["gradient"] <= 1e-5
    assert "Layers:" in result.output
    assert "6 limits" in result.output


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_limits(device: str) -> None:
    cases = {case.name: case for case in layers.cases_of(torch.device(device), quick=False)}
    for case in cases.values():
        told = {(limit.call, limit.factor, limit.base) for limit in case.limits}
        if case.layer == "TopKRouter":
            assert told == {(x + BOTH, 1, USUAL_COMPILED + BOTH) for x in (LAYER, COMPILED)}
        elif case.layer == "BatchTopK":
            assert {x[1] for x in told} == {0.3333}
            assert {x[0] for x in told} == {LAYER, COMPILED, LAYER + BOTH, COMPILED + BOTH}
    if device == "cuda":
        assert {
            "TopKRouter, 16,384 x 64, k = 6",
            "TopKRouter, 65,536 x 8, k = 2",
            "BatchTopK, 4,096 x 16,384, k = 100",
            "BatchTopK, 16,384 x 32,768, k = 32",
        } < set(cases)


def test_a_wait_is_a_line_of_its_own() -> None:
    case = layers.cases_of(CPU, quick=True)[2]
    waits = {LAYER + BOTH: None, COMPILED + BOTH: "RuntimeError: called a synchronizing operation"}
    assert [line["met"] for line in layers._lines(case, {}, waits)] == [True, False]


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    right = layer_calls.nn.BatchTopK.forward
    monkeypatch.setattr(
        layer_calls.nn.BatchTopK, "forward", lambda layer, x: right(layer, x).where(x < 2.5, 0)
    )
    record = layers.run(device=CPU, repeats=1, quick=True)
    failed = [entry for entry in record["cases"] if "failed" in entry]
    assert [entry["case"] for entry in failed] == ["BatchTopK, 16 x 64, k = 4"]
    assert "number chosen: the error is" in failed[0]["failed"]
    assert failed[0]["timings"] == {}
    assert all(line["met"] is None for line in failed[0]["lines"])


def test_a_compiled_layer_with_another_gradient_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def miscompiled(function: Any, **_: Any) -> Any:
        """The same forward, and a gradient that is 1e-4 too large for the first score."""

        def call(scores: Tensor) -> Any:
            slip = 1e-4 * scores.flatten()[0]
            return function(scores) + (slip - slip.detach())

        return call

    monkeypatch.setattr(torch, "compile", miscompiled)
    case = layers.cases_of(CPU, quick=True)[1]
    entry = layers._run_case(case, CPU, 1, lambda step: None, "p20")
    assert entry["failed"].startswith(f"{COMPILED}: ParityError: gradient: the compiled layer's")
    assert set(entry["timings"]) == set(calls_of(LAYER, USUAL, USUAL_COMPILED))


def test_a_compiler_that_fails_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def call(scores: Tensor) -> Any:
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    case = layers.cases_of(CPU, quick=True)[0]
    entry = layers._run_case(case, CPU, 1, lambda step: None, "p20")
    assert entry["failed"] == f"{COMPILED}: RuntimeError: no compiler here"
    assert set(entry["timings"]) == {LAYER, LAYER + BOTH, USUAL, USUAL + BOTH}


def test_ties_are_no_other_choice() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    first, second = (torch.tensor([[False, x, not x, False]]) for x in (True, False))
    assert layer_calls._choice(scores, first, second, 1) == {
        "number chosen": 0.0,
        "another choice": 0.0,
    }
    assert layer_calls._choice(scores, first, scores == 1, 1)["another choice"] == 1.0


def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    saved: list[dict[str, Any]] = []
    whole = layers.run(
        device=CPU, repeats=1, quick=True, save=lambda x: saved.append(copy.deepcopy(x))
    )
    assert [len(record["cases"]) for record in saved] == [1, 2, 3, 4, 5, 6]
    cut = saved[3]
    again = layers.run(device=CPU, repeats=1, quick=True, before=cut)
    assert [entry["case"] for entry in again["cases"]] == [x["case"] for x in whole["cases"]]
    assert again["cases"][:4] == cut["cases"]
    names = {entry["case"] for entry in whole["cases"]}
    assert layers.measured_before(whole, whole, names) == {}  # finished: all of it anew
    assert layers.measured_before(whole, {**cut, "repeats": 2}, names) == {}
    assert layers.measured_before(whole, {**cut, "sources": {}}, names) == {}
    for part in ("torch", "triton", "cpu"):
        elsewhere = {**cut["environment"], part: "another"}
        assert layers.measured_before(whole, {**cut, "environment": elsewhere}, names) == {}
    later = {**cut["environment"], "load_average": 0.5}
    assert len(layers.measured_before(whole, {**cut, "environment": later}, names)) == 4
    cut["cases"][0]["failed"] = "once"
    assert len(layers.measured_before(whole, cut, names)) == 3


def test_what_a_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    """Device times, why there is no graph where there is none, waits, and wall times."""
    complaint = "RuntimeError: called a synchronizing CUDA operation"
    monkeypatch.setattr(layers, "sync_error", lambda call: complaint)
    case = layers.cases_of(CPU, quick=True)[1]
    entry: dict[str, Any] = {"parity": {}, "timings": {}, "waits": {}}
    timed = case.make(case.shape, case.k, CPU)
    calls = layers._calls(case.name, timed, layers._draw(case, CPU), entry, lambda step: None)
    layers._on_gpu(case.name, calls, entry, CPU, 1, lambda step: None)
    assert set(entry["timings"]) == set(entry["wall"]) == set(calls)
    for timing in entry["timings"].values():
        assert timing["not_captured"] == f"waits for the device: {complaint}"
    assert entry["waits"] == {LAYER + BOTH: complaint, COMPILED + BOTH: complaint}
    seconds = {name: timing["p50"] for name, timing in entry["timings"].items()}
    met = [line["met"] for line in layers._lines(case, seconds, entry["waits"])]
    assert len(met) == 6
    assert met[4:] == [False, False]

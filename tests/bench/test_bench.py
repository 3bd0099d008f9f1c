"""The benchmark writes a whole results file, and times nothing that fails its parity check."""

import json
import math
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum import cli, soft_topk
from fast_lapsum.bench import cpu, environment, memory, parity, sources, tables, timing


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The results file of one quick run, and what it printed."""
    out = tmp_path_factory.mktemp("results") / "cpu.json"
    arguments = ["bench", "cpu", "--quick", "--repeats", "2", "--out", str(out)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert list(out.parent.iterdir()) == [out]
    return json.loads(out.read_text()), result.stdout


def test_the_results_file_holds_every_case_with_its_parity_and_bars(
    quick_run: tuple[dict[str, Any], str],
) -> None:
    record, printed = quick_run
    assert record["quick"] is True
    assert record["sources"] == sources.describe("cpu", "cpu")
    assert f"{record['sources']['hash']}, current" in printed
    assert record["environment"]["torch"] == torch.__version__
    assert [case["case"] for case in record["cases"]] == [case.name for case in cpu.QUICK_CASES]
    for case, wanted in zip(record["cases"], cpu.QUICK_CASES, strict=True):
        assert set(case["parity"]) == {"t=1", "t=0.01"}
        assert len(case["bars"]) == len(wanted.bars) * len(cpu.TEMPERATURES)
        for found in case["timings"].values():
            assert 0 < found["p20"] <= found["p50"] <= found["p80"]
        for bar in case["bars"]:
            ours = case["timings"][f"soft_topk {bar['ours']} t={bar['temperature']:g}"]["p50"]
            peer = case["timings"][bar["peer"]]["p50"]
            faster = bar["sense"] == "times faster, at least"
            assert bar["ratio"] == pytest.approx(peer / ours if faster else ours / peer)
            assert bar["met"] == (
                bar["ratio"] >= bar["limit"] if faster else bar["ratio"] <= bar["limit"]
            )


def test_memory_and_determinism_are_part_of_the_results(
    quick_run: tuple[dict[str, Any], str],
) -> None:
    record, _ = quick_run
    assert [entry["temperature"] for entry in record["memory"]] == list(cpu.TEMPERATURES)
    assert not any(entry["measured"] for entry in record["memory"])  # too few scores to tell
    for entry in record["determinism"]:
        assert entry["thread_counts"][0] == 1
        assert entry["met"] in (True, False)


def test_the_tables_name_every_case_and_verdict(quick_run: tuple[dict[str, Any], str]) -> None:
    record, printed = quick_run
    for case in record["cases"]:
        assert case["case"] in printed
    assert "peak memory" not in printed
    # Limits are for the full shapes: a quick run says so, and does not judge by them.
    assert "say nothing of the limits" in printed
    assert "missed" not in printed
    console = Console(width=200, record=True, file=StringIO())
    console.print(tables.bars_table(record))
    text = console.export_text()
    assert "met" in text or "missed" in text


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_a_quick_run_does_not_write_over_a_full_one(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*, quick: bool, **rest: object) -> dict[str, Any]:
        return {
            "quick": quick,
            "environment": environment.describe(),
            "cases": [],
            "memory": [],
            "determinism": [],
        }

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cpu, "run", run)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        cli.app, ["bench", "cpu", *(["--quick"] if quick else [])]
    )
    assert result.exit_code == 0, result.output
    (found,) = tmp_path.rglob("*.json")
    wanted = "results-quick/cpu.json" if quick else "results/cpu.json"
    assert found.relative_to(tmp_path).as_posix() == wanted
    assert f"Results: {wanted}" in result.stdout
    assert json.loads(found.read_text())["quick"] is quick


def test_a_full_run_has_the_memory_s_share_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"input_bytes": 1000, "forward_bytes": 40, "backward_bytes": 60}
    monkeypatch.setattr(memory, "peak_beyond_output", lambda n, k, temperature: figures)
    entry = cpu._memory(250, 1.0, lambda step: None)
    assert entry["share_of_input"] == {"forward": 0.04, "backward": 0.06}
    assert not entry["met"]
    record = {"cases": [], "memory": [entry], "determinism": []}
    table = tables.bars_table(record)
    assert [list(column.cells)[:2] for column in table.columns][3] == ["4.0%", "6.0%"]
    monkeypatch.setattr(memory, "peak_beyond_output", lambda n, k, temperature: None)
    assert cpu._memory(250, 1.0, lambda step: None)["measured"] is False


def test_a_failed_parity_prevents_the_timing_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slightly_wrong(scores: Tensor, k: float, temperature: float) -> Tensor:
        return soft_topk(scores, k, temperature) * (1 + 1e-5)

    def must_not_run(*args: object, **kwargs: object) -> None:
        raise AssertionError("timed although parity failed")

    monkeypatch.setattr(parity, "soft_topk", slightly_wrong)
    monkeypatch.setattr(cpu, "measure", must_not_run)
    out = tmp_path / "cpu.json"
    result = CliRunner().invoke(cli.app, ["bench", "cpu", "--quick", "--out", str(out)])
    assert result.exit_code == 1
    assert "Parity failed" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["mask", "budget", "gradient", "nan"])
def test_parity_notices_each_kind_of_error(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(scores: Tensor, k: float, temperature: float) -> Tensor:
        mask = soft_topk(scores, k, temperature)
        if wrong == "mask":  # the budget stays, two entries swap mass
            shift = torch.zeros_like(mask)
            shift[..., 0], shift[..., 1] = 1e-5, -1e-5
            return mask + shift
        if wrong == "budget":  # every entry within the mask's tolerance
            return mask + 0.9 * parity.MASK_TOLERANCE
        if wrong == "gradient":
            return mask.detach() + 1.01 * (mask - mask.detach())
        return torch.cat((mask[..., :-1], mask[..., -1:] * math.nan), -1)

    monkeypatch.setattr(parity, "soft_topk", spoiled)
    generator = torch.Generator().manual_seed(0)
    scores, weights = torch.randn(2, 2, 4096, generator=generator).unbind()
    with pytest.raises(parity.ParityError, match="expected at most"):
        parity.check(scores, 16.0, 0.5, weights)


def test_timing_takes_turns_after_a_warm_up() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    found = timing.measure(calls, repeats=4, device=torch.device("cpu"))
    assert {name: result.samples for name, result in found.items()} == {"a": 4, "b": 4}
    turns = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert turns == list("abababa")  # warm-up ab, then ab ba ab ba: the start moves on each turn


WASTEFUL = """
import json
from fast_lapsum import soft_topk
from fast_lapsum.bench import memory

def wasteful(scores, k, temperature):
    copies = [scores.double() for _ in range(3)]
    return soft_topk(scores, k, temperature) + 0 * copies[0].float()

memory.soft_topk = wasteful
print(json.dumps(memory._measure(4_000_000, 250_000, 1.0)))
"""


def test_memory_notices_a_call_that_needs_room() -> None:
    """In a process of its own, as a measurement is: this one has free memory of other tests."""
    if not memory.RESET_PEAK.exists():
        pytest.skip("the system has no /proc/self/clear_refs")
    done = subprocess.run(
        [sys.executable, "-c", WASTEFUL], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["input_bytes"] == 4 * 4_000_000
    assert found["forward_bytes"] > 3 * 8 * 4_000_000 * 0.9


def test_the_environment_is_complete_and_fit_for_json() -> None:
    found = environment.describe()
    json.dumps(found)
    for key in ("fast_lapsum", "python", "torch", "os", "cores", "threads", "cpu_backend"):
        assert found[key] is not None

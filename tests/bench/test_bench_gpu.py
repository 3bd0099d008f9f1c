"""The GPU benchmark's runs, on a CPU: bars, records that survive a cut, tables, the command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum import cli, soft_topk
from fast_lapsum.bench import (
    cliffs,
    gpu,
    gpu_bars,
    gpu_budget,
    gpu_case,
    gpu_overhead,
    gpu_parity,
    gpu_tables,
    sources,
)
from fast_lapsum.bench.gpu_bars import Bar
from fast_lapsum.bench.results import write_json

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes longer than all of these tests."""

    def fail(operator: object) -> None:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(gpu_overhead, "compiled", fail)


def rendered(record: dict[str, Any]) -> str:
    console = Console(width=250, no_color=True)
    with console.capture() as capture:
        for table in gpu_tables.all_tables(record):
            console.print(table)
    return capture.get()


def test_a_quick_run_saves_every_part_and_says_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    complete, parts = [], []

    def save(record: dict[str, Any]) -> None:
        write_json(out, record)
        complete.append(json.loads(out.read_text())["complete"])

    gpu.run(
        device=CPU,
        quick=True,
        repeats=3,
        save=save,
        advance=lambda name, done, total: parts.append((done, total)),
    )
    assert json.loads(out.read_text())["sources"] == sources.describe("gpu", "cuda")
    assert complete == [False] * len(parts) + [True]
    assert parts == [(done, len(parts)) for done in range(1, len(parts) + 1)]
    assert list(tmp_path.iterdir()) == [out]
    record = json.loads(out.read_text())
    assert gpu.failures(record) == []
    assert [case["case"] for case in record["cases"]] == [c.name for c in gpu_bars.QUICK_CASES]
    for case in record["cases"]:
        assert set(case["parity"]) == {"t=1", "t=0.1", "t=0.01", "t=0.001"}
        assert {"torch.softmax", "torch.topk", "torch.sort"} <= set(case["timings"])
        assert len(case["eager"]) == 2 * len(gpu_bars.TEMPERATURES)
        for timing in (*case["timings"].values(), *case["eager"].values()):
            assert 0 < timing["p20"] <= timing["p50"] <= timing["p80"]
        assert all(bar["met"] in (True, False) for bar in case["bars"])
        assert all(entry["met"] for entry in case["determinism"])
    assert len(record["sweeps"]) == 5 * len(gpu.SWEEP_TEMPERATURES)
    assert {entry["distribution"] for entry in record["budgets"]} == set(gpu_budget.DISTRIBUTIONS)
    assert all(entry["met"] for entry in record["budgets"])
    (overhead,) = record["overhead"]
    assert overhead["bar"]["limit"] == pytest.approx(
        0.5 * overhead["eager"]["DFTopK forward+backward"]["p50"]
    )
    assert overhead["failed"] == {gpu_overhead.COMPILED: "RuntimeError: no compiler here"}
    printed = rendered(record)
    for expected in (
        "n = 2e4",
        "16 x 512",
        "torch.topk",
        "DFTopK",
        "periodic",
        "1e-06",
        "no compi",
    ):
        assert expected in printed


def test_a_run_that_is_cut_off_leaves_what_it_has(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"

    def interrupt(step: str) -> None:
        if "2 x 2e4" in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpu.run(
            device=CPU,
            quick=True,
            repeats=1,
            report=interrupt,
            save=lambda record: write_json(out, record),
        )
    record = json.loads(out.read_text())
    assert record["complete"] is False
    assert [case["case"] for case in record["cases"]] == ["n = 2e4", "16 x 512"]
    assert list(tmp_path.iterdir()) == [out]
    assert "n = 2e4" in rendered(record)


def test_shapes_over_the_ceiling_are_left_out_with_a_reason() -> None:
    record = gpu.run(device=CPU, quick=True, repeats=1, max_n=10_000)
    skipped = {case["case"]: case.get("skipped") for case in record["cases"]}
    assert skipped == {
        "n = 2e4": "20,000 scores, over the ceiling",
        "16 x 512": None,
        "2 x 2e4": "40,000 scores, over the ceiling",
    }
    assert all("ceiling" in entry["skipped"] for entry in (*record["sweeps"], *record["half"]))
    assert record["complete"]
    assert "over the ceiling" in rendered(record)


def test_what_fails_its_parity_check_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_when_cold(scores: Tensor, k: float, temperature: float, **kwargs: Any) -> Any:
        found = soft_topk(scores, k, temperature, **kwargs)
        return found * (1 + 1e-5) if temperature == 0.01 and not kwargs else found

    monkeypatch.setattr(gpu_parity, "soft_topk", wrong_when_cold)
    case = gpu_bars.QUICK_CASES[1]
    entry = gpu_case.run_case(case, CPU, 1e12, 1, lambda step: None)
    assert "expected at most" in entry["parity"]["t=0.01"]["failed"]
    assert "soft_topk forward t=0.1" in entry["timings"]
    assert not any("t=0.01" in name.split() for name in (*entry["timings"], *entry["eager"]))
    assert [bar["met"] for bar in entry["bars"] if bar["temperature"] == 0.01] == [None] * 3
    record = {"failures": {}, "cases": [entry], "sweeps": [], "half": [], "overhead": []}
    (failure,) = gpu.failures(record)
    assert "16 x 512, t=0.01" in failure


def test_a_part_that_breaks_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ValueError("out of order")

    monkeypatch.setattr(gpu, "check_budgets", broken)
    monkeypatch.setattr(gpu_case, "_wall_times", broken)
    monkeypatch.setattr(gpu_overhead, "dftopk", broken)
    record = gpu.run(device=CPU, quick=True, repeats=1)
    assert record["complete"]
    assert record["failures"]["budgets of 20000"] == "ValueError: out of order"
    assert record["cases"][0]["failed"] == "ValueError: out of order"
    assert record["cases"][0]["bars"]
    assert record["overhead"][0]["failed"]["DFTopK"] == "ValueError: out of order"
    assert record["overhead"][0]["bar"]["met"] is None
    assert len(gpu.failures(record)) == 5  # three cases, two grids; a peer's failure is none
    assert "not measured" in rendered(record)


@pytest.mark.parametrize(
    ("bar", "measured", "limit", "met"),
    [
        (Bar("forward", "t = 1", microseconds=12), 12e-6, 12e-6, True),
        (Bar("forward", "t = 1", microseconds=12), 12.1e-6, 12e-6, False),
        (Bar("forward", "t = 1", 2, "12n", 10), 33e-6, 34e-6, True),
        (Bar("forward", "t = 1", 1.5, "8n"), 13e-6, 12e-6, False),
        (Bar("forward", "t = 1", 1 / 5, "torch.topk"), 9e-6, 10e-6, True),
        (Bar("forward", "t = 1", 1 / 5, "torch.sort"), 9e-6, None, None),
    ],
)
def test_bars_add_a_constant_to_a_multiple_of_a_floor_or_a_peer(
    bar: Bar, measured: float, limit: float | None, met: bool | None
) -> None:
    timings = {"soft_topk forward t=1": measured, "torch.topk": 50e-6}
    found = gpu_bars.compare(bar, 1.0, timings, gpu_bars.floors(1_000_000, 1e12))
    assert found["limit"] == (None if limit is None else pytest.approx(limit))
    assert found["met"] is met
    assert gpu_bars.compare(bar, 0.1, timings, {})["met"] is None


def test_bars_know_their_temperatures_and_their_words() -> None:
    warm, cold, every = (Bar("forward", at, 2, "12n", 3) for at in ("t = 1", "other t", "every t"))
    for t in gpu_bars.TEMPERATURES:
        assert [bar.holds_at(t) for bar in (warm, cold, every)] == [t == 1, t != 1, True]
    assert warm.describe() == "2 x copy of 12n bytes + 3 us"
    assert Bar("forward", "t = 1", 0.2, "torch.topk").describe() == "0.2 x torch.topk"
    assert Bar("forward", "t = 1", microseconds=9).describe() == "9 us"
    assert [gpu_bars.forward_floor(n) for n in (32768, 32769)] == ["8n", "12n"]


def test_every_case_has_bars_for_both_parts_at_every_temperature() -> None:
    for case in (*gpu_bars.CASES, *gpu_bars.QUICK_CASES):
        for t in gpu_bars.TEMPERATURES:
            parts = [bar.part for bar in case.bars if bar.holds_at(t)]
            assert set(parts) == {"forward", "backward"}


def test_dftopk_is_half_way_between_the_last_in_and_the_first_out() -> None:
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = gpu_overhead.dftopk(scores, 7, 1e-4)
    assert (mask > 0.5).sum(-1).tolist() == [7, 7]
    (gradient,) = torch.autograd.grad(gpu_overhead.dftopk(scores, 7, 1.0).sum(), scores)
    assert gradient.isfinite().all()


def test_a_shape_that_does_not_fit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_case, "free_memory", lambda device: 1 << 30)
    assert gpu_case.shortage((1000,), CPU) is None
    reason = gpu_case.shortage((1_000_000_000,), CPU)
    assert reason is not None
    assert "1.0 GiB are free" in reason
    case = gpu_bars.Case("n = 1e9", (1_000_000_000,), ())
    assert gpu_case.run_case(case, CPU, 1e12, 1, lambda step: None)["skipped"] == reason


def test_without_a_gpu_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(cli.app, ["bench", "gpu", "--out", str(tmp_path / "gpu.json")])
    assert result.exit_code == 1
    assert "No GPU" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_prints_the_tables_and_fails_for_what_is_wrong(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gpu.run

    def on_the_cpu(**settings: Any) -> dict[str, Any]:
        record = run(**{**settings, "device": CPU})
        if broken:
            record["failures"]["n = 1e9"] = "RuntimeError: a [bracket]"
        return record

    monkeypatch.setattr(gpu, "run", on_the_cpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cli.environment, "_gpus", list)
    out = tmp_path / "gpu.json"
    arguments = ["bench", "gpu", "--quick", "--repeats", "1", "--max-n", "1e4", "--out", str(out)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(cli.app, arguments)
    assert result.exit_code == int(broken), result.output
    assert json.loads(out.read_text())["complete"]
    for expected in (
        "12/12 budgets of 8 x 512",
        "16 x 512",
        "Bars",
        "20,000 scores, over the ceiling",
        "of 13 lines hold",
        "Results",
    ):
        assert expected in result.output
    assert ("Failed: n = 1e9: RuntimeError: a [bracket]" in result.output) == broken


@pytest.mark.parametrize("command", ["gpu", "cliffs"])
@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_a_quick_run_does_not_write_over_a_full_one(
    command: str, quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_stop(**settings: Any) -> dict[str, Any]:
        settings["save"]({"quick": settings["quick"]})
        raise InterruptedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr({"gpu": gpu, "cliffs": cliffs}[command], "run", save_and_stop)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    arguments = ["bench", command, *(["--quick"] if quick else [])]
    assert isinstance(CliRunner().invoke(cli.app, arguments).exception, InterruptedError)
    (found,) = tmp_path.rglob("*.json")
    wanted = f"{'results-quick' if quick else 'results'}/{command}.json"
    assert found.relative_to(tmp_path).as_posix() == wanted
    assert json.loads(found.read_text()) == {"quick": quick}

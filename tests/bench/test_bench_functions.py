"""`fast-lapsum bench functions` on a CPU: what it times, which limits there are, which hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fast_lapsum import cli
from fast_lapsum.bench import function_calls, function_commands, functions, sources, stale
from fast_lapsum.bench.functions import FunctionCase, Limit
from fast_lapsum.bench.parity import ParityError
from fast_lapsum.bench.results import write_json

CPU = torch.device("cpu")


def run(**settings: Any) -> dict[str, Any]:
    return functions.run(device=CPU, quick=True, repeats=1, **settings)


def limits(cases: tuple[FunctionCase, ...]) -> set[tuple[Any, ...]]:
    return {
        (case.shape, case.k, limit.call, limit.describe())
        for case in cases
        for limit in case.limits
    }


def test_every_call_of_the_quick_cases_is_timed() -> None:
    saved: list[int] = []
    record = run(save=lambda record: saved.append(len(record["cases"])))
    assert saved == [1, 2, 3, 4]
    assert not functions.failures(record)
    assert record["sources"]["kind"] == "functions"
    timed = {name for entry in record["cases"] for name in entry["timings"]}
    assert timed == set(function_calls.CALLS)
    for entry in record["cases"]:
        assert all(line["met"] in (True, False) for line in entry["lines"])
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("shape", "k", "call", "limit"),
    [
        ((16_384, 64), 6, "hard", "1.3 x mask"),
        ((4096, 16_384), 64, "log", "1.3 x mask"),
        ((4096, 65_536), 64, "log forward+backward", "1.3 x mask forward+backward"),
        ((1, 3_000_000), 9000, "threshold", "1 x mask"),
        ((10**8,), 10**8 // 16, "threshold", "0.8 x mask"),
        ((10**8,), 10**8 // 16, "hard mask", "380 us"),
        ((64, 65_536), 64, "hard mask", "28 us"),
        ((64, 131_072), 2048, "hard mask", "32 us"),
        ((256, 262_144), 64, "hard mask", "165 us"),
        ((2048, 131_072), 2048, "hard mask", "470 us"),
        ((10**7,), 10**7 // 16, "hard mask", "65 us"),
        ((64, 65_536), 2048, "select", "1.2 x hard mask"),
        ((64, 65_536), 2048, "select", "1 x torch.topk"),
        ((16_384, 64), 6, "sample", "3 x mask"),
    ],
)
def test_limits_on_a_gpu(shape: tuple[int, ...], k: int, call: str, limit: str) -> None:
    assert (shape, k, call, limit) in limits(functions.GPU_CASES)


@pytest.mark.parametrize(
    ("shape", "k", "call", "limit"),
    [
        ((16_384, 64), 6, "hard", "2 x mask"),
        ((1024, 4096), 64, "log", "1.3 x mask"),
        ((64, 65_536), 64, "threshold", "1 x mask"),
        ((1, 3_000_000), 9000, "sample", "3 x mask"),
        ((65_536, 8), 2, "mask", "4 x torch.softmax"),
        ((256, 197), 16, "mask", "4 x torch.softmax"),
        ((256, 4096), 16, "mask along dim 0", "2 x mask of the transposed"),
    ],
)
def test_limits_on_a_cpu(shape: tuple[int, ...], k: int, call: str, limit: str) -> None:
    assert (shape, k, call, limit) in limits(functions.CPU_CASES)


def test_which_limits_hold() -> None:
    case = FunctionCase(
        (4, 8),
        2,
        (Limit("hard", 1.3, "mask"), Limit("hard", microseconds=28), Limit("log", 1, "x")),
    )
    found = functions.lines(case, {"mask": 2e-5, "hard": 2.7e-5, "log": 1e-5})
    assert [line["met"] for line in found] == [False, True, None]
    assert found[0]["limit"] == pytest.approx(2.6e-5)


def test_a_wrong_answer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = function_calls._sample
    monkeypatch.setattr(function_calls, "_sample", lambda x, k: right(x, k - 1))
    with pytest.raises(ParityError, match="number drawn: off by 1"):
        function_calls.check(torch.randn(4, 50), 6)
    record = run()
    assert len(functions.failures(record)) == len(record["cases"])
    assert not any("timings" in entry for entry in record["cases"])


def test_the_command_prints_limits_and_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "functions.json"
    arguments = ["bench", "functions", "--device", "cpu", "--quick", "--repeats", "1"]
    done = CliRunner().invoke(cli.app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "limits hold" in done.output
    record = json.loads(out.read_text())
    assert sources.state(record) == sources.CURRENT
    console = Console(width=250, no_color=True)
    with console.capture() as capture:
        console.print(function_commands.limits_table(record))
    assert "mask of the transposed" in capture.get()


def test_its_file_is_known_to_stale_and_to_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the page needs the extra [bench]")
    path = tmp_path / "results" / "cpu" / "functions.json"
    write_json(path, run())
    (entry,) = stale.find(tmp_path)
    assert (entry.kind, entry.state) == ("functions", sources.CURRENT)
    out = tmp_path / "out"
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "results"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "State of the file: current" in page
    for name in function_calls.CALLS:
        assert f"<td>{name}</td>" in page
    record = json.loads(path.read_text())
    record["sources"]["hash"] = "0" * 16
    write_json(path, record)
    assert stale.find(tmp_path)[0].state == sources.STALE

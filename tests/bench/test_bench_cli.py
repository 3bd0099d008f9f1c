"""The commands of the suite: one experiment, all of them, and what changed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner, Result

import toy_experiment as toy
from fast_lapsum import cli
from fast_lapsum.bench import commands, display, runner, worker
from fast_lapsum.bench.experiment import Case, Settings
from fast_lapsum.bench.experiments import EXPERIMENTS, NAMES, module_of


def invoke(*arguments: object) -> Result:
    environment = {"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(cli.app, ["bench", *map(str, arguments)])


def plain(text: str) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


class InProcess:
    """A worker without a process of its own, which the tests of the runner have."""

    remark = "no memory limit here"

    def __init__(self, module: str, settings: Settings) -> None:
        self._settings = settings

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def measure(self, case: Case) -> dict[str, Any]:
        return worker.measured(toy.EXPERIMENT, case, self._settings)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every experiment is the toy."""
    monkeypatch.setattr(commands, "module_of", lambda name: "toy_experiment")
    monkeypatch.setattr(runner, "WorkerProcess", InProcess)
    monkeypatch.setenv(toy.CASES, "ok:10,unavailable:10,ok:20")
    monkeypatch.setenv(toy.LOG, str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)


def begun() -> list[str]:
    return [line.split()[0] for line in Path("log").read_text().splitlines()]


def test_every_experiment_has_its_command_and_its_module() -> None:
    assert tuple(EXPERIMENTS) == NAMES
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert module_of(name).startswith("fast_lapsum.bench.experiments.")


def test_a_run_prints_environment_progress_and_tables_and_keeps_its_file() -> None:
    result = invoke("gradcheck", "--device", "cpu")
    assert result.exit_code == 0, result.output
    for part in (
        "a CPU call takes",
        "no memory limit here",
        "1/3 gradcheck: ok, n = 10: 2 ms; 0 s, about 0 s left",
        "2/3 gradcheck: unavailable, n = 10: unavailable, toy is not installed",
        "ok:20",
        "Results: results/cpu/gradcheck.json",
    ):
        assert part in result.stdout
    record = json.loads(Path("results/cpu/gradcheck.json").read_text())
    limit = record["settings"].pop("gibibytes")
    assert limit > 0
    assert record["settings"] == {
        "device": "cpu",
        "quick": False,
        "repeats": 20,
        "max_n": 10**8,
        "seconds": 20.0,
        "seed": 0,
    }


def test_a_complete_file_is_shown_and_not_measured_again() -> None:
    invoke("gradcheck", "--device", "cpu", "--out", "a.json")
    before = Path("a.json").read_bytes()
    result = invoke("gradcheck", "--device", "cpu", "--out", "a.json")
    assert result.exit_code == 0
    assert "all 3 rows are in a.json already; --fresh measures anew" in result.stdout
    assert "ok:20" in result.stdout
    assert Path("a.json").read_bytes() == before
    assert len(begun()) == 3
    assert invoke("gradcheck", "--device", "cpu", "--out", "a.json", "--fresh").exit_code == 0
    assert len(begun()) == 6


def test_a_file_from_before_there_were_sources_says_so() -> None:
    arguments = ("gradcheck", "--device", "cpu", "--out", "a.json")
    assert "sources unknown" not in invoke(*arguments).stdout
    record = json.loads(Path("a.json").read_text())
    del record["sources"]
    Path("a.json").write_text(json.dumps(record))
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "Results: a.json, sources unknown" in result.stdout


def test_options_become_settings() -> None:
    arguments = "--device cpu --quick --max-n 15 --gibibytes 1.5 --seed 3 --out a.json"
    assert invoke("budget", *arguments.split()).exit_code == 0
    record = json.loads(Path("a.json").read_text())
    assert record["settings"] == Settings("cpu", True, 5, 15, 5.0, 1.5, 3)._asdict()
    assert [row["key"]["n"] for row in record["rows"]] == [10, 10]


def test_an_error_is_printed_and_is_exit_code_1_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(toy.CASES, "ok:10,wrong:10,ok:20")
    for _ in range(2):
        result = invoke("budget", "--device", "cpu", "--out", "a.json")
        assert result.exit_code == 1
        assert "Failed: budget, wrong, n = 10: ValueError: parity failed" in result.output
    assert begun() == ["ok:10", "wrong:10", "ok:20", "wrong:10"]


def test_another_kind_of_file_is_an_error_before_anything_is_measured() -> None:
    Path("out").mkdir()
    Path("out/gradcheck.json").write_text("my diary")
    result = invoke("all", "--device", "cpu", "--out", "out")
    assert result.exit_code == 1
    for part in ("Error: out/gradcheck.json is damaged or no results file", "--fresh", "--out"):
        assert part in result.output
    assert Path("out/gradcheck.json").read_text() == "my diary"
    assert not Path("log").exists()
    assert [path.name for path in Path("out").iterdir()] == ["gradcheck.json"]


def test_nothing_to_measure_is_no_error_and_no_file() -> None:
    result = invoke("gradcheck", "--device", "cpu", "--max-n", "5")
    assert result.exit_code == 0
    assert "nothing to measure, no case has at most 5 scores" in result.stdout
    assert list(Path().iterdir()) == []


def test_an_interrupted_fresh_run_goes_on_without_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: InProcess, case: Case) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcess, "measure", interrupt)
    result = invoke("gradcheck", "--device", "cpu", "--fresh", "--out", "a.json")
    assert result.exit_code == 130
    assert "0 of 3 rows of gradcheck are in a.json; the same command without --fresh goes on" in (
        result.stdout
    )


def test_a_place_that_cannot_be_written_is_named() -> None:
    Path("file").touch()
    result = invoke("gradcheck", "--device", "cpu", "--out", "file/a.json")
    assert result.exit_code == 1
    assert "Error: file/a.json cannot be written: " in result.output
    assert not Path("log").exists()


def test_other_settings_are_named() -> None:
    invoke("gradcheck", "--device", "cpu", "--out", "a.json")
    result = invoke("gradcheck", "--device", "cpu", "--out", "a.json", "--repeats", 7)
    assert result.exit_code == 1
    assert "a.json was measured under other conditions: repeats was 20, is 7." in result.output


def test_all_runs_what_was_chosen_and_sums_up() -> None:
    chosen = ["--only", "dftopk", "--only", "budget", "--only", "gradcheck", "--skip", "gradcheck"]
    result = invoke("all", "--device", "cpu", "--quick", *chosen)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in Path("results-quick/cpu").iterdir()) == [
        "budget.json",
        "dftopk.json",
    ]
    assert "fast-lapsum report results-quick/cpu" in result.stdout
    for name in ("budget", "dftopk"):
        assert re.search(rf"{name} +2 +0 +0 +0 +1 +0 +\d", plain(result.stdout))


def test_compare_shows_ratios_and_can_fail() -> None:
    invoke("gradcheck", "--device", "cpu", "--out", "old.json")
    record = json.loads(Path("old.json").read_text())
    timing = record["rows"][0]["values"]["seconds"]
    record["rows"][0]["values"]["seconds"] = {
        name: value * 2 if name.startswith("p") else value for name, value in timing.items()
    }
    record["environment"]["torch"] = "2.6.0"
    Path("results").mkdir()
    Path("results/new.json").write_text(json.dumps(record))
    result = invoke("compare", "old.json")
    assert result.exit_code == 0, result.output
    assert re.search(r"torch .* 2\.6\.0", plain(result.stdout))
    assert re.search(r"ok, n = 10 seconds 2 ms 4 ms 2\.00 slower", plain(result.stdout))
    assert invoke("compare", "old.json", "--fail-over", "2.1").exit_code == 0
    failed = invoke("compare", "old.json", "--fail-over", "1.2")
    assert failed.exit_code == 1
    assert "Slower: toy on cpu, ok, n = 10: 2.00 times the time" in failed.output
    # The other way round it is faster, and a change within limits.
    back = ("compare", "results", "--against", "old.json", "--fail-over", "1.2")
    assert invoke(*back).exit_code == 0
    same = invoke("compare", "old.json", "--against", "old.json")
    assert same.exit_code == 0
    assert "toy on cpu: nothing changed in" in same.stdout
    assert "2 ms" not in same.stdout
    every = ("compare", "old.json", "--against", "old.json", "--all")
    assert re.search(r"ok, n = 10 seconds 2 ms 2 ms 1\.00", plain(invoke(*every).stdout))
    assert invoke("compare", "nowhere").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("budget", "--seconds", "0"), ("--seconds", "'0'", "finite number above 0")),
        (("budget", "--gibibytes", "much"), ("--gibibytes", "'much'", "finite number above 0")),
        (("budget", "--max-n", "0"), ("--max-n", "'0'", "whole number of at least 1")),
        (("budget", "--device", "abacus"), ("--device", "abacus", "cpu")),
        (("all", "--only", "bogus"), ("--only", "'bogus'", "large-n", "dftopk")),
        (("all", "--only", "budget", "--skip", "budget"), ("--skip", "nothing is left")),
        (("compare", "a", "--fail-over", "-1"), ("--fail-over", "'-1'")),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_exit_code_2(
    arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    for part in expected:
        assert part in plain(result.output)


def test_help_teaches() -> None:
    assert all(name in invoke("--help").stdout for name in (*EXPERIMENTS, "all", "compare"))
    for name in EXPERIMENTS:
        printed = plain(invoke(name, "--help").stdout)
        assert f"Example: fast-lapsum bench {name}" in printed
        assert "goes on where it stopped" in printed
    printed = plain(invoke("compare", "--help").stdout)
    assert "a results file, a folder of them, or a git commit" in printed
    assert "exit code is 1 if a case failed" in plain(invoke("all", "--help").stdout)


def test_tables_in_a_pipe_lose_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(commands, "console", Console(file=written, width=80))
    table = Table(*(f"n = 1e{power}" for power in range(12)))
    table.add_row(*(f"{power / 7:.6f}" for power in range(12)))
    display.print_table(commands.console, table)
    assert all(f"{power / 7:.6f}" in written.getvalue() for power in range(12))

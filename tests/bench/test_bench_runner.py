"""A run keeps every finished row, whatever its methods do to memory, time and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import toy_experiment as toy
from fast_lapsum.bench import environment, options, records, runner, sources
from fast_lapsum.bench.experiment import Case, Settings
from fast_lapsum.bench.process import WorkerError, WorkerProcess
from fast_lapsum.bench.records import ResultsError

SETTINGS = Settings("cpu", True, 3, 10**8, seconds=1.0, gibibytes=0.5, seed=0)
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the memory limit and signals")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return environment.describe()


def rows_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{row['key']['what']}:{row['key']['n']}": row for row in record["rows"]}


@linux
def test_every_ending_gets_its_row_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]
) -> None:
    monkeypatch.setenv(
        toy.CASES,
        "ok:10,unavailable:10,wrong:10,nan:10,greedy:10,greedy:2000,greedy:3000,greedy-python:2000,"
        "linear:10,linear:20,linear:2000,ok:20,asleep:1,asleep:2,slow:3,killed:1,crashed:1",
    )
    monkeypatch.setenv(toy.LOG, str(tmp_path / "log"))
    path = tmp_path / "new" / "toy.json"
    steps: list[runner.Step] = []
    prepared = runner.prepare("toy_experiment", SETTINGS, path, found)
    record = runner.run(prepared, report=steps.append)
    assert json.loads(path.read_text()) == record
    assert list(path.parent.iterdir()) == [path]
    rows = rows_of(record)
    assert {name: row["status"] for name, row in rows.items()} == {
        "ok:10": "ok",
        "unavailable:10": "unavailable",
        "wrong:10": "error",
        "nan:10": "error",
        "greedy:10": "ok",
        "greedy:2000": "oom",
        "greedy:3000": "limit",
        "greedy-python:2000": "oom",
        "linear:10": "ok",
        "linear:20": "ok",
        "linear:2000": "limit",
        "ok:20": "ok",
        "asleep:1": "timeout",
        "asleep:2": "limit",
        "slow:3": "timeout",
        "killed:1": "oom",
        "crashed:1": "error",
    }
    for name, part in {
        "unavailable:10": "pip install toy",
        "wrong:10": "ValueError: parity failed (toy_experiment.py:",
        "greedy:2000": "asked for 1.95 GiB more under the limit of 0.5 GiB",
        "greedy:3000": "out of memory at n = 2,000",
        "linear:2000": "about 20 s expected",
        "killed:1": "killed",
        "crashed:1": "exit code 3: assertion of a library failed",
        "asleep:1": "more than 1 s",
        "asleep:2": "over 1 s at n = 1",
        "slow:3": "a call takes more than 1 s",
    }.items():
        assert part in rows[name]["reason"]
    # Running out of memory costs a worker nothing.
    assert rows["ok:10"]["values"]["process"] == rows["ok:20"]["values"]["process"]
    assert [(step.done, step.row is None) for step in steps[:3]] == [
        (0, True),
        (1, False),
        (1, True),
    ]
    assert steps[-1].done == steps[-1].total == 17
    assert record["complete"] is True
    # Only errors are tried again.
    again = runner.prepare("toy_experiment", SETTINGS, path, found)
    assert [case.key["what"] for case in again.missing] == ["wrong", "nan", "crashed"]


def start(out: Path, **variables: str) -> subprocess.Popen[str]:
    arguments = f"bench gradcheck --quick --device cpu --seconds 100 --out {out}"
    return subprocess.Popen(
        [sys.executable, toy.__file__, *arguments.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_line(log: Path, number: int) -> int:
    """The process that wrote the line."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= number:
            return int(lines[number - 1].split()[1])
        time.sleep(0.02)
    raise AssertionError(f"no line {number} in {log}")


def assert_ends(process: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        state = Path(f"/proc/{process}/stat")
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {process} is still there")


@linux
def test_interrupted_and_killed_runs_lose_no_finished_row_and_leave_no_process(
    tmp_path: Path,
) -> None:
    log, out, gate = tmp_path / "log", tmp_path / "toy.json", tmp_path / "gate"
    variables = {
        toy.CASES: "ok:1,ok:2,gate:1,ok:3",
        toy.LOG: str(log),
        toy.GATE: str(gate),
    }
    interrupted = start(out, **variables)
    worker = wait_for_line(log, 3)
    os.killpg(interrupted.pid, signal.SIGINT)  # as a terminal does
    printed, _ = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130, printed
    assert f"2 of 4 rows of gradcheck are in {out}; the same command goes on" in printed
    assert "Traceback" not in printed
    assert_ends(worker)
    assert len(json.loads(out.read_text())["rows"]) == 2

    killed = start(out, **variables)
    worker = wait_for_line(log, 4)
    killed.kill()
    killed.communicate(timeout=60)
    assert_ends(worker)
    record = json.loads(out.read_text())
    assert record["complete"] is False
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    gate.touch()
    last = start(out, **variables)
    printed, _ = last.communicate(timeout=120)
    assert last.returncode == 0, printed
    assert f"2 of 4 rows are in {out}; going on" in printed
    begun = [line.split()[0] for line in log.read_text().splitlines()]
    assert begun == ["ok:1", "ok:2", "gate:1", "gate:1", "gate:1", "ok:3"]
    final = json.loads(out.read_text())
    assert final["complete"] is True
    assert final["rows"][:2] == record["rows"]
    # The limit of memory is a share of what is free, which changes: the first run's stays.
    assert final["settings"] == record["settings"]


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        WorkerProcess("no_such_experiment", SETTINGS) as worker,
        pytest.raises(WorkerError, match="No module named 'no_such_experiment'"),
    ):
        worker.measure(Case({"n": 1}, 1))


def finished(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """A complete file, made without a worker."""
    record = runner.prepare("toy_experiment", SETTINGS, path, found).record
    record["rows"] = [
        {"key": {"what": "ok", "n": 1}, "status": "ok", "values": {}},
        {"key": {"what": "ok", "n": 2}, "status": "oom", "reason": "too large"},
    ]
    record["complete"] = True
    return record


@pytest.fixture
def two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(toy.CASES, "ok:1,ok:2")


@pytest.mark.usefixtures("two_cases")
def test_a_complete_file_has_nothing_missing_whatever_the_load(
    tmp_path: Path, found: dict[str, Any]
) -> None:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(finished(path, found)))
    busy = {**found, "load_average": 99.0}
    prepared = runner.prepare("toy_experiment", SETTINGS, path, busy)
    assert prepared.missing == []
    assert runner.prepare("toy_experiment", SETTINGS, path, found, fresh=True).record["rows"] == []


def other(**parts: Any) -> Any:
    return lambda record: {**record, **parts}


def of_commit(name: str, record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "environment": {**record["environment"], "commit": name}}


def without_sources(record: dict[str, Any]) -> dict[str, Any]:
    """As files were before they knew their sources."""
    return {name: part for name, part in record.items() if name != "sources"}


@pytest.mark.usefixtures("two_cases")
def test_another_commit_of_the_same_sources_goes_on(tmp_path: Path, found: dict[str, Any]) -> None:
    path = tmp_path / "toy.json"
    record = of_commit("abc", finished(path, found))
    assert record["sources"] == sources.describe("toy", "cpu")
    path.write_text(json.dumps(record))
    prepared = runner.prepare("toy_experiment", SETTINGS, path, found)
    assert prepared.missing == []
    assert prepared.record == record


@pytest.mark.usefixtures("two_cases")
def test_an_old_file_of_the_same_commit_goes_on_and_stays_without_sources(
    tmp_path: Path, found: dict[str, Any]
) -> None:
    path = tmp_path / "toy.json"
    record = without_sources(finished(path, found))
    path.write_text(json.dumps(record))
    assert runner.prepare("toy_experiment", SETTINGS, path, found).record == record


@pytest.mark.usefixtures("two_cases")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: json.dumps(record)[:-40], "damaged or no results file: not JSON"),
        (lambda record: "", "damaged or no results file: not JSON"),
        (lambda record: b"\xff\x00\x81", "damaged or no results file: not JSON"),
        (lambda record: [1, 2], 'no results file: it lacks "format"'),
        (lambda record: {"benchmark": "cpu"}, 'no results file: it lacks "format"'),
        (other(version=2), "version 2 of the format, expected 1"),
        (other(experiment="budget"), "holds the experiment budget, not toy"),
        (other(settings={**SETTINGS._asdict(), "max_n": 5}), "max_n was 5, is 100000000"),
        (
            lambda record: {**record, "environment": {**record["environment"], "torch": "1.0"}},
            "torch was '1.0', is '",
        ),
        (
            lambda record: without_sources(of_commit("abc", record)),
            "commit was 'abc', is ",
        ),
        (
            lambda record: {**record, "sources": {**record["sources"], "hash": "abc"}},
            "the sources that its figures depend on were abc, are ",
        ),
        (
            other(sources=None),
            "the sources that its figures depend on were sources unknown, are ",
        ),
        (other(rows=3), "damaged: rows is missing or no list"),
        (other(settings={}), "damaged: settings are"),
        (other(rows=[{"status": "ok"}]), "damaged: row 0 has no key"),
        (other(rows=[{"key": {}, "status": "fine"}]), "row 0 has the status 'fine'"),
        (other(rows=[{"key": {}, "status": "ok"}]), "row 0 is ok without its values"),
        (other(rows=[{"key": {}, "status": "oom", "reason": ""}] * 2), "row 1 repeats"),
        (
            other(rows=[{"key": {"what": "old", "n": 1}, "status": "oom", "reason": ""}]),
            "rows that this version does not measure: old, n = 1",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_left_alone(
    change: Any, message: str, tmp_path: Path, found: dict[str, Any]
) -> None:
    path = tmp_path / "toy.json"
    content = change(finished(path, found))
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    with pytest.raises(ResultsError) as caught:
        runner.prepare("toy_experiment", SETTINGS, path, found)
    for part in (str(path), message, "--fresh", "--out"):
        assert part in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({}, ""),
        ({10: "ok"}, ""),
        ({10: "oom"}, "out of memory at n = 10"),
        ({10: "timeout"}, "over 1 s at n = 10"),
        ({10: "unavailable"}, ""),
        ({10: "error"}, ""),
        ({10: "limit"}, ""),
        ({1000: "oom"}, ""),  # it is not smaller
        ({10: 0.9}, ""),  # one time says nothing about growth
        ({1: 0.09, 10: 0.09}, ""),
        ({1: 0.05, 10: 0.14}, "about 1.04 s expected"),
        ({1: 0.14, 10: 0.05}, ""),
    ],
)
def test_a_chain_ends_where_a_smaller_case_says_so(
    rows: dict[int, str | float], expected: str
) -> None:
    every = [Case({"n": n}, n, chain="a") for n in (1, 10, 100, 1000)]
    known = {
        records.identity({"n": n}): {
            "key": {"n": n},
            "status": "ok",
            "values": {"seconds": {"p50": s}},
        }
        if isinstance(s, float)
        else {"key": {"n": n}, "status": s}
        for n, s in rows.items()
    }
    assert runner.beyond_limit(every[2], every, known, seconds=1.0) == expected
    assert runner.beyond_limit(every[2]._replace(chain="b"), every, known, seconds=1.0) == ""
    assert runner.beyond_limit(every[2]._replace(chain=""), every, known, seconds=1.0) == ""


def test_half_of_memory_is_a_positive_number() -> None:
    assert 0 < options.half_of_memory(options.device("cpu")) < 1e6

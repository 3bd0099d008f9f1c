"""A comparison names what changed between two sets of results, and nothing else."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fast_lapsum.bench import compare, records
from fast_lapsum.bench.experiment import Settings
from fast_lapsum.bench.records import ResultsError

SETTINGS = Settings("cpu", True, 3, 10**8, seconds=1.0, gibibytes=0.5, seed=0)


def timing(p50: float, spread: float = 0.1) -> dict[str, float]:
    return {"p20": p50 * (1 - spread), "p50": p50, "p80": p50 * (1 + spread), "samples": 5}


def ok(method: str, **values: Any) -> dict[str, Any]:
    return {"key": {"method": method}, "status": "ok", "values": values}


def record(*rows: dict[str, Any], experiment: str = "operators", **settings: Any) -> dict[str, Any]:
    own = SETTINGS._replace(**settings)
    return {
        **records.new(experiment, own, {"torch": "2.13", "load_average": 1.0}),
        "complete": True,
        "rows": list(rows),
    }


def test_timings_are_marked_only_beyond_the_spread_of_both() -> None:
    old = record(*(ok(name, seconds=timing(0.010)) for name in ("slow", "same", "fast", "wide")))
    new = record(
        ok("slow", seconds=timing(0.015)),
        ok("same", seconds=timing(0.011)),
        ok("fast", seconds=timing(0.005)),
        ok("wide", seconds=timing(0.015, spread=0.5)),
    )
    found = {change.key["method"]: change for change in compare.changes(old, new)}
    assert {name: change.mark for name, change in found.items()} == {
        "slow": "slower",
        "same": "",
        "fast": "faster",
        "wide": "",
    }
    assert found["slow"].ratio == pytest.approx(1.5)
    assert (found["slow"].old, found["slow"].new) == ("10 ms", "15 ms")


def test_rows_and_statuses_and_other_numbers_that_changed_are_listed() -> None:
    old = record(
        ok("gone", seconds=timing(1)),
        ok("broken", seconds=timing(1)),
        ok("number", mass=1.0, peak_bytes=None),
        {"key": {"method": "oom"}, "status": "oom", "reason": "asked for 2 GiB"},
    )
    new = record(
        {"key": {"method": "broken"}, "status": "oom", "reason": "asked for 1 GiB"},
        ok("number", mass=2.5, peak_bytes=None),
        {"key": {"method": "oom"}, "status": "oom", "reason": "asked for 3 GiB"},
        ok("come", seconds=timing(0.5)),
    )
    found = [(c.key["method"], c.what, c.old, c.new, c.mark) for c in compare.changes(old, new)]
    assert found == [
        ("gone", "row", "1000 ms", "", "lost"),
        ("broken", "status", "1000 ms", "oom", "status"),
        ("number", "mass", "1", "2.5", ""),
        ("come", "row", "", "500 ms", "new"),
    ]
    assert compare.changes(old, old)[0].ratio == 1


def test_conditions_leave_out_what_passes() -> None:
    old = record()
    new = copy.deepcopy(record(max_n=5))
    new["environment"] = {"torch": "2.6", "load_average": 7.0, "gpus": ["H200"]}
    assert list(compare.conditions(old, new)) == [
        ("torch", "2.13", "2.6"),
        ("gpus", "null", '["H200"]'),
        ("max_n", "100000000", "5"),
    ]
    assert compare.conditions_table("title", old, old) is None


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_files_folders_and_commits_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = record(), record(experiment="budget", device="cuda:0")
    write(tmp_path / "results/cpu/operators.json", first)
    write(tmp_path / "results/cuda/budget.json", second)
    write(tmp_path / "results/cpu.json", {"benchmark": "cpu"})  # of another kind: passed over
    write(tmp_path / "elsewhere.json", record())
    (tmp_path / "results/.operators-1.unfinished.json").write_text('{"for')  # a killed run's
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "*/[!.]*")
    git(tmp_path, "commit", "--quiet", "-m", "results")
    monkeypatch.chdir(tmp_path)
    both = {("cpu", "operators"): first, ("cuda", "budget"): second}
    assert compare.load("results") == both
    assert compare.load("results/cpu/operators.json") == {("cpu", "operators"): first}
    (tmp_path / "results/cpu/operators.json").unlink()
    monkeypatch.chdir(tmp_path / "results")  # a commit is read whole from anywhere inside
    assert compare.load("HEAD") == both


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("--upload-pack=x", "'--upload-pack=x' is no results file, no folder, and no commit"),
        ("nowhere", "'nowhere' is no results file, no folder, and no commit"),
        ("empty", "empty has no results file: make some with fast-lapsum bench"),
        ("twice", "twice has two results files of operators on cpu"),
        ("damaged", "is damaged or no results file"),
        ("foreign.json", "foreign.json is no results file"),
    ],
)
def test_what_cannot_be_read_is_named(
    reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "twice/a.json", record())
    write(tmp_path / "twice/b.json", record())
    write(tmp_path / "foreign.json", [])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/a.json").write_text('{"format"')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match=message):
        compare.load(reference)

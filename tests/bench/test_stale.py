"""`fast-lapsum bench stale`: files of other code, kept files, and files from before hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fast_lapsum import cli
from fast_lapsum.apps.attack import comparison_file
from fast_lapsum.bench import records, sources, stale
from fast_lapsum.bench.experiments import EXPERIMENTS
from fast_lapsum.bench.report.load import load
from fast_lapsum.bench.sources import CURRENT, KINDS, STALE, UNKNOWN
from places import ROOT

DEVICES = ("cpu", "cuda")
RESULTS = ROOT / "results"
committed = pytest.mark.skipif(not RESULTS.is_dir(), reason="no results in this copy")


def write(path: Path, **parts: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": {"commit": "c0ffee" * 6 + "+changes"}, **parts}))


def invoke(*arguments: object) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    words = ["bench", "stale", *map(str, arguments)]
    return CliRunner(env=environment).invoke(cli.app, words)


def test_all_current_is_exit_code_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = sources.describe("operators", "cuda")
    write(tmp_path / "results/cuda/operators.json", sources=now)
    (tmp_path / "results/.operators-1.unfinished.json").write_text('{"for')
    (tmp_path / "results/foreign.json").write_text('{"version": 3, "sources": ["a.ts"]}')
    (tmp_path / "results/list.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "results/cuda/operators.json" in result.stdout
    assert "c0ffeec0ffee+changes" in result.stdout
    assert "1 results file: 1 current" in result.stdout
    for name in ("unfinished", "foreign", "list.json"):
        assert name not in result.stdout


def test_one_that_is_not_current_is_exit_code_1(tmp_path: Path) -> None:
    now = sources.describe("cpu", "cpu")
    write(tmp_path / "cpu.json", sources=now, created="2026-11-15T12:04:53+00:00")
    write(tmp_path / "gpu.json", sources={"kind": "gpu", "device": "cuda", "hash": "0" * 16})
    write(tmp_path / "old/gpu.json", benchmark="gpu")
    (tmp_path / "old/cut.json").write_text('{"benchmark"')
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "4 results files: 1 current, 1 stale, 1 damaged, 1 sources unknown" in result.stdout
    assert {(entry.path.name, entry.kind, entry.state) for entry in stale.find(tmp_path)} == {
        ("cpu.json", "cpu", CURRENT),
        ("gpu.json", "gpu", STALE),
        ("gpu.json", "gpu", UNKNOWN),
        ("cut.json", "", stale.DAMAGED),
    }
    assert "2026-11-15" in result.stdout


def test_files_are_kept_for_a_reason(tmp_path: Path) -> None:
    write(tmp_path / "cpu.json", sources=sources.describe("cpu", "cpu"))
    write(tmp_path / "hunt/before.json", sources={"kind": "hunt", "device": "cuda", "hash": "0"})
    write(tmp_path / "old.json", benchmark="gpu")
    (tmp_path / "cut.json").write_text('{"benchmark"')
    kept = dict.fromkeys(("hunt/before.json", "cpu.json", "cut.json"), "of rows [mended]")
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "before.json is kept: of rows [mended]" in result.stdout
    assert "4 results files: 1 current, 1 damaged, 1 kept, 1 sources unknown" in result.stdout
    assert result.stdout.count("is kept") == 1  # neither the current one nor the damaged one
    (tmp_path / "cut.json").unlink()
    (tmp_path / "kept.json").write_text(json.dumps(dict.fromkeys(list(kept)[:2], "old")))
    (tmp_path / "old.json").unlink()
    assert invoke(tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gone.json": "old"}', "names gone.json, which is no results file here"),
        ('{"cpu.json": ""}', "has to be an object of paths with a reason each"),
        ('["cpu.json"]', "has to be an object of paths with a reason each"),
        ('{"cpu', "cannot be read"),
    ],
)
def test_a_list_of_kept_files_that_is_wrong_is_an_error(
    text: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "cpu.json", benchmark="cpu")
    (tmp_path / "kept.json").write_text(text)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


def test_quick_results_are_looked_at_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "results-quick/cpu.json", sources=sources.describe("cpu", "cpu"))
    monkeypatch.chdir(tmp_path)
    assert "results-quick/cpu.json" in invoke().stdout
    write(tmp_path / "results/gpu.json", sources=sources.describe("gpu", "cuda"))
    assert "results-quick" not in invoke().stdout


def test_no_results_and_no_folder_are_no_success(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "has no results file" in result.stderr
    assert invoke(tmp_path / "nowhere").exit_code == 2


def test_help_says_what_the_states_and_the_exit_codes_are() -> None:
    text = " ".join(invoke("--help").stdout.split())
    for part in ("current", "stale", "unknown", "The exit code is 0 if all are current", "results"):
        assert part in text


@pytest.fixture
def old_results(tmp_path: Path) -> Path:
    """The committed results as they were before they knew their sources; later kinds always did."""
    for path in RESULTS.rglob("*.json"):
        if path.name == stale.KEPT_FILE:
            continue
        record = json.loads(path.read_text())
        kind = record.get("sources", {}).get("kind")
        later = ("cliffs", "compiled", "functions", "layers", "ragged", "ranking", "ranks")
        hunts = ("hunt", "hunt-ragged", "hunt-ranks")
        if kind in (*later, *hunts, "coder-drawn", "coder-hostile", "coder-threads"):
            continue
        if "study" in record:  # of examples/, which say their protocol instead
            continue
        record.pop("sources", None)
        target = tmp_path / path.relative_to(RESULTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record))
    return tmp_path


@committed
def test_old_files_are_listed_as_sources_unknown(old_results: Path) -> None:
    entries = stale.find(old_results)
    assert len(entries) == len(list(old_results.rglob("*.json"))) > 20
    assert {entry.state for entry in entries} == {UNKNOWN}
    assert (
        {"cpu", "gpu", "encode", "attack-bench"} < {entry.kind for entry in entries} <= set(KINDS)
    )
    assert invoke(old_results).exit_code == 1


@committed
def test_every_kept_file_is_there_and_of_earlier_code() -> None:
    kept = [entry for entry in stale.find(RESULTS) if entry.state == stale.KEPT]
    assert len(kept) == len(json.loads((RESULTS / stale.KEPT_FILE).read_text()))


@committed
def test_old_files_load_and_are_shown(old_results: Path) -> None:
    pytest.importorskip("matplotlib", reason="the page needs the extra [bench]")
    from fast_lapsum.bench.report import page

    for path in old_results.glob("c*/*.json"):
        if path.parent.name in DEVICES:
            record = records.read(path)
            assert EXPERIMENTS[record["experiment"]].tables(record)
    found = load([old_results])
    assert [device.kind for device in found] == ["cpu", "cuda"]
    text = page.render(found, EXPERIMENTS, {})
    assert text.count(f"<td>{UNKNOWN}</td>") == 2
    assert f"Its state: {UNKNOWN}." in text
    assert comparison_file.read(old_results / "attack/results.json")["rows"]

"""The report: what it draws, what it refuses, and that the page works in a real browser."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fast_lapsum.bench.experiments import EXPERIMENTS
from fast_lapsum.bench.records import ResultsError
from fast_lapsum.bench.report.function_table import function_table
from fast_lapsum.bench.report.load import SHAPES, load
from fast_lapsum.cli import app
from report_examples import (
    functions_record,
    method_rows,
    ok,
    record,
    timings_record,
    write,
    write_all,
)

pytest.importorskip("matplotlib", reason="the report needs the extra [bench]")

HOSTILE = '<script>document.title = "owned"</script><img src=x onerror="owned()"> $x_ [/b] --!>'
LARGE_N = [
    ok({"solver": solver, "n": n}, seconds * n, relative_error=1e-8)
    for solver, seconds in (("full sort", 3e-9), ("noised bracket", 2e-9), ("default", 1e-9))
    for n in (10**6, 10**7)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of all experiments on a GPU, one method with a name that wants to be code."""
    folder = tmp_path_factory.mktemp("report")
    write_all(folder / "results")
    rows = method_rows([10, 1000, 100_000], {}, 1.0, random.Random(2))
    for row in rows:
        row["key"]["method"] = row["key"]["method"].replace("LML", HOSTILE)
    write(folder / "results" / "cuda" / "dftopk.json", record("dftopk", rows))
    done = CliRunner().invoke(
        app, ["report", str(folder / "results"), "--out", str(folder / "out")]
    )
    assert done.exit_code == 0, done.output
    return folder / "out"


def test_every_experiment_has_its_figures_under_stable_names(made: Path) -> None:
    names = {path.name for path in (made / "figures").iterdir()}
    stems = {
        "large-n-cuda",
        "operators-forward-cuda",
        "operators-forward-backward-cuda",
        "budget-cuda",
        "robustness-cuda",
        "forward-cuda",
        "backward-cuda",
        "ablation-cuda",
        "dftopk-cuda",
    }
    assert names == {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "png")}
    assert sorted(path.name for path in made.iterdir()) == ["figures", "index.html"]


def test_the_names_of_kept_files_are_no_results(tmp_path: Path) -> None:
    write(tmp_path / "gpu.json", timings_record(copy={"bytes_per_second": 2e12}))
    (tmp_path / "kept.json").write_text('{"gpu.json": "of earlier kernels"}')
    assert len(load([tmp_path])) == 1


def test_the_report_knows_every_experiment() -> None:
    assert list(SHAPES) == list(EXPERIMENTS)


def test_the_page_has_every_experiment_with_its_method_and_rows(made: Path) -> None:
    page = (made / "index.html").read_text(encoding="utf-8")
    for name in SHAPES:
        assert f'id="cuda-{name}"' in page
        assert f'href="#cuda-{name}"' in page
    assert "RTX 5060 laptop" in page
    assert "out of memory" in page
    assert "4,260 GB/s" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_names_from_a_file_are_text(made: Path) -> None:
    page = (made / "index.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "&lt;script&gt;document.title" in page


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "results" / "cpu" / "large-n.json", record("large-n", LARGE_N, "cpu"))
    runs = []
    for name in ("first", "second"):
        out = tmp_path / name
        done = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--out", str(out)])
        assert done.exit_code == 0, done.output
        runs.append({str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")})
    assert sorted(runs[0]) == ["figures/large-n-cpu.png", "figures/large-n-cpu.svg", "index.html"]
    assert runs[0] == runs[1]


def test_figures_only_leaves_other_files_alone(tmp_path: Path) -> None:
    write(tmp_path / "results" / "cpu" / "large-n.json", record("large-n", LARGE_N, "cpu"))
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "mine.png").write_bytes(b"mine")
    arguments = [str(tmp_path / "results"), "--figures-only", "--out", str(tmp_path / "docs")]
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 0, done.output
    found = sorted(path.name for path in (tmp_path / "docs").rglob("*.*"))
    assert found == ["large-n-cpu.png", "large-n-cpu.svg", "mine.png"]


def test_results_of_two_machines_of_a_kind_stay_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name / "large-n.json", record("large-n", LARGE_N))
    write(tmp_path / "gpu.json", timings_record(copy={"bytes_per_second": 2e12}))
    devices = load([tmp_path / "one", tmp_path / "two", tmp_path / "gpu.json"])
    assert [device.slug for device in devices] == ["cuda", "cuda-2"]
    assert [device.bytes_per_second for device in devices] == [2e12, 2e12]


def test_the_copy_rate_of_other_hardware_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "cuda" / "large-n.json", record("large-n", LARGE_N))
    other = timings_record(copy={"bytes_per_second": 2e12})
    other["environment"] = {**other["environment"], "gpus": ["Another GPU"]}
    write(tmp_path / "gpu.json", other)
    rates = {device.name: device.bytes_per_second for device in load([tmp_path])}
    assert rates == {"Example H200": None, "Another GPU": 2e12}


def test_functions_are_a_table_of_their_device(tmp_path: Path) -> None:
    write(tmp_path / "cuda" / "large-n.json", record("large-n", LARGE_N))
    write(tmp_path / "cuda" / "functions.json", functions_record())
    (device,) = load([tmp_path])
    assert device.functions == functions_record()
    assert list(device.records) == ["large-n"]
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert 'id="cuda-functions"' in page
    assert 'href="#cuda-functions"' in page
    assert "1 of 3 limits hold, 1 does not, 1 was not measured" in page
    assert "State of the file: stale" in page
    assert "needs 90 GiB" in page


def test_a_line_for_every_function_and_limit() -> None:
    table = function_table(functions_record())
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("16 x 64, k = 6", "mask", "20 us", "", "", ""),
        ("16 x 64, k = 6", "log", "24 us", "1.20x", "1.3 x mask", "holds"),
        ("16 x 64, k = 6", "select", "70 us", "3.50x", "1 x torch.topk", "misses"),
        ("1e9, k = 9", "hard", "", "", "28 us", "needs 90 GiB"),
    ]


def test_functions_alone_are_a_report(tmp_path: Path) -> None:
    path = write(tmp_path / "functions.json", functions_record("cpu", quick=True))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["report", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Example CPU" in page
    assert "A quick run" in page


def test_two_files_of_functions_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("functions", "functions-old"):
        write(tmp_path / "cuda" / f"{name}.json", functions_record())
    with pytest.raises(ResultsError, match="second file of functions"):
        load([tmp_path])


def _damaged(**changes: Any) -> dict[str, Any]:
    return {**record("large-n", json.loads(json.dumps(LARGE_N))), **changes}


def _with_row(**changes: Any) -> dict[str, Any]:
    return _damaged(rows=[{**json.loads(json.dumps(LARGE_N[0])), **changes}])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "no results file"),
        ('{"format": "something else"}', "no results file"),
        (json.dumps(_damaged(version=2)), "version 2"),
        (json.dumps(_damaged(experiment="weather")), "'weather'"),
        (json.dumps(_damaged(rows=None)), "rows"),
        (json.dumps(_with_row(status="fine")), "'fine'"),
        (json.dumps(_with_row(key={"solver": "default", "n": -1})), "key.n is -1"),
        (json.dumps(_with_row(key={"solver": None, "n": 1})), "key.solver is None"),
        (json.dumps(_with_row(values={"seconds": 3, "relative_error": 0})), "values.seconds is 3"),
        (json.dumps({"benchmark": "gpu", "environment": {}, "cases": [{}]}), "cases[0]"),
        (json.dumps(functions_record(sources=None)), "which device"),
        (json.dumps(functions_record(compared="p30")), "'p30'"),
        (json.dumps(functions_record(cases=[{"case": "a", "lines": [{"met": 2}]}])), "bad one"),
        (json.dumps(functions_record(cases=[{"case": "a"}])), "no limits"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_and_nothing_is_written(
    tmp_path: Path, content: str, complaint: str
) -> None:
    write(tmp_path / "cuda" / "large-n.json", record("large-n", LARGE_N))
    bad = tmp_path / "cuda" / "bad.json"
    bad.write_text(content)
    arguments = ["report", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert str(bad) in done.output.replace("\n", "")
    assert complaint in done.output
    assert not (tmp_path / "out").exists()
    assert bad.read_text() == content


def test_a_folder_without_results_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="fast-lapsum bench all"):
        load([tmp_path])
    with pytest.raises(ResultsError, match=r"nowhere does not exist.*bench all"):
        load([tmp_path / "nowhere"])


def test_the_report_finds_quick_results_and_prefers_full_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ``bench all --quick`` and nothing else, ``report`` draws what that wrote."""

    def told() -> str:
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", "--out", "out"])
        assert done.exit_code == 0, done.output
        assert Path("out", "figures", "large-n-cuda.svg").exists()
        return done.stdout

    monkeypatch.chdir(tmp_path)
    write(Path("results-quick/cuda/large-n.json"), record("large-n", LARGE_N))
    assert "Made from results-quick." in told()
    Path("results").mkdir()
    assert "Made from results-quick." in told()
    write(Path("results/cuda/large-n.json"), record("large-n", LARGE_N))
    full = told()
    assert "Made from results. " in full
    assert "fast-lapsum report results-quick" in full


def test_without_any_results_the_report_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report"])
    assert done.exit_code == 1
    assert "fast-lapsum bench all --quick" in done.output


@pytest.mark.parametrize(
    "benchmark", ["cliffs", "compiled", "layers", "ragged", "ranking", "ranks"]
)
def test_results_with_nothing_to_draw_are_passed_over(tmp_path: Path, benchmark: str) -> None:
    write(tmp_path / "cuda" / "large-n.json", record("large-n", LARGE_N))
    (tmp_path / "cuda" / f"{benchmark}.json").write_text(json.dumps({"benchmark": benchmark}))
    (device,) = load([tmp_path])
    assert list(device.records) == ["large-n"]


def test_a_record_without_a_finished_row_has_a_section_and_no_figure(tmp_path: Path) -> None:
    rows = [{"key": {"solver": "default", "n": 10}, "status": "oom", "reason": "too large"}]
    incomplete = {**record("large-n", rows), "complete": False}
    write(tmp_path / "cuda" / "large-n.json", incomplete)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Not complete" in page
    assert "too large" in page
    assert "<figure" not in page


@pytest.fixture(scope="module")
def browser(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("fcntl", reason="the browser is driven over POSIX pipes")
    from browser import Browser, find

    program = find()
    if program is None:
        pytest.skip("no Chromium or Chrome on PATH (Debian: apt-get install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        opened.resize(1300, 900)
        opened.open((made / "index.html").as_uri())
        yield opened


def test_nothing_is_loaded_and_nothing_complains(browser: Any, made: Path) -> None:
    sent = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [address for address in sent if not address.startswith("data:")] == [
        (made / "index.html").as_uri()
    ]
    complaints = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in browser.events if event["method"] in complaints] == []
    assert browser.evaluate("document.title") == "fast-lapsum: exact soft top-k, measured"


def test_every_figure_is_seen(browser: Any) -> None:
    sizes = browser.evaluate(
        "[...document.querySelectorAll('figure svg')].map(drawing => {"
        "const box = drawing.getBoundingClientRect(); return [box.width, box.height]})"
    )
    assert len(sizes) == 9
    assert all(width > 500 and height > 200 for width, height in sizes)


def test_a_click_sorts_by_value_and_words_come_last(browser: Any) -> None:
    table = "document.querySelector('#cuda-operators').parentElement.querySelector('details')"
    browser.evaluate(f"{table}.open = true")
    header = f"[...{table}.querySelectorAll('th')].find(cell => cell.textContent == 'seconds p50')"
    column = (
        f"[...{table}.querySelectorAll('tbody tr')]"
        f".map(row => row.cells[({header}).cellIndex].dataset.value ?? null)"
    )
    original = browser.evaluate(column)
    for order, backwards in (("ascending", False), ("descending", True)):
        browser.click(f"({header}).querySelector('button')")
        assert browser.evaluate(f"({header}).getAttribute('aria-sort')") == order
        found = browser.evaluate(column)
        numbers = [float(value) for value in found if value is not None]
        assert numbers == sorted(numbers, reverse=backwards)
        assert found[: len(numbers)].count(None) == 0
        assert sorted(found, key=str) == sorted(original, key=str)
    browser.click(f"({header}).querySelector('button')")
    assert browser.evaluate(column) == original


def test_the_keyboard_sorts_and_the_paper_stays_below_ours(browser: Any) -> None:
    table = "document.querySelector('#cuda-large-n').parentElement.querySelector('table')"
    browser.evaluate(f"{table}.querySelectorAll('th button')[1].focus()")
    browser.press_enter()
    assert browser.evaluate(f"{table}.querySelectorAll('th')[1].ariaSort") == "ascending"
    names = browser.evaluate(
        f"[...{table}.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent)"
    )
    assert names[0] == "default"
    for solver in ("full sort", "noised bracket"):
        assert names[names.index(solver) + 1].startswith("paper")


@pytest.mark.parametrize("width", [360, 800, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways(browser: Any, width: int, scheme: str) -> None:
    browser.resize(width, 800, mobile=width < 500)
    browser.prefer(scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, re.findall(r"\d+", background)[:3]))
    assert lightness < 150 if scheme == "dark" else lightness > 700

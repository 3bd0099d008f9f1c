"""attack-bench: tables by hand, rows that survive a kill, limits, and the curve."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attack_models import confident_pictures, trained_classifier
from fast_lapsum.apps.attack import bench_run, compare, pictures, tables, tables_text
from fast_lapsum.apps.attack.baselines import sigma_zero
from fast_lapsum.apps.attack.compare import Plan
from fast_lapsum.apps.attack.comparison_file import CompareError, read
from fast_lapsum.apps.attack.memory import is_memory, limited_memory
from fast_lapsum.apps.attack.protocol import Classifier

CPU = torch.device("cpu")
PLAN = Plan("small", ("sigma-zero", "pgd-l0"), (None,), (8, 16), 60.0, 4.0, 0, 0.8, False)


def row(picture: str, method: str, spent: float | None, status: str = "ok", **more: Any) -> Any:
    key = {"picture": picture, "setting": "native", "calls": 100, "method": method}
    if status != "ok":
        return {"key": key, "status": status, "reason": "why"}
    values = {"success": spent is not None, "B": spent or 0.0, "L0": 5, "calls": 100, "seconds": 1}
    return {"key": key, "status": "ok", "values": {**values, "timed_out": False, **more}}


ROWS = [
    row("a", "ours", 10.0, L_star=7),
    row("b", "ours", 20.0, L_star=9),
    row("c", "ours", 200.0, L_star=None),
    row("a", "sigma-zero", 20.0),
    row("b", "sigma-zero", 10.0),
    row("c", "sigma-zero", None),
    row("a", "dense", 40.0),
    row("b", "dense", 400.0),
    row("c", "dense", 500.0),
    row("a", "sparse-fool", None, timed_out=True),
    row("b", "sparse-fool", None, status="oom"),
    row("c", "sparse-fool", None, timed_out=True),
]


def by_method(table: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {line["method"]: line for line in table}


def test_main_table_by_hand() -> None:
    found = by_method(tables.main_table(ROWS, "native", 100))
    assert list(found) == ["ours", "sigma-zero", "dense", "sparse-fool"]
    assert found["ours"]["fooled_percent"] == 100
    assert found["ours"]["median_B"] == 20
    assert found["ours"]["median_L_star"] == 8
    assert found["sigma-zero"]["fooled_percent"] == pytest.approx(200 / 3)
    assert found["sigma-zero"]["median_B"] == 15
    assert found["sparse-fool"]["fooled_percent"] == 0
    assert found["sparse-fool"]["median_B"] is None
    assert found["sparse-fool"]["ended_otherwise"] == {"timeout": 2, "oom": 1}
    assert found["sigma-zero"]["paper_median_B"] == 3101.0
    assert found["dense"]["paper_median_B"] is None


def test_paired_table_by_hand() -> None:
    found = by_method(tables.paired_table(ROWS, "native", 100))
    assert "ours" not in found
    sigma = found["sigma-zero"]
    assert sigma["both_fool"] == 2
    assert sigma["median_ratio"] == pytest.approx((2 + 0.5) / 2)
    assert sigma["geometric_mean_ratio"] == pytest.approx(1)
    assert sigma["ours_wins_percent"] == 50
    assert sigma["paper_median_ratio"] == 15
    dense = found["dense"]
    assert dense["geometric_mean_ratio"] == pytest.approx((4 * 20 * 2.5) ** (1 / 3))
    assert found["sparse-fool"]["both_fool"] == 0
    assert found["sparse-fool"]["median_ratio"] is None


def test_budget_table_and_curve_by_hand() -> None:
    found = by_method(tables.budget_table(ROWS, "native", 100))
    assert found["ours"]["within_percent"]["100"] == pytest.approx(200 / 3)
    assert found["ours"]["within_percent"]["300"] == 100
    assert found["sigma-zero"]["within_percent"]["100000"] == pytest.approx(200 / 3)
    assert found["ours"]["paper_within_percent"]["1000"] == 99
    curve = tables.curve(ROWS, "native", 100)
    assert curve["ours"] == [(10.0, 1 / 3), (20.0, 2 / 3), (200.0, 1.0)]
    assert curve["sparse-fool"] == []


def test_verdict_counts_pictures_that_a_rival_fools() -> None:
    found = tables.verdict(ROWS, "native", 100)
    assert found["ours_fools_all"]
    assert found["best_rival_median_B"] == 15
    assert not found["ours_lowest_median"]
    assert found["contested"] == 2
    assert found["won_percent"] == 50
    assert found["dense_over_ours"] == 4


def test_every_method_is_shown_at_its_best_settings() -> None:
    better = [row(name, "sigma-zero:step=0.5", 5.0) for name in "abc"]
    table = by_method(tables.main_table([*ROWS, *better], "native", 100))
    assert table["sigma-zero"]["settings"] == "step=0.5"
    assert table["sigma-zero"]["fooled_percent"] == 100
    assert table["sigma-zero"]["median_B"] == 5


def test_markdown_marks_the_papers_numbers() -> None:
    text = tables_text.markdown(tables.all_tables(ROWS))
    assert "## native, at most 100 classifier calls" in text
    assert "median B (paper)" in text
    assert "3,101" in text
    assert "| sigma-zero (paper) | 0 | 1 | 9 | 48 | 84 | 92 | 98 |" in text
    assert "Lowest median B: no (20 against 15)" in text


def folder_of_pictures(path: Path, count: int = 2, manifest: bool = True) -> Path:
    path.mkdir()
    images, labels = confident_pictures(count)
    for index, image in enumerate(images):
        pictures.write(path / f"{index}.png", image)
    if manifest:
        with (path / "manifest.csv").open("w", newline="") as lines:
            writer = csv.writer(lines)
            writer.writerow(["file", "label", "class_index"])
            for index, label in enumerate(labels.tolist()):
                writer.writerow([f"{index}.png", "shape", label])
            writer.writerow(["unlabelled.png", "", ""])
    return path


def load(resize: int | None) -> Classifier:
    return trained_classifier()


def quiet(text: str) -> None:
    pass


def test_rows_for_every_case_and_files_for_people(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in")
    told: list[str] = []
    out = tmp_path / "out"
    record = compare.run(folder, PLAN, load, out / "results.json", CPU, told.append)
    assert len(record["rows"]) == 2 * 2 * 2
    assert record["complete"]
    assert all(one["used"] for one in record["pictures"])
    assert all(line["values"]["calls"] <= line["key"]["calls"] for line in record["rows"])
    assert all(line["values"]["gradients"] > 0 for line in record["rows"])
    assert any("B = " in line for line in told)
    fooled = [line["values"] for line in record["rows"] if line["values"]["success"]]
    assert fooled
    assert all(0 < values["L_star"] <= values["L0"] for values in fooled)
    written = bench_run.write(record, out)
    assert {path.name for path in written} == {
        "results.json",
        "tables.md",
        *(f"budget-success-native-{calls}.{kind}" for calls in (8, 16) for kind in ("svg", "png")),
    }
    saved = read(out / "results.json")
    assert len(saved["rows"]) == 8
    assert [group["calls"] for group in saved["tables"]] == [8, 16]
    assert saved["paper"]["methods"]["ours"]["median"] == 199.8


def test_finished_rows_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_pictures(tmp_path / "in")
    path = tmp_path / "results.json"
    stopped = 0

    def stop_after_three(text: str) -> None:
        nonlocal stopped
        stopped += 1
        if stopped == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare.run(folder, PLAN, load, path, CPU, stop_after_three)
    before = read(path)
    assert len(before["rows"]) == 3
    assert not before["complete"]
    told: list[str] = []
    record = compare.run(folder, PLAN, load, path, CPU, told.append)
    assert len(told) == 5
    assert record["rows"][:3] == before["rows"]
    assert len(record["rows"]) == 8
    more = PLAN._replace(calls=(8, 16, 20))
    assert len(compare.run(folder, more, load, path, CPU, quiet)["rows"]) == 12


def test_rows_of_another_plan_are_not_mixed(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    path = tmp_path / "results.json"
    small = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    compare.run(folder, small, load, path, CPU, quiet)
    with pytest.raises(CompareError, match="seed was 0, is 1"):
        compare.run(folder, small._replace(seed=1), load, path, CPU, quiet)
    record = compare.run(folder, small._replace(seed=1), load, path, CPU, quiet, fresh=True)
    assert record["settings"]["seed"] == 1
    path.write_text("{")
    with pytest.raises(CompareError, match="damaged or no results file"):
        compare.run(folder, small, load, path, CPU, quiet)


def test_pictures_without_a_confident_label_are_left_out(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 2)
    rows = list(csv.reader((folder / "manifest.csv").read_text().splitlines()))
    rows[1][2] = str((int(rows[1][2]) + 1) % 4)  # a wrong label
    rows.append(["missing.png", "", "1"])
    with (folder / "manifest.csv").open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)
    plan = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    why = {one["picture"]: one.get("why", "") for one in record["pictures"]}
    assert "the model says" in why["0.png"]
    assert why["1.png"] == ""
    assert "no such file" in why["missing.png"]
    assert [line["key"]["picture"] for line in record["rows"]] == ["1.png"]


def test_the_models_own_answer_without_a_manifest(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1, manifest=False)
    (folder / "notes.txt").write_text("no picture")
    assert compare.entries(folder) == [compare.Entry(folder / "0.png", None)]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CompareError, match="has no pictures"):
        compare.entries(empty)
    (empty / "manifest.csv").write_text("file,label\n")
    with pytest.raises(CompareError, match="has no column class_index"):
        compare.entries(empty)


def test_each_picture_once(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    plan = PLAN._replace(settings=(None, 32), calls=(4,), methods=("sigma-zero",), each_once=True)
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    assert [line["key"]["setting"] for line in record["rows"]] == ["native"]


def test_a_row_that_fails_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)

    def broken(search: object, settings: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 7 GiB")

    monkeypatch.setattr(sigma_zero, "_descend", broken)
    plan = PLAN._replace(calls=(4,))
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    assert [line["status"] for line in record["rows"]] == ["oom", "ok"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_memory_is_limited_and_then_free_again() -> None:
    with pytest.raises(RuntimeError) as caught, limited_memory(CPU, 0.25):
        torch.empty(1 << 30, dtype=torch.uint8).fill_(1)
    assert is_memory(caught.value)
    assert torch.ones(1 << 20).sum() == 1 << 20


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from attack_models import SmallNet
from fast_lapsum.apps.attack import compare
from fast_lapsum.apps.attack.protocol import Classifier
plan = compare.Plan("small", ("sigma-zero",), (None,), (4, 5, 6, 7, 8, 9, 400000), 600.0, 4.0, 0,
                    0.0, False)
compare.run(Path(sys.argv[2]), plan, lambda resize: Classifier(SmallNet()), Path(sys.argv[3]),
            torch.device("cpu"), lambda text: print(text, flush=True))
"""


def test_a_killed_run_leaves_whole_rows(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1, manifest=False)
    path = tmp_path / "results.json"
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, here, str(folder), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        for _ in range(6):
            assert "calls" in process.stdout.readline()
        time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    saved = json.loads(path.read_text())
    assert [line["key"]["calls"] for line in saved["rows"]] == [4, 5, 6, 7, 8, 9]
    assert all(math.isfinite(line["values"]["B"]) for line in saved["rows"])

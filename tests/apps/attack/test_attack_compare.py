"""attack-bench: rows of every case, which are kept, and which are never mixed."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attack_models import confident_pictures
from comparing import CPU, PLAN, folder_of_pictures, load, quiet
from fast_lapsum.apps.attack import (
    bench_run,
    compare,
    pictures,
)
from fast_lapsum.apps.attack.baselines import sigma_zero
from fast_lapsum.apps.attack.comparison_file import CompareError, read
from fast_lapsum.apps.attack.memory import limited_memory
from fast_lapsum.apps.attack.protocol import Classifier
from fast_lapsum.apps.attack.rows import Entry
from fast_lapsum.apps.out_of_memory import is_memory
from fast_lapsum.bench import sources


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


def test_rows_of_other_sources_are_not_mixed(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    path = tmp_path / "results.json"
    small = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    compare.run(folder, small, load, path, CPU, quiet)
    written = read(path)
    assert written["sources"] == sources.describe("attack-bench", "cpu")
    other = {**written, "sources": {**written["sources"], "hash": "another"}}
    path.write_text(json.dumps(other))
    with pytest.raises(CompareError, match=r"sources .* were another, are .*give another --out"):
        compare.run(folder, small, load, path, CPU, quiet)
    assert read(path) == other
    del other["sources"]
    path.write_text(json.dumps(other))
    with pytest.raises(CompareError, match=r"does not say by which sources.*give another --out"):
        compare.run(folder, small, load, path, CPU, quiet)


def test_another_commit_of_the_same_sources_goes_on(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    path = tmp_path / "results.json"
    small = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    rows = compare.run(folder, small, load, path, CPU, quiet)["rows"]
    written = read(path)
    written["environment"]["commit"] = "another"
    path.write_text(json.dumps(written))
    assert compare.run(folder, small, load, path, CPU, quiet)["rows"] == rows


def test_a_picture_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    path = tmp_path / "results.json"
    small = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    before = compare.run(folder, small, load, path, CPU, quiet)
    first = (folder / "0.png").read_bytes()
    assert before["pictures"][0]["sha256"] == hashlib.sha256(first).hexdigest()
    (folder / "0.png").unlink()
    gone = compare.run(folder, small, load, path, CPU, quiet)
    assert gone["pictures"][0]["bad"]
    pictures.write(folder / "0.png", confident_pictures(2)[0][1])
    with pytest.raises(CompareError, match=r"0\.png is not the picture that the rows of .*--fresh"):
        compare.run(folder, small, load, path, CPU, quiet)
    assert len(read(path)["rows"]) == 1
    (folder / "0.png").write_bytes(first)
    assert compare.run(folder, small, load, path, CPU, quiet)["rows"] == before["rows"]


def test_a_picture_without_rows_may_be_replaced(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1)
    path = tmp_path / "results.json"
    small = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    good = (folder / "0.png").read_bytes()
    (folder / "0.png").write_text("no picture")
    assert compare.run(folder, small, load, path, CPU, quiet)["pictures"][0]["bad"]
    (folder / "0.png").write_bytes(good)
    assert len(compare.run(folder, small, load, path, CPU, quiet)["rows"]) == 1


def test_pictures_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text("file,class_index\na/0.png,1\nb/0.png,1\n")
    with pytest.raises(CompareError, match=r"has 2 pictures of the name 0\.png, expected one"):
        compare.entries(tmp_path)


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


def test_pictures_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 2, manifest=False)
    (folder / "bad.png").write_text("no picture")
    plan = PLAN._replace(calls=(4,), methods=("sigma-zero",))
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    assert [one["picture"] for one in record["pictures"] if one.get("bad")] == ["bad.png"]
    (folder / "bad.png").unlink()
    (folder / "1.png").unlink()
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    assert [one["picture"] for one in record["pictures"]] == ["1.png", "0.png"]  # both have rows


def test_other_weights_under_the_same_name_are_refused(tmp_path: Path) -> None:
    folder, model = folder_of_pictures(tmp_path / "in", 1), tmp_path / "net"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"one")
    plan = PLAN._replace(model=str(model), calls=(4,), methods=("sigma-zero",))
    record = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    assert record["settings"]["model"] == "net"
    compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)
    (model / "weights.bin").write_bytes(b"two")
    with pytest.raises(CompareError, match=r"weights was '.*', is '.*'"):
        compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)


def test_the_models_own_answer_without_a_manifest(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1, manifest=False)
    (folder / "notes.txt").write_text("no picture")
    assert compare.entries(folder) == [Entry(folder / "0.png", None)]
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
    kept = record["rows"][1]
    monkeypatch.undo()
    again = compare.run(folder, plan, load, tmp_path / "results.json", CPU, quiet)["rows"]
    assert again[0] == kept
    assert [(line["key"]["method"], line["status"]) for line in again] == [
        ("pgd-l0", "ok"),
        ("sigma-zero", "ok"),
    ]


def test_rows_that_timed_out_are_made_again_with_other_jobs() -> None:
    def made(jobs: int, timed_out: bool) -> dict[str, Any]:
        return {"status": "ok", "jobs": jobs, "values": {"timed_out": timed_out}}

    assert compare._is_kept(made(1, False), 1)
    assert compare._is_kept(made(1, False), 8)
    assert compare._is_kept(made(8, True), 8)
    assert not compare._is_kept(made(8, True), 1)


def test_a_picture_that_needs_too_much_memory_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(self: Classifier, images: Tensor) -> Tensor:
        raise RuntimeError("CUDA out of memory. Tried to allocate 7 GiB")

    monkeypatch.setattr(Classifier, "predict", too_large)
    folder = folder_of_pictures(tmp_path / "in", 1)
    record = compare.run(folder, PLAN, load, tmp_path / "results.json", CPU, quiet)
    (note,) = record["pictures"]
    assert note["bad"]
    assert "0.png: more than 4 GiB for one call" in note["why"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_memory_is_limited_and_then_free_again() -> None:
    with pytest.raises(RuntimeError) as caught, limited_memory(CPU, 0.25):
        torch.empty(1 << 30, dtype=torch.uint8).fill_(1)
    assert is_memory(caught.value)
    assert torch.ones(1 << 20).sum() == 1 << 20

"""attack-bench: rows that survive a kill, and several processes that make them."""

from __future__ import annotations

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
from torch import Tensor

from attack_models import SmallNet
from comparing import CPU, PLAN, folder_of_pictures, load, quiet
from fast_lapsum.apps.attack import (
    compare,
    pictures,
)
from fast_lapsum.apps.attack.classifiers import ModelError
from fast_lapsum.apps.attack.comparison_file import read
from fast_lapsum.apps.attack.protocol import Classifier
from fast_lapsum.apps.attack.workers import Pool

_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from attack_models import SmallNet
from fast_lapsum.apps.attack import compare
from fast_lapsum.apps.attack.rows import Plan
from fast_lapsum.apps.attack.protocol import Classifier
from fast_lapsum.apps.attack.rows import Entry, Plan
plan = Plan("small", ("sigma-zero",), (None,), (4, 5, 6, 7, 8, 9, 400000), 600.0, 4.0, 0,
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


class DeadlyNet(SmallNet):
    """Ends its process when a picture of 40 pixels is attacked, or one of 48 is classified."""

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] == 48 or (images.shape[-1] == 40 and images.requires_grad):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def untrained(resize: int | None) -> Classifier:
    torch.manual_seed(0)
    return Classifier(DeadlyNet())


UNTRAINED = PLAN._replace(least_confidence=0.0)


def without_seconds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What two runs have in common, by key."""
    found = {}
    for line in rows:
        values = {name: value for name, value in line["values"].items() if name != "seconds"}
        found[json.dumps(line["key"])] = (line["status"], values)
    return found


def test_two_jobs_go_on_where_one_was_stopped(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", manifest=False)
    (folder / "bad.png").write_text("no picture")
    alone = compare.run(folder, UNTRAINED, untrained, tmp_path / "alone.json", CPU, quiet)
    assert any(line["values"]["success"] for line in alone["rows"])
    path = tmp_path / "results.json"
    told: list[str] = []

    def stop_early(text: str) -> None:
        told.append(text)
        if "[3/8]" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare.run(folder, UNTRAINED, untrained, path, CPU, stop_early)
    before = read(path)["rows"]
    assert len(before) == 3
    told.clear()
    record = compare.run(folder, UNTRAINED, untrained, path, CPU, told.append, jobs=2)
    assert record == read(path)
    assert record["complete"]
    assert record["rows"][:3] == before
    assert without_seconds(record["rows"]) == without_seconds(alone["rows"])
    assert [line["jobs"] for line in record["rows"]] == [1] * 3 + [2] * 5
    assert record["settings"]["jobs"] == 2
    assert "bad.png, native: left out" in told[0]
    assert [text.split()[0] for text in told[1:]] == [f"[{count}/8]" for count in range(4, 9)]

    def by_name(note: dict[str, Any]) -> str:
        return str(note["picture"])

    assert sorted(record["pictures"], key=by_name) == sorted(alone["pictures"], key=by_name)


def test_a_killed_worker_costs_one_row(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 2, manifest=False)
    pictures.write(folder / "deadly.png", torch.rand(3, 40, 40))
    plan = UNTRAINED._replace(settings=(None, 32), calls=(4,), methods=("sigma-zero",))
    plan = plan._replace(each_once=True)
    record = compare.run(folder, plan, untrained, tmp_path / "results.json", CPU, quiet, jobs=2)
    assert record["complete"]
    assert {line["key"]["setting"] for line in record["rows"]} == {"native"}
    found = {line["key"]["picture"]: line for line in record["rows"]}
    assert len(found) == len(record["rows"]) == 3
    assert found["0.png"]["status"] == found["1.png"]["status"] == "ok"
    assert found["deadly.png"]["status"] == "error"
    assert "the worker process was killed by SIGKILL" in found["deadly.png"]["reason"]


def test_a_worker_that_dies_over_a_picture_leaves_it_bad(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1, manifest=False)
    pictures.write(folder / "deadly.png", torch.rand(3, 48, 48))
    plan = UNTRAINED._replace(calls=(4,), methods=("sigma-zero",))
    record = compare.run(folder, plan, untrained, tmp_path / "results.json", CPU, quiet, jobs=2)
    notes = {note["picture"]: note for note in record["pictures"]}
    assert notes["deadly.png"]["bad"]
    assert "deadly.png: the worker process was killed by SIGKILL" in notes["deadly.png"]["why"]
    assert [line["key"]["picture"] for line in record["rows"]] == ["0.png"]


class Echo:
    """Says which worker it is."""

    spoiled = False

    def __call__(self, task: str) -> tuple[int, int]:
        if task == "raise":
            raise ModelError("no such model")
        self.spoiled = task == "spoil"
        return os.getpid(), torch.get_num_threads()


def test_workers_are_replaced_and_errors_passed_on() -> None:
    with Pool(Echo, 1, 3) as pool:
        found = list(pool.run(["a", "spoil", "b"]))
        assert [task for task, _ in found] == ["a", "spoil", "b"]
        answers = dict(found)
        assert answers["a"] == answers["spoil"]
        assert answers["a"][0] != answers["b"][0]
        assert answers["b"][1] == 3
        with pytest.raises(ModelError, match="no such model"):
            list(pool.run(["raise"]))


def test_large_rows_come_first_and_jobs_are_no_other_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        """The pool without its processes."""

        def __init__(self, setup: Any, count: int, threads: int) -> None:
            self.make = setup()
            self.count = (count, threads)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

        def run(self, tasks: Any, idle: Any) -> Any:
            return ((task, self.make(task)) for task in tasks)

    monkeypatch.setattr(compare, "Pool", Here)
    folder = folder_of_pictures(tmp_path / "in")
    path = tmp_path / "results.json"
    record = compare.run(folder, PLAN, load, path, CPU, quiet, jobs=3)
    assert [line["key"]["calls"] for line in record["rows"]] == [16] * 4 + [8] * 4
    assert read(path) == record
    assert compare.run(folder, PLAN, load, path, CPU, quiet, jobs=2)["rows"] == record["rows"]


_INTERRUPTED = """
import sys
from pathlib import Path
import torch
import test_attack_processes
from fast_lapsum.apps.attack import commands, compare
plan = test_attack_processes.UNTRAINED._replace(methods=("sigma-zero",), calls=(4, 4000000))
if __name__ == "__main__":
    with commands._clean_end():
        compare.run(Path(sys.argv[1]), plan, test_attack_processes.untrained, Path(sys.argv[2]),
                    torch.device("cpu"), lambda text: print(text, flush=True), jobs=2)
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are Unix's")
def test_a_signal_ends_the_workers_too(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "in", 1, manifest=False)
    (folder / "bad.png").write_text("no picture")  # so that both workers start at once
    path = tmp_path / "results.json"
    script = tmp_path / "script.py"
    script.write_text(_INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "bad.png, native: left out" in process.stdout.readline()
        assert "[1/2] 0.png, native, 4 calls" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=30)  # to the end of the last that can write there
        assert "Stopped. What was finished is kept." in said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    record = read(path)
    assert [line["key"]["calls"] for line in record["rows"]] == [4]
    assert not record["complete"]

"""Tests in several processes at a time: all of them run, and one that fails is heard of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

SCRIPT = ROOT / "tests" / "gpu" / "side_by_side.py"


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "2", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def write(folder: Path, name: str, *numbers: int) -> None:
    tests = [f"def test_{number}():\n    assert {number} < 9\n" for number in numbers]
    (folder / name).write_text("\n\n".join(tests))


def test_all_of_them_run(tmp_path: Path) -> None:
    write(tmp_path, "test_many.py", *range(8))
    write(tmp_path, "test_few.py", 1)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.count(" passed in ") for line in done.stdout.splitlines()] == [1, 1, 1, 0]
    assert "6 passed" in done.stdout
    assert "2 passed" in done.stdout


def test_one_that_fails_is_heard_of(tmp_path: Path) -> None:
    write(tmp_path, "test_good.py", 1)
    write(tmp_path, "test_bad.py", 9)
    done = run(tmp_path)
    assert done.returncode == 1
    assert "assert 9 < 9" in done.stdout
    assert "1 of the processes failed" in done.stdout


def test_files_that_do_not_load_are_no_success(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "nothing_of_that_name" in done.stderr


@pytest.mark.parametrize("few", [1, 3])
def test_no_test_is_lost(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import side_by_side

    names = [f"{file}.py::{number}" for file in "abc" for number in range(4)]
    found = side_by_side.portions(names, few)
    assert [name for one in found for name in one] == names
    assert max(map(len, found)) <= few


def test_options_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "2", "-k", "teams"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 1
    assert "expected files or folders, got -k" in done.stderr

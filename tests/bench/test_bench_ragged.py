"""``fast-lapsum bench ragged``: what it writes, and that a wrong result is not timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fast_lapsum.bench import ragged
from fast_lapsum.cli import app


def test_the_command_writes_every_case(tmp_path: Path) -> None:
    path = tmp_path / "ragged.json"
    arguments = ["bench", "ragged", "--device", "cpu", "--quick", "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(path)])
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["sources"]["kind"] == "ragged"
    assert [len(entry["lines"]) for entry in record["cases"]] == [5, 2]
    assert all(line["met"] is not None for entry in record["cases"] for line in entry["lines"])
    assert "Ragged rows and lists:" in result.output


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ragged.soft_topk_list
    monkeypatch.setattr(ragged, "soft_topk_list", lambda *a: [x + 1e-3 for x in right(*a)])
    record = ragged.run(device=torch.device("cpu"), repeats=1, quick=True)
    assert "off by" in record["cases"][1]["failed"]
    assert "timings" not in record["cases"][1]

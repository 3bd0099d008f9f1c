"""``fast-lapsum bench ranks``: what it writes, and that a wrong mask is not timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fast_lapsum.bench import rank_local, rank_process, ranks
from fast_lapsum.bench.parity import ParityError
from fast_lapsum.cli import app
from ranks import NEEDS_GLOO


@NEEDS_GLOO
def test_the_command_writes_every_case(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    result = CliRunner().invoke(
        app, ["bench", "ranks", "--quick", "--repeats", "2", "--out", str(path)]
    )
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["sources"]["kind"] == "ranks"
    assert [len(entry["lines"]) for entry in record["cases"]] == [2]
    assert all(line["met"] is not None for entry in record["cases"] for line in entry["lines"])
    samples = {name: x["samples"] for name, x in record["cases"][0]["timings"].items()}
    assert samples[ranks.SPREAD] == samples[ranks.ALONE + ranks.BOTH] == 2
    assert samples[ranks.RANK_CPU] == 4
    assert "Ranks:" in result.output


def test_a_mask_that_is_off_is_an_error() -> None:
    whole = torch.rand(2, 12)
    rank_process.check(whole[:, :4], whole)
    with pytest.raises(ParityError, match=r"off by 0\.001"):
        rank_process.check(whole[:, :4] + 1e-3, whole)


def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise ParityError("the mask of a rank is off by 1")

    monkeypatch.setattr(ranks, "measure", fails)
    record = ranks.run(repeats=1, quick=True)
    assert record["cases"][0]["failed"] == "ParityError: the mask of a rank is off by 1"
    assert all(line["met"] is None for line in record["cases"][0]["lines"])


def test_the_work_of_one_rank() -> None:
    """Timed eagerly where there is no graph; its mask is that of its scores alone."""
    ((case, limits),) = rank_local.cases_of(quick=True)
    found = rank_local.measure(case, 3, torch.device("cpu"))
    assert {limits[0].call, limits[0].base} == set(found) == {rank_local.ALONE, rank_local.OF_RANK}
    assert all(timing["p20"] > 0 for timing in found.values())
    full = [case for case, _ in rank_local.cases_of(quick=False)]
    assert full[0].ranks * full[0].scores == 10**9
    assert len({case.name for case in full}) == len(full)


def test_a_rank_whose_mask_is_off_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_local, "soft_topk", lambda scores, k, t: scores)
    with pytest.raises(ParityError, match="the mask of a rank is off by"):
        rank_local.measure(rank_local.LocalCase(2, 1, 100), 1, torch.device("cpu"))

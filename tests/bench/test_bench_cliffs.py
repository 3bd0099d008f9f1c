"""The search for slow calls, on a CPU: what is timed, what is named, and what is wrong."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fast_lapsum import cli, soft_topk
from fast_lapsum.bench import cliff_timing, cliffs, score_kinds, sources
from fast_lapsum.bench.cliff_timing import QueuedClock
from fast_lapsum.bench.cliffs import Measured
from fast_lapsum.bench.report.load import load
from fast_lapsum.bench.results import write_json
from fast_lapsum.bench.score_kinds import KINDS, NOT_FINITE, Draw

CPU = torch.device("cpu")
SHAPE = (2, 60)


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cliffs, "KINDS", {"normal": KINDS["normal"]})
    monkeypatch.setattr(cliffs, "NOT_FINITE", {"one NaN": NOT_FINITE["one NaN"]})
    monkeypatch.setattr(cliffs, "QUICK_SHAPES", (SHAPE, (1, 80)))


def run(**settings: Any) -> dict[str, Any]:
    return cliffs.run(device=CPU, quick=True, samples=1, **settings)


def test_the_calls_are_those_that_were_asked_for() -> None:
    asked = ((1, 3_000_000), (64, 200_000), (256, 30_000), (1, 10**5), (1024, 4096))
    assert (*asked, (128, 200_000)) == cliffs.SHAPES
    assert cliffs.TEMPERATURES == (0, 1e-4, 0.01, 0.3, 3)
    assert cliffs.budgets(30_000) == (0, 1, 50.5, 30, 1875, 15_000, 29_997, 30_000)
    assert cliffs.LIMIT == 3
    assert not set(KINDS) & set(NOT_FINITE)


def test_every_shape_is_saved_with_every_call(few_kinds: None, tmp_path: Path) -> None:
    out, complete, told = tmp_path / "cliffs.json", [], []

    def save(record: dict[str, Any]) -> None:
        write_json(out, record)
        complete.append(json.loads(out.read_text())["complete"])

    record = run(save=save, advance=lambda *step: told.append(step))
    assert complete == [False, True]
    assert told == [("2 x 60", 1, 2), ("1 x 80", 2, 2)]
    assert list(tmp_path.iterdir()) == [out]
    assert json.loads(out.read_text()) == record
    assert record["sources"] == sources.describe("cliffs", "cuda")
    assert cliffs.failures(record) == []
    for entry in record["shapes"]:
        assert entry["calls"] == 2 * 5 * 8
        assert set(entry["microseconds"]) == {"normal", "one NaN"}
        for rows in entry["microseconds"].values():
            assert [len(row) for row in rows] == [8] * 5
            assert all(value > 0 for row in rows for value in row)
        assert len(entry["slowest"]) == cliffs.NAMED


def test_a_slow_call_is_named(few_kinds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_at_one_point(scores: Tensor, k: float, temperature: float) -> Tensor:
        if (k, temperature) == (1.0, 0.3) and scores.shape == SHAPE and not scores.isnan().any():
            time.sleep(0.1)
        return soft_topk(scores, k, temperature)

    monkeypatch.setattr(cliffs, "soft_topk", slow_at_one_point)
    record = run()
    entry = record["shapes"][0]
    worst = entry["slowest"][0]
    assert (worst["kind"], worst["temperature"], worst["k"]) == ("normal", 0.3, 1.0)
    assert worst["ratio"] == pytest.approx(worst["seconds"] / entry["median"])
    assert entry["met"] is False


@pytest.mark.parametrize(("slowest", "met"), [(3e-6, True), (3.01e-6, False)])
def test_the_limit_is_three_times_the_median(slowest: float, met: bool) -> None:
    calls = [Measured("normal", 1.0, float(k), 1e-6) for k in range(20)]
    entry = cliffs.summarise(SHAPE, [*calls, Measured("sorted", 0.0, 1.0, slowest)])
    assert (entry["median"], entry["met"]) == (1e-6, met)
    assert entry["slowest"][0]["kind"] == "sorted"
    told = cliffs.summary({"shapes": [entry], "limit": 3.0})
    assert told.endswith("on 1 of 1 shapes." if met else "on 0 of 1 shapes.")


def test_a_wrong_answer_has_no_time_and_is_told(
    few_kinds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(scores: Tensor, k: float, temperature: float) -> Tensor:
        if k == 50.5:
            raise ValueError("no\nway")
        found = soft_topk(scores, k, temperature)
        return found * (1 + 1e-4 * (k == 1)) if temperature == 3 else found

    monkeypatch.setattr(cliffs, "soft_topk", spoiled)
    record = run()
    entry = record["shapes"][0]
    assert entry["microseconds"]["normal"][4][1] is None
    assert entry["microseconds"]["one NaN"][4][1] is not None
    assert all(row[2] is None for rows in entry["microseconds"].values() for row in rows)
    told = cliffs.failures(record)
    assert len(told) == 2 * (1 + 2 * 5)
    assert "2 x 60, normal, t = 0, k = 50.5: ValueError: no way" in told
    assert f"2 x 60, normal, t = 3, k = 1: {cliffs.NOT_RIGHT}" in told
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("mask", "k", "has_answer", "right"),
    [
        ([0.5, 0.5], 1.0, True, True),
        ([0.5, 0.5001], 1.0, True, False),
        ([math.nan, 0.5], 1.0, True, False),
        ([0.5, 0.5], 1.0, False, False),
        ([math.nan, math.nan], 1.0, False, True),
        ([0.0, 0.0], 0.0, True, True),
        ([0.0, 1e-3], 0.0, True, False),
    ],
)
def test_an_answer_is_a_mass_of_k_or_nan_without_one(
    mask: list[float], k: float, has_answer: bool, right: bool
) -> None:
    assert bool(cliffs.answers(torch.tensor([mask]), k, torch.tensor([has_answer]))) == right


@pytest.mark.parametrize("kind", NOT_FINITE)
def test_rows_that_are_not_finite_are_repeatable_and_what_they_are_called(kind: str) -> None:
    def draw() -> Tensor:
        return NOT_FINITE[kind](Draw(4, 3000, torch.float32, torch.Generator().manual_seed(1)))

    scores = draw()
    assert scores.shape == (4, 3000)
    assert scores.nan_to_num(nan=7.0).equal(draw().nan_to_num(nan=7.0))
    shares = {
        "-inf": (scores == -math.inf).double().mean(-1),
        "+inf": (scores == math.inf).double().mean(-1),
        "NaN": scores.isnan().double().mean(-1),
    }
    for name, share in shares.items():
        assert bool((share > 0).any()) == (name in kind)
    if kind == "one NaN in every other row":
        assert (shares["NaN"] * 3000).round().tolist() == [1, 0, 1, 0]
    elif kind.startswith("one"):
        assert (sum(shares.values()) * 3000).round().tolist() == [1] * 4


def test_the_hunts_rows_are_of_these_kinds() -> None:
    rows = pytest.importorskip("hunting.rows")
    assert rows.KINDS is score_kinds.KINDS


class FakeCuda:
    """A device on which the host is late a few times; it keeps the spins in cycles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
        self.spins: list[int] = []
        self.late = late
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                pass

            def query(self) -> bool:
                fake.late -= 1
                return fake.late >= 0

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: object) -> float:
                return 0.03 if fake.late < 0 else 9.0  # milliseconds

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.spins.append)


def test_a_sample_in_which_the_host_was_late_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda(monkeypatch, late=1)
    clock = QueuedClock(torch.device("cuda"), samples=3)
    calls: list[str] = []

    def call() -> None:
        time.sleep(1e-3)
        calls.append("call")

    assert clock.seconds(call) == pytest.approx(0.03e-3 / cliff_timing.CALLS)
    assert len(calls) == 4 * cliff_timing.CALLS
    # The next spin is longer than what the host needed.
    assert min(fake.spins[1:]) > cliff_timing.CALLS * 1e-3 * cliff_timing.CYCLES_PER_SECOND


def test_a_call_that_waits_or_takes_long_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda(monkeypatch, late=10**6)
    clock = QueuedClock(torch.device("cuda"), samples=3)
    seconds = clock.seconds(lambda: time.sleep(5e-3))
    assert seconds == pytest.approx(9e-3 / cliff_timing.CALLS)
    assert len(fake.spins) == cliff_timing.TRIES
    longest = cliff_timing.MOST_SPIN_SECONDS * cliff_timing.CYCLES_PER_SECOND
    assert fake.spins[1:] == [int(longest)] * (cliff_timing.TRIES - 1)


def test_a_report_passes_over_it(tmp_path: Path) -> None:
    """It lies in the folder of the files that a report is made from."""
    write_json(tmp_path / "cliffs.json", {"benchmark": "cliffs", "shapes": []})
    cases = {"benchmark": "gpu", "environment": {"gpus": ["H200"]}, "cases": []}
    write_json(tmp_path / "gpu.json", cases)
    (device,) = load([tmp_path])
    assert device.timings == cases


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_command_prints_the_slowest_and_fails_for_what_is_wrong(
    is_wrong: bool, few_kinds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "cliffs.json"
    words = ["bench", "cliffs", "--quick", "--samples", "1", "--out", str(out)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 1
    assert "No GPU" in result.output
    assert not out.exists()

    real_run = cliffs.run
    monkeypatch.setattr(cliffs, "run", lambda **given: real_run(**{**given, "device": CPU}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cli.environment, "_gpus", list)
    if is_wrong:
        monkeypatch.setattr(cliffs, "BUDGET_TOLERANCE", -1.0)
    result = CliRunner(env={"COLUMNS": "250"}).invoke(cli.app, words)
    assert result.exit_code == int(is_wrong), result.output
    assert json.loads(out.read_text())["complete"]
    for expected in ("2/2 1 x 80", "Slowest calls of 2 x 60", "x median", "of 2 shapes.", str(out)):
        assert expected in result.output
    assert ("Failed: 2 x 60, normal, t = 0, k = 0" in result.output) == is_wrong

"""Rows that once came back wrong, a slice of the hunt, and the hunt's own judgement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases import num_threads
from fast_lapsum import soft_topk
from hunting import wrong_rows
from hunting.check import against_reference, judge, solve
from hunting.plan import LONG_CLASSES, Size, share_of, specs
from hunting.rows import CALLS, KINDS, Batch, Spec, make
from hunting.worker import Done, Job, sampled_rows, work

HERE = Path(__file__).parent
#: What the GPU kernels once solved wrong: sums that lost their digits beside equal scores, and
#: threads of a warp that parted.
KEPT = ("on-chip-wrong", "short-rows-wrong")
CPU = torch.device("cpu")
DTYPES = ("float32", "float64", "bfloat16", "float16")


def hunted(size: Size, solver: str = "auto", seed: int = 5, sample: int = 20) -> list[Done]:
    with num_threads(1):
        return list(work(Job("cpu", solver, 1, sample), specs(seed, size)))


def names(found: list[Done]) -> list[str]:
    return [wrong_rows.name(row.entry) for done in found for row in done.found]


@pytest.mark.parametrize("solver", ["auto", "two_exponential", "bisect", "sort_scan"])
@pytest.mark.parametrize("kept", KEPT)
def test_kept_rows_are_right(kept: str, solver: str) -> None:
    rows = wrong_rows.read(HERE / "data" / f"{kept}.json")
    assert len(rows) >= 60
    for entry, batch in rows:
        verdict = judge(batch, solve(batch, solver))
        assert not verdict.wrong[0], f"{wrong_rows.name(entry)}: {verdict.reason(0)}"


@pytest.mark.parametrize(("solver", "rows"), [("auto", 4000), ("two_exponential", 400)])
def test_a_slice_of_the_hunt_finds_nothing(solver: str, rows: int) -> None:
    found = hunted(Size(rows, 0, 1 << 16, DTYPES), solver)
    assert sum(done.sampled for done in found) > 20
    assert not names(found)
    assert not any(done.wrong for done in found)


def test_long_rows_of_the_hunt() -> None:
    lengths = {n for some, _ in LONG_CLASSES for n in some if n <= 1 << 20}
    found = hunted(Size(0, 60, 1 << 18, ("float32", "float64")), sample=50)
    assert {done.spec.n for done in found} == lengths
    assert not names(found)


def _normal(rows: int, n: int, k: float, t: float) -> Batch:
    g = torch.Generator().manual_seed(0)
    return Batch(torch.randn(rows, n, generator=g), k, t, None, True)


@pytest.mark.parametrize("scale", [1 - 5e-6, 1 + 5e-6])
def test_a_budget_that_is_off_by_little_is_judged_wrong(scale: float) -> None:
    batch = _normal(4, 300, 20.0, 0.5)
    p = soft_topk(batch.scores, 20.0, 0.5)
    verdict = judge(batch, p)
    assert not verdict.wrong.any()
    assert (verdict.over < 0.5).all()
    p[1] = soft_topk(batch.scores[1], 20.0 * scale, 0.5)
    assert judge(batch, p)[0].tolist() == [False, True, False, False]


def test_a_budget_rounded_to_float32_is_judged_wrong() -> None:
    """p of exactly 1 are not rounded, however many there are."""
    batch = Batch(torch.arange(16384.0)[None], 8192.0004, 1e-3, None, True)
    right, wrong = (soft_topk(batch.scores, k, 1e-3) for k in (8192.0004, 8192.0))
    assert not judge(batch, right).wrong[0]
    assert judge(batch, wrong).wrong[0]


def _spoiled(spoil: Callable[[Batch, Tensor], Tensor]) -> tuple[int, int]:
    """In how many rows of a slice of the hunt p are not what they were, and judged wrong."""
    differ = told = 0
    for spec in specs(0, Size(1000, 0, 1 << 18, ("float32", "float64"))):
        batch = make(spec, CPU)
        p = solve(batch)
        spoiled = spoil(batch, p)
        is_other = (p - spoiled).abs().amax(-1) > 1e-4
        differ += int(is_other.sum())
        told += int((is_other & judge(batch, spoiled).wrong).sum())
    return differ, told


def test_another_temperature_is_judged_wrong() -> None:
    """The sum is as it should be."""
    for factor in (2.0, 1.001):

        def warmer(batch: Batch, _: Tensor, factor: float = factor) -> Tensor:
            return solve(batch._replace(temperature=batch.temperature * factor))

        differ, told = _spoiled(warmer)
        assert differ > 150
        assert told >= 0.99 * differ


def test_p_of_other_scores_are_judged_wrong() -> None:
    differ, told = _spoiled(lambda batch, p: p.flip(-1))
    assert differ > 500
    assert told >= 0.99 * differ


def test_what_is_no_mask_is_judged_wrong() -> None:
    batch = _normal(3, 50, 4.0, 0.5)._replace(mask=torch.ones(3, 50, dtype=torch.bool))
    p = soft_topk(batch.scores, 4.0, 0.5)
    p[0, 0], p[0, 1] = p[0, 0] + 2, p[0, 1] - 2  # the sum is right
    p[1, 7] = torch.nan
    assert judge(batch, p)[0].tolist() == [True, True, False]
    assert batch.mask is not None
    batch.mask[2, p[2].argmax()] = False
    assert judge(batch, p)[0].tolist() == [True, True, True]


def test_a_row_with_a_nan_must_be_nan() -> None:
    batch = _normal(2, 50, 4.0, 0.5)
    p = soft_topk(batch.scores, 4.0, 0.5)
    batch.scores[0, 3] = torch.nan
    assert judge(batch, p)[0].tolist() == [True, False]
    p[0] = torch.nan
    assert not judge(batch, p)[0].any()


@pytest.mark.parametrize("per_row", [False, True])
def test_a_wrong_p_and_a_wrong_gradient_are_told(
    per_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is made as it was, with numbers or with tensors."""
    batch = _normal(1, 50, 4.0, 0.5)
    if per_row:
        k, t = (torch.tensor([x], dtype=torch.float64) for x in (4.0, 0.5))
        batch = batch._replace(k=k, temperature=t)
    assert not against_reference(batch)
    seen = []

    def warmer(r: Tensor, k: Tensor | float, t: Tensor | float, **_: object) -> Tensor:
        seen.append((isinstance(k, Tensor), isinstance(t, Tensor)))
        return soft_topk(r, k, t * 1.001)

    monkeypatch.setattr("hunting.check.soft_topk", warmer)
    told = " ".join(against_reference(batch))
    assert seen == [(per_row, per_row)]
    assert "mask" in told
    assert "d scores" in told
    assert ("d temperature" in told) == per_row


@pytest.mark.parametrize("sample", [4, 20, 32, 128])
def test_every_kind_and_call_is_compared_with_the_reference(sample: int) -> None:
    planned = specs(0, Size(100_000 * sample, 100 * sample, 1 << 20, ("float32",)))
    compared = [spec for spec in planned if sampled_rows(spec, sample)]
    assert {spec.kind for spec in compared} == set(KINDS)
    assert {spec.call for spec in compared} == set(CALLS)
    assert 0.8 < sample * len(compared) / len(planned) < 1.25


def test_some_long_rows_are_compared_with_the_reference() -> None:
    spec = Spec(0, 0, "normal", "numbers", "float32", 1_000_000, 3)
    assert {sampled_rows(spec._replace(number=x), 4) for x in range(20)} == {0, 1}
    assert not any(sampled_rows(spec._replace(number=x, n=1 << 25), 4) for x in range(20))


def test_the_same_seed_gives_the_same_rows() -> None:
    for kind in KINDS:
        spec = Spec(3, 7, kind, "masked", "float32", 65, 4)
        one, two, other = (make(x, CPU) for x in (spec, spec, spec._replace(seed=4)))
        assert torch.equal(one.scores, two.scores)
        assert torch.equal(torch.as_tensor(one.k), torch.as_tensor(two.k))
        assert not torch.equal(one.scores, other.scores)
        assert one.scores.isfinite().all(), kind


def test_a_run_has_every_kind_call_length_and_dtype() -> None:
    size = Size(300_000, 2000, 1 << 20, DTYPES)
    planned = specs(1, size)
    assert {spec.kind for spec in planned} == set(KINDS)
    assert {spec.call for spec in planned} == set(CALLS)
    assert all(spec.rows * spec.n <= max(size.scores_at_once, spec.n) for spec in planned)
    rows = Counter[str]()
    for spec in planned:
        rows[spec.dtype] += spec.rows
    assert max(rows.values()) - min(rows.values()) <= 4
    assert abs(sum(rows.values()) - 302_000) < 3000
    on_chip = [spec for spec in planned if spec.n <= 16384]
    large = sum(spec.rows for spec in on_chip if spec.n >= 1024)
    assert large >= sum(spec.rows for spec in on_chip) / 3
    shares = [share_of(planned, number, 5) for number in range(5)]
    assert sorted(spec for share in shares for spec in share) == sorted(planned)


def _hunt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hunting", *arguments],
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_command_keeps_and_names_wrong_rows(tmp_path: Path) -> None:
    # A solver that is asked for a thousandth less than the budget.
    (tmp_path / "sitecustomize.py").write_text(
        "import hunting.check as check\n"
        "right = check.soft_topk\n"
        "check.soft_topk = lambda r, k, t, **more: right(r, k * 0.999, t, **more)\n"
    )
    out, record = tmp_path / "wrong.json", tmp_path / "record.json"
    spoiled = {"PYTHONPATH": f"{tmp_path}:{HERE}"}
    few = ("--rows", "60", "--dtypes", "float32", "--jobs", "1", "--out", str(out))
    done = _hunt(*few, "--record", str(record), **spoiled)
    assert done.returncode == 1, done.stderr
    assert "wrong rows" in done.stdout
    found = json.loads(record.read_text())
    assert found["wrong"] > 10
    assert found["sources"]["kind"] == "hunt"
    assert found["compared_with_reference"] >= found["kinds_compared_with_reference"] > 3
    assert found["largest_p_error_over_bound"] <= 1  # p are those of another budget, that is all
    again = _hunt("--again", str(out), **spoiled)
    assert again.returncode == 1
    assert "row00" in again.stdout
    assert _hunt("--again", str(out)).returncode == 0


def test_several_workers_find_what_one_does(tmp_path: Path) -> None:
    done = _hunt(
        *("--rows", "100", "--jobs", "2", "--dtypes", "float32,float16"),
        *("--out", str(tmp_path / "wrong.json")),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong rows: none" in done.stdout
    assert not (tmp_path / "wrong.json").exists()

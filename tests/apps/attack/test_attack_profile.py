"""``fast-lapsum attack --profile``: which part of a step is timed, and which of the operator."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attack_runs import photo, run, said, small_model
from fast_lapsum import soft_topk
from fast_lapsum.apps.attack import profile
from fast_lapsum.apps.attack.protocol import Progress
from fast_lapsum.apps.attack.protocol import Result as AttackResult

__all__ = ["photo", "small_model"]  # fixtures


def test_profile_says_where_there_is_nothing_to_time(tmp_path: Path, photo: Path) -> None:
    without = run(photo, "--out", tmp_path / "out", "--method", "pgd-l0", "--profile")
    assert "profile: pgd-l0 has no operator" in said(without)
    short = run(photo, "--out", tmp_path / "out", "--calls", 1, "--profile")
    assert "profile: one step is too few to be timed" in said(short)
    assert json.loads((tmp_path / "out" / "photo.json").read_text())["profile"] is None


def test_steps_are_timed_without_their_start_and_their_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    told: list[Progress] = []

    def slow_display(said: Progress) -> None:
        told.append(said)
        seconds[0] += 1000

    clock = profile.StepClock(slow_display)
    reports = [Progress(step, step, 0, 0.9, False, 1.0, None) for step in range(1, 5)]
    for report, passed in zip(reports, (100.0, 1.0, 2.0, 9.0), strict=True):
        seconds[0] += passed
        clock(report)
    assert clock.seconds == [1, 2, 9]
    assert told == reports


@pytest.mark.parametrize("region", [False, True])
def test_the_operator_is_timed_as_a_step_calls_it(
    monkeypatch: pytest.MonkeyPatch, region: bool
) -> None:
    """Tensors for k and t with their gradients, the region, and no time of the first calls."""
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1:] = True
    seconds = [0.0]
    called: list[tuple[Any, ...]] = []

    def timed(scores: Tensor, k: Tensor, t: Tensor, mask: Tensor | None) -> Tensor:
        called.append((scores, k, t, mask))
        seconds[0] += 100.0 if len(called) <= profile._WARM_UP else 0.5
        return soft_topk(scores, k, t, mask=mask)

    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(profile, "soft_topk", timed)
    extra: dict[str, object] = {"scores": torch.randn(4, 5), "k": 3.0, "t": 0.1}
    result = AttackResult(torch.zeros(3, 4, 5), True, 9, 1e6, 9, extra)
    found = profile.profile(result, [1.0, 4.0, 900.0], mask if region else None)
    assert found == profile.Profile(4.0, 0.5)
    assert len(called) == profile._WARM_UP + profile._REPEATS
    scores, k, t, allowed = called[0]
    assert (k.item(), t.item()) == (3.0, pytest.approx(0.1))
    assert all(one.requires_grad for one in (scores, k, t))
    assert torch.equal(allowed, mask.flatten()) if region else allowed is None

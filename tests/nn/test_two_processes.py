"""Layers in two processes with data of their own: gradients, thresholds and masks agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from model_layers import LAYERS
from places import ROOT

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two found; one pair of processes for all layers."""
    folder = tmp_path_factory.mktemp("processes")
    files = [folder / f"rank-{rank}.pt" for rank in range(2)]
    script = str(ROOT / "tests" / "two_processes.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(folder / "meeting"), str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, file in enumerate(files)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return [torch.load(file) for file in files]


def _same(one: Any, other: Any, where: Path) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            _same(one[name], other[name], where / name)
    elif isinstance(one, (tuple, list)):
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            _same(a, b, where / str(place))
    elif one is not None:
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)), where


@pytest.mark.parametrize("name", [*LAYERS, "pruned", "dead-latents"])
def test_ranks_agree(name: str, ranks: list[dict[str, Any]]) -> None:
    _same(ranks[0][name], ranks[1][name], Path(name))
    gradients = ranks[0][name]["gradients"].values()
    assert any(one is not None and one.abs().sum() > 0 for one in gradients)


def test_a_pruned_model_has_its_number_of_weights(ranks: list[dict[str, Any]]) -> None:
    masks = ranks[1]["pruned"]["masks"]
    assert sum(int(mask.sum()) for mask in masks.values()) == (8 * 16 + 16 * 6) // 4


def test_silent_rows_are_those_of_the_first_process(ranks: list[dict[str, Any]]) -> None:
    """DDP sends its buffers to all, so all choose among the same latents for the auxiliary loss."""
    fired, others = (one["has fired"] for one in ranks)
    assert not all(torch.equal(a, b) for a, b in zip(fired, others, strict=True))
    rows = torch.zeros(32, dtype=torch.int64)
    for has_fired in fired:
        rows = (rows + 6).where(~has_fired, 0)
    for one in ranks:
        assert torch.equal(one["dead-latents"]["state"]["dead.rows_since_fired"], rows)
        *_, share = one["dead-latents"]["evaluated"]
        assert 0 < (rows >= 10).sum() < 32
        assert share == ((rows >= 10).sum() / 4).clamp(max=1)

"""Boundaries of hard masks on the GPU, interpreted: the right scores in every way that rows are
solved, found from the soft threshold in few passes.
"""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from cases import normal
from fast_lapsum import reference
from fast_lapsum.backends.triton import rank
from fast_lapsum.bench.score_kinds import KINDS, Draw
from interpreting import ONE_PROGRAM, Plans, forward, held, in_chunks, read_by_a_team

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
inf, nan = math.inf, math.nan
N = 700
WAYS = {
    "one program": Plans(),
    "a team that holds it": Plans(held(N)),
    "a team that reads it": Plans(read_by_a_team(N)),
    "one program that gathers": Plans(ONE_PROGRAM),
    "chunks": Plans(in_chunks(N)),
}


def _check(scores: Tensor, k: float, t: float, plans: Plans) -> None:
    found, pair = forward(scores, k, t, hard=True, plans=plans)
    wanted = torch.stack([reference.hard_row(row, int(k)) for row in scores.double()])
    assert torch.equal(found.double().nan_to_num(nan=7), wanted.nan_to_num(nan=7)), (k, t)
    if t > 0:  # the threshold is the soft one
        p = reference.soft_topk(scores, k, t)
        b = pair.double().sum(-1)
        for row, one, at in zip(scores.double(), p, b, strict=True):
            is_told = (one > 0.2) & (one < 0.8) & row.isfinite()
            logits = reference.soft_topk(row[None], k, t)[0][is_told]
            u = (row[is_told] - at) / t
            mine = torch.where(u > 0, 1 - 0.5 * (-u.abs()).exp(), 0.5 * (-u.abs()).exp())
            torch.testing.assert_close(mine, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_normal_scores_at_every_temperature(way: str) -> None:
    for k, t in ((1.0, 0.1), (43.0, 1e-4), (43.0, 1.0), (350.0, 0.1), (690.0, 30.0)):
        _check(normal(2, N, seed=int(k)), k, t, WAYS[way])


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_scores(kind: str) -> None:
    scores = KINDS[kind](Draw(1, N, torch.float32, torch.Generator().manual_seed(3)))
    _check(scores, 3.0, 1.0, WAYS["one program"])
    _check(scores, 350.0, 0.1, WAYS["chunks"])


@pytest.mark.parametrize("way", WAYS)
def test_ties_go_to_the_earliest(way: str) -> None:
    """Wherever the last one that is taken lies: in the first chunk, in the last, at an end."""
    scores = (normal(4, N, seed=8) * 2).round()
    scores[1] = 0.0
    scores[2] = -0.0
    scores[2, ::2] = 1e-45
    scores[3, 100:] = scores[3, 100:].sort().values  # tied scores lie together
    for k in (1.0, 129.0, 300.0, 699.0):
        for t in (0.0, 0.5):
            _check(scores, k, t, WAYS[way])


def test_tied_rows_beside_each_other() -> None:
    """Rows of a tile are written together, those that take all ties beside those that do not."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(8):
        scores = torch.randint(0, 4, (32, 8), generator=draw).float()
        k = torch.randint(1, 8, (32,), generator=draw).double()
        t = torch.tensor([0.3, 0.01, 1.0, 0.0])[torch.randint(0, 4, (32,), generator=draw)]
        found, _ = forward(scores, k, t.double(), hard=True)
        for row, one, count in zip(scores.double(), found, k, strict=True):
            assert torch.equal(one.double(), reference.hard_row(row, int(count)))


@pytest.mark.parametrize("way", WAYS)
def test_infinities_and_rows_without_an_answer(way: str) -> None:
    scores = normal(4, N, seed=9)
    scores[0, 50:650:3] = inf
    scores[1, 600:] = -inf
    scores[2, 5] = nan
    scores[3] = -inf
    for k in (0.0, 199.0, 201.0, 600.0):
        for t in (0.0, 0.3):
            found, _ = forward(scores, k, t, hard=True, plans=WAYS[way])
            for row, one in zip(scores, found, strict=True):
                valid = (row > -inf).sum()
                if row.isnan().any() or k > valid:
                    assert one.isnan().all()
                else:
                    wanted = reference.hard_row(row.double(), int(k))
                    assert torch.equal(one.double(), wanted), (k, t)


@pytest.mark.parametrize(("t", "most"), [(1e-4, 0), (0.01, 4), (0.1, 4), (1.0, 6)])
def test_a_soft_threshold_is_near(t: float, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores above the threshold are counted already, and at low temperatures they are the k.

    Beside the passes that the soft threshold takes.
    """
    taken: list[str] = []
    real = rank.over_rows

    def counted(source: Any, at: Any, crossings: Any, kind: Any, compute: Any) -> Any:
        taken.append(str(getattr(kind, "value", kind)))
        return real(source, at, crossings, kind, compute)

    monkeypatch.setattr(rank, "over_rows", counted)
    for seed in range(4):
        counts = []
        for hard in (False, True):
            taken.clear()
            forward(normal(1, N, seed=seed), 43.0, t, hard=hard)
            counts.append(len(taken))
        assert counts[1] - counts[0] <= most, (seed, counts)

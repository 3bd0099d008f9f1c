"""The search for a rank on the GPU, interpreted: right, and in few passes, whatever the scores."""

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

from fast_lapsum import reference
from fast_lapsum.backends.triton import rank
from fast_lapsum.bench.score_kinds import KINDS, Draw
from interpreting import forward

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

N = 700
#: A pass counts at four places. Halving the order of floats alone would take 32.
MOST_PASSES = 14


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of passes that a search takes."""
    taken: list[str] = []
    real = rank.over_rows

    def counted(source: Any, at: Any, crossings: Any, kind: Any, compute: Any) -> Any:
        taken.append(str(getattr(kind, "value", kind)))
        return real(source, at, crossings, kind, compute)

    monkeypatch.setattr(rank, "over_rows", counted)
    return taken


def _hard_limit(scores: Tensor, k: float) -> Tensor:
    threshold = reference.solve_row(scores, k, 0.0)
    return reference.mask_row(scores, threshold, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_is_found_in_few_passes(kind: str, passes: list[str]) -> None:
    scores = KINDS[kind](Draw(1, N, torch.float32, torch.Generator().manual_seed(5)))
    for k in (1.0, 50.5, N / 16, N / 2, N - 3.0):
        passes.clear()
        p, _ = forward(scores, k, 0.0)
        torch.testing.assert_close(p[0].double(), _hard_limit(scores[0], k), rtol=1e-6, atol=0)
        assert passes.count("counts") <= MOST_PASSES, f"k = {k}: {passes}"


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-40, 3.4028234663852886e38])
def test_scores_next_to_ties(value: float) -> None:
    """Ties at zero, at denormals and at the last number, with their neighbours on both sides."""
    tied = torch.full((40,), value)
    beside = [tied.nextafter(torch.tensor(end)) for end in (-math.inf, math.inf)]
    row = torch.cat([beside[0][:5], tied, *([beside[1][:5]] if beside[1].isfinite().all() else [])])
    scores = row[torch.randperm(len(row), generator=torch.Generator().manual_seed(1))][None]
    for k in (1.0, 5.0, 6.0, 20.5, len(row) - 5.0, len(row) - 1.0):
        p, _ = forward(scores, k, 0.0)
        torch.testing.assert_close(p[0].double(), _hard_limit(scores[0], k), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "k", [0.99999997383561423, 1.9999999560683026, 2.99999999999, 3 - 2.0**-26]
)
def test_budgets_next_to_whole_ones(k: float) -> None:
    """A lone score's share is rounded, by half a digit of 1 at most."""
    scores = torch.tensor([[2.0, 0.5, 1.0, -1.0, 3.0]])
    p, _ = forward(scores, k, 0.0)
    assert abs(float(p.double().sum()) - k) <= 2.0**-25

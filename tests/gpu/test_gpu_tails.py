"""Long rows with few scores on one side of the root: right, and in the band that a sample gives.

A band that misses the root costs another reading of the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fast_lapsum import soft_topk
from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import long_plan, shared_plan
from fast_lapsum.backends.triton.inspection import sample_bands

SHARES = (3e-5, 3e-4, 1e-3, 3.5e-3, 1e-2, 0.999)
TEMPERATURES = (3.0, 1.0, 0.1, 0.018, 0.002)


def _rows(n: int) -> Iterator[Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    normal = torch.randn(n, device="cuda", generator=generator)
    uniform = torch.rand(n, device="cuda", generator=generator)
    yield normal
    yield uniform
    yield torch.sign(normal) * -torch.log(uniform.clamp(min=1e-7))  # Laplace
    yield (normal - 1.5).clamp(min=0)  # mostly ties
    yield -normal
    # Mass in steps: a few clipped at the top, hardly any for a while, all others close together.
    clipped = torch.where(uniform < 3e-4, 3.0, 0.1 * normal - 0.9)
    yield torch.where((uniform > 3e-4) & (uniform < 6e-4), 1e4 * uniform - 3.1, clipped)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("n", [65_536, 1_000_000, 3_145_728, 6_000_000])
def test_tails_are_right_and_in_the_band(n: int, largest: bool) -> None:
    """By the plan that such a row has, and by those of rows that are too long or too many."""
    missed = []
    plans = (None, shared_plan(n, 1, 4), long_plan(n, 1, 4))
    for scores in _rows(n):
        for share in SHARES:
            for t in TEMPERATURES:
                k = share * n
                given = (None, k, None, t, None, None, largest, "mask", torch.float32)
                for plan in plans:
                    p, _ = launch.forward(scores[None], *given, plan=plan)
                    assert abs(p.sum(dtype=torch.float64).item() - k) <= 1e-6 * k
                bands = sample_bands((scores if largest else -scores)[None], k, t)
                missed.append(~bands.is_settled)
    assert torch.cat(missed).double().mean().item() <= 0.05


@pytest.mark.parametrize("n", [10**6, 10**8])
@pytest.mark.parametrize("value", [0.0, 1.0, -3e4])
def test_equal_scores_far_from_the_root_round_alike(n: int, value: float) -> None:
    scores = torch.full((n,), value, device="cuda")
    for k in (1.0, 10.5, 1e-3 * n, n / 16, n - 1.0):
        total = soft_topk(scores, k, 0.1).sum(dtype=torch.float64).item()
        assert abs(total - k) <= 3e-7 * k

"""Rows long enough for a sampled band, in clusters that the band may fall between."""

from __future__ import annotations

import pytest
import torch

from cases import assert_budget, generator
from fast_lapsum import reference, soft_topk


def _clusters(n: int, count: int, distance: float, width: float) -> torch.Tensor:
    draw = generator(count)
    centres = distance * torch.randn(count, generator=draw, dtype=torch.float64)
    which = torch.randint(count, (n,), generator=draw)
    return centres[which] + width * torch.randn(n, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1025, 9000])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_root_in_a_gap_between_clusters(n: int, count: int, dtype: torch.dtype) -> None:
    for distance in (3.0, 1e2, 1e4):
        for width in (0.0, 1e-3, 1.0):
            row = _clusters(n, count, distance, width).to(dtype)
            # Budgets that put the threshold at, and just inside of, every gap.
            gaps = row.sort(descending=True).values.diff().neg().topk(count - 1).indices + 1
            offsets = torch.tensor([-30.0, -1.5, -0.5, 0.0, 0.25, 1.0, 12.0])
            k = (gaps[:, None] + offsets).reshape(-1).clamp(0.5, n - 0.5).double()
            for t in (1e-3, 0.1, 1.5):
                rows = row.expand(len(k), n)
                p = soft_topk(rows, k, t)
                assert_budget(p, k)
                wanted = reference.soft_topk(rows, k, t)
                torch.testing.assert_close(p.double(), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1500, 9000])
def test_a_band_taken_over_from_another_row(n: int, dtype: torch.dtype) -> None:
    """Rows of a batch place each other's band: it may lie in a gap, or miss the next row by far."""
    alike = torch.stack([_clusters(n, 2, 1e2, 1e-3) for _ in range(3)])
    alike = torch.stack(
        [row[torch.randperm(n, generator=generator(i))] for i, row in enumerate(alike)]
    )
    unlike = torch.randn(n, generator=generator(3), dtype=torch.float64)
    batch = torch.cat((alike, alike + 7.0, unlike[None], -unlike[None] * 50, alike)).to(dtype)
    in_gap = int((alike[0] > alike[0].mean()).sum())
    for k in (in_gap, in_gap + 0.5, in_gap - 1, 1, n - 1):
        for t in (1e-3, 0.1, 1.0):
            p = soft_topk(batch, k, t)
            assert_budget(p, k)
            torch.testing.assert_close(
                p.double(), reference.soft_topk(batch, k, t), rtol=0, atol=2e-6
            )

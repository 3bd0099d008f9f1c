"""Rows long enough for a sampled band, in clusters that the band may fall between."""

from __future__ import annotations

import pytest
import torch

from cases import assert_budget, generator
from fast_lapsum import reference, soft_topk
from fast_lapsum.backends.cpu import kernel


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


def _readings(row: torch.Tensor, k: float, t: float, output: str) -> int:
    """How often a call reads a row."""
    found = torch.zeros(1, dtype=torch.int64)
    given = (row[None], None, k, None, t, None, None, True, output, row.dtype)
    kernel.forward(*given, found)
    return int(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1500, 20_000, 70_000, 300_000, 1_000_000])
def test_two_readings_are_enough_in_the_middle_of_a_row(n: int, dtype: torch.dtype) -> None:
    """The band is widest there, and always has room."""
    for row in (
        torch.randn(n, generator=generator(1)).abs(),
        torch.rand(n, generator=generator(2)),
    ):
        for output, most in (("mask", 2), ("hard", 3)):
            for t in (1e-4, 0.01):
                assert _readings(row.to(dtype), n / 2, t, output) <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [16_384, 300_000])
def test_ties_that_no_band_has_room_for(n: int, dtype: torch.dtype) -> None:
    """A few scores stand out of equal ones, as in sparse activations; k is more than they are."""
    row = torch.zeros(n, dtype=dtype)
    for several in (0, 5, n // 500, n // 20):
        row[:several] = torch.arange(1, several + 1, dtype=dtype)
        for k in (1, several + 1, several + 30, n // 2, n - 1):
            for side in (1, -1):
                readings = _readings(side * row, k, 0.0, "hard")
                assert readings <= 6, (several, k, side, readings)
                found = reference.hard_row(side * row.double(), k)
                assert torch.equal(soft_topk(side * row, k, 0.0, hard=True).double(), found)


def test_flushed_denormals_end_no_search() -> None:
    """All of them compare as 0 then, so that no step from 0 to one of them leads anywhere."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        for several, k in ((5, 1), (5, 30), (335, 167), (335, 340)):
            row = torch.zeros(16_384)
            row[:several] = torch.arange(1.0, several + 1)
            for side in (1, -1):
                found = soft_topk(side * row, k, 0.0, hard=True)
                assert found.sum() == k
                assert (side * row)[found == 1].min() >= (side * row)[found == 0].max()
    finally:
        torch.set_flush_denormal(False)

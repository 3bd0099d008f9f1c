"""Hard masks take the first k of a stable sort, whatever the scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases import DISTRIBUTIONS, FULL_DTYPES, generator, num_threads
from fast_lapsum import hard_topk_mask, soft_topk


def first_of_sort(rows: Tensor, k: int) -> Tensor:
    order = rows.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(rows).scatter(-1, order, 1.0)


def ranks(n: int) -> list[int]:
    return sorted({0, 1, 2, n // 100, n // 7, n // 2, n - 2, n - 1, n} & set(range(n + 1)))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [3, 64, 511, 700, 3000, 40_000])
def test_hard_masks(n: int, dtype: torch.dtype, distribution: str) -> None:
    rows = torch.stack([DISTRIBUTIONS[distribution](n, generator(i)) for i in range(3)]).to(dtype)
    rows[1] = rows[1].mul(8).round().div(8)  # with ties
    rows[2, ::3] = rows[2, 0]
    for k in ranks(n):
        assert torch.equal(hard_topk_mask(rows, k), first_of_sort(rows, k)), k
        if k > 0:
            soft_gradient = soft_topk(rows, k, 0.1, hard=True)
            assert torch.equal(soft_gradient, first_of_sort(rows, k)), k


@pytest.mark.parametrize("n", [64, 700, 3000, 300_000])
def test_ties_are_taken_in_order(n: int) -> None:
    """All scores equal, two values, and infinities on either side."""
    for threads in (1, 2):
        with num_threads(threads):
            for rows in (
                torch.zeros(1, n),
                (torch.arange(n) % 3 == 0).float()[None],
                torch.where(torch.arange(n) % 2 == 0, torch.inf, 1.0)[None],
                torch.where(torch.arange(n) % 5 == 0, -torch.inf, 1.0)[None],
            ):
                valid = int((rows > -torch.inf).sum())
                for k in (1, n // 10, n // 2, valid):
                    assert torch.equal(hard_topk_mask(rows, k), first_of_sort(rows, k)), k

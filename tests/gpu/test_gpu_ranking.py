"""Ranks, sorts and permutations on a GPU: against the definitions, and what a caller relies on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

import ranking_cases
from cases import normal
from fast_lapsum import soft_argsort, soft_quantile, soft_rank, soft_sort, spearman
from ranking_cases import TOLERANCE, Rows, assert_masses, draw

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ranks_are_the_pairwise_sums(dtype: torch.dtype) -> None:
    for rows in draw(1, 100, 50, dtype):
        wanted = ranking_cases.ranks(rows)
        found = soft_rank(rows.scores.to(CUDA), rows.temperature.to(CUDA)).cpu()
        assert ((found - wanted).abs() <= TOLERANCE[dtype] * wanted).all(), rows.what


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sorts_and_quantiles_have_their_masses(dtype: torch.dtype) -> None:
    q = torch.tensor([0.7, 1e-6, 0.5], dtype=torch.float64)
    for rows in draw(2, 100, 50, dtype):
        n = rows.scores.shape[-1]
        scores, t = rows.scores.to(CUDA), rows.temperature.to(CUDA)
        assert_masses(soft_sort(scores, t).cpu(), torch.arange(n) + 0.5, rows)
        if rows.scores.isfinite().all():
            assert_masses(soft_quantile(scores, q.to(CUDA), t).cpu().mT, q * n, rows)


@pytest.mark.parametrize("shape", [(7, 3), (5, 40), (300, 64), (3, 4096), (2, 5000), (1, 200_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_and_gradients_are_those_of_the_cpu(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """In tiles of rows, whole rows, and chunks; ties among them."""
    scores = normal(*shape, dtype=dtype)
    scores[0] = (scores[0] * 3).round() / 3
    weights = normal(*shape, seed=1, dtype=dtype)
    part = 1e-5 if dtype == torch.float32 else 1e-11
    for t in (0.0, 1e-3, 0.3, 20.0):
        for function in (soft_rank, soft_sort):
            here = scores.clone().requires_grad_()
            there = scores.to(CUDA).requires_grad_()
            wanted, found = function(here, t), function(there, t)
            size = wanted.abs().detach() + (0 if function is soft_rank else 20 * t)
            assert ((found.cpu() - wanted).abs() <= part * size + 1e-30).all()
            (d_wanted,) = torch.autograd.grad(wanted, here, weights)
            (d_found,) = torch.autograd.grad(found, there, weights.to(CUDA))
            scale = max(1.0, shape[-1] * min(1.0, t) / t if t else 1.0)
            scale = scale if function is soft_rank else float(weights.abs().sum(-1).max())
            scale = max(scale, float(d_wanted.abs().max()))  # many tied scores have more than that
            assert ((d_found.cpu() - d_wanted).abs() <= part * scale).all()


def test_equal_scores_have_equal_ranks_to_the_last_bit() -> None:
    """Across chunks, too: one value has half of a long row."""
    scores = (normal(3, 50_000, dtype=torch.float32) * 3).round() / 3
    scores[1, ::2] = 0.25
    scores[2] = 7.0
    ranks = soft_rank(scores.to(CUDA), 0.4).cpu()
    for row in range(3):
        for value in scores[row].unique():
            assert len(ranks[row][scores[row] == value].unique()) == 1


def test_special_rows() -> None:
    inf, nan = float("inf"), float("nan")
    scores = torch.tensor(
        [[1.0, nan, 0.5, 2.0], [inf, 1.0, -inf, -inf], [1.0, 2.0, 3.0, 4.0]], device=CUDA
    ).requires_grad_()
    ranks = soft_rank(scores, 0.5)
    assert ranks[0].isnan().all()
    assert ranks[1].tolist() == [4.0, 3.0, 1.5, 1.5]
    (grad,) = torch.autograd.grad(ranks[1:].square().sum(), scores)
    assert grad[1].tolist() == [0.0] * 4
    mask = torch.tensor([True, False, True, True], device=CUDA)
    masked = soft_rank(scores, 0.5, mask=mask)
    assert masked.isnan().tolist() == [[False, True, False, False]] * 3
    assert soft_sort(scores, 0.5)[1].tolist()[0] == -inf
    t = torch.tensor([1.0, 1.0, -1.0], device=CUDA)
    assert soft_rank(scores, t)[2].isnan().all()
    assert soft_quantile(scores[2], torch.tensor([0.5, 1.5], device=CUDA)).isnan().tolist() == [
        False,
        True,
    ]


def test_nothing_waits_for_the_device(no_sync: Callable[[], AbstractContextManager[None]]) -> None:
    scores = torch.randn(8, 5000, device=CUDA, requires_grad=True)
    values = torch.randn(8, 5000, 2, device=CUDA)
    q = torch.tensor([0.3, 0.7], device=CUDA)

    def calls() -> None:
        soft_rank(scores, 0.1).sum().backward()
        soft_sort(scores, 0.1).sum().backward()
        soft_quantile(scores, q, 0.1).sum().backward()
        soft_quantile(scores, 0.3, 0.1).sum().backward()
        spearman(scores, values[..., 0], 0.1).sum().backward()
        soft_argsort(scores, 0.1).apply(values).sum().backward()

    calls()  # kernels are compiled
    with no_sync():
        calls()


def test_permutations_and_second_derivatives() -> None:
    scores, values = normal(2, 30), normal(2, 30, 3, seed=1)

    def second(r: Tensor, v: Tensor) -> Tensor:
        r = r.detach().requires_grad_()
        total = soft_argsort(r, 0.3).apply(v).square().sum()
        total = total + soft_rank(r, 0.5).square().sum() + soft_sort(r, 0.5).square().sum()
        (first,) = torch.autograd.grad(total, r, create_graph=True)
        return torch.autograd.grad(first.square().sum(), r)[0]

    found = second(scores.to(CUDA), values.to(CUDA))
    torch.testing.assert_close(found.cpu(), second(scores, values))
    dense = soft_argsort(scores.to(CUDA), 0.3).dense()
    torch.testing.assert_close(dense.sum(-1).cpu(), torch.ones(2, 30).double())
    torch.testing.assert_close(dense.sum(-2).cpu(), torch.ones(2, 30).double())


def test_ten_million_scores() -> None:
    n = 10_000_000
    scores = torch.randn(n, device=CUDA, requires_grad=True)
    some = torch.arange(0, n, n // 5)
    for t in (1e-6, 0.1, 100.0):
        ranks, b = soft_rank(scores, t), soft_sort(scores, t)
        rows = Rows(scores.detach().cpu()[None], torch.tensor([t]).double(), f"t={t}")
        wanted = 0.5 + ranking_cases.masses(rows.scores[:, some], rows)[0]
        assert ((ranks[some].cpu() - wanted).abs() <= 2e-6 * wanted).all()
        assert_masses(b[some].detach().cpu()[None], some + 0.5, rows)
        torch.autograd.grad(ranks.sum() + b.sum(), scores)

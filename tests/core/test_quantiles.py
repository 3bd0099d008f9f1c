"""Soft quantiles at whole masses, at tiny ones, and between infinities."""

from __future__ import annotations

import math

import pytest
import torch

from fast_lapsum import reference_ranking, soft_quantile

inf = math.inf
pytestmark = pytest.mark.usefixtures("ranking_backend")


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64], ids=str)
def test_quantiles_at_whole_masses_are_the_middle_of_two(dtype: torch.dtype | None) -> None:
    """However i / n is rounded; and next to it they are order statistics."""
    for n in (2, 3, 10, 49, 100, 333, 1000):
        scores = torch.arange(float(n), dtype=torch.float64)
        q = [i / n for i in range(1, n)]
        if dtype is None:
            found = torch.stack([soft_quantile(scores, one, 0) for one in q])
        else:
            found = soft_quantile(scores, torch.tensor(q, dtype=dtype), 0)
        assert torch.equal(found, scores[1:] - 0.5), n
        ulps = 4 * torch.finfo(dtype or torch.float64).eps
        if dtype is None:
            near = torch.stack([soft_quantile(scores, one * (1 + ulps), 0) for one in q])
        else:
            near = soft_quantile(scores, torch.tensor(q, dtype=dtype) * (1 + ulps), 0)
        assert torch.equal(near, scores[1:]), n


def test_whole_masses_end_where_quantiles_do() -> None:
    """No mass is taken for 0 or n, and none that lies half-way for a whole number."""
    last = torch.tensor([1 - 2.0**-24])
    assert soft_quantile(torch.arange(3.0), last, 1.0).isfinite().all()
    assert soft_quantile(torch.arange(3.0).double(), 1 - 2.0**-53, 1.0).isfinite()
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.tensor([0.5], dtype=dtype)
        assert soft_quantile(torch.arange(3001.0), half, 0.0).item() == 1500.0


def test_tiny_quantiles_have_their_masses() -> None:
    """Their squares would be 0. Far below the scores the mass is e^{b/t} / 2 sum_i e^{-r_i/t}."""
    scores = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    decayed = float(torch.exp(-scores).sum())
    for q in (1e-20, 1e-150, 1e-170, 1e-300):
        wanted = math.log(2 * 3 * q / decayed)
        for t in (1.0, torch.tensor(1.0, dtype=torch.float64, requires_grad=True)):
            given = scores.clone().requires_grad_()
            found = soft_quantile(given, q, t)
            assert abs(found.item() - wanted) <= 1e-12 * abs(wanted)
            (grad,) = torch.autograd.grad(found, given)
            torch.testing.assert_close(grad, torch.softmax(-scores, 0))


def test_the_last_quantile_of_the_reference_in_the_hard_limit() -> None:
    scores = torch.tensor([1.0, 2.0])
    assert reference_ranking.quantile_row(scores, 1.5, 0.0).hi == 2.0
    assert reference_ranking.quantile_row(scores, 1.0, 0.0).hi == 1.5


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_the_quantile_between_the_infinities_is_zero(t: float) -> None:
    """Every number has the mass; with a finite score among them none has it."""
    of_t = torch.tensor([t] * 3, requires_grad=t > 0)
    for temperature in (t, of_t):
        scores = torch.tensor([[-inf, inf, inf], [inf, -inf, 2.0], [inf, -inf, -inf]])
        scores.requires_grad_()
        found = soft_quantile(scores, torch.tensor([1 / 3, 2 / 3]), temperature)
        assert found.tolist() == [[0.0, -inf, -inf], [inf, inf, 0.0]]
        (grad,) = torch.autograd.grad(found.sum(), scores)
        assert (grad == 0).all()
    for row, of_row in zip(scores.detach(), found.mT.tolist(), strict=True):
        assert [reference_ranking.quantile_row(row, m, t).hi for m in (1.0, 2.0)] == of_row

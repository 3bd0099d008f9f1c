"""Ranks, sorts and permutations by the formulas of the official LapSum code, where that is right.

Written anew from its formulas, in float64: recurrences over neighbours in sorted order, a quadratic
between two of them, gradients over all pairs. Its temperature alpha is negative for a descending
order, and its ranks begin with 0. docs/notes/ranking.md says where it is not right.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import soft_argsort, soft_rank, soft_sort

TEMPERATURES = (1e-3, 0.2, 1.0, 50.0)


def _rows(n: int) -> list[Tensor]:
    """Random, tied, in two clusters, and far from 0."""
    scores = normal(n, seed=n)
    return [scores, (2 * scores).round() / 2, scores * 1e-2 + scores.sign(), scores + 1000]


def _sums(ordered: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Sums over those before and after each in the order, which decay by e^{-|gap / alpha|}."""
    before, after = torch.zeros_like(ordered), torch.zeros_like(ordered)
    decays = torch.exp(-(ordered.diff() / alpha).abs())
    for i in range(len(decays)):
        before[i + 1] = decays[i] * (1 + before[i])
    for i in reversed(range(len(decays))):
        after[i] = decays[i] * (1 + after[i + 1])
    return before, after


def _official_ranks(scores: Tensor, alpha: float) -> Tensor:
    ordered, order = scores.sort(descending=alpha < 0)
    before, after = _sums(ordered, alpha)
    found = torch.arange(len(scores)) + (after - before) / 2
    return torch.empty_like(scores).scatter(0, order, found)


def _official_rank_gradients(scores: Tensor, grad: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    apart = scores[:, None] - scores
    near = torch.exp(-(apart / alpha).abs())
    d_scores = (near * (grad[:, None] - grad)).sum(1) / (2 * alpha)
    return d_scores, (apart * near * grad).sum() / (2 * alpha**2)


def _official_thresholds(scores: Tensor, masses: Tensor, alpha: float) -> Tensor:
    """b at rising masses: with c scores below, it solves (a y - b / y) / 2 + c = m."""
    ordered = scores.sort().values
    before, after = _sums(ordered, alpha)
    n = len(ordered)
    knots = torch.arange(n) + 0.5 + (after - before) / 2
    found = []
    for mass in masses.tolist():
        below = int((knots < mass).sum())
        low, up = ordered[max(below - 1, 0)], ordered[min(below, n - 1)]
        a = 1 + after[below] if below < n else torch.zeros(())
        b = 1 + before[below - 1] if below > 0 else torch.zeros(())
        apart = abs(mass - below)
        root = math.sqrt(apart**2 + float(torch.exp((low - up) / alpha) * a * b))
        if mass > below:
            found.append(up + alpha * math.log((apart + root) / a))
        elif mass < below:
            found.append(low - alpha * math.log((apart + root) / b))
        else:
            found.append((low + up + alpha * torch.log(b / a)) / 2)
    return torch.stack(found)


def _official_matrix(scores: Tensor, alpha: float) -> Tensor:
    """Scores by places: differences of the Laplace CDF at the masses 1, 2, ..., n - 1."""
    b = _official_thresholds(scores, torch.arange(1, len(scores)), alpha)
    u = (b - scores[:, None]) / alpha
    cdf = torch.where(u <= 0, torch.exp(u.clamp(max=0)) / 2, 1 - torch.exp(-u.clamp(min=0)) / 2)
    ends = torch.zeros(len(scores), 1), torch.ones(len(scores), 1)
    return torch.cat((ends[0], cdf, ends[1]), 1).diff()


@pytest.mark.parametrize("alpha", [*TEMPERATURES, -0.3])
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_ranks_and_both_gradients(n: int, alpha: float) -> None:
    for scores in _rows(n):
        r = scores.clone().requires_grad_()
        t = torch.tensor(abs(alpha), dtype=torch.float64, requires_grad=True)
        ranks = soft_rank(r, t, descending=alpha < 0)
        torch.testing.assert_close(ranks.detach() - 1, _official_ranks(scores, alpha))
        grad = normal(n, seed=3)
        d_scores, d_t = torch.autograd.grad(ranks, (r, t), grad)
        want, want_alpha = _official_rank_gradients(scores, grad, alpha)
        torch.testing.assert_close(d_scores, want, atol=1e-9 * n / abs(alpha), rtol=1e-7)
        sign = math.copysign(1.0, alpha)
        torch.testing.assert_close(d_t, sign * want_alpha, atol=1e-9 * n / abs(alpha), rtol=1e-7)


@pytest.mark.parametrize("alpha", TEMPERATURES)
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_sorts_and_their_gradient(n: int, alpha: float) -> None:
    """The gradient is a softmax of distances to the threshold."""
    for scores in _rows(n):
        r = scores.clone().requires_grad_()
        found = soft_sort(r, alpha)
        want = _official_thresholds(scores, torch.arange(n) + 0.5, alpha)
        torch.testing.assert_close(found.detach(), want, atol=1e-11 * (alpha + 1000), rtol=1e-10)
        weights = torch.softmax(-((found.detach()[:, None] - scores) / alpha).abs(), -1)
        grad = normal(n, seed=4)
        (d_scores,) = torch.autograd.grad(found, r, grad)
        torch.testing.assert_close(d_scores, grad @ weights, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("alpha", TEMPERATURES)
@pytest.mark.parametrize("n", [2, 7, 40])
def test_the_matrix_of_a_permutation(n: int, alpha: float) -> None:
    """Where thresholds are apart, as its code demands."""
    for scores in _rows(n):
        found = soft_argsort(scores, alpha).dense()
        torch.testing.assert_close(found, _official_matrix(scores, alpha), atol=1e-8, rtol=1e-7)

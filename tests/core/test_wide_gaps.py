"""Gradients where the threshold is in a gap of many temperatures, such as before a mask's fill.

The budget is the number of scores above it. So both sides have half of q, however b is rounded.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from fast_lapsum import log_soft_topk, soft_topk, threshold

LOWEST = torch.finfo(torch.float32).min
#: Scores, how many of them are above the threshold, and the temperature.
ROWS: list[tuple[list[float], int, float]] = [
    ([1.0, 2.0, -1e9, -1e9], 2, 1.0),
    ([1.0, 2.0, LOWEST, LOWEST], 2, 1.0),
    ([1.0, 2.0, 1.5, -1e9, -3.0 - 1e9, *[LOWEST] * 700], 3, 1.0),
    ([LOWEST, -LOWEST, 0.0], 2, 1e30),
    ([1003.7, 1003.7, 1.2e-4, -5.0], 2, 1e-6),
    ([3.7, 3.7, 1.2e-3, -5.0], 2, 1e-8),
    ([3.7, 3.7, 1.2e-3, -5.0], 2, 1e-17),
    ([0.5, -0.5, -0.5, -900.0, -900.5], 3, 1.0),
]


def _shares(scores: Tensor, above: int, t: float) -> tuple[list[Any], Any]:
    """q and <q, u> as they are defined, in hundreds of digits."""
    with mpmath.workdps(400):
        r = [mpmath.mpf(float(x)) for x in scores]
        t = mpmath.mpf(t)
        ordered = sorted(r, reverse=True)
        middle = (ordered[above - 1] + ordered[above]) / 2
        sums = [
            mpmath.fsum(mpmath.exp(-abs(x - middle) / t) for x in side)
            for side in (ordered[:above], ordered[above:])
        ]
        b = middle - t / 2 * mpmath.log(sums[0] / sums[1])
        u = [(x - b) / t for x in r]
        weights = [mpmath.exp(-abs(x)) for x in u]
        q = [x / mpmath.fsum(weights) for x in weights]
        return [float(x) for x in q], float(mpmath.fsum(a * b for a, b in zip(q, u, strict=True)))


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("create_graph", [False, True])
def test_both_sides_have_half(
    row: int, dtype: torch.dtype, create_graph: bool, backend: Any
) -> None:
    numbers, above, number = ROWS[row]
    scores = torch.tensor(numbers, dtype=dtype, requires_grad=True)
    k, t = (torch.tensor(float(x), dtype=torch.float64).requires_grad_() for x in (above, number))
    q, mean = _shares(scores.detach(), above, number)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-10
    near: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}

    def derive(out: Tensor, *of: Tensor) -> Any:
        return torch.autograd.grad(out, of, create_graph=create_graph)

    d_scores, d_t = derive(threshold(scores, k, t, solver=backend), scores, t)
    torch.testing.assert_close(d_scores.detach(), torch.tensor(q, dtype=dtype), **near)
    torch.testing.assert_close(d_t.detach(), torch.tensor(-mean, dtype=torch.float64), **near)
    grad = torch.arange(1.0, len(numbers) + 1, dtype=dtype)
    (d_k,) = derive((grad * soft_topk(scores, k, t, solver=backend)).sum(), k)
    wanted = sum(x * float(g) for x, g in zip(q, grad, strict=True))
    torch.testing.assert_close(d_k.detach(), torch.tensor(wanted, dtype=torch.float64), **near)
    # Of log p: above the threshold p is 1, and below it phi / p is.
    log_p = log_soft_topk(scores, k, t, solver=backend)
    is_below = scores.detach() < scores.detach().sort(descending=True).values[above - 1]
    w = torch.where(is_below, grad, 0.0)
    (d_scores,) = derive((grad * log_p)[is_below].sum(), scores)
    wanted_scores = (w - torch.tensor(q, dtype=dtype) * w.sum()) / number
    size = float(wanted_scores.abs().max())
    assert float((d_scores.detach() - wanted_scores).abs().max()) <= 10 * tolerance * size


def test_second_derivatives() -> None:
    scores = torch.tensor([1.0, 2.0, -1e4, -1e4 - 0.3], dtype=torch.float64, requires_grad=True)
    t = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, t: threshold(x, 2.0, t), (scores, t))


@pytest.mark.parametrize("t", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("create_graph", [False, True])
def test_distances_that_overflow(t: float, create_graph: bool, backend: Any) -> None:
    """Filled with the lowest number of float64, over a temperature below 1."""
    numbers = [1.0, 3.0, 2.0, *[torch.finfo(torch.float64).min] * 2]
    scores = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    k = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    q = torch.softmax(torch.tensor([0.0, -2.0, -1.0], dtype=torch.float64) / t, 0) / 2
    wanted = torch.cat((q, q.new_full((2,), 0.25)))
    grad = torch.arange(1.0, 6, dtype=torch.float64)
    p = soft_topk(scores, k, temperature, solver=backend)
    d_scores, d_k, d_t = torch.autograd.grad(
        p, (scores, k, temperature), grad, create_graph=create_graph
    )
    assert p.tolist() == [1, 1, 1, 0, 0]
    assert not d_scores.any()
    torch.testing.assert_close(d_k, (grad * wanted).sum())
    assert d_t == 0
    b = threshold(scores, k, temperature, solver=backend)
    (d_scores,) = torch.autograd.grad(b, scores, create_graph=create_graph)
    torch.testing.assert_close(d_scores, wanted)


def test_thresholds_that_no_score_moves() -> None:
    for numbers, k in (([math.inf, -math.inf, math.inf], 2.0), ([-math.inf] * 2, 0.0)):
        budget = torch.tensor(k, requires_grad=True)
        b = threshold(torch.tensor(numbers), budget, 0.5)
        for create_graph in (False, True):
            (d_k,) = torch.autograd.grad(b, budget, retain_graph=True, create_graph=create_graph)
            assert d_k == 0


@pytest.mark.parametrize("t", [0.01, 1.0])
def test_second_derivatives_where_distances_overflow(t: float) -> None:
    numbers = [1.0, 3.0, 2.0, *[torch.finfo(torch.float64).min] * 2]
    scores = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    k = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    leaves = scores, k, temperature
    for function in (soft_topk, threshold):
        out = function(scores, k, temperature)
        upstream = torch.arange(1.0, 1 + out.numel(), dtype=torch.float64).view(out.shape)
        for first in torch.autograd.grad(out, leaves, upstream, create_graph=True):
            for second in torch.autograd.grad(first.sum(), leaves, retain_graph=True):
                assert not second.isnan().any()

"""The closed form of the order-statistic probability against quadrature, draws and mpmath."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from fast_lapsum.apps.attack.order_statistic import log_order_statistic


def by_quadrature(logits: Tensor, label: int) -> float:
    """log q by 50-digit quadrature, split where a factor reaches 1."""
    with mpmath.workdps(50):
        ratios = [
            mpmath.exp(mpmath.mpf(float(logits[label])) - mpmath.mpf(float(other)))
            for index, other in enumerate(logits)
            if index != label
        ]
        breaks = sorted({mpmath.mpf(0), mpmath.mpf(1), *(1 / r for r in ratios if r > 1)})
        value = mpmath.quad(
            lambda t: mpmath.fprod(min(r * t, mpmath.mpf(1)) for r in ratios), breaks
        )
        return float(mpmath.log(value))


def by_simpson(logits: Tensor, label: int, panels: int = 4000) -> float:
    """log q by Simpson's rule in u = -log t, for classes by the thousand.

    The integrand exp(-u - sum_j max(u - d_j, 0)), d_j by how much the true class is ahead, falls
    ever faster: beyond a fall by exp(40) nothing is left.
    """
    ahead = logits.double()[label] - logits.double()
    ahead = torch.cat((ahead[:label], ahead[label + 1 :]))

    def exponents(at: Tensor) -> Tensor:
        rows = [(one[:, None] - ahead).clamp_(min=0).sum(1) for one in at.split(100)]
        return -at - torch.cat(rows)

    top = exponents(torch.zeros(1, dtype=torch.float64))
    end = torch.full((1,), 40.0, dtype=torch.float64)
    while exponents(end / 2) < top - 40:
        end = end / 2
    at = torch.linspace(0, 1, 2 * panels + 1, dtype=torch.float64) * end
    weights = torch.full_like(at, 2.0)
    weights[1::2] = 4
    weights[[0, -1]] = 1
    area = (weights * torch.exp(exponents(at) - top)).sum() * end / (6 * panels)
    return float(area.log() + top)


CASES = {
    "two classes": [0.3, -0.2],
    "true class last": [2.0, 1.0, 0.5, -1.0],
    "ties": [1.0, 1.0, 1.0, 0.0, 0.0],
    "far below": [-100.0, 0.0, -1.0, -50.0],
    "far above": [60.0, 0.0, -1.0, -50.0],
    "close": [0.0, 1e-7, -1e-7, 2e-7],
    "spread": [-3.0, 4.0, 2.0, 1.0, 0.0, -1.0, -2.0, -6.0],
}


@pytest.mark.parametrize("case", CASES)
def test_equals_quadrature(case: str) -> None:
    logits = torch.tensor(CASES[case], dtype=torch.float64)
    for label in range(len(logits)):
        found = float(log_order_statistic(logits, torch.tensor(label)))
        assert found == pytest.approx(by_quadrature(logits, label), rel=1e-12, abs=1e-12)


def test_equals_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    rates = torch.softmax(torch.randn(6, generator=generator), -1)
    draws = torch.rand(400_000, 6, generator=generator) * rates
    share = torch.bincount(draws.argmax(-1), minlength=6) / len(draws)
    for label in range(6):
        q = float(log_order_statistic(rates.log(), torch.tensor(label)).exp())
        assert abs(q - float(share[label])) < 5 * math.sqrt(q * (1 - q) / len(draws)) + 1e-6


@pytest.mark.parametrize("case", CASES)
def test_gradient_is_that_of_the_integral(case: str) -> None:
    logits = torch.tensor(CASES[case], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_order_statistic(logits, torch.tensor(0)), logits)
    assert abs(float(gradient.sum())) < 1e-12
    for index in range(len(logits)):
        step = torch.zeros_like(logits)
        step[index] = 1e-6
        ahead = by_quadrature(logits.detach() + step, 0)
        behind = by_quadrature(logits.detach() - step, 0)
        # At a tie the derivative jumps in its own slope only, hence the loose bounds.
        assert float(gradient[index]) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-5)


def test_gradcheck_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    label = torch.tensor([0, 3, 6])
    assert torch.autograd.gradcheck(lambda value: log_order_statistic(value, label), (logits,))


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_classes_stay_finite_and_probabilities_sum_to_one(
    dtype: torch.dtype, scale: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = scale * torch.randn(21_000, generator=generator, dtype=dtype)
    best = logits.topk(20).indices
    rows = logits.expand(20, -1).clone().requires_grad_()
    log_q = log_order_statistic(rows, best)
    assert log_q.dtype == dtype
    assert log_q.isfinite().all()
    log_q.sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
    assert (rows.grad.gather(-1, best[:, None]) >= 0).all()
    total = float(log_q.detach().double().exp().sum())
    assert total < 1 + 1e-5
    if scale == 30.0:  # the best few take it all
        assert total == pytest.approx(1, abs=1e-4)


def test_simpsons_rule_is_the_fine_quadrature() -> None:
    logits = torch.tensor(CASES["spread"], dtype=torch.float64)
    for label in range(len(logits)):
        expected = by_quadrature(logits, label)
        assert by_simpson(logits, label) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_classes_equal_quadrature(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = scale * torch.randn(21_000, generator=generator, dtype=dtype)
    order = logits.argsort(descending=True)
    for place in (0, 3, 10_000, 20_999):
        label = order[place]
        found = float(log_order_statistic(logits, label))
        expected = by_simpson(logits, int(label))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_single_class_always_wins() -> None:
    assert float(log_order_statistic(torch.tensor([3.0]), torch.tensor(0))) == 0


def test_shape_of_the_label_is_checked() -> None:
    with pytest.raises(ValueError, match=r"label must have the shape \(2,\)"):
        log_order_statistic(torch.zeros(2, 3), torch.tensor(0))

"""Scores at and beside the largest and the lowest finite number, the usual fill of a mask.

There distances and gaps overflow, and a threshold can lie beyond the last number.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, assert_budget, assert_near, expected, generator, normal
from fast_lapsum import reference, soft_topk
from fast_lapsum.backends.cpu import kernel
from fast_lapsum.backends.torch.forward import SOLVERS

pytestmark = pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
needs_kernel = pytest.mark.skipif(
    not kernel.supports(torch.empty(1)), reason="the C++ kernel is not there"
)


def _rows(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Rows of n scores, the ends of the numbers among them."""
    largest = torch.finfo(dtype).max
    plain, place = normal(n, seed=n, dtype=dtype), torch.arange(n)
    levels = torch.tensor([1, -1, 0.5, -0.5, 1 / 16, -1 / 16, 0.0], dtype=dtype) * largest
    units = torch.finfo(dtype).eps * (place % 5).to(dtype)
    return {
        "every third lowest": plain.masked_fill(place % 3 == 2, -largest),
        "every third highest": plain.masked_fill(place % 3 == 2, largest),
        "one lowest": plain.masked_fill(place == n // 2, -largest),
        "one highest": plain.masked_fill(place == n // 2, largest),
        "only three are not lowest": plain.masked_fill(place > 2, -largest),
        "both ends": plain.masked_fill(place % 3 == 0, largest).masked_fill(
            place % 3 == 1, -largest
        ),
        "nothing but both ends": largest * (1 - 2 * (place % 2)).to(dtype),
        "all lowest": torch.full_like(plain, -largest),
        "all highest": torch.full_like(plain, largest),
        "levels": levels[torch.randint(7, (n,), generator=generator(n))],
        "a few units below the highest": largest * (1 - units),
    }


def _budgets(row: Tensor) -> list[float]:
    n, largest = len(row), torch.finfo(row.dtype).max
    above, low = int((row > -largest / 32).sum()), int((row > largest / 32).sum())
    edges = (above - 0.5, above, above + 0.5, low - 0.5, low, low + 0.5)
    return sorted({k for k in (1e-6, 0.5, 1.0, n / 2, n - 1.0, n - 0.3, *edges) if 0 < k < n})


def _cases(
    n: int, dtype: torch.dtype, temperatures: tuple[float, ...] = (1e-30, 1e-3, 4.0, 1e20, 1e36)
) -> tuple[Tensor, Tensor, Tensor]:
    """All of those as a batch: scores [rows, n], budgets and temperatures [rows]."""
    cases = [
        (row, k, t) for row in _rows(n, dtype).values() for k in _budgets(row) for t in temperatures
    ]
    rows, ks, ts = zip(*cases, strict=True)
    k, t = (torch.tensor(x, dtype=torch.float64) for x in (ks, ts))
    return torch.stack(rows), k, t


def _check(scores: Tensor, k: Tensor, t: Tensor, largest: bool, backend: str) -> None:
    """Mask and gradients against the reference."""
    eps = torch.finfo(scores.dtype).eps
    leaf = (scores if largest else -scores).clone().requires_grad_()
    k, t = k.clone().requires_grad_(), t.clone().requires_grad_()
    p = soft_topk(leaf, k, t, largest=largest, solver=backend)
    assert_budget(p.detach(), k.detach())
    grad = normal(*p.shape, seed=3, dtype=p.dtype)
    d_scores, d_k, d_t = torch.autograd.grad(p, (leaf, k, t), grad)
    d_scores = d_scores if largest else -d_scores
    want = expected(scores, k.detach(), t.detach(), grad)
    # u is small for what is not 0 or 1 here, so p is known to its last digits.
    close = 64 * eps * torch.ones(len(scores), dtype=torch.float64)
    assert_near(p, want.mask, close[:, None].expand_as(p), "mask")
    # Multiplied with t, which is what keeps them of the size of the gradient that comes in.
    scale, tiny = t.detach(), torch.finfo(scores.dtype).tiny
    rounding = 8 * close + 8 * tiny * scale
    assert_near(
        d_scores * scale[:, None],
        want.d_scores * scale[:, None],
        rounding[:, None].expand_as(d_scores),
        "d scores",
    )
    assert_near(d_t * scale, want.d_temperature * scale, 200 * close, "d temperature")
    # In the middle of a wide gap q depends on the last digits of distances that are huge.
    is_soft = (torch.minimum(want.mask, 1 - want.mask).sum(-1) > 1e-9) & (k > 1e-3)
    assert_near(d_k[is_soft], want.d_budget[is_soft], 200 * close[is_soft], "d k")
    assert d_k.isfinite().all()


@pytest.mark.parametrize(("n", "largest"), [(2, True), (3, False), (8, True), (33, False)])
def test_short_rows(backend: str, dtype: torch.dtype, n: int, largest: bool) -> None:
    _check(*_cases(n, dtype), largest, backend)


def test_rows_long_enough_for_a_sample(backend: str, dtype: torch.dtype) -> None:
    scores, k, t = _cases(1500, dtype)
    assert_budget(soft_topk(scores, k, t, solver=backend), k)
    some = torch.arange(0, len(k), 13)
    _check(scores[some], k[some], t[some], True, backend)


@needs_kernel
def test_the_highest_temperatures(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for n in (2, 3, 8, 1500):
        scores, k, t = _cases(n, dtype, (largest / 1e12, largest / 1e4, largest / 256))
        assert_budget(soft_topk(scores, k, t), k)


def test_a_difference_that_rounds_past_the_largest_number(backend: str, dtype: torch.dtype) -> None:
    """The digits that r - hi rounds away are NaN beside the largest number, and of no account."""
    largest = torch.finfo(dtype).max
    for part in (0.33984375, 0.35, 0.4, 0.1, -0.2):
        for k in (0.5, 1e-3, 0.9):
            for divisor in (262.0, 300.0, 350.0):
                scores = torch.tensor([part * largest, largest], dtype=dtype)
                p = soft_topk(scores, k, largest / divisor, solver=backend)
                assert_budget(p, k)
    scores = torch.tensor([1.1564282549208288e38, torch.finfo(torch.float32).max])
    assert soft_topk(scores, 0.5, 1.3e36, solver=backend).tolist() == [0, 0.5]


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_the_smallest_budget_beside_the_lowest_number(solver: str, dtype: torch.dtype) -> None:
    """1 / k overflows; the threshold does not."""
    k, lowest = 5e-324, torch.finfo(dtype).min
    for score in (0.999 * lowest, 0.5 * lowest, -1.0, 0.0):
        for t in (0.00093, 1.0):
            scores = torch.tensor([score, lowest], dtype=dtype)
            p = soft_topk(scores, k, t, solver=solver)
            assert (p.isfinite() & (p >= 0) & (p < 1e-30)).all()
            one = soft_topk(scores[:1], k, t, solver=solver)
            assert float(one) in (0.0, k)
            assert float(reference.soft_topk(scores[:1], k, t)) == k


def test_a_filled_score_is_as_good_as_a_masked_one(backend: str, dtype: torch.dtype) -> None:
    """As long as the budget does not reach it."""
    scores, keep = normal(3, 500, dtype=dtype), torch.arange(500) % 3 != 2
    filled = scores.masked_fill(~keep, torch.finfo(dtype).min)
    for k in (1.0, 30.5, 333.0, 333.5):
        p = soft_topk(filled, k, 0.1, solver=backend)
        assert_budget(p, k)
        if k < 333:
            masked = soft_topk(scores, k, 0.1, mask=keep, solver=backend)
            torch.testing.assert_close(p, masked, rtol=0, atol=1e-6)


def test_infinities_beside_the_ends(backend: str, dtype: torch.dtype) -> None:
    for n in (8, 1100):
        for row in _rows(n, dtype).values():
            place = torch.arange(n)
            row = row.masked_fill(place % 8 == 1, math.inf).masked_fill(place % 8 == 4, -math.inf)
            infinite, valid = int((row == math.inf).sum()), int((row > -math.inf).sum())
            for k in (infinite + 0.5, infinite + 1.0, valid - 1.0, valid - 0.5):
                for t in (1e-3, 1e36):
                    p = soft_topk(row, k, t, solver=backend)
                    assert_budget(p, k)
                    assert (p[place % 8 == 1] == 1).all()
                    assert (p[place % 8 == 4] == 0).all()


@pytest.mark.parametrize("k", [1.0, 1.5, 2.0, 3.0])
def test_the_middle_of_the_widest_gap(backend: str, dtype: torch.dtype, k: float) -> None:
    """Both ends have their share of q, however far away they are."""
    largest = torch.finfo(dtype).max
    scores = torch.tensor([largest, largest, -largest, -largest], dtype=dtype)
    budget = torch.tensor(k, dtype=torch.float64, requires_grad=True)
    p = soft_topk(scores, budget, 2.0, solver=backend)
    assert_budget(p.detach(), k)
    (d_k,) = torch.autograd.grad(p, budget, torch.arange(4, dtype=dtype))
    assert float(d_k) == (0.5 if k < 2 else 1.5 if k == 2 else 2.5)


@needs_kernel
@pytest.mark.parametrize("power", [12, 9, 5])
def test_thresholds_off_the_middle_of_the_widest_gap(dtype: torch.dtype, power: int) -> None:
    """One score against many: half the gap and what b is off its middle are over the largest."""
    largest, eps = torch.finfo(dtype).max, torch.finfo(dtype).eps
    t = largest / 10**power
    scores = -largest * (1 - eps * torch.arange(10, dtype=torch.float64))
    scores = torch.cat((torch.tensor([largest]).double(), scores)).to(dtype)
    for side, k in ((1, 1.0), (-1, 10.0)):
        p = soft_topk(side * scores, k, t)
        assert_budget(p, k)
        assert (p == (side * scores > 0)).all()


@needs_kernel
def test_no_gradient_for_the_temperature_is_nan(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    scores = torch.tensor([-largest, -largest, 0.9 * largest, largest, largest], dtype=dtype)
    for t in (1.0, 1.2, 2.0, 1e3):
        leaf = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        for k in (2.0, 3.0, 4.0):
            (d_t,) = torch.autograd.grad(soft_topk(scores, k, leaf)[::2].sum(), leaf)
            assert float(d_t) == 0


class TestReference:
    def test_the_ends_of_the_temperatures(self, dtype: torch.dtype) -> None:
        """Below the smallest normal number a row is hard, over a 256th of the largest NaN."""
        info = torch.finfo(dtype)
        scores = torch.tensor([0.0, 0.0, info.tiny], dtype=dtype)
        for t in (0.0, info.tiny / 2):
            assert reference.solve_row(scores, 1.5, t).is_hard
            assert reference.soft_topk(scores, 1.5, t).tolist() == [0.25, 0.25, 1.0]
        assert not reference.solve_row(scores, 1.5, info.tiny).is_hard
        assert not reference.soft_topk(scores, 1.5, info.max / 256).isnan().any()
        assert reference.soft_topk(scores, 1.5, info.max / 255).isnan().all()
        for t in (info.tiny / 2, info.tiny, info.max / 256, info.max / 255):
            k, per_row = (torch.tensor([x], dtype=torch.float64) for x in (1.5, t))
            p, want = (
                soft_topk(scores[None], k, per_row),
                reference.soft_topk(scores[None], k, per_row),
            )
            torch.testing.assert_close(p.double(), want, rtol=1e-6, atol=1e-6, equal_nan=True)

    def test_the_gap_between_both_ends(self, dtype: torch.dtype) -> None:
        largest = torch.finfo(dtype).max
        scores = torch.tensor([-largest, largest], dtype=dtype)
        for t in (1e-30, 1.0, 1e20):
            threshold = reference.solve_row(scores, 1.0, t)
            assert threshold.hi + threshold.lo == 0
            assert reference.mask_row(scores, threshold, t).tolist() == [0, 1]
        grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
        d_scores, d_k, d_t = reference.vjp_row(
            grad, scores, reference.solve_row(scores, 1.0, 1.0), 1.0
        )
        assert d_scores.tolist() == [0, 0]
        assert (d_k, d_t) == (1.5, 0)

    def test_every_row_adds_up(self, dtype: torch.dtype) -> None:
        scores, k, t = _cases(8, dtype)
        assert_budget(reference.soft_topk(scores, k, t), k)

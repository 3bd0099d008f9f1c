"""Rows that mislead a solver's certificate: wide gaps, far scores, tiny t, the ends of the floats.

All plain-torch solvers must meet the budget to rounding on them, whatever they took for proved.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cases import generator, normal
from fast_lapsum import soft_topk
from fast_lapsum.backends.torch import noised_bracket, two_exponential
from fast_lapsum.backends.torch.float_order import middle_float
from fast_lapsum.backends.torch.forward import SOLVERS

LARGEST, TINY = torch.finfo(torch.float64).max, torch.finfo(torch.float64).tiny
#: How many units in the last place of u a threshold may be off.
U_ROUNDING = 16.0


def _assert_meets_budget(
    scores: Tensor, k: Tensor, t: Tensor, hi: Tensor, lo: Tensor, names: list[str]
) -> None:
    """|sum(p) - k| <= U_ROUNDING eps sum phi (1 + |u|), which keeps the digits of k near 0 or n."""
    eps = torch.finfo(hi.dtype).eps
    scores, k, t, hi, lo = (x.double() for x in (scores, k, t, hi, lo))
    u = ((scores - hi[:, None]) - lo[:, None]) / t[:, None]
    phi = torch.exp(-u.abs()) / 2
    surplus = ((u > 0).sum(-1) - k) + torch.where(u > 0, -phi, phi).sum(-1)
    allowed = U_ROUNDING * eps * (phi * (1 + u.abs().clamp(max=1e4))).sum(-1) + TINY
    wrong = (~(surplus.abs() <= allowed)).nonzero()[:, 0].tolist()
    assert not wrong, "; ".join(
        f"{names[row]}, k={float(k[row])!r}, t={float(t[row])!r}: off by {float(surplus[row]):.3g}"
        for row in wrong[:4]
    )


def _solve_and_check(solver: str, cases: dict[str, tuple[Tensor, float, float]]) -> None:
    for name, (scores, k, t) in cases.items():
        row = scores[None], *torch.tensor([[k], [t]], dtype=torch.float64)
        _assert_meets_budget(*row, *SOLVERS[solver](*row), [name])


def _with(scores: Tensor, index: int, value: float) -> Tensor:
    return scores.index_fill(0, torch.tensor([index]), value)


def _far_rows() -> dict[str, tuple[Tensor, float, float]]:
    """Scores whose spread is 1e18 temperatures and more."""
    plain = normal(30)
    clusters = torch.where(torch.arange(30) < 12, 1e12, 0.0) + plain
    floor = torch.where(torch.arange(30) % 5 == 0, plain.abs(), 1e-30 * plain.abs())
    rows = {
        f"{name}, k={k!r}": (scores, k, t)
        for k in (1e-9, 9.499999999, 11.0, 12.0, 12.0 + 1e-9, 24.0, 30 - 1e-9)
        for name, scores, t in (
            ("one score far above", _with(plain, 7, 1e30), 1.0),
            ("one score far below", _with(plain, 7, -1e30), 1.0),
            ("both", _with(_with(plain, 3, 1e25), 7, -1e30), 1e-3),
            ("two clusters", clusters, 1e-7),
            ("spikes on a tiny floor", floor, 1e-30),
            ("t below the spacing of floats", plain, 1e-25),
            ("the same at an offset", 1e8 + plain, 1e-18),
            ("ties", (2 * plain).round(), 1e-22),
        )
    }
    rows["a gap next to an outlier"] = (_with(normal(8), 2, -1e9), 5.0, 15.0)
    return rows


@pytest.mark.parametrize("solver", SOLVERS)
def test_spread_far_over_the_temperature(solver: str) -> None:
    _solve_and_check(solver, _far_rows())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bisection_is_exact_through_the_public_function(dtype: torch.dtype) -> None:
    for name, (scores, k, t) in _far_rows().items():
        p = soft_topk(scores.to(dtype), k, t, solver="bisect").double()
        rounding = torch.finfo(dtype).eps * k + 1e-13
        assert abs(math.fsum(p.tolist()) - k) <= rounding, name


def _rows_at_the_ends() -> dict[str, tuple[Tensor, float, float]]:
    rows: dict[str, list[float]] = {
        "both ends": [-LARGEST, LARGEST],
        "both ends and 0": [-LARGEST, 0.0, LARGEST],
        "a gap over the largest float": [-0.6 * LARGEST, -1.0, 0.7 * LARGEST],
        "all lowest": [-LARGEST] * 3,
        "all highest": [LARGEST] * 3,
        "filled with the lowest": [0.5, -LARGEST, 2.0, -LARGEST, 1.0],
        "filled with the highest": [0.5, LARGEST, 2.0, LARGEST, 1.0],
    }
    return {
        f"{name}, k={k}, t={t}": (torch.tensor(row, dtype=torch.float64), k, t)
        for name, row in rows.items()
        for k in {0.5, 1.0, 1.5, len(row) - 1.0, len(row) - 0.75}
        for t in (1e-300, 1e-3, 1.0, 1e300)
    }


@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_at_the_ends_of_the_floats(solver: str) -> None:
    """A distance or the a-priori bracket can be infinite there, and certifies nothing."""
    _solve_and_check(solver, _rows_at_the_ends())


#: Gaps in temperatures at which float64 or float32 exponentials vanish, lose digits or are taken
#: as zero (2^-100), whole or from their middle.
_GAPS = (0.0, 1e-17, 1e-8, 1.0, 36.7, 69.3, 87.3, 103.9, 138.6, 207.0, 708.4, 745.2, 1490.4)


def _gap_rows(seed: int, n: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of a few such gaps, with budgets next to whole numbers, and temperatures."""
    g = generator(seed)

    def one_of(*values: float, size: tuple[int, ...] = (rows,)) -> Tensor:
        index = torch.randint(len(values), size, generator=g)
        return torch.tensor(values, dtype=torch.float64)[index]

    gaps = one_of(*_GAPS, size=(rows, n - 1)) * one_of(1.0, 1 - 1e-9, 0.997, size=(rows, n - 1))
    t = 10 ** (20 * torch.rand(rows, generator=g, dtype=torch.float64) - 10)
    levels = torch.cat((torch.zeros(rows, 1, dtype=torch.float64), gaps.cumsum(-1)), -1)
    scores = (levels + one_of(0.0, -1.0, 1e3, -1e8, 1e15)[:, None]) * t[:, None]
    whole = torch.randint(1, n, (rows,), generator=g).double()
    k = whole + one_of(0.0, 0.0, 1e-15, -1e-15, 1e-9, -1e-6, 0.5, -0.5, 0.5 + 1e-9)
    return scores, k, t


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
def test_gaps_in_which_exponentials_vanish(solver: str, dtype: torch.dtype) -> None:
    for n in (2, 3, 5, 9):
        scores, k, t = (x.to(dtype) for x in _gap_rows(n, n, 250))
        names = [f"gaps {row.tolist()}" for row in scores.diff() / t[:, None]]
        _assert_meets_budget(scores, k, t, *SOLVERS[solver](scores, k, t), names)


def test_a_start_in_any_gap_changes_only_the_speed() -> None:
    for n in (2, 3, 5, 9):
        scores, k, t = _gap_rows(n, n, 1000)
        share = torch.rand(1000, generator=generator(n), dtype=torch.float64)
        start = torch.lerp(scores[:, 0], scores[:, -1], 1.2 * share - 0.1)
        pair = two_exponential.solve(scores, k, t, start)
        _assert_meets_budget(scores, k, t, *pair, [f"start {float(b)!r}" for b in start])


@pytest.mark.parametrize("end", [math.nan, math.inf])
def test_an_end_that_is_no_number_certifies_no_bracket(end: float) -> None:
    scores = normal(1, 20)
    k, t, low, high = torch.tensor([[5.0], [1.0], [-100.0], [100.0]], dtype=torch.float64)
    odd = torch.full_like(low, end)
    assert noised_bracket.missed_side(scores, low, high, k, t) == 0
    assert noised_bracket.missed_side(scores, odd, high, k, t) == -1
    assert noised_bracket.missed_side(scores, low, -odd, k, t) == 1


@pytest.mark.parametrize("solver", ["bisect", "sort_scan"])
def test_no_host_sync(solver: str) -> None:
    """On the meta device there is no value to look at."""
    scores, budget = torch.empty(3, 50, device="meta"), torch.empty(3, device="meta")
    hi, lo = SOLVERS[solver](scores, budget, budget)
    assert hi.shape == lo.shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestMiddleFloat:
    def test_any_bracket_ends_at_two_neighbours_within_the_bits_of_a_float(
        self, dtype: torch.dtype
    ) -> None:
        info = torch.finfo(dtype)
        small = info.tiny * info.eps
        values = [0.0, -small, small, 1.0, -1.0, math.pi, -1e30, info.max, -info.max, -info.tiny]
        wanted = torch.tensor(values, dtype=dtype)
        left, right = torch.full_like(wanted, -math.inf), torch.full_like(wanted, math.inf)
        for _ in range(info.bits):
            middle = middle_float(left, right)
            left = torch.where(middle <= wanted, middle, left)
            right = torch.where(middle <= wanted, right, middle)
        assert torch.equal(left, wanted)
        assert torch.equal(right, torch.nextafter(wanted, torch.full_like(wanted, math.inf)))

    def test_it_lies_inside_unless_the_ends_are_neighbours(self, dtype: torch.dtype) -> None:
        ends = normal(1000, seed=4, dtype=dtype).sort().values
        left, right = ends[:-1], ends[1:]
        assert ((left < middle_float(left, right)) & (middle_float(left, right) < right)).all()
        up = torch.full_like(ends, math.inf)
        second = torch.nextafter(ends, up)
        third = torch.nextafter(second, up)
        assert torch.equal(middle_float(ends, second), second)
        assert torch.equal(middle_float(ends, third), second)

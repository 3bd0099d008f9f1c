"""The paper's solvers (bisect, sort_scan, noised_bracket) against the specification."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fast_lapsum import reference
from fast_lapsum.backends.torch import bisect, closed_form, noised_bracket, sort_scan
from fast_lapsum.backends.torch.noised_bracket import BracketOptions

SIZES = (1, 2, 3, 17, 1000, 20000)
TEMPERATURES = (1e-6, 1e-3, 0.1, 1.0, 1e3)
SOLVERS = {
    "bisect": bisect.solve,
    "sort_scan": sort_scan.solve,
    "noised_bracket": noised_bracket.solve,
}


def _normal(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator, dtype=torch.float64)


def _uniform(n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator, dtype=torch.float64)


DISTRIBUTIONS = {
    "normal": _normal,
    "student_t2": lambda n: _normal(n) / torch.sqrt(-torch.log1p(-_uniform(n))).clamp(min=1e-9),
    "lognormal": lambda n: torch.exp(_normal(n)),
    "cauchy": lambda n: torch.tan(math.pi * (_uniform(n) - 0.5)),
    "three_clusters": lambda n: 10 * (3 * _uniform(n)).floor() + 0.1 * _normal(n),
    "sixteen_levels": lambda n: (16 * _uniform(n)).floor() / 10,
    "constant": lambda n: torch.full((n,), 0.1, dtype=torch.float64),
    "one_outlier": lambda n: torch.cat((_normal(n - 1), torch.tensor([1e30]).double())),
    "far_bimodal": lambda n: 1e6 * torch.sign(_uniform(n) - 0.5) + _normal(n),
    "huge_offset": lambda n: 1e8 + _normal(n),
}


class Rows(NamedTuple):
    """One row of scores under every temperature and legal budget, and what reference.py says."""

    scores: Tensor
    budget: Tensor
    temperature: Tensor
    hi: Tensor
    lo: Tensor


def _rows(scores: Tensor) -> Rows:
    n = int((scores > -math.inf).sum())
    budgets = {1e-6, 0.3, 1.0, n / 16, float(n // 2), n - 1.0, n - 0.3, n - 1e-6}
    cases = [(k, t) for t in TEMPERATURES for k in sorted(budgets) if 0 < k < n]
    return _with_reference(scores, cases)


def _one_row(scores: Tensor, budget: float, temperature: float) -> Rows:
    return _with_reference(scores, [(budget, temperature)])


def _with_reference(scores: Tensor, cases: list[tuple[float, float]]) -> Rows:
    columns = [[k, t, *reference.solve_row(scores, k, t)[:2]] for k, t in cases]
    return Rows(
        scores.expand(len(cases), -1), *torch.tensor(columns, dtype=torch.float64).unbind(-1)
    )


@functools.cache
def _case(distribution: str, n: int) -> Rows:
    return _rows(DISTRIBUTIONS[distribution](n))


def _distances(rows: Rows, hi: Tensor, lo: Tensor) -> Tensor:
    return ((rows.scores - hi[:, None]) - lo[:, None]) / rows.temperature[:, None]


def _assert_solves(rows: Rows, hi: Tensor, lo: Tensor) -> None:
    """Budget, mask and threshold are right."""
    assert hi.shape == lo.shape == rows.budget.shape
    assert hi.isfinite().all()
    assert lo.isfinite().all()
    included = rows.scores > -math.inf

    u = _distances(rows, hi, lo)
    mask = reference.laplace_cdf(u)
    selected = mask.sum(-1)
    rejected = (reference.laplace_cdf(-u) * included).sum(-1)
    remainder = included.sum(-1) - rows.budget
    for mass, wanted in ((selected, rows.budget), (rejected, remainder)):
        error = (mass / wanted - 1).abs()
        assert error.max() <= 1e-12, error.max()

    u_reference = _distances(rows, rows.hi, rows.lo)
    mask_error = (mask - reference.laplace_cdf(u_reference)).abs()
    assert mask_error.max() <= 1e-12, mask_error.max()

    density = (torch.exp(-u_reference.abs()) / 2).sum(-1)
    offset = ((hi - rows.hi) + (lo - rows.lo)).abs() / rows.temperature
    assert torch.where(density > 1e-9, offset, 0.0).max() <= 1e-9, offset.max()


#: Every distribution at every length but the greatest, which those have whose scores are dense,
#: wide, equal or far apart.
CASES = [
    (distribution, n)
    for distribution in DISTRIBUTIONS
    for n in SIZES
    if n < 20000 or distribution in ("normal", "cauchy", "sixteen_levels", "far_bimodal")
]


@pytest.mark.parametrize(("distribution", "n"), CASES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_agrees_with_the_reference(solver: str, distribution: str, n: int) -> None:
    rows = _case(distribution, n)
    _assert_solves(rows, *SOLVERS[solver](rows.scores, rows.budget, rows.temperature))


@pytest.mark.parametrize("distribution", ["normal", "sixteen_levels", "huge_offset"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_excluded_scores_change_nothing(solver: str, distribution: str) -> None:
    scores = DISTRIBUTIONS[distribution](300)
    scores[_uniform(300, seed=2) < 0.4] = -math.inf
    scores[0] = scores[-1] = -math.inf
    rows = _rows(scores)
    _assert_solves(rows, *SOLVERS[solver](rows.scores, rows.budget, rows.temperature))


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_with_different_counts_are_independent(solver: str) -> None:
    scores = torch.stack([_normal(50, seed) for seed in range(4)])
    scores[1, 5:] = -math.inf
    scores[2, ::2] = -math.inf
    budget = torch.tensor([10.0, 4.5, 0.5, 49.0], dtype=torch.float64)
    temperature = torch.tensor([1e-3, 1.0, 0.1, 1e3], dtype=torch.float64)
    hi, lo = SOLVERS[solver](scores, budget, temperature)
    for row in range(4):
        expected = reference.solve_row(scores[row], float(budget[row]), float(temperature[row]))
        offset = (hi[row] - expected.hi) + (lo[row] - expected.lo)
        assert abs(float(offset)) <= 1e-12 * float(temperature[row])


@pytest.mark.parametrize("solver", SOLVERS)
def test_inputs_are_left_alone_and_need_not_be_contiguous(solver: str) -> None:
    scores = torch.stack([_normal(64, seed) for seed in range(3)], -1).T
    assert not scores.is_contiguous()
    budget, temperature = torch.ones(2, 3, dtype=torch.float64).unbind()
    before = scores.clone(), budget.clone(), temperature.clone()
    threshold = SOLVERS[solver](scores, budget, temperature)
    for now, then in zip((scores, budget, temperature), before, strict=True):
        assert torch.equal(now, then)
    contiguous = SOLVERS[solver](before[0].contiguous(), *before[1:])
    assert (sum(threshold) - sum(contiguous)).abs().max() <= 1e-13


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_rows(solver: str) -> None:
    nothing = torch.empty(0, dtype=torch.float64)
    hi, lo = SOLVERS[solver](nothing.reshape(0, 5), nothing, nothing)
    assert hi.shape == lo.shape == (0,)


@pytest.mark.parametrize("distribution", ["normal", "cauchy", "sixteen_levels", "one_outlier"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_float32_rows_stay_exact_to_float32(solver: str, distribution: str) -> None:
    scores = DISTRIBUTIONS[distribution](1000).float()
    for t in (0.0009765625, 0.125, 1.0, 1024.0):
        for k in (2.0**-20, 0.25, 1.0, 62.5, 500.0, 999.75):
            rows = _one_row(scores.double(), k, t)
            hi, lo = SOLVERS[solver](*(value.float() for value in rows[:3]))
            assert hi.dtype == lo.dtype == torch.float32
            mask = reference.laplace_cdf(_distances(rows, hi.double(), lo.double()))
            assert float(mask.sum()) == pytest.approx(k, rel=3e-6)


class TestScan:
    @pytest.mark.parametrize("t", TEMPERATURES)
    @pytest.mark.parametrize("distribution", DISTRIBUTIONS)
    def test_every_sum_of_a_short_row(self, distribution: str, t: float) -> None:
        ordered = DISTRIBUTIONS[distribution](77).sort(descending=True).values
        weights = _uniform(77, seed=3)
        temperature = torch.tensor([t], dtype=torch.float64)
        upper, lower = sort_scan.scan(ordered[None], weights[None], temperature)
        decay = torch.exp(-(ordered[:, None] - ordered).abs() / t) * weights
        torch.testing.assert_close(upper[0], decay.tril().sum(-1), rtol=2e-15, atol=0)
        torch.testing.assert_close(lower[0], decay.triu().sum(-1), rtol=2e-15, atol=0)

    @pytest.mark.parametrize("t", [1e-6, 1e-3, 1.0, 1e3])
    def test_rounding_does_not_grow_with_the_length(self, t: float) -> None:
        # Equal gaps: the decays of all neighbours round alike, so errors of a product would add up.
        n = 2**18 + 1
        ordered = torch.linspace(1, 0, n, dtype=torch.float64)
        ones = torch.ones(1, n, dtype=torch.float64)
        upper, lower = sort_scan.scan(ordered[None], ones, torch.tensor([t], dtype=torch.float64))
        for node in (0, 1, n // 3, n - 1):
            decay = torch.exp(-(ordered - ordered[node]).abs() / t).tolist()
            assert float(upper[0, node]) == pytest.approx(math.fsum(decay[: node + 1]), rel=1e-14)
            assert float(lower[0, node]) == pytest.approx(math.fsum(decay[node:]), rel=1e-14)

    def test_a_spread_of_a_billion_temperatures(self) -> None:
        ordered = torch.linspace(1e9, 0, 1001, dtype=torch.float64)[None]
        one = torch.ones(1, dtype=torch.float64)
        for sums in sort_scan.scan(ordered, torch.ones_like(ordered), one):
            assert torch.equal(sums, torch.ones_like(ordered))


class TestIntervalRoot:
    @staticmethod
    def _root(
        upper_sum: float, lower_sum: float, excess: float, t: float, upper: float, lower: float
    ) -> tuple[float, float]:
        numbers = (upper_sum, lower_sum, excess, t, upper, lower)
        rows = (torch.tensor([number], dtype=torch.float64) for number in numbers)
        hi, lo = closed_form.interval_root(*rows)
        return float(hi), float(lo)

    @pytest.mark.parametrize("gap_in_temperatures", [0.0, 1e-9, 1.0, 30.0, 700.0, 1400.0])
    @pytest.mark.parametrize("excess", [-0.5, -1e-6, -1e-14, 0.0, 1e-14, 1e-6, 0.5])
    def test_solves_the_interval_equation(self, excess: float, gap_in_temperatures: float) -> None:
        t, lower, upper_sum, lower_sum = 0.25, -3.0, 1.5, 7.0
        upper = lower + t * gap_in_temperatures
        hi, lo = self._root(upper_sum, lower_sum, excess, t, upper, lower)
        above = upper_sum / 2 * math.exp(-((upper - hi) - lo) / t)
        below = lower_sum / 2 * math.exp(((lower - hi) - lo) / t)
        assert above - below == pytest.approx(excess, rel=1e-12, abs=1e-12 * (above + below))

    def test_balanced_over_a_gap_whose_exponential_underflows(self) -> None:
        hi, lo = self._root(2.0, 2.0, 0.0, 1e-6, 1e4, -1e4)
        assert hi + lo == 0.0

    @pytest.mark.parametrize("distance", [0.0, 5.0, 1e9, math.inf])
    def test_open_ends_ignore_the_missing_score(self, distance: float) -> None:
        up, down = 1 + distance, 1 - distance
        assert self._root(0.0, 3.0, -0.5, 2.0, up, 1.0) == (1.0, 2 * math.log(3.0))
        assert self._root(3.0, 0.0, 0.5, 2.0, 1.0, down) == (1.0, -2 * math.log(3.0))

    def test_an_excess_whose_square_underflows(self) -> None:
        hi, lo = self._root(0.0, 1.0, -1e-200, 1.0, 0.0, 0.0)
        assert (hi, lo) == (0.0, pytest.approx(-math.log(2e-200), rel=1e-15))


def test_surplus_keeps_the_digits_of_a_budget_next_to_the_count() -> None:
    rows = _case("normal", 20000)
    surplus = closed_form.surplus_mass(rows.scores, rows.hi, rows.lo, rows.budget, rows.temperature)
    nearest = torch.minimum(rows.budget, 20000 - rows.budget)
    assert (surplus.abs() <= 1e-12 * nearest).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_prior_bracket_holds_the_threshold(distribution: str) -> None:
    rows = _case(distribution, 17)
    lowest, highest, shift = closed_form.prior_bracket(*rows[:3])
    slack = 1e-13 * rows.temperature
    assert ((rows.hi - lowest) + (rows.lo - shift) >= -slack).all()
    assert ((rows.hi - highest) + (rows.lo - shift) <= slack).all()


class TestNoisedBracket:
    @pytest.mark.parametrize("sample_size", ["two_thirds", "sqrt"])
    @pytest.mark.parametrize("sampler", ["systematic", "iid"])
    @pytest.mark.parametrize("n", [1, 2, 17, 1000])
    def test_every_sampler_is_exact(
        self,
        n: int,
        sampler: noised_bracket.Sampler,
        sample_size: noised_bracket.SampleSize,
    ) -> None:
        rows = _case("normal", n)
        hi, lo = noised_bracket.solve(*rows[:3], sampler=sampler, sample_size=sample_size)
        _assert_solves(rows, hi, lo)

    @pytest.mark.parametrize("sampler", ["systematic", "iid"])
    def test_the_sampled_bracket_covers_and_is_narrow(
        self, sampler: noised_bracket.Sampler
    ) -> None:
        scores = torch.stack([_normal(20000, seed) for seed in range(25)])
        budget = torch.full((25,), 1250.0, dtype=torch.float64)
        temperature = torch.full_like(budget, 0.1)
        hi, lo, records = noised_bracket.solve_recorded(
            scores, budget, temperature, BracketOptions(sampler=sampler)
        )
        for row, record in enumerate(records):
            assert record.covered
            assert (record.widenings, record.fell_back) == (0, False)
            assert record.left <= hi[row] + lo[row] < record.right
            inside = (scores[row] >= record.left) & (scores[row] < record.right)
            assert record.band_size == int(inside.sum())
            assert 0 < record.band_size < 20000 / 6

    @pytest.mark.parametrize("max_widenings", [0, 1, 4])
    def test_a_tiny_z_misses_and_is_repaired(self, max_widenings: int) -> None:
        rows = _case("normal", 1000)
        options = BracketOptions(z=1e-3, max_widenings=max_widenings)
        hi, lo, records = noised_bracket.solve_recorded(*rows[:3], options)
        missed = [record for record in records if not record.covered]
        assert len(missed) > len(records) / 4
        assert all(record.widenings <= max_widenings for record in records)
        assert all(record.fell_back or record.widenings > 0 for record in missed)
        repaired_by_widening = [record for record in missed if not record.fell_back]
        assert bool(repaired_by_widening) == (max_widenings > 0)
        _assert_solves(rows, hi, lo)

    def test_only_the_missed_side_is_doubled(self) -> None:
        rows = _case("normal", 1000)
        sampled = noised_bracket.solve_recorded(*rows[:3], BracketOptions(1e-3, validated=False))[2]
        hi, lo, records = noised_bracket.solve_recorded(*rows[:3], BracketOptions(1e-3))
        moves = []
        for before, after, b in zip(sampled, records, hi + lo, strict=True):
            if after.widenings and not after.fell_back:
                assert after.left <= b <= after.right
                moves.append((after.left >= before.right) - (after.right <= before.left))
        assert set(moves) == {-1, 1}

    def test_a_bracket_without_width_can_be_widened(self) -> None:
        # z = 0 makes both order statistics the same one, the 50th of K = 100.
        rows = _one_row(_normal(1000), 500.0, 1.0)
        hi, lo, [record] = noised_bracket.solve_recorded(*rows[:3], BracketOptions(z=0.0))
        assert not record.covered
        assert record.widenings > 0
        assert not record.fell_back
        _assert_solves(rows, hi, lo)

    def test_scores_that_repeat_with_the_stride_defeat_the_systematic_sample(self) -> None:
        # n = 1000 gives K = 100 and a stride of 10: each sample sees one of ten levels only, and
        # b lies half-way between two levels, out of reach of any of them.
        scores = torch.arange(1000, dtype=torch.float64) % 10
        rows = _one_row(scores, 300.0, 1e-3)
        unvalidated_errors = []
        for seed in range(10):
            generator = torch.Generator().manual_seed(seed)
            hi, lo, [record] = noised_bracket.solve_recorded(*rows[:3], generator=generator)
            assert record.covered is False
            assert record.fell_back
            assert record.band_size == 1000
            _assert_solves(rows, hi, lo)

            generator = torch.Generator().manual_seed(seed)
            unvalidated = BracketOptions(validated=False)
            hi, lo, [record] = noised_bracket.solve_recorded(*rows[:3], unvalidated, generator)
            assert record.covered is None
            mass = reference.laplace_cdf(_distances(rows, hi, lo)).sum()
            unvalidated_errors.append(abs(float(mass) / 300 - 1))
        assert max(unvalidated_errors) > 0.1

    def test_unvalidated_is_exact_when_the_bracket_covers(self) -> None:
        rows = _case("normal", 20000)
        records = noised_bracket.solve_recorded(*rows[:3])[2]
        assert all(record.covered for record in records)
        _assert_solves(rows, *noised_bracket.solve(*rows[:3], validated=False))

    def test_the_band_may_be_empty(self) -> None:
        # Two far clusters and the budget of the upper one: b lies where there is no score.
        rows = _one_row(torch.cat((_uniform(500), 1e6 + _uniform(500))), 500.0, 1e5)
        hi, lo, [record] = noised_bracket.solve_recorded(*rows[:3], BracketOptions(z=0.5))
        assert record.covered
        assert record.band_size == 0
        _assert_solves(rows, hi, lo)

    def test_the_default_sample_is_reproducible_and_leaves_the_global_generator_alone(self) -> None:
        rows = _case("cauchy", 1000)
        state = torch.get_rng_state()
        first, second = (noised_bracket.solve_recorded(*rows[:3]) for _ in range(2))
        assert first[2] == second[2]
        assert torch.equal(state, torch.get_rng_state())
        other = torch.Generator().manual_seed(7)
        assert noised_bracket.solve_recorded(*rows[:3], generator=other)[2] != first[2]

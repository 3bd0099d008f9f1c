"""The samplers' study: inputs, trials of both samplers, and the table."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from fast_lapsum import threshold
from fast_lapsum.backends.cpu import entry, inspection, kernel
from fast_lapsum.bench.experiment import Settings, Unavailable
from fast_lapsum.bench.experiments import distributions, robustness, samplers
from fast_lapsum.bench.experiments.selection import SanityError
from places import TESTS

SETTINGS = Settings("cpu", True, 3, 10**6, 20.0, 2.0, 0)
DISTRIBUTIONS = distributions.DISTRIBUTIONS

needs_kernel = pytest.mark.skipif(
    not entry.supports(torch.zeros(1)), reason="the C++ kernel is not built"
)


def _drawn(name: str, n: int, seed: int = 0) -> torch.Tensor:
    return DISTRIBUTIONS[name](n, torch.Generator().manual_seed(seed))


class TestDistributions:
    @pytest.mark.parametrize("name", DISTRIBUTIONS)
    def test_finite_float32_scores_that_only_depend_on_the_seed(self, name: str) -> None:
        scores = _drawn(name, 5000)
        assert scores.shape == (5000,)
        assert scores.dtype == torch.float32
        assert bool(scores.isfinite().all())
        assert torch.equal(scores, _drawn(name, 5000))
        assert not torch.equal(scores, _drawn(name, 5000, seed=1))

    def test_sorted_scores_are_ascending_and_normal(self) -> None:
        scores = _drawn("sorted", 20_000)
        assert bool((scores.diff() >= 0).all())
        assert abs(float(scores.mean())) < 0.05
        assert abs(float(scores.std()) - 1) < 0.05

    def test_student_t2_has_the_quartiles_of_two_degrees_of_freedom(self) -> None:
        """Its upper quartile is sqrt(2/3), from the closed-form quantile at p = 3/4."""
        assert abs(float(_drawn("student-t2", 50_000).quantile(0.75)) - (2 / 3) ** 0.5) < 0.03

    def test_the_second_period_is_the_stride_of_algorithm_1(self) -> None:
        stride = distributions.paper_stride(100_000)
        assert stride == 46
        scores = _drawn("periodic-stride", 100_000)
        assert float(scores[::stride].std()) < 0.1 < float(scores.std())


class TestTrials:
    @needs_kernel
    def test_our_band_is_the_one_that_the_kernel_solves_in(self) -> None:
        scores = _drawn("gaussian", 20_000)
        true = float(threshold(scores.double(), 1250, 1.0))
        bands, held = inspection.sample_bands(scores[None], 1250, 1.0)
        (lower, upper) = bands[0].tolist()
        assert lower < true < upper
        assert upper - lower < 1
        assert held.tolist() == [True]
        trial = samplers.our_trial(scores, 1250, 1.0, true)
        assert trial[:2] == (True, False)
        assert trial.budget_error < 1e-6

    @needs_kernel
    def test_a_refuted_band_shows(self) -> None:
        """High scores only where the sample does not look: it puts the threshold too low."""
        n, high = 8192, 400
        scores = _drawn("gaussian", n)
        unseen = []
        for place in range(2 * high):
            probe = scores.clone()
            probe[place] = math.nan  # a sample with a NaN in it tells nothing
            if not bool(inspection.sample_bands(probe[None], 100, 1.0)[0].isnan().any()):
                unseen.append(place)
        scores[unseen[:high]] += 50
        k, t = high + 50, 0.01
        true = float(threshold(scores.double(), k, t))
        trial = samplers.our_trial(scores, k, t, true)
        assert trial[:2] == (False, True)
        assert trial.budget_error < 1e-6

    @needs_kernel
    def test_short_rows_have_no_sample(self) -> None:
        with pytest.raises(ValueError, match="at least 1024 scores"):
            inspection.sample_bands(torch.zeros(1, 1000), 10, 1.0)

    def test_without_the_kernel_there_is_no_sampler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel, "_library", None)
        with pytest.raises(Unavailable, match=r"no C\+\+ kernel"):
            samplers.our_trial(torch.randn(5000), 300, 1.0, 0.0)

    def test_the_papers_bracket_holds_normal_scores(self) -> None:
        scores = _drawn("gaussian", 20_000)
        true = float(threshold(scores.double(), 1250, 1.0))
        trial = samplers.paper_trial(scores, 1250, 1.0, true, torch.Generator().manual_seed(1))
        assert trial[:2] == (True, False)
        assert trial.budget_error < 1e-6

    def test_the_papers_stride_misses_its_own_period(self) -> None:
        n, generator = 20_000, torch.Generator()
        trials = []
        for seed in range(10):
            scores = _drawn("periodic-stride", n, seed)
            true = float(threshold(scores.double(), n / 16, 1.0))
            trials.append(
                samplers.paper_trial(scores, n / 16, 1.0, true, generator.manual_seed(seed))
            )
        assert sum(trial.is_covered for trial in trials) < 5
        assert all(trial.is_covered != trial.falls_back for trial in trials)
        assert max(trial.budget_error for trial in trials) > 1e-3


class TestExperiment:
    def test_quick_cases_are_short_and_the_full_ones_the_papers(self) -> None:
        quick = robustness.cases(SETTINGS)
        assert {case.key["n"] for case in quick} == {100_000}
        full = robustness.cases(SETTINGS._replace(quick=False, max_n=10**7))
        assert len(full) == 3 * len(DISTRIBUTIONS) * 2
        assert {case.key["n"] for case in full} == {10**5, 10**6, 10**7}

    @needs_kernel
    def test_values_and_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(robustness, "QUICK_TRIALS", 5)
        cases = [
            case for case in robustness.cases(SETTINGS) if case.key["distribution"] == "gaussian"
        ]
        rows = [
            {"key": case.key, "status": "ok", "values": robustness.measure(case, SETTINGS)}
            for case in cases
        ]
        for row in rows:
            values = row["values"]
            assert values["trials"] == 5
            assert values["coverage"] == 1
            assert values["fallback"] == 0
            assert values["budget_error"] < 1e-6
        rows.append({"key": {**cases[0].key, "n": 10**6}, "status": "timeout", "reason": ""})
        (table,) = robustness.tables({"rows": rows, "settings": SETTINGS._asdict()})
        out = io.StringIO()
        Console(width=150, file=out).print(table)
        text = out.getvalue()
        assert "93.3%" in text  # the paper's own
        assert "> 20 s" in text

    @needs_kernel
    def test_trials_stop_before_the_limit(self) -> None:
        case = robustness.cases(SETTINGS)[1]
        assert robustness.measure(case, SETTINGS._replace(seconds=1e-6))["trials"] == 1

    @needs_kernel
    def test_a_missed_budget_of_ours_gets_no_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(samplers, "soft_topk", lambda scores, k, t: torch.zeros_like(scores))
        case = next(c for c in robustness.cases(SETTINGS) if c.key["sampler"] == "ours")
        with pytest.raises(SanityError, match="missed its budget"):
            robustness.measure(case, SETTINGS._replace(seconds=1e-6))


INTERPRETED = """
import torch
from fast_lapsum import threshold
from fast_lapsum.backends.triton.config import SharedPlan
from fast_lapsum.backends.triton import inspection
from interpreter_speed import install

install()
plan = SharedPlan(chunks=2, length=4096, sample=4096, read=4, piece=2048)
torch.manual_seed(0)
scores = torch.randn(2, 6000)
bands = inspection.sample_bands(scores, 1500, 1.0, plan)
true = threshold(scores.double(), 1500, 1.0)
assert bool(((bands.lower <= true) & (true <= bands.upper)).all()), (bands, true)
assert float((bands.upper - bands.lower).max()) < 0.5, bands
assert bands.lower.dtype == bands.upper.dtype == torch.float64
assert bands.is_settled.tolist() == [True, True], bands
bands = inspection.sample_bands(scores, 1500, 0.0, plan)
rank = scores.sort(-1, descending=True).values[:, 1499]
assert bool(((bands.lower <= rank) & (rank <= bands.upper)).all()), (bands, rank)
assert bands.is_settled.tolist() == [True, True], bands
try:
    inspection.sample_bands(scores, 375, 1.0)
except ValueError as error:
    assert "are not sampled" in str(error)
else:
    raise AssertionError("a short row has no sample")
"""


def test_the_gpu_sampler_is_the_forwards() -> None:
    """In a process of its own: Triton decides on import whether it interprets."""
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

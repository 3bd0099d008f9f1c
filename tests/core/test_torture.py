"""The torture table: the budget, finite gradients and the number of passes over seeded cases.

The normal run takes a fast subset; the slow run takes more than 100,000 cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, Batch, assert_budget, budget_tolerance, normal, torture
from fast_lapsum import soft_topk
from fast_lapsum.backends.cpu import kernel
from fast_lapsum.backends.torch import two_exponential

#: Cases per dtype.
FAST_CASES = 1_000
SLOW_CASES = 50_000
MAX_PASSES = 64


def _worst(p: Tensor, batch: Batch) -> str:
    """The row furthest over its budget, as numbers that reproduce it."""
    error = (p.double().sum(-1) - batch.k).abs() - budget_tolerance(p, batch.k)
    row = int(error.nan_to_num(nan=torch.inf).argmax())
    return (
        f"{batch.distributions[row]}: n={p.shape[-1]}, k={float(batch.k[row])!r}, "
        f"t={float(batch.temperature[row])!r}, sum(p)={float(p[row].double().sum())!r}"
    )


def _check_batch(batch: Batch, dtype: torch.dtype, backend: str, seed: int) -> None:
    """Budget and first-order gradients of every row of a batch."""
    scores = batch.scores.to(dtype).requires_grad_()
    k, t = batch.k.clone().requires_grad_(), batch.temperature.clone().requires_grad_()
    p = soft_topk(scores, k, t, solver=backend)
    try:
        assert_budget(p.detach(), batch.k)
    except AssertionError as error:
        raise AssertionError(f"{error}; {_worst(p.detach(), batch)}") from None
    grads = torch.autograd.grad(p, (scores, k, t), normal(*p.shape, seed=seed, dtype=dtype))
    for name, grad in zip(("scores", "k", "temperature"), grads, strict=True):
        bad = ~grad.isfinite().reshape(len(batch.k), -1).all(-1)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise AssertionError(
                f"gradient for {name} not finite on {batch.distributions[row]}: "
                f"n={p.shape[-1]}, k={float(batch.k[row])!r}, t={float(batch.temperature[row])!r}"
            )


def _check_all(cases: int, seed: int, dtype: torch.dtype, backend: str) -> None:
    """Every batch, and then one message with all that failed."""
    failures = []
    for index, batch in enumerate(torture(seed, cases)):
        try:
            _check_batch(batch, dtype, backend, index)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} batches failed, among them:\n" + "\n".join(failures[:8])


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_budget_and_finite_gradients(backend: str, dtype: torch.dtype) -> None:
    _check_all(FAST_CASES, 2024, dtype, backend)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_budget_and_finite_gradients_on_all_cases(backend: str, dtype: torch.dtype) -> None:
    """2 x 50,000 cases on every backend."""
    _check_all(SLOW_CASES, 77, dtype, backend)


def _two_exponential_passes(batch: Batch, dtype: torch.dtype) -> int:
    n = batch.scores.shape[-1]
    clean = (batch.k > 0) & (batch.k < n)
    if not clean.any():
        return 0
    scores = batch.scores.to(dtype).double()
    return two_exponential.solve_counting_passes(
        scores[clean], batch.k[clean], batch.temperature[clean]
    )[2]


def _kernel_passes(batch: Batch, dtype: torch.dtype) -> int:
    if not kernel.supports(batch.scores):
        pytest.skip("the compiled CPU kernel is not built")
    passes = torch.zeros(len(batch.k), dtype=torch.int64)
    scores = batch.scores.to(dtype)
    kernel.forward(
        scores, batch.k, 0.0, batch.temperature, 1.0, None, None, True, "mask", dtype, passes
    )
    return int(passes.max())


#: The most passes that any row of a batch took, for every solver that iterates.
PASS_COUNTERS: dict[str, Callable[[Batch, torch.dtype], int]] = {
    "two_exponential": _two_exponential_passes,
    "cpu_kernel": _kernel_passes,
}


def _hardest_for_passes() -> Iterator[Batch]:
    """Rows built to mislead an iteration: geometric spacing, magnitudes to 1e30, tiny gaps."""
    n = 400
    steps = torch.arange(n, dtype=torch.float64)
    rows = torch.stack(
        [
            1.1**steps,
            -(1.15**steps),
            1.15 ** (steps - n / 2) * (-1.0) ** steps,
            torch.where(steps < n / 2, 0.0, 1e30) + steps,
            1e6 + steps * 1e-9,
            torch.sign(steps - 200.5) * 1e12 + steps * 1e-3,
            torch.exp(normal(n) * 10),
            normal(n) ** 9,
        ]
    )
    for t in (1e-6, 1e-3, 1.0, 1e3):
        for k in (1e-6, 0.5, 1.0, 133.3, 200.0, 399.0, 399.5):
            temperatures = torch.full((len(rows),), t, dtype=torch.float64)
            budgets = torch.full((len(rows),), k, dtype=torch.float64)
            yield Batch(rows, budgets, temperatures, [f"hard {i}" for i in range(len(rows))])


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("solver", PASS_COUNTERS)
def test_never_more_than_64_passes(solver: str, dtype: torch.dtype) -> None:
    """The maximum is printed: `pytest -rP -k passes` shows it."""
    count = PASS_COUNTERS[solver]
    most = max(count(batch, dtype) for batch in torture(2024, FAST_CASES // 3))
    hardest = max(count(batch, dtype) for batch in _hardest_for_passes())
    print(f"{solver}, {dtype}: at most {most} passes, {hardest} on the hardest rows")
    assert 0 < max(most, hardest) <= MAX_PASSES


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_the_rows_that_are_hardest_for_an_iteration(backend: str, dtype: torch.dtype) -> None:
    for index, batch in enumerate(_hardest_for_passes()):
        _check_batch(batch, dtype, backend, index)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("row", [[1.0, 0.0], [0.0, -1.0, 1.0], [1.0, 0.0, 0.0, 0.99]], ids=str)
def test_denormal_tail_sums_certify_nothing(
    backend: str, dtype: torch.dtype, row: list[float]
) -> None:
    """A trial threshold may be so many t from the next score that its tail sum is denormal."""
    n = len(row)
    temperatures = torch.logspace(-6, 0, 3_000, dtype=torch.float64)
    for k in (0.03, 0.5, 1.0, 1.03, n - 1.5, n - 1.0, n - 0.03):
        scores = torch.tensor(row, dtype=torch.float64).expand(len(temperatures), n)
        budgets = torch.full_like(temperatures, k)
        batch = Batch(scores, budgets, temperatures, [str(row)] * len(temperatures))
        _check_batch(batch, dtype, backend, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("solver", PASS_COUNTERS)
def test_never_more_than_64_passes_on_all_cases(solver: str, dtype: torch.dtype) -> None:
    most = max(PASS_COUNTERS[solver](batch, dtype) for batch in torture(77, SLOW_CASES // 4))
    print(f"{solver}, {dtype}: at most {most} passes")
    assert 0 < most <= MAX_PASSES

"""The sort that a solver falls back to when its passes run out is exact too."""

from __future__ import annotations

import pytest
import torch

from cases import DISTRIBUTIONS, assert_budget, budgets, generator
from fast_lapsum import reference
from fast_lapsum.backends.cpu import kernel
from fast_lapsum.backends.torch import two_exponential

TEMPERATURES = (1e-6, 1e-3, 0.1, 1.0, 1e3)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_two_exponential_out_of_passes(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_exponential, "MAX_PASSES", 1)
    n = 300
    row = DISTRIBUTIONS[distribution](n, generator(5)).double()
    pairs = [(k, t) for t in TEMPERATURES for k in budgets(n) if 0 < k < n]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    rows = row.expand(len(pairs), n)
    hi, lo, passes = two_exponential.solve_counting_passes(rows, k, t)
    assert passes == 1
    u = ((rows - hi[:, None]) - lo[:, None]) / t[:, None]
    assert_budget(reference.laplace_cdf(u), k)


@pytest.mark.skipif(kernel._library is None, reason="the C++ kernel is not built here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_kernel_out_of_passes(distribution: str, dtype: torch.dtype) -> None:
    n = 2000
    row = DISTRIBUTIONS[distribution](n, generator(5)).to(dtype)
    row[7], row[11] = torch.inf, -torch.inf
    pairs = [(k, t) for t in TEMPERATURES for k in budgets(n) if 1 <= k <= n - 1]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    passes = torch.empty(len(pairs), dtype=torch.int64)
    rows = row.expand(len(pairs), n)
    p, _ = kernel.forward(
        rows, k, 0.0, t, 1.0, None, None, True, "mask", dtype, passes=passes, most_passes=0
    )
    assert_budget(p, k)
    assert passes.max() <= 4  # survey, sums relative to the neighbours, polish: no iteration

"""The search for thresholds of rows over many ranks, all of which are in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import generator
from fast_lapsum.backends.cpu import loader
from fast_lapsum.backends.cpu import shard_entry as cpu
from fast_lapsum.backends.torch import shard_entry as plain
from sharded_cases import Case, symmetric_cases
from sharded_checks import check
from sharded_simulation import call, find

needs_kernel = pytest.mark.skipif(not loader.status().available, reason="there is no C++ kernel")
BACKENDS = [pytest.param(plain, id="plain"), pytest.param(cpu, id="cpu", marks=needs_kernel)]


@pytest.mark.parametrize("entry", BACKENDS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_thresholds_in_the_middle_of_rows(entry: Any, ranks: int) -> None:
    for case in symmetric_cases():
        found, _ = call(case, ranks, entry.Shard, entry.Steps, entry)
        check(case, found)


@pytest.mark.parametrize("entry", BACKENDS)
def test_many_symmetric_rows_end(entry: Any) -> None:
    """Of 58 of 150 such rows no threshold was found: measurements had contradicted each other."""
    g = generator(0)
    for number in range(300 if entry is cpu else 60):
        half = torch.randn(1, 3, generator=g)
        scores = torch.cat((half, torch.zeros(1, 1), -half), -1)
        t = 10 ** (3 * torch.rand(1, generator=g, dtype=torch.float64) - 2)
        k = torch.tensor([3.5], dtype=torch.float64)
        case = Case(f"{number}", "mask", scores, k, t, "even")
        (one, two), messages = find(case, 2, entry.Shard, entry.Steps, looks=True)
        assert messages <= 6
        assert (one[0].hi, one[0].lo) == (two[0].hi, two[0].lo)
        u = (scores.double() - one[0].hi - one[0].lo) / t
        p = torch.where(u > 0, 1 - torch.exp(-u.abs()) / 2, torch.exp(-u.abs()) / 2)
        assert float((p.sum() - k).abs()) <= 1e-6

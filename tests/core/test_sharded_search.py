"""The search for thresholds of rows over many ranks, all of which are in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import generator
from fast_lapsum.backends.cpu import loader
from fast_lapsum.backends.cpu import shard_entry as cpu
from fast_lapsum.backends.shards import Sizes
from fast_lapsum.backends.torch import shard_entry as plain
from late_cuts import LateCuts
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


def tower(n: int, levels: int, base: float, ratio: float, dtype: torch.dtype) -> Tensor:
    """Scores by which quantiles mislead: each level has what one node of 512 stands for.

    Beside the last level are a few single scores. n in all, in a drawn order.
    """
    parts, left = [], n - levels
    for level in range(levels):
        share = left // 511
        parts.append(torch.full((share,), base + 0.5 * ratio**level, dtype=torch.float64))
        left -= share
    parts.append(torch.full((left,), base, dtype=torch.float64))
    parts.append(base - 0.25 * ratio ** torch.arange(levels, dtype=torch.float64))
    order = torch.randperm(n, generator=generator(0))
    return torch.cat(parts)[order].to(dtype)


def mass(scores: Tensor, b: float, t: float) -> float:
    u = (scores.double() - b) / t
    p = torch.where(u > 0, 1 - torch.exp(-u.abs()) / 2, torch.exp(-u.abs()) / 2)
    return float(p.sum())


@pytest.mark.parametrize("entry", BACKENDS)
@pytest.mark.parametrize("rows", [1, 25])
def test_towers_end(entry: Any, rows: int) -> None:
    """One was not solved in the measurements that there were, and came back as NaN."""
    t, b = 1e4, 1 - 2.0**-48
    scores = tower(60_000 if entry is plain else 400_000, 18, 1.0, 0.25, torch.float64)
    k = torch.full((rows,), mass(scores, b, t), dtype=torch.float64)
    case = Case("tower", "mask", scores.expand(rows, -1), k, torch.full_like(k, t), "even")
    ((found,),), messages = find(case, 1, entry.Shard, entry.Steps, looks=True)
    assert messages <= 14
    threshold = float(found.hi[0] + found.lo[0])
    assert abs(mass(scores, threshold, t) - float(k[0])) <= 1e-9 * len(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_rows_end_without_a_look(dtype: torch.dtype, rows: int) -> None:
    """Where the host does not look: in the measurements of Sizes, from samples that mislead.

    Of a GPU no masses are known at cuts before the third measurement, or beyond the last reading.
    """
    g, most = generator(1), Sizes.of(rows, 3).most_rounds(dtype)
    n = 20 * Sizes.of(rows, 3).nodes
    LateCuts.needed = 0
    for number in range(20 if rows == 1 else 5):
        kinds = [
            tower(n, 12, 1.0, 0.5, torch.float64).expand(rows, -1),
            torch.randn(rows, n, generator=g, dtype=torch.float64),
            torch.randn(rows, n, generator=g, dtype=torch.float64) + 1e4,
            10 ** (30 * torch.randn(rows, n, generator=g, dtype=torch.float64)).clamp(-30, 30),
            # Neighbours among all numbers, and many of each: nothing but the last cut parts them.
            1 + torch.finfo(dtype).eps * torch.randint(0, 3, (rows, n), generator=g).double(),
        ]
        scores = kinds[number % 5].to(dtype)
        t = 10 ** (12 * torch.rand(rows, generator=g, dtype=torch.float64) - 6)
        t = t * (torch.finfo(dtype).eps if number % 5 == 4 else 1)
        k = (n * torch.rand(rows, generator=g, dtype=torch.float64)).clamp(1e-3, n - 1e-3)
        case = Case(f"{number}", "mask", scores, k, t, "uneven")
        found, messages = call(case, 3, LateCuts, plain.Steps, plain, looks=False)
        assert messages == 1 + most
        check(case, found)
    # They were put to use: of float64 about half, as nodes find neighbours sooner.
    assert most - 2 <= LateCuts.needed * (2 if dtype == torch.float64 else 1)
    assert LateCuts.needed <= most

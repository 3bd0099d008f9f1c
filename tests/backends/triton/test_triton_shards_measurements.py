"""Samples and measurements of a rank's part of rows, interpreted, against plain torch."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import DTYPES, normal

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum._sharded_header import header
from fast_lapsum._sharded_rounds import pack
from fast_lapsum.backends import shards
from fast_lapsum.backends.shards import COLUMNS, Rows, Sample
from fast_lapsum.backends.torch import shard_entry as plain
from fast_lapsum.backends.torch.float_order import cuts, next_float
from fast_lapsum.backends.triton import shard_entry, shard_plan
from fast_lapsum.backends.triton.shard_plan import ShardPlan
from interpreted_shards import PLAN, RANKS, make, small_pieces
from interpreting import poison
from late_cuts import FIRST_CUTS
from sharded_simulation import same_bits

__all__ = ["poison", "small_pieces"]  # fixtures
inf, nan = math.inf, math.nan
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def at_ends(columns: Tensor, low: Tensor, high: Tensor, t: Tensor) -> Tensor:
    """Columns with sums relative to the band's ends, whichever score they were relative to."""
    columns = columns.clone()
    for nearest, total, end in (
        (shards.ABOVE_NEAREST, shards.ABOVE_SUM, high),
        (shards.BELOW_NEAREST, shards.BELOW_SUM, low),
    ):
        score = columns[:, nearest]
        decay = torch.exp(-(score - end).abs() / t).masked_fill(score.isinf(), 0.0)
        columns[:, total] *= decay.nan_to_num()
        columns[:, nearest] = score.isinf().double()
    return columns


def rows_of_kinds(dtype: torch.dtype, n: int) -> Tensor:
    """Plain, tied, with infinities, with NaN, and far from most of them."""
    rows = normal(5, n, seed=n, dtype=torch.float64)
    rows[1] = (2 * rows[1]).round() / 2
    rows[2, ::5], rows[2, 1::7] = inf, -inf
    rows[3, n // 2 :] = nan
    rows[4] = rows[4] * 30 + 4
    return rows.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 5, 300])
def test_measurements_are_those_of_plain_torch(dtype: torch.dtype, n: int) -> None:
    """Of bands that are read, that lie in one that was, of one number, and of all there is."""
    rows = rows_of_kinds(dtype, n)
    t = torch.tensor([0.1, 2.0, 0.5, 0.3, 0.7], dtype=torch.float64)
    keep = torch.arange(n) % 9 != 4
    keep = keep.expand(5, n)
    own: Any = make(rows, t, keep, False, plan=PLAN._replace(first_cuts=1))
    want = plain.Shard(rows, t, keep, False)
    size = 64
    own.sample(size)
    is_open = torch.tensor([True, True, True, True, True])
    bands = ((-0.5, 1.0), (0.0, 0.5), (0.0, 0.0), (2.0, 2.0), (-inf, inf), (2.0, inf))
    for number, (left, right) in enumerate(bands):
        low = torch.full((5,), left, dtype=torch.float64)
        high = torch.full_like(low, right)
        high = torch.where(low < high, high, next_float(low, dtype))
        ends = torch.stack((low, next_float(low, dtype), high), -1)
        pivots = torch.cat((ends, cuts(low, high, 5, dtype)), -1)
        a, b = (x.measure(low, high, pivots, size, is_open) for x in (own, want))
        got, wanted = at_ends(a.columns, low, high, t), at_ends(b.columns, low, high, t)
        known = ~got[:, COLUMNS:].isnan()
        assert known[:, [0, 1, 2, 8, 9, 10]].all()
        assert known.all() == (number not in (0, 3)), number
        close = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(
            torch.where(got.isnan(), 0.0, got),
            torch.where(got.isnan(), 0.0, wanted),
            rtol=close,
            atol=close,
        )
        inside = b.columns[:, shards.INSIDE_COUNT]
        first, second = (x.nodes.double().nan_to_num(nan=-99) for x in (a, b))
        is_whole = (inside <= size) & (left != right)
        assert same_bits(first.sort(-1).values[is_whole], second.sort(-1).values[is_whole])
        many = (inside > size) & (left != right)
        for end in (0, -1):  # nothing lies beyond the first and the last
            assert same_bits(first[many][:, end], second[many][:, end])
        assert dtype.itemsize < 4 or (first[many].diff() <= 0).all()
        message = a.message
        assert message is not None
        assert torch.equal(message, pack(a.columns, a.nodes))


def test_quantiles_of_a_band() -> None:
    """By bins of many scores each they are off by a small part of what lies between two."""
    rows = normal(2, 4000, dtype=torch.float32)
    t = torch.ones(2, dtype=torch.float64)
    one: Any = shard_entry.Shard(rows, t, None, True, plan=ShardPlan(1, 1, 16, 125, bins=512))
    one.sample(64)
    low, high = torch.tensor([-1.0, 0.5]).double(), torch.tensor([1.0, inf]).double()
    pivots = torch.stack((low, next_float(low, torch.float32), high), -1)
    found = one.measure(low, high, pivots, 64, torch.ones(2, dtype=torch.bool)).nodes
    for row, nodes, a, b in zip(rows, found, low, high, strict=True):
        inside = row[(row >= a) & (row < b)].sort(descending=True).values
        apart = torch.arange(64) * (len(inside) - 1) / 63
        places = torch.searchsorted(-inside, -nodes)
        assert (places - apart).abs().max() < 0.5 * len(inside) / 64


def test_samples() -> None:
    """Short parts whole, in any order; of long ones quantiles, without a period's help."""
    rows = normal(2, 40, dtype=torch.float32)
    t = torch.ones(2, dtype=torch.float64)
    nodes, drawn, length, message = make(rows, t, None, True).sample(64)
    call_of = Rows(2, torch.float32, RANKS, looks=False)
    said = pack(header(Sample(nodes, drawn, length), t, t, call_of), nodes)
    assert torch.equal(message, said)
    assert (drawn, length) == (40, 40)
    assert same_bits(nodes[:, :40].sort(-1).values, rows.sort(-1).values)
    assert nodes[:, 40:].isnan().all()
    long = torch.arange(3000.0).expand(2, 3000)
    nodes, drawn, length, message = make(long, t, None, False).sample(64)
    said = pack(header(Sample(nodes, drawn, length), t, t, call_of._replace(largest=False)), nodes)
    assert torch.equal(message, said)
    assert (drawn, length) == (1024, 3000)
    places = -nodes[0].flip(0) / 3000
    assert (places.diff() < 0).all()
    assert (places - torch.linspace(1, 0, 64)).abs().max() < 0.01
    assert shard_plan.sample_size(10**9, 512) == shard_plan.MOST_SAMPLE


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_are_sorted(dtype: torch.dtype) -> None:
    """In blocks that are put together: ties across them, infinities, NaN, a last block in part."""
    n, size = 300, 64
    rows = rows_of_kinds(dtype, n)
    rows[4] = 0.25
    t = torch.ones(5, dtype=torch.float64)
    found = make(rows, t, None, True).sample(size).nodes
    ordered = rows.sort(-1, descending=True).values  # NaN first
    wanted = ordered[:, torch.arange(size) * (n - 1) // (size - 1)]
    assert same_bits(found, wanted)


@pytest.mark.parametrize("length", [64, 200, 300])
def test_scores_that_are_left_out_are_counted(length: int) -> None:
    """Also where the sample has none of them: in whole tiles, and in a last one that is not."""
    rows = normal(2, length, dtype=torch.float32)
    rows[0, 7], rows[1, length - 1] = -inf, -inf
    t = torch.tensor([0.5, 0.1], dtype=torch.float64)
    one: Any = make(rows, t, None, True)
    one.sample(64)
    one.nodes.clamp_(min=-3.0)
    low, high = torch.tensor([-0.5, 0.2]).double(), torch.tensor([1.0, 0.7]).double()
    pivots = torch.stack((low, next_float(low, torch.float32), high), -1)
    is_open = torch.ones(2, dtype=torch.bool)
    got = one.measure(low, high, pivots, 64, is_open).columns
    want = plain.Shard(rows, t, None, True).measure(low, high, pivots, 64, is_open).columns
    assert got[:, shards.VALID_COUNT].tolist() == [length - 1, length - 1]
    close = {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(at_ends(got, low, high, t), at_ends(want, low, high, t), **close)


def test_sums_of_scores_that_are_far_from_a_band() -> None:
    """Of lists, too: relative to the nearest score where a band's end is too far from it."""
    rows = torch.cat((normal(40, seed=1), normal(40, seed=2) + 60, normal(40, seed=3) + 120))
    rows = rows.float().expand(2, 120)
    t = torch.tensor([0.5, 1e-3], dtype=torch.float64)
    own: Any = make(rows, t, None, True, plan=PLAN._replace(depth=40))
    want = plain.Shard(rows, t, None, True)
    own.sample(64)
    is_open = torch.ones(2, dtype=torch.bool)
    for left, right in ((-200.0, 200.0), (30.0, 90.0), (-200.0, 200.0), (59.9, 60.1)):
        low = torch.full((2,), left, dtype=torch.float64)
        high = torch.full_like(low, right)
        pivots = torch.stack((low, next_float(low, torch.float32), high), -1)
        a, b = (x.measure(low, high, pivots, 64, is_open).columns for x in (own, want))
        for nearest, total in (
            (shards.ABOVE_NEAREST, shards.ABOVE_SUM),
            (shards.BELOW_NEAREST, shards.BELOW_SUM),
        ):
            off = torch.where(b[:, nearest].isinf(), 0.0, a[:, nearest] - b[:, nearest])
            moved = a[:, total] * torch.exp(off.abs() / t)
            torch.testing.assert_close(moved, b[:, total], rtol=1e-5, atol=0)


def test_all_of_a_message_is_written(poison: None) -> None:
    """Also of rows that are done: what lay in the memory before is nobody's business."""
    rows = 3
    shard = make(normal(rows, 200), torch.ones(rows, dtype=torch.float64), None, True)
    shard.sample(64)
    low, high = torch.zeros(2, rows, dtype=torch.float64)
    pivots = torch.zeros(rows, 8, dtype=torch.float64)
    is_open = torch.tensor([0, 1, 0], dtype=torch.int32)
    found = shard.measure(low, high + 1, pivots, 64, is_open)
    assert found.message is not None
    assert not found.columns[::2].any()
    assert not found.nodes[::2].any()
    assert found.columns[1].any()
    said = found.message.clone()
    again = shard.measure(low, high + 2, pivots, 64, torch.zeros_like(is_open))
    assert again.message is not None
    assert torch.equal(again.message, said)


def test_the_simulated_shard_knows_cuts_as_late() -> None:
    assert FIRST_CUTS == shard_plan.FIRST_CUTS == shard_plan.shard_plan(10**6, 1).first_cuts

"""Rows over many ranks on the GPU kernels against reference.py and plain torch, interpreted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import generator, normal

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

import triton.language as tl

from fast_lapsum._sharded_rounds import pack
from fast_lapsum.backends import shards
from fast_lapsum.backends.common import compute_dtype
from fast_lapsum.backends.shards import Rows, Sizes
from fast_lapsum.backends.torch import shard_entry as plain
from fast_lapsum.backends.torch.float_order import next_float
from fast_lapsum.backends.triton import shard_curve, shard_entry, shard_plan, shard_steps
from interpreted_shards import RANKS, make, small_pieces
from interpreting import poison
from sharded_cases import (
    Case,
    corner_cases,
    distribution_cases,
    option_cases,
    symmetric_cases,
)
from sharded_checks import check
from sharded_simulation import call, find, same_bits

__all__ = ["poison", "small_pieces"]  # fixtures
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def some(case: Case, first: int, step: int) -> Case:
    """Some rows of a case."""
    rows = slice(first, None, step)
    mask = None if case.mask is None else case.mask[rows]
    return case._replace(
        scores=case.scores[rows], k=case.k[rows], temperature=case.temperature[rows], mask=mask
    )


def checked(case: Case, steps: Any = plain.Steps, **options: Any) -> int:
    """A case against the reference; returns the number of messages."""
    found, messages = call(case, RANKS, make, steps, shard_entry, **options)
    check(case, found, b_of_hard=False)
    return messages


# calls


@pytest.mark.parametrize("number", range(16))
def test_corners(number: int) -> None:
    """NaN, infinities, budgets and temperatures without an answer, ties, nothing and all."""
    case = list(corner_cases())[number]
    checked(some(case, number % 8, 8))


@pytest.mark.parametrize("number", range(9))
def test_masks_and_the_smallest(number: int) -> None:
    given = [case for case in option_cases() if not case.options.get("clamp")]
    checked(given[number])


def _distributions(n: int) -> Iterator[Case]:
    return (x for x in distribution_cases() if x.scores.shape[-1] == n and x.function != "hard")


def test_distributions() -> None:
    for number, case in enumerate(_distributions(3000)):
        assert checked(some(case, number % 8, 8)) <= 4, case.name


def test_ties_across_ranks() -> None:
    """The lowest ranks take theirs first, in pieces of which some are taken in part."""
    for case in distribution_cases():
        if case.name in ("tied 65 uneven", "tied 3000 first is empty"):
            checked(some(case, 2, 3))


def _heavy(dtype: torch.dtype, n: int) -> Tensor:
    """Magnitudes from the least to the largest numbers, of both signs."""
    exponent = (torch.rand(n, generator=generator(3), dtype=torch.float64) - 0.5) * 70
    return (normal(n, seed=4).sign() * 10**exponent).to(dtype)


@pytest.mark.parametrize("steps", [plain.Steps, shard_entry.Steps], ids=["plain", "own"])
def test_every_search_ends(steps: Any) -> None:
    """Without a look of the host's: measurements that bring nothing new are made all the same."""
    n = 500
    rows = torch.stack((_heavy(torch.float32, n), torch.full((n,), 0.1), normal(n).float()))
    rows[1, ::3] = 1e30
    rows[2] = rows[2] * 1e-3 + 1e4
    k, t = torch.tensor([n / 2, n / 2, 1e-6]).double(), torch.tensor([1e-30, 1e-3, 1e-4]).double()
    case = Case("heavy", "mask", rows, k, t, "uneven")
    sizes = Sizes.of(len(k), RANKS)
    assert checked(case, steps, looks=False) == 1 + sizes.most_rounds(torch.float32)


def test_a_band_without_the_threshold_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that tell nothing: all that is beside the band is measured in its place."""
    sample_of = make.func.sample

    def misleading(self: Any, size: int) -> Any:
        found = sample_of(self, size)
        found.nodes.fill_(5.0)
        return found

    monkeypatch.setattr(shard_entry.Shard, "sample", misleading)
    k, t = torch.tensor([30.0]).double(), torch.tensor([0.01]).double()
    case = Case("misled", "mask", normal(1, 300, dtype=torch.float32), k, t, "even")
    checked(case, looks=False)


# steps


def _alike(case: Case) -> None:
    """The steps of the kernels and of plain torch come to the same, on all ranks."""
    found, messages = find(case, RANKS, plain.Shard, plain.Steps, looks=True)
    own, own_messages = find(case, RANKS, plain.Shard, shard_entry.Steps, looks=True)
    assert messages == own_messages, case.name
    kept = compute_dtype(case.scores.dtype)
    for rank in range(1, RANKS):
        for a, b in zip(own[0], own[rank], strict=True):
            assert all(same_bits(x, y) for x, y in zip(a, b, strict=True)), case.name
    for number, (got, want) in enumerate(zip(own[0], found[0], strict=True)):
        t = case.temperature * (number == 0)
        in_limit = (t < torch.finfo(kept).tiny) | want.hi.isinf()
        b, own_b = (torch.where(in_limit, x.hi, x.hi + x.lo) for x in (want, got))
        off = (b - own_b).abs()
        slack = 1e-9 * t.clamp(min=1e-300) + 1e-13 * b.abs()
        is_same = (b == own_b) | (b.isnan() & own_b.isnan()) | (off <= slack)
        assert is_same.all(), f"{case.name}: {b[~is_same]} {own_b[~is_same]}"
        for name in ("valid_count", "has_nan", "is_used_up"):
            assert same_bits(getattr(got, name), getattr(want, name)), f"{case.name}: {name}"
        for name in ("lo", "log_share", "wanted_ties", "ties"):
            x, y = (getattr(one, name)[..., in_limit] for one in (got, want))
            torch.testing.assert_close(x, y, rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("block", [8, 128])
@pytest.mark.parametrize("number", [3, 13])
def test_steps_are_those_of_plain_torch(
    number: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many blocks of nodes, or few; in both with several ranks at a time, or one."""
    for module in (shard_curve, shard_steps):
        monkeypatch.setattr(module, "BLOCK", tl.constexpr(block))
    monkeypatch.setattr(shard_steps, "_TOGETHER", 64 if number == 3 else 4096)
    case = list(corner_cases())[number]
    _alike(some(case, number % 13, 13))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_steps_of_all_corners(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many blocks of nodes, whose sums are joined."""
    for module in (shard_curve, shard_steps):
        monkeypatch.setattr(module, "BLOCK", tl.constexpr(8))
    cases = list(corner_cases())
    assert len(cases) == 16
    _alike(some(cases[number], number % 13, 13))


def test_steps_of_longer_rows() -> None:
    cases = list(_distributions(3000))
    _alike(some(cases[5], 2, 8))


def test_steps_of_rows_whose_measurements_contradict_each_other() -> None:
    """The mass at a score is over the budget in one and under it in the next, by rounding."""
    cases = {case.name: case for case in symmetric_cases()}
    for dtype in ("float32", "bfloat16"):
        case = some(cases[f"symmetric, 64 rows, torch.{dtype}"], 0, 8)
        checked(case, shard_entry.Steps)
        found, _ = find(case, RANKS, plain.Shard, shard_entry.Steps, looks=True)
        assert not found[0][0].hi.isnan().any()


def test_messages_need_not_be_aligned() -> None:
    """Bytes of an odd number of halves put the numbers of the next rank anywhere."""
    nodes = torch.tensor([[2.0, 1.0, -1.0]], dtype=torch.float16)
    said = pack(torch.tensor([3.0, 3.0, 2.0, 1.0, 2.0, 0.5], dtype=torch.float64), nodes)
    assert said.numel() % 8 != 0
    k, t = torch.tensor([2.0]).double(), torch.tensor([0.5]).double()
    found = []
    for steps in (plain.Steps, shard_entry.Steps):
        one: Any = steps(k, t, Rows(1, torch.float16, 2, looks=True), Sizes(3, 3, 5))
        one.begin(torch.stack((said, said)))
        found.append((one.low, one.high, one.pivots, one.is_open != 0))
    for a, b in zip(*found, strict=True):
        assert same_bits(a, b)


# bits and layouts


def test_bits_repeat_and_do_not_depend_on_neighbours() -> None:
    case = Case(
        *("bits", "mask", normal(2, 200, dtype=torch.float32), torch.tensor([9.0, 77.5])),
        *(torch.tensor([0.01, 0.3]).double(), "uneven"),
    )
    case = case._replace(k=case.k.double())
    first, again = (call(case, RANKS, make, shard_entry.Steps, shard_entry)[0] for _ in range(2))
    for a, b in zip(first, again, strict=True):
        for what in ("out", "b", "d_scores", "d_k", "d_t"):
            assert same_bits(a["cases"]["bits"][what], b["cases"]["bits"][what]), what
    for one in first:
        assert same_bits(one["cases"]["bits"]["b"], first[0]["cases"]["bits"]["b"])


@pytest.mark.parametrize("output", ["mask", "hard", "log"])
def test_any_strides(output: str) -> None:
    """Rows in two dimensions, of which no two strides tell, and a mask that is expanded."""
    scores = normal(3, 2, 2, 60, seed=8, dtype=torch.float32)
    strange = scores.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)[::2]
    keep = (torch.arange(60) % 4 != 1).expand(strange.shape)
    t = torch.full((8,), 0.4, dtype=torch.float64)
    low, high = torch.zeros_like(t), torch.ones_like(t)
    pivots = torch.stack((low, next_float(low, torch.float32), high), -1)
    is_open = torch.ones(8, dtype=torch.bool)
    found = []
    for layout in (strange, strange.contiguous()):
        one = make(layout, t, keep, True)
        sampled = one.sample(64).nodes
        measured = one.measure(low, high, pivots, 64, is_open)
        answers = shards.Answers(t / 4, t / 9, t, t < 0, t / 4, t, t > 9, t)
        out = shard_entry.write(layout, t, keep, answers, True, output, torch.float32)
        pairs = torch.stack((t / 4, t / 9), -1).float().view(2, 2, 2, 2)
        given = (layout.cos(), layout, t, keep, pairs)
        sums = shard_entry.gradient_sums(*given, True, output)
        d = shard_entry.write_gradient(*given, shards.Totals(t, t, t), True, output)
        assert out.stride() == torch.empty_like(layout).stride()
        found.append((sampled, measured.columns[:, :-3], out, sums, d))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_plans() -> None:
    """What is kept is a few percent of a long row, and what is left of a short one is little."""
    for n, rows in ((0, 1), (100, 16_384), (16_384, 4096), (10**6, 3), (125_000_000, 1)):
        plan = shard_plan.shard_plan(n, rows)
        assert plan.chunks * rows <= max(rows, shard_plan.PROGRAMS)
        kept = plan.chunks * plan.depth * plan.lanes
        assert kept <= n / 20 + shard_plan.LEAST_DEPTH * plan.lanes * plan.chunks
    assert kept < 0.05 * n


# messages


@pytest.mark.parametrize("ranks", [1, 2])
def test_messages_of_an_odd_length_are_taken_apart(ranks: int) -> None:
    """Also one alone, a copy of which may keep the distance to a next one."""
    numbers = torch.arange(2.0 * ranks, dtype=torch.float64).view(ranks, 2)
    nodes = torch.arange(3.0 * ranks).view(ranks, 3).half()
    said = torch.stack([pack(*one) for one in zip(numbers, nodes, strict=True)])
    found = shard_steps._parts(said, nodes[0].nbytes, torch.float16)
    assert torch.equal(found[0], numbers)
    assert torch.equal(found[1], nodes)

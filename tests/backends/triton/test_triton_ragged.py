"""Rows of several lengths on the GPU kernels against reference.py, interpreted."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import pytest
import torch

from cases import DTYPES, normal

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum.backends.torch import ragged_entry as plain
from fast_lapsum.backends.triton import ragged_launch
from fast_lapsum.backends.triton.config import LongBackwardPlan, LongPlan, tile_plan
from fast_lapsum.backends.triton.ragged_plan import (
    RaggedPlan,
    SharedRows,
    backward_plan,
    forward_plan,
)
from interpreting import poison
from ragged_cases import (
    check,
    check_one_for_all,
    corners_of_all_kinds,
    join,
    lengths_of_all_kinds,
)

__all__ = ["poison"]  # a fixture
inf, nan = math.inf, math.nan
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Every kind of class with rows of a few hundred scores: tiles, one row at a time, long ones, and
#: those of more than 100 in chunks; interpreted, a team has one program.
SHARED = SharedRows(100, 64, least=64, most=4, warps=1, read=2, listed=2, written=2)
FORWARD = RaggedPlan(
    (tile_plan(8, 1), tile_plan(32, 1), tile_plan(64, 1)._replace(rows=1)),
    LongPlan(warps=1, sample=128, read=2, listed=2, written=2),
    SHARED,
)
BACKWARD = RaggedPlan(
    (tile_plan(8, 1), tile_plan(64, 1)), LongBackwardPlan(block=64, warps=1), SHARED
)
forward = functools.partial(ragged_launch.ragged_forward, plan=FORWARD)
backward = functools.partial(ragged_launch.ragged_backward, plan=BACKWARD)
LENGTHS = (3, 0, 20, 8, 130, 1, 90, 33, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_of_every_class(dtype: torch.dtype) -> None:
    given = lengths_of_all_kinds(dtype, LENGTHS)
    check(forward, backward, given, offsets_dtype=torch.int32)


def test_teams_take_as_many_segments_as_there_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer slots than long segments, which only bad offsets bring, programs take the rest."""
    given = lengths_of_all_kinds(torch.float32, (130, 20, 200, 100, 101))
    made = []
    slots_of = ragged_launch._slots

    def watched(*args: Any) -> Any:
        made.append(slots_of(*args))
        return made[-1]

    monkeypatch.setattr(ragged_launch, "_slots", watched)
    for slots in (64, 1):
        few = SHARED._replace(slots=slots)
        check(
            functools.partial(ragged_launch.ragged_forward, plan=FORWARD._replace(shared=few)),
            functools.partial(ragged_launch.ragged_backward, plan=BACKWARD._replace(shared=few)),
            given,
        )
    taken = [slots.tolist() for slots, _ in made]
    assert {tuple(x[:4]) for x in taken if len(x) > 2} == {(3, 0, 2, 4)}
    assert {tuple(x) for x in taken if len(x) == 2} == {(3, 0)}


def test_masks_and_the_smallest() -> None:
    given = lengths_of_all_kinds(torch.float32, LENGTHS)
    mask = normal(len(given.values), seed=4) > -0.5
    counts = torch.stack([row.sum() for row in given.rows(mask)])
    given = given._replace(k=0.4 * counts)
    check(forward, backward, given, mask=mask, largest=False)


@pytest.mark.parametrize(("n", "every"), [(7, 3), (40, 9), (90, 17), (150, 17)])
def test_corners(n: int, every: int) -> None:
    """NaN, infinities, budgets and temperatures without an answer, ties, nothing and all."""
    check(forward, backward, corners_of_all_kinds(torch.float32, (n,), every))


@pytest.mark.parametrize("output", ["hard", "log", "threshold"])
def test_other_outputs(output: str) -> None:
    """As in plain torch, which is checked against the reference elsewhere."""
    given = lengths_of_all_kinds(torch.float32, (3, 0, 20, 150, 40))
    given.values[2::11] = torch.finfo(torch.float32).min  # log p is -inf there
    k = torch.tensor([1.0, 0.0, 9.0, 20.0, 33.0], dtype=torch.float64)
    call: Any = (None, None, k, nan, given.t, nan, None, None, True, output, torch.float32)
    out, pairs = forward(given.values, given.offsets, *call)
    wanted, wanted_pairs = plain.ragged_forward(given.values, given.offsets, *call)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pairs.sum(-1), wanted_pairs.sum(-1), rtol=1e-5, atol=1e-6)
    grad = normal(*(k.shape if output == "threshold" else out.shape), dtype=torch.float32)
    back: Any = (None, None, given.t, nan, None, wanted_pairs, True, output, True)
    found = backward(grad, given.values, given.offsets, *back)
    same = plain.ragged_backward(grad, given.values, given.offsets, *back)
    for got, want in zip(found, same, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("what", ["grad", "mask", "scores"])
def test_one_number_for_all_scores(what: str) -> None:
    check_one_for_all(forward, backward, what)


@pytest.mark.parametrize("transposed", [False, True])
def test_padded_rows(transposed: bool) -> None:
    """Rows of one size and their lengths, in two dimensions, numbers for k and t."""
    scores = normal(2, 3, 150, seed=2, dtype=torch.float32)
    scores = scores.permute(2, 1, 0).contiguous().permute(2, 1, 0) if transposed else scores
    lengths = torch.tensor([[150, 30, 3], [64, 65, 8]])
    scores = scores.masked_fill(torch.arange(150) >= lengths[..., None], nan)
    call: Any = (None, lengths, None, None, 2.5, None, 0.3, None, None, True, "mask")
    out, pairs = forward(scores, *call, torch.float32)
    wanted, _ = plain.ragged_forward(scores, *call, torch.float32)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)
    grad = normal(*scores.shape, seed=5, dtype=torch.float32)
    back: Any = (None, lengths, None, None, 0.3, None, pairs, True, "mask", True)
    for got, want in zip(
        backward(grad, scores, *back), plain.ragged_backward(grad, scores, *back), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_bad_offsets_stay_inside() -> None:
    """Nothing is read or written beside the values: memory around outputs is guarded."""
    values = normal(60, dtype=torch.float32)
    offsets = torch.tensor([-4, 10, 5, 99, 70, 60])
    k = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    out, pairs = forward(
        *(values, offsets, None, None, k, nan, None, 0.5, None, None, True, "mask", values.dtype)
    )
    assert out.isfinite().all()
    assert pairs.isfinite().all()


@pytest.mark.parametrize("offsets", [(15, 3, 7), (0, 20, 10, 12), (5, 2, 10)])
def test_offsets_that_fall_leave_the_other_segments_alone(offsets: tuple[int, ...]) -> None:
    """As in plain torch: a segment that would end before it begins is empty, and only that."""
    values, ends = normal(20, dtype=torch.float32), torch.tensor(offsets)
    k = (ends.diff() > 0).double()
    k[0] *= len(offsets) < 4  # of segments that overlap either's may stand
    call: Any = (None, None, k, nan, None, 0.5, None, None, True, "mask", torch.float32)
    out, _ = forward(values, ends, *call)
    wanted, pairs = plain.ragged_forward(values, ends, *call)
    apart = slice(12, None) if len(offsets) == 4 else slice(None)
    torch.testing.assert_close(out[apart], wanted[apart])
    back: Any = (None, None, None, 0.5, None, pairs, True, "mask", False)
    found = backward(normal(20, seed=1, dtype=torch.float32), values, ends, *back)[0]
    same = plain.ragged_backward(normal(20, seed=1, dtype=torch.float32), values, ends, *back)[0]
    torch.testing.assert_close(found[apart], same[apart])


def test_a_segment_longer_than_was_said_is_nan() -> None:
    given = join([normal(40, dtype=torch.float32), normal(5, dtype=torch.float32)], [2, 1], [1, 1])
    plan = RaggedPlan((tile_plan(8, 1), tile_plan(32, 1)), None)
    out, pairs = ragged_launch.ragged_forward(
        *(given.values, given.offsets, None, 32, given.k, nan, given.t, nan, None, None, True),
        *("mask", torch.float32),
        plan=plan,
    )
    long, short = given.rows(out)
    assert long.isnan().all()
    assert short.isfinite().all()
    assert (out[given.outside()] == 0).all()
    grad = torch.ones_like(given.values)
    d_values, d_k, _ = ragged_launch.ragged_backward(
        *(grad, given.values, given.offsets, None, 32, given.t, nan, None, pairs, True, "mask"),
        True,
        plan=RaggedPlan((tile_plan(8, 1), tile_plan(32, 1)), None),
    )
    assert given.rows(d_values)[0].isnan().all()
    assert d_k is not None
    assert d_k.isnan().tolist() == [True, False]


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("longest", [0, 1, 32, 33, 1000, 5000, 40_000])
def test_a_plan_has_a_class_for_every_length(longest: int, itemsize: int) -> None:
    for plan_of in (forward_plan, backward_plan):
        plan = plan_of(longest, 10**6, 100, itemsize)
        blocks = [held.block for held in plan.held]
        assert blocks == sorted(set(blocks))
        assert plan.long is not None or blocks[-1] >= longest
        assert len(blocks) == 1 or blocks[-2] < longest  # and none that no row can be of


def test_only_rows_that_are_long_for_all_programs_are_shared() -> None:
    """There are slots for all of them that fit into the values, and not many."""
    assert forward_plan(262_144, 10**7, 100, 4).shared is None
    assert forward_plan(10**7, 10**7, 100, 4).shared == SharedRows(262_144, 64)
    assert backward_plan(10**7, 10**7, 3, 4).shared == SharedRows(262_144, 4)
    many = forward_plan(10**9, 10**9, 10**6, 4).shared
    assert many is not None
    assert 10**9 // many.highest <= many.slots <= 256


def test_batches_of_ever_new_totals_have_few_plans() -> None:
    """A plan is what kernels are compiled for."""
    for plan in (forward_plan, backward_plan):
        totals = range(10_000_000, 40_000_000, 30_011)
        assert len({plan(total, total, total // 500, 4) for total in totals}) <= 4

"""Many tensors with one budget on the GPU kernels against the reference, interpreted."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import DISTRIBUTIONS, assert_near, corners, expected, generator, normal

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum import soft_topk
from fast_lapsum.backends.torch import ragged_entry as plain
from fast_lapsum.backends.triton import many_launch
from fast_lapsum.backends.triton.many_launch import ManyPlan
from interpreting import poison

__all__ = ["poison"]  # a fixture
inf, nan = math.inf, math.nan
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Parts of 64 scores, a sample of 128; of 300 scores a band is read.
PLAN = ManyPlan(part=64, block=32, warps=1, small=150, sample=128, sample_warps=1, read=2, team=1)
#: All scores are in the band.
WHOLE = PLAN._replace(small=10_000)


class Cramped(ManyPlan):
    """No band fits: the last resort."""

    def room(self, total: int) -> int:
        return 2


def _join(tensors: list[Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.cat([x.reshape(-1).to(dtype) for x in tensors])


def _cut(row: Tensor) -> list[Tensor]:
    n = len(row)
    return list(row.tensor_split(torch.tensor([n // 5, n // 5, n // 2 + 3])))


def _check(tensors: list[Tensor], k: Any, t: Any, plan: ManyPlan, largest: bool = True) -> None:
    given = [(x, nan) if isinstance(x, Tensor) else (None, x) for x in (k, t)]
    *masks, pair = many_launch.list_forward(
        tensors, *given[0], *given[1], largest, "mask", False, plan=plan
    )
    grads = [normal(*x.shape, seed=i, dtype=x.dtype) for i, x in enumerate(tensors)]
    back: Any = (grads, tensors, *given[1], pair, largest, "mask")
    *d_scores, d_k, d_t = many_launch.list_backward(*back, True, plan=plan)
    alone = many_launch.list_backward(*back, False, plan=plan)
    side = 1 if largest else -1
    want = expected(side * _join(tensors, pair.dtype), k, t, _join(grads, pair.dtype))
    half = torch.cat(
        [torch.full((x.numel(),), torch.finfo(x.dtype).eps, dtype=torch.float64) for x in tensors]
    )
    rounding = half * (want.mask.abs() + 2.0**-14) + want.mask_tolerance
    assert_near(_join(masks), want.mask, rounding, "masks")
    rounding = half * (want.d_scores.abs() + 2.0**-14) + want.d_scores_tolerance
    for found in (d_scores, alone):
        assert_near(side * _join(found), want.d_scores, rounding, "d scores")
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")


@pytest.mark.parametrize(
    ("plan", "dtype"),
    [(PLAN, torch.float32), (PLAN, torch.float64), (Cramped(*PLAN), torch.float32)],
    ids=["band", "float64", "searched"],
)
def test_every_way_to_the_root(plan: ManyPlan, dtype: torch.dtype) -> None:
    _check(_cut(normal(200, dtype=dtype)), 40.5, 0.1, plan)


def test_dtypes_and_strides_together() -> None:
    tensors = [
        normal(12, 7, seed=1, dtype=torch.float32).mT,
        normal(90, seed=2, dtype=torch.bfloat16),
        normal(0, dtype=torch.float32),
        normal(5, 20, seed=3, dtype=torch.float16),
    ]
    _check(tensors, 33.0, 0.2, PLAN, largest=False)


@pytest.mark.parametrize("odd", [inf, -inf, nan])
@pytest.mark.parametrize("largest", [True, False])
def test_parts_with_scores_that_are_not_finite(odd: float, largest: bool) -> None:
    """Such parts are read once more: of whole blocks, and of what is left of a part."""
    plan = PLAN._replace(part=128, block=64)
    row = normal(700, seed=4).float()
    for places in ([70], [333, 334, 699], [0, 127, 128, 640]):
        spoiled = row.clone()
        spoiled[places] = odd
        _check(_cut(spoiled), 41.5, 0.1, plan, largest)


def test_a_threshold_may_be_beyond_all_floats() -> None:
    """Of scores at either end of the numbers: the band's end was one of them."""
    most = torch.finfo(torch.float32).max
    for row in ([-most, most], [most, most], [0.3, -most], [-most, -most, 1.0]):
        for k in (2.8e-4, 0.5, len(row) - 0.5, len(row) - 1.9e-4):
            for plan in (PLAN, Cramped(*PLAN)):
                tensors = [torch.tensor(row[:1]), torch.tensor(row[1:])]
                masks = many_launch.list_forward(
                    tensors, None, k, None, 4.9e-3, True, "mask", False, plan=plan
                )
                wanted = soft_topk(torch.tensor(row), k, 4.9e-3, solver="bisect")
                torch.testing.assert_close(torch.cat(masks[:-1]), wanted, rtol=2e-6, atol=1e-7)


def test_lists_of_one_thread_are_as_long_as_a_part() -> None:
    """Scores with a period: those in the band all fall to a few threads."""
    row = normal(768, seed=5).float() + 40.0
    row[::32] = normal(24, seed=6).float() * 1e-3
    for k in (744.0, 750.25, 766.0):
        _check([row[:256], row[256:]], k, 0.01, PLAN._replace(part=256, block=64))


@pytest.mark.parametrize("distribution", ["sixteen_levels", "huge_offset"])
def test_distributions(distribution: str) -> None:
    row = DISTRIBUTIONS[distribution](200, generator(3)).float()
    _check(_cut(row), 20.0, 0.01, PLAN)


@pytest.mark.parametrize(
    ("plan", "every"), [(WHOLE, 9), (Cramped(*WHOLE), 11)], ids=["", "searched"]
)
def test_corners(plan: ManyPlan, every: int) -> None:
    """NaN, infinities, ties, all and nothing, the hard limit."""
    for row, k, t in list(zip(*corners(40, torch.float32), strict=True))[::every]:
        _check(_cut(row), k, t, plan)


@pytest.mark.parametrize("largest", [True, False])
def test_hard_masks_take_the_earliest_of_tied_scores(largest: bool) -> None:
    """Those of plain torch, and the soft pair; a budget that is not whole has no answer."""
    rows = [(normal(170, seed=5) * 2).round().float(), normal(40, seed=6, dtype=torch.float32)]
    infinite = rows[1].clone()
    infinite[::3], infinite[1::7] = inf, -inf
    spoiled = rows[1].clone()
    spoiled[4] = nan
    cases: list[Any] = [(rows[0], k) for k in (0.0, 1.0, 60.0, 170.0)]
    cases += [(torch.ones(150), 70.0), (infinite, 3.0), (infinite, 20.0), (spoiled, 3.0)]
    cases += [(rows[1], torch.tensor(k).double()) for k in (4.0, 4.5, nan)]
    for row, k in cases:
        tensors = [*_cut(row), row[:0], row[:20].view(4, 5).mT]
        number = (k, nan) if isinstance(k, Tensor) else (None, k)
        given: Any = (tensors, *number, None, 0.3, largest, "hard", False)
        *masks, pair = many_launch.list_forward(*given, plan=PLAN)
        *wanted, soft = plain.list_forward(*given)
        for found, want in zip(masks, wanted, strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        soft = soft.sum().masked_fill(wanted[0].isnan().any(), nan)
        torch.testing.assert_close(pair.sum(), soft, rtol=1e-5, atol=1e-5, equal_nan=True)

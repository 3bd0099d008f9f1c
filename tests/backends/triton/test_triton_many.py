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

from fast_lapsum import reference, soft_topk
from fast_lapsum.backends.torch import ragged_entry as plain
from fast_lapsum.backends.triton import many, many_launch
from fast_lapsum.backends.triton.many_launch import ManyPlan
from interpreting import poison

__all__ = ["poison"]  # a fixture
inf, nan = math.inf, math.nan
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Parts of 64 scores, a sample of 128; of 300 scores a band is read.
PLAN = ManyPlan(part=64, block=32, warps=1, small=150, sample=128, sample_warps=1, read=2, team=1)
#: All scores are in the band.
WHOLE = PLAN._replace(small=10_000)
#: A band has room for little more than a sixteenth.
TIES = PLAN._replace(part=256, block=64, small=20, sample=512)


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


# scores that many others equal


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of every search the point of its band, and whether all scores were searched in the end."""
    found: list[Any] = []
    solve = many_launch._solve

    def watched(*given: Any) -> Tensor:
        state = solve(*given)
        found.append((float(state[many.POINT.value]), float(state[many.IS_OPEN.value])))
        return state

    monkeypatch.setattr(many_launch, "_solve", watched)
    return found


def _tied(share: float, value: float = 0.0, n: int = 1500) -> Tensor:
    """Of n scores a share equals one number, a twentieth is above it, and the others are below."""
    row = -normal(n, seed=11).float().abs() - 1e-3
    row[: n // 20] *= -1
    row[n // 20 : n // 20 + math.ceil(share * (n - n // 20))] = 0.0
    return row[torch.randperm(n, generator=generator(2))] + value


def _budget(row: Tensor, b: float, t: float) -> float:
    """That whose threshold is about b; at t = 0 half of the scores that equal it are taken."""
    distance = row.double() - b
    u = distance / t if t else torch.where(distance == 0, 0.0, distance.sign() * inf)
    return float(reference.laplace_cdf(u).sum())


SHARES = {"a sixth": 1 / 6, "half": 0.5, "nearly all": 0.95, "all below": 1.0}


@pytest.mark.parametrize("t", [0.1, 0.01, 0.0])
@pytest.mark.parametrize("share", SHARES)
def test_equal_scores_are_counted(share: str, t: float, states: list[Any]) -> None:
    """They would not fit into the band's room, and need not: no pass is over all scores."""
    row = _tied(SHARES[share])
    _check(_cut(row), _budget(row, t / 1000, t), t, TIES)
    assert states == [(0.0, 0.0)]


def test_both_zeros_are_one_score(states: list[Any]) -> None:
    row = _tied(0.5)
    row[::2] = torch.where(row[::2] == 0, -0.0, row[::2])
    for largest in (True, False):
        _check(_cut(row), _budget(row if largest else -row, 1e-5, 0.02), 0.02, TIES, largest)
    assert states == [(0.0, 0.0)] * 2


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 0.3), (torch.bfloat16, -7.0), (torch.float64, 1 / 3), (torch.float32, 1e8)],
    ids=str,
)
def test_equal_scores_of_any_dtype(dtype: torch.dtype, value: float, states: list[Any]) -> None:
    row = _tied(0.4, value).to(dtype)
    tie = float(row.mode().values)
    t = max(0.05, abs(tie) * 1e-6)
    _check(_cut(row), _budget(row, tie, t), t, TIES)
    assert states == [(tie, 0.0)]


def test_equal_scores_of_several_dtypes(states: list[Any]) -> None:
    row = _tied(0.4)
    tensors = [row[:300].half(), row[300:900].view(20, 30).mT, row[900:].bfloat16()]
    _check(tensors, _budget(row, 0.0, 0.05), 0.05, TIES)
    assert states == [(0.0, 0.0)]


#: The band that a sample gives where many scores are 0, and where the threshold of t = 1 is in it.
BANDS = {
    "first": (0.0, 0.02, 2.0),
    "last": (-0.02, 0.0, -2.0),
    "between": (-0.02, 0.02, 0.0),
    "from there on": (0.0, inf, 1.0),
    "alone": (0.0, 0.0, 0.0),
}


@pytest.mark.parametrize(
    ("band", "t"), [(band, t) for band in BANDS for t in (1e-4, 0.0) if t == 0 or band != "alone"]
)
def test_equal_scores_anywhere_in_a_band(
    band: str, t: float, states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where others of the band are on both sides of them, or none is."""
    row, (*ends, b) = _tied(0.5), BANDS[band]
    sampled = many.sample_place

    def lying(*given: Any) -> Any:
        place = sampled(*given)
        for end, value in zip(place[:2], ends, strict=True):
            end.handle.data[...] = value
        return place

    monkeypatch.setattr(many, "sample_place", lying)
    _check(_cut(row), _budget(row, b * t, t), t, TIES)
    assert states == [(0.0, 0.0)]


@pytest.mark.parametrize("odd", [inf, -inf, nan])
def test_equal_scores_beside_those_that_are_not_finite(odd: float, states: list[Any]) -> None:
    row = _tied(0.5)
    row[[3, 400, 401, 1499]] = odd
    for t in (0.05, 0.0):
        _check(_cut(row), _budget(row.nan_to_num(posinf=9), 0.0, t), t, TIES)
    assert states == [(0.0, 0.0)] * 2


def test_common_scores_beside_each_other(states: list[Any]) -> None:
    """Two that fill the band, of which one alone is counted, are too many for its room."""
    row = _tied(0.7)
    row[(row == 0).nonzero()[::2, 0]] = 1e-3
    for t in (0.05, 0.0):
        _check(_cut(row), 75.0 + float((row == 1e-3).sum()), t, TIES)
    assert all(is_open for _, is_open in states)


def test_ordinary_scores_have_no_point(states: list[Any]) -> None:
    row = normal(1500, seed=3).float()
    for t in (0.1, 0.0):
        _check(_cut(row), 75.0, t, TIES._replace(small=300))
    assert states == [(inf, 0.0)] * 2


@pytest.mark.parametrize("largest", [True, False])
def test_hard_masks_of_scores_that_many_equal(largest: bool, states: list[Any]) -> None:
    row = _tied(0.6)
    k = 500.0 if largest else 1000.0
    given: Any = (_cut(row), None, k, None, 0.02, largest, "hard", False)
    masks = many_launch.list_forward(*given, plan=TIES)
    for found, want in zip(masks[:-1], plain.list_forward(*given)[:-1], strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert states == [(0.0, 0.0)] * 2
    again = many_launch.list_forward(*given, plan=TIES)
    assert all(torch.equal(x, y) for x, y in zip(masks, again, strict=True))

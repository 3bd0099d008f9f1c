"""Long rows, interpreted: the band that a sample gives, and what is done where it misleads.

Like test_triton_interpreted.py these want a process of their own, with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    FULL_DTYPES,
    assert_budget,
    assert_near,
    expected,
    generator,
    normal,
)

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum import reference
from fast_lapsum.backends.triton import long_rows, root, shared_rows
from fast_lapsum.backends.triton.config import shared_plan
from hunting.check import judge
from hunting.rows import Batch
from interpreting import ONE_PROGRAM, Plans, check, forward, in_chunks, poison, tier

__all__ = ["poison", "tier"]  # fixtures
inf, nan = math.inf, math.nan

# numpy, which the interpreter computes with, warns about what a GPU does in silence: infinities
# minus infinities, logarithms of zero, conversions of both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Who reads a long row.
Way = Callable[[int], Plans]
WAYS: dict[str, Way] = {
    "one program": lambda n: Plans(
        ONE_PROGRAM if n < 1000 else ONE_PROGRAM._replace(warps=8, sample=512)
    ),
    "in chunks": lambda n: Plans(
        in_chunks(n) if n < 1000 else in_chunks(n, 2048, warps=8, gather_warps=16)
    ),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_right(
    scores: Tensor, k: Tensor | float, t: Tensor | float, plans: Plans, *, largest: bool = True
) -> None:
    p, _ = forward(scores, k, t, largest=largest, plans=plans)
    verdict = judge(Batch(scores, k, t, None, largest), p)
    for row in verdict.wrong.nonzero()[:, 0].tolist():
        raise AssertionError(f"row {row}: {verdict.reason(row)}")


def assert_hard(scores: Tensor, k: Tensor, plans: Plans, *, largest: bool = True) -> None:
    """Ones for the k highest, the earliest of tied scores first, and zeros."""
    p, _ = forward(scores, k, 0.1, largest=largest, hard=True, plans=plans)
    order = scores.argsort(dim=-1, descending=largest, stable=True)
    ranks = torch.empty_like(order).scatter_(
        -1, order, torch.arange(scores.shape[-1]).expand_as(order)
    )
    assert torch.equal(p, (ranks < k[:, None]).to(p.dtype))


# what a sample is told, and what it tells


def _sampled(n: int, plans: Plans) -> set[int]:
    """The places that a sample of a row has."""
    plan = plans.forward
    size, run = plan.sample, getattr(plan, "run", 1)  # type: ignore[union-attr]
    stretch = n // (size // run)
    starts = [i * stretch + (i * 2654435761 % 2**32 * stretch >> 32) for i in range(size // run)]
    return {start // run * run + i for start in starts for i in range(run)}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The ends of every band that a sample gave."""
    found: list[tuple[float, float]] = []
    sample_place = long_rows.sample_place

    def watched(*arguments: Any) -> Any:
        place = sample_place(*arguments)
        found.append((float(place.low.handle.data[0]), float(place.high.handle.data[0])))
        return place

    for module in (long_rows, shared_rows):
        monkeypatch.setattr(module, "sample_place", watched)
    return found


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[tuple[float, float]]], None]:
    """Have the sample of each row give this band."""
    sample_place = long_rows.sample_place

    def install(ends: list[tuple[float, float]]) -> None:
        def lying(call: Any, outer: Any, *rest: Any) -> Any:
            place = sample_place(call, outer, *rest)
            low, high = ends[int(outer.handle.data[0])]
            for end, value in ((place.low, low), (place.high, high)):
                end.handle.data[:] = value
            return place

        for module in (long_rows, shared_rows):
            monkeypatch.setattr(module, "sample_place", lying)

    return install


@pytest.fixture
def bands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, float]]:
    """Both ends and the point of every band that was solved or found wanting."""
    found: list[tuple[float, float, float]] = []
    gather = long_rows.gather

    def watched(source: Any, out: Any, low: Any, high: Any, point: Any, *rest: Any) -> Any:
        ends = (float(x.handle.data[0]) for x in (low, high, point))
        found.append(tuple(ends))  # type: ignore[arg-type]
        return gather(source, out, low, high, point, *rest)

    monkeypatch.setattr(long_rows, "gather", watched)
    return found


def test_the_places_of_a_sample(way: Way, places: list[tuple[float, float]]) -> None:
    """What lies elsewhere changes nothing of what a sample says."""
    n = 300
    scores = normal(1, n, seed=1, dtype=torch.float32)
    others = [i for i in range(1, n) if i not in _sampled(n, way(n))]
    for value in (0.0, 3.0):
        scores[0, others] = value
        forward(scores, 70.5, 0.1, plans=way(n))
    assert places[0] == places[1]
    scores[0, sorted(_sampled(n, way(n)))[1:]] += 1
    forward(scores, 70.5, 0.1, plans=way(n))
    assert places[2] != places[0]


# bands that are right


def test_several_chunks(bands: list[tuple[float, float, float]]) -> None:
    """Sums go on from block to block and from chunk to chunk; the first band has the root."""
    n = 1000
    plans = Plans(in_chunks(n, 256, warps=2, gather_warps=2))
    scores = normal(3, n, seed=2, dtype=torch.float32)
    assert_right(scores, n / 3, _numbers(10, 0.1, 1e-3), plans)
    assert len(bands) == 3
    assert all(-inf < low < high < inf for low, high, _ in bands[1:])


def test_a_budget_just_below_the_whole_row(way: Way) -> None:
    """n - k is small against the rounding of N> - k: scores equal to a trial are counted first."""
    row = DISTRIBUTIONS["normal"](400, generator(1000)).float()[None]
    check(row, 400 - 1e-6, 1e-3, plans=way(400))


@pytest.mark.parametrize(("k", "t"), [(0.3, 0.02), (2.5, 1.0), (399.7, 0.02)])
def test_a_root_beyond_the_last_score(way: Way, k: float, t: float) -> None:
    """All scores of a short tail are one band, which is open to that side."""
    assert_right(normal(1, 400, seed=3, dtype=torch.float32), k, t, way(400))


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_bands_of_any_length(way: Way, dtype: torch.dtype, lie: Callable[..., None]) -> None:
    """Lists that are empty, that end with a part of what is read at a time, and beyond it."""
    n = 300
    row = normal(n, seed=3, dtype=dtype)
    ordered = row.sort().values
    lengths = (2, 33, 65, 150) if dtype == torch.float32 else (3, 129)
    ends = [(float(ordered[100]), float(ordered[99 + length])) for length in lengths]
    lie(ends)
    k = _numbers(*(200 - length / 2 for length in lengths))
    assert_right(row.expand(len(lengths), n), k, 1e-3, way(n))


# bands that are not


def _spread_rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    names = ("cauchy", "sixteen_levels")
    scores = torch.stack([DISTRIBUTIONS[name](n, generator(3)) for name in names]).float()
    return scores, _numbers(n / 3, 17.5), _numbers(0.3, 1e-3)


#: The band that a sample gives where b is the threshold.
LIES: dict[str, Callable[[float], tuple[float, float]]] = {
    "too low": lambda b: (b - 0.4, b - 0.1),
    "too high": lambda b: (b + 0.1, b + 0.4),
    "much too low": lambda b: (-1e30, -1e29),
    "much too high": lambda b: (1e29, 1e30),
    "everything below": lambda b: (-inf, b - 0.01),
    "everything above": lambda b: (b + 0.01, inf),
    "empty, at the threshold": lambda b: (b, b),
    "empty, elsewhere": lambda b: (b - 0.013, b - 0.013),
    "from the threshold on": lambda b: (b, inf),
    "up to the threshold": lambda b: (-inf, b),
    "everything": lambda b: (-inf, inf),
}
WRONG = list(LIES)[:6]


@pytest.mark.parametrize(
    ("reader", "name"),
    [("in chunks", name) for name in LIES] + [("one program", name) for name in WRONG[::2]],
)
def test_a_sample_that_misleads(
    reader: str, name: str, lie: Callable[..., None], bands: list[tuple[float, float, float]]
) -> None:
    """A sample says where to look; nothing it says may change the answer."""
    n, way = 200, WAYS[reader]
    scores, k, t = (x[list(LIES).index(name) % 2 :][:1] for x in _spread_rows(n))
    lie([LIES[name](reference.solve_row(scores[0], float(k), float(t)).hi)])
    assert_right(scores, k, t, way(n))
    assert len(bands) >= 1 + (name in WRONG)


@pytest.mark.parametrize("name", list(LIES)[::2])
def test_a_hard_mask_where_a_sample_misleads(name: str, lie: Callable[..., None]) -> None:
    n = 130
    scores = (4 * normal(1, n, seed=5, dtype=torch.float32)).round() / 4
    boundary = float(scores.sort(descending=True).values[0, 39])
    lie([LIES[name](boundary)])
    assert_hard(scores, _numbers(40), list(WAYS.values())[list(LIES).index(name) // 2 % 2](n))


@pytest.mark.parametrize("side", [1, -1], ids=["high", "low"])
def test_data_that_misleads_a_sample(
    way: Way, side: int, bands: list[tuple[float, float, float]]
) -> None:
    """All that the sample sees is unlike the rest."""
    n = 320
    scores = 0.1 * normal(1, n, seed=4, dtype=torch.float32)
    scores[0, sorted(_sampled(n, way(n)))] += 50.0 * side
    assert_right(scores, n / 2, 0.05, way(n))
    assert len(bands) > 1


@pytest.mark.parametrize("stride", [2, 64])
def test_data_with_a_period(way: Way, stride: int) -> None:
    n = 320
    high = torch.where(torch.arange(n) % stride == 0, 50.0, 0.0)
    scores = (high + 0.1 * normal(1, n, seed=4)).float()
    assert_right(scores, 0.7 * n / stride, 0.05, way(n))


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_no_sample_sees(way: Way, value: float) -> None:
    n = 321
    scores = normal(2, n, dtype=torch.float32)
    unseen = [i for i in range(n) if i not in _sampled(n, way(n))]
    scores[0, unseen[-1]] = scores[1, unseen[len(unseen) // 3]] = value
    if value == value:
        assert_right(scores, _numbers(n - 1.0, 100.5), _numbers(0.1, 1e-3), way(n))
        return
    p, threshold = forward(scores, 100.0, _numbers(1e-3, 3), plans=way(n))
    assert p.isnan().all()
    assert threshold[..., 0].isnan().all()


# scores that are equal, or far from the others


@pytest.mark.parametrize("value", [0.0, 1.0, -3e4])
def test_equal_scores_far_from_the_root(way: Way, value: float) -> None:
    """Sixteen temperatures away each distance is rounded, by the same for all of them."""
    scores, k = torch.full((2, 4096), value), _numbers(4e-4, 1e-3)
    scores[1, 7] = value - 100.0
    p, _ = forward(scores, k, 0.1, plans=way(4096))
    assert_budget(p, k)


def test_an_interpolation_that_rounds_to_a_number_beside_its_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does with a fused multiply-add, where the ends of a band are neighbours."""
    n = 20_000
    scores = 1e8 + 100 * normal(1, n, dtype=torch.float32)
    sampled = shared_rows.sample_place

    def neighbours(*given: Any) -> Any:
        place = sampled(*given)
        for end, value in zip(place, (1e8, 1e8 + 8, nan), strict=True):
            end.handle.data[...] = value
        return place

    monkeypatch.setattr(shared_rows, "sample_place", neighbours)
    monkeypatch.setattr(root, "interpolate", lambda left, right, *_: left - 8.0)
    for t in (3.0, 8.0):
        k = float(reference.laplace_cdf((scores.double() - 1e8 - 0.2) / t).sum())
        p, _ = forward(scores, k, t, plans=Plans(shared_plan(n, 64, 1)))
        assert_budget(p, k)


def test_equal_scores_at_a_temperature_that_their_digits_do_not_resolve(way: Way) -> None:
    check(torch.full((1, 512), -3e4), 1e-3, 3e-4, plans=way(512))


@pytest.mark.parametrize("zeros", ["lowest", "highest", "between"])
def test_a_band_in_which_most_scores_are_equal(
    way: Way, zeros: str, bands: list[tuple[float, float, float]]
) -> None:
    """They are counted, not listed: a point of the band."""
    n = 400
    scores = normal(1, n, seed=9, dtype=torch.float32)
    scores = {"lowest": scores.abs(), "highest": -scores.abs(), "between": scores}[zeros]
    scores[0, torch.randperm(n, generator=generator(1))[:260]] = 0.0
    scores = scores.expand(2, n).contiguous()
    above = int((scores[0] > 0).sum())
    k = _numbers(above + 90.5, above + 130)
    t = _numbers({"lowest": 0.5, "highest": 1e-3, "between": 0.05}[zeros], 0)
    p, _ = forward(scores, k, t, plans=way(n))
    want = expected(scores, k, t, torch.zeros_like(scores))
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    assert_budget(p, k)
    assert any(point == 0 for _, _, point in bands)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_one_score_far_from_the_others(tier: tuple[Plans, int], dtype: torch.dtype) -> None:
    """A padding of -1e9 in front must not cost the other scores their digits."""
    plans, n = tier
    scores = normal(1, n, seed=7, dtype=dtype).expand(4, n).contiguous()
    scores[torch.arange(4), torch.tensor([0, 1, 0, n - 1])] = torch.tensor(
        [-1e9, 1e30, -3.4e38, 1e9], dtype=dtype
    )
    k, t = _numbers(n - 2.0, 1.5, n / 3, 1.0), _numbers(0.01, 1.0, 1e-4, 0.1)
    turn = slice(FULL_DTYPES.index(dtype), None, 2)
    assert_right(scores[turn], k[turn], t[turn], plans)


def test_many_scores_of_a_mask_value(way: Way) -> None:
    """Rows of which a tenth is padding, with the values that people pad with."""
    n = 500
    scores = normal(3, n, seed=8, dtype=torch.float32)
    for row, value in zip(scores, (-1e9, torch.finfo(torch.float32).min, -1e4), strict=True):
        row[::10] = value
    assert_right(scores, 60.5, _numbers(1.0, 0.01, 0.1), way(n))


def test_many_infinite_scores(way: Way) -> None:
    n = 300
    scores = normal(2, n, seed=8, dtype=torch.float32)
    scores[0, ::3], scores[1, ::3] = inf, -inf
    largest = way is WAYS["in chunks"]
    scores = scores if largest else -scores
    assert_right(scores, _numbers(130.5, 150.0), 0.1, way(n), largest=largest)


# hard masks


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_ties_across_chunks(largest: bool) -> None:
    """The earliest of tied scores first, whichever chunk they are in."""
    n = 300
    plans = Plans(in_chunks(n))
    scores = torch.ones(2, n)
    scores[1:] = normal(1, n, seed=6, dtype=torch.float32).round()
    ordered = scores[1].sort(descending=largest).values
    ties = (scores[1] == ordered[150]).nonzero()[:, 0]
    before = int((ordered == ordered[150]).nonzero()[0, 0])
    at_a_seam = before + int((ties < 128).sum())  # the first two chunks have all that fit
    k = _numbers(128, at_a_seam + 1)
    assert_hard(scores, k, plans, largest=largest)

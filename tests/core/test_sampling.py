"""sample_topk: exactly k ones, at the places that systematic sampling says, whatever the row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from cases import DISTRIBUTIONS, DTYPES, FULL_DTYPES, LAYOUTS, TEMPERATURES, generator, normal, same
from fast_lapsum import hard_topk_mask, reference, sample_topk, soft_topk
from fast_lapsum.backends.cpu import kernel

inf, nan = math.inf, math.nan


@pytest.fixture(params=["kernel", "composed"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel, and what a backend without one composes of masks."""
    if request.param == "composed":
        monkeypatch.setattr(kernel, "supports", lambda tensor: False)
    return str(request.param)


def _sample(
    scores: Tensor, k: Tensor | float, t: Tensor | float, start: Tensor, **more: object
) -> Tensor:
    """The operator, with uniform numbers of our own."""
    budget, number = (k.double(), 0.0) if isinstance(k, Tensor) else (None, float(k))
    temperature, t_number = (t.double(), 1.0) if isinstance(t, Tensor) else (None, float(t))
    arguments = {"mask": None, "largest": True} | more
    return torch.ops.fast_lapsum.sample_topk(  # type: ignore[no-any-return]
        *(scores, budget, number, temperature, t_number, arguments["mask"]),
        *(start, arguments["largest"], scores.dtype),
    )


def _assert_systematic(drawn: Tensor, scores: Tensor, k: Tensor, t: Tensor, start: Tensor) -> None:
    """The number taken so far is that of the running sum of p, give or take its rounding."""
    assert ((drawn == 0) | (drawn == 1)).all()
    assert torch.equal(drawn.sum(-1, dtype=torch.float64), k.double())
    for row, one, budget, temperature, u in zip(drawn, scores, k, t, start, strict=True):
        threshold = reference.solve_row(one, float(budget), float(temperature))
        p = reference.mask_row(one, threshold, float(temperature))
        assert (row[p == 0] == 0).all()
        if scores.dtype == torch.float64:
            assert (row[p == 1] == 1).all()
        eps = torch.finfo(torch.float64 if scores.dtype == torch.float64 else torch.float32).eps
        slack = 64 * eps * (1 + budget) + 1e-9
        ahead = row.double().cumsum(0) - (p.cumsum(0) - u)
        assert ahead.min() >= -slack
        assert ahead.max() <= 1 + slack


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_any_distribution_temperature_and_budget(dtype: torch.dtype, distribution: str) -> None:
    for n in (1, 2, 67, 1025, 3001):
        row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
        counts = sorted({0, 1, n // 16, n // 2, n - n // 16, n - 1, n})
        pairs = [(float(k), t) for t in (0.0, *TEMPERATURES) for k in counts]
        k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        start = torch.rand(len(pairs), generator=generator(3), dtype=torch.float64)
        rows = row.expand(len(pairs), n)
        _assert_systematic(_sample(rows, k, t, start), rows, k, t, start)


@pytest.mark.parametrize("start", [0.0, 2.0**-60, 0.5, 1 - 2.0**-53])
def test_the_ends_of_the_uniform_numbers(start: float) -> None:
    scores = normal(6, 500, dtype=torch.float32)
    k = torch.tensor([0.0, 1, 17, 250, 499, 500])
    t, starts = torch.full((6,), 0.3), torch.full((6,), start, dtype=torch.float64)
    _assert_systematic(_sample(scores, k, t, starts), scores, k, t, starts)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("k", [1, 9_000, 150_000, 299_000])
def test_a_long_row(k: int) -> None:
    scores = normal(1, 300_001, dtype=torch.float32)
    start = torch.tensor([0.3], dtype=torch.float64)
    drawn = _sample(scores, k, 0.1, start)
    _assert_systematic(drawn, scores, torch.tensor([k]), torch.tensor([0.1]), start)


def test_threads_do_not_change_a_bit() -> None:
    scores, start = normal(3, 200_000, dtype=torch.float32), torch.tensor([0.1, 0.5, 0.9]).double()
    one = _sample(scores, 5_000, 0.2, start)
    torch.set_num_threads(2)
    assert torch.equal(_sample(scores, 5_000, 0.2, start), one)


def test_probabilities_are_those_of_the_mask() -> None:
    """Starts spread evenly give the probabilities themselves, to one in so many."""
    count = 20_000
    row = normal(40)
    start = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for k in (1, 7, 33):
        drawn = _sample(row.expand(count, 40), k, 0.4, start)
        p = soft_topk(row, k, 0.4)
        torch.testing.assert_close(drawn.mean(0), p, rtol=0, atol=2 / count)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_dtype_and_stride(dtype: torch.dtype, layout: str) -> None:
    scores = LAYOUTS[layout](normal(5, 33, dtype=dtype))
    drawn = sample_topk(scores, 4, 0.5, generator=generator(1))
    assert drawn.dtype == dtype
    assert (drawn.sum(-1) == 4).all()
    again = sample_topk(scores.contiguous(), 4, 0.5, generator=generator(1))
    assert torch.equal(drawn, again)
    assert (sample_topk(scores, 2, 0.5, dim=0, generator=generator(1)).sum(0) == 2).all()


@pytest.mark.parametrize("t", [0.0, 0.5])
def test_infinities_masks_and_rows_without_an_answer(t: float) -> None:
    scores = torch.tensor(
        [
            [inf, 1.0, 2.0, -inf, 3.0, inf],
            [inf, inf, inf, inf, 1.0, 2.0],
            [nan, 1.0, 2.0, 3.0, 4.0, 5.0],
            [-inf, -inf, -inf, 1.0, 2.0, 3.0],
            [-inf, -inf, -inf, -inf, 2.0, 3.0],
        ]
    )
    k = torch.full((5,), 3.0)
    for seed in range(20):
        drawn = sample_topk(scores, k, t, generator=generator(seed))
        assert (drawn[0, [0, 5]] == 1).all()
        assert drawn[0, 3] == 0
        same(drawn[[0, 1]].sum(-1), [3, 3])
        same(drawn[1, 4:], [0, 0])
        same(drawn[2], [nan] * 6)
        same(drawn[3], [0, 0, 0, 1, 1, 1])
        same(drawn[4], [nan] * 6)
        mask = torch.tensor([True, False, True, True, True, False])
        kept = sample_topk(normal(6), 2, t, mask=mask, generator=generator(seed))
        assert kept.sum() == 2
        assert (kept[~mask] == 0).all()
    with pytest.raises(ValueError, match="k must be at most 2"):
        sample_topk(scores[4], 3, t)


def test_what_is_no_generator_is_named() -> None:
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got int"):
        sample_topk(normal(3, 8), 2, generator=5)  # type: ignore[arg-type]


def test_a_tie_at_zero_temperature_is_drawn() -> None:
    """Three of five equal scores, each equally often; what is above is always there."""
    scores = torch.tensor([1.0, 0.0, 5.0, 1.0, 1.0, 1.0, 1.0])
    start = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = _sample(scores.expand(1000, 7), 4, 0.0, start)
    torch.testing.assert_close(
        drawn.mean(0), torch.tensor([0.6, 0, 1, 0.6, 0.6, 0.6, 0.6]), rtol=0, atol=2e-3
    )
    assert (drawn.sum(-1) == 4).all()


def test_smallest() -> None:
    scores, start = normal(4, 50), torch.rand(4, generator=generator(1), dtype=torch.float64)
    assert torch.equal(
        _sample(scores, 5, 0.3, start, largest=False), _sample(-scores, 5, 0.3, start)
    )


def test_cold_sampling_is_the_hard_mask() -> None:
    scores = normal(8, 100)
    assert torch.equal(sample_topk(scores, 9, 1e-9), hard_topk_mask(scores, 9))


def test_a_threshold_that_is_off_still_gives_k_ones() -> None:
    """Float rows whose mass lies 15 temperatures from the threshold, where u is rounded most."""
    for level in (0.0, 0.1, 1e8):
        scores = torch.full((1, 1_000_000), level)
        for k in (1, 3, 999_999):
            assert sample_topk(scores, k, 0.01).sum(dtype=torch.float64) == k


@pytest.mark.parametrize("per_row", [False, True])
def test_opcheck(per_row: bool) -> None:
    scores, start = normal(3, 10, dtype=torch.float32), torch.tensor([0.1, 0.5, 0.7]).double()
    rows = torch.tensor([2.0, 3.0, 1.0]).double() if per_row else None
    for given in (scores, scores.bfloat16(), normal(10, 3).mT):
        opcheck(
            torch.ops.fast_lapsum.sample_topk.default,
            (given, rows, 2.0, rows, 0.5, None, start, True, given.dtype),
        )


def test_vmap_and_compile() -> None:
    scores, start = normal(4, 3, 20), torch.rand(4, 3, generator=generator(2), dtype=torch.float64)
    mapped = torch.func.vmap(lambda x, u: _sample(x, 5, 0.3, u))(scores, start)
    assert torch.equal(mapped, _sample(scores, 5, 0.3, start))
    compiled = torch.compile(
        lambda x, u: _sample(x.tanh(), 5, 0.3, u), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(scores, start), _sample(scores.tanh(), 5, 0.3, start))

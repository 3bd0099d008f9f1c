"""What has to hold for every input: hypothesis looks for one where it does not."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    FULL_DTYPES,
    TEMPERATURES,
    assert_budget,
    assert_near,
    budgets,
    expected,
    generator,
    normal,
    num_threads,
)
from fast_lapsum import hard_topk_mask, log_soft_topk, sample_topk, soft_topk, threshold
from fast_lapsum.backends.cpu import loader

EPS = torch.finfo(torch.float64).eps

finite = st.floats(-1e6, 1e6, width=32)
#: A small set of values, so that hypothesis draws ties and scores next to each other.
clustered = st.sampled_from([0.0, 1.0, 1.0 + 2**-20, -1.0, 3.5, 1e3, -1e3, 1e-30])
rows = st.lists(st.one_of(finite, clustered), min_size=1, max_size=40)
temperatures = st.floats(-6, 3).map(lambda e: 10.0**e)
shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-9, 0.5, 1 - 1e-9, 1.0]))
dtypes = st.sampled_from(FULL_DTYPES)


def _budget(share: float, n: int, whole: bool) -> float:
    k = share * n
    return float(round(k)) if whole else k


@given(row=rows, t=temperatures, share=shares, whole=st.booleans(), dtype=dtypes)
def test_the_mass_is_the_budget(
    backend: str, row: list[float], t: float, share: float, whole: bool, dtype: torch.dtype
) -> None:
    k = _budget(share, len(row), whole)
    assert_budget(soft_topk(torch.tensor(row, dtype=dtype), k, t, solver=backend), k)


@settings(max_examples=400)
@given(
    row=st.lists(
        st.one_of(
            st.floats(width=32, allow_nan=False),
            clustered,
            st.sampled_from([math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45]),
        ),
        min_size=1,
        max_size=40,
    ),
    t=st.one_of(st.just(0.0), temperatures, st.floats(-36, 36).map(lambda e: 10.0**e)),
    share=shares,
    whole=st.booleans(),
    dtype=dtypes,
)
def test_any_row_is_the_reference(
    backend: str, row: list[float], t: float, share: float, whole: bool, dtype: torch.dtype
) -> None:
    """Mask and gradients over the whole range of numbers, infinities included."""
    scores = torch.tensor(row, dtype=dtype, requires_grad=True)
    count = sum(score != -math.inf for score in row)
    k = torch.tensor(_budget(share, count, whole), dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    upstream = normal(len(row), seed=len(row), dtype=dtype)
    p = soft_topk(scores, k, temperature, solver=backend)
    want = expected(scores.detach(), k.detach(), t, upstream)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    d_scores, d_k, d_t = torch.autograd.grad(p, (scores, k, temperature), upstream)
    assert_near(d_scores, want.d_scores, want.d_scores_tolerance, "d scores")
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")


@given(row=rows, t=temperatures, share=shares, whole=st.booleans(), dtype=dtypes)
def test_a_higher_score_never_gets_less(
    backend: str, row: list[float], t: float, share: float, whole: bool, dtype: torch.dtype
) -> None:
    scores = torch.tensor(row, dtype=dtype)
    k = _budget(share, len(row), whole)
    for p in (
        soft_topk(scores, k, t, solver=backend),
        log_soft_topk(scores, k, t, solver=backend),
    ):
        ordered = p[scores.argsort(stable=True)]
        assert (ordered[1:] >= ordered[:-1]).all()
    ties = scores[:, None] == scores[None, :]
    p = soft_topk(scores, k, t, solver=backend)
    assert (p[:, None] == p[None, :])[ties].all()


@given(row=rows, t=temperatures, shares=st.tuples(shares, shares))
def test_more_budget_never_gives_less(
    backend: str, row: list[float], t: float, shares: tuple[float, float]
) -> None:
    scores = torch.tensor(row, dtype=torch.float64)
    less, more = sorted(share * len(row) for share in shares)
    low, high = (soft_topk(scores, k, t, solver=backend) for k in (less, more))
    assert (high - low >= -64 * EPS * low).all()


@given(row=rows, t=temperatures, share=shares, seed=st.integers(0, 99))
def test_permuting_scores_permutes_the_mask(
    backend: str, row: list[float], t: float, share: float, seed: int
) -> None:
    scores = torch.tensor(row, dtype=torch.float64)
    order = torch.randperm(len(row), generator=generator(seed))
    p = soft_topk(scores, share * len(row), t, solver=backend)
    permuted = soft_topk(scores[order], share * len(row), t, solver=backend)
    torch.testing.assert_close(permuted, p[order], rtol=1e-11, atol=1e-300)


@given(
    row=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    shift=st.integers(-(2**40), 2**40),
    t=st.floats(-2, 3).map(lambda e: 10.0**e),
    share=shares,
)
def test_shifting_scores_changes_nothing(
    backend: str, row: list[int], shift: int, t: float, share: float
) -> None:
    """Whole numbers, so that the shifted scores are exact."""
    scores = torch.tensor(row, dtype=torch.float64)
    k = share * len(row)
    p = soft_topk(scores, k, t, solver=backend)
    shifted = soft_topk(scores + shift, k, t, solver=backend)
    torch.testing.assert_close(shifted, p, rtol=1e-10, atol=1e-300)


@given(row=rows, t=temperatures, share=shares, exponent=st.integers(-30, 30))
def test_scaling_scores_and_temperature_together_changes_nothing(
    backend: str, row: list[float], t: float, share: float, exponent: int
) -> None:
    """By a power of two, which is exact."""
    scores, k, c = torch.tensor(row, dtype=torch.float64), share * len(row), 2.0**exponent
    p = soft_topk(scores, k, t, solver=backend)
    scaled = soft_topk(c * scores, k, c * t, solver=backend)
    torch.testing.assert_close(scaled, p, rtol=1e-11, atol=1e-300)


@given(row=rows, t=temperatures, share=st.integers(0, 64).map(lambda i: i / 64))
def test_what_is_left_is_the_soft_bottom(
    backend: str, row: list[float], t: float, share: float
) -> None:
    """p(r, k) = 1 - p(-r, n - k)."""
    scores, n = torch.tensor(row, dtype=torch.float64), len(row)
    p = soft_topk(scores, share * n, t, solver=backend)
    rest = soft_topk(-scores, n - share * n, t, solver=backend)
    torch.testing.assert_close(p, 1 - rest, rtol=1e-11, atol=4 * EPS)
    mirrored = soft_topk(scores, n - share * n, t, largest=False, solver=backend)
    torch.testing.assert_close(mirrored, rest, rtol=1e-11, atol=1e-300)


@given(row=rows, share=shares, whole=st.booleans(), dtype=dtypes)
def test_a_vanishing_temperature_is_the_hard_limit(
    backend: str, row: list[float], share: float, whole: bool, dtype: torch.dtype
) -> None:
    """A temperature far below every gap gives what t = 0 gives."""
    scores = torch.tensor(row, dtype=dtype)
    levels = scores.double().unique()
    gap = float(levels.diff().min()) if len(levels) > 1 else 1.0
    k = _budget(share, len(row), whole)
    tiny = gap * 1e-4
    assume(tiny > 1e-37)
    cold = soft_topk(scores, k, tiny, solver=backend)
    torch.testing.assert_close(cold, soft_topk(scores, k, 0.0, solver=backend), rtol=1e-5, atol=0)


@given(
    row=st.lists(finite, min_size=2, max_size=40, unique=True),
    where=st.floats(0, 1),
    dtype=dtypes,
)
def test_the_cold_threshold_is_the_midpoint_of_the_boundary_scores(
    backend: str, row: list[float], where: float, dtype: torch.dtype
) -> None:
    """The paper's theorem on DFTopK: b -> (r_(k) + r_(k+1)) / 2 and p -> the hard mask."""
    scores = torch.tensor(row, dtype=dtype)
    ordered = scores.double().sort(descending=True).values
    assume(bool((ordered.diff() < 0).all()))
    k = 1 + int(where * (len(row) - 2))
    upper, lower = float(ordered[k - 1]), float(ordered[k])
    # Other scores are at least as far from the midpoint, so that a thousandth of the gap is cold.
    t = (upper - lower) / 1000
    assume(t > 1e-37)
    b = threshold(scores, k, t, solver=backend)
    middle = (upper + lower) / 2
    slack = t * math.log(2 * len(row)) + 2 * torch.finfo(dtype).eps * abs(middle)
    assert abs(b.item() - middle) <= slack
    p = soft_topk(scores, k, t, solver=backend)
    torch.testing.assert_close(p, hard_topk_mask(scores, k), rtol=0, atol=1e-100)


def test_the_cold_threshold_converges(backend: str) -> None:
    """The distance from the midpoint shrinks with t, at least in proportion."""
    scores = normal(50)
    ordered = scores.sort(descending=True).values
    for k in (1, 7, 25, 49):
        middle = float(ordered[k - 1] + ordered[k]) / 2
        for t in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
            b = threshold(scores, k, t, solver=backend).item()
            assert abs(b - middle) <= t * math.log(100) + 4 * EPS


@given(row=st.lists(st.floats(-10, 10), min_size=1, max_size=40), share=shares)
def test_a_huge_temperature_shares_evenly(backend: str, row: list[float], share: float) -> None:
    n, k = len(row), share * len(row)
    p = soft_topk(torch.tensor(row, dtype=torch.float64), k, 1e9, solver=backend)
    torch.testing.assert_close(p, torch.full((n,), k / n, dtype=torch.float64), rtol=1e-7, atol=0)


@given(row=rows, t=temperatures, share=shares, guess=st.floats(-1e7, 1e7), dtype=dtypes)
def test_a_warm_start_changes_only_the_speed(
    backend: str, row: list[float], t: float, share: float, guess: float, dtype: torch.dtype
) -> None:
    scores, k = torch.tensor(row, dtype=dtype), share * len(row)
    cold, b = soft_topk(scores, k, t, return_threshold=True, solver=backend)
    eps = torch.finfo(dtype).eps
    for start in (b, torch.tensor(guess)):
        warm = soft_topk(scores, k, t, warm_start=start, solver=backend)
        torch.testing.assert_close(warm, cold, rtol=200 * eps, atol=4 * eps)
        assert_budget(warm, k)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 200_000), (64, 3_000), (2_000, 33)], ids=str)
@pytest.mark.parametrize("t", [1e-3, 1.0])
def test_the_same_input_gives_the_same_bits(
    backend: str, dtype: torch.dtype, shape: tuple[int, int], t: float
) -> None:
    """Over repeated runs, and over thread counts with the kernel, forward and backward.

    In plain torch the sums are torch's own, which split a long row by the number of threads.
    """
    in_kernel = backend == "auto" and loader.status().available
    upstream = normal(*shape, seed=1, dtype=dtype)

    def run(threads: int) -> list[Tensor]:
        scores = normal(*shape, dtype=dtype).requires_grad_()
        k = torch.full(shape[:1], shape[1] / 16, dtype=torch.float64, requires_grad=True)
        temperature = torch.full(shape[:1], t, dtype=torch.float64, requires_grad=True)
        with num_threads(threads):
            p, b = soft_topk(scores, k, temperature, return_threshold=True, solver=backend)
            grads = torch.autograd.grad(p, (scores, k, temperature), upstream)
        return [p.detach(), b, *grads]

    first = run(1)
    for threads in (1, 2) if in_kernel else (1,):
        for name, one, two in zip(
            ("mask", "threshold", "d scores", "d k", "d t"), first, run(threads), strict=True
        ):
            assert torch.equal(one, two), f"{name} differs with {threads} threads"


# sample_topk


@given(
    row=rows,
    t=st.one_of(st.just(0.0), temperatures),
    share=shares,
    seed=st.integers(0, 2**31),
    dtype=dtypes,
)
def test_a_sample_has_exactly_k_ones(
    row: list[float], t: float, share: float, seed: int, dtype: torch.dtype
) -> None:
    scores, k = torch.tensor(row, dtype=dtype), round(share * len(row))
    drawn = sample_topk(scores, k, t, generator=generator(seed))
    assert drawn.dtype == dtype
    assert set(drawn.tolist()) <= {0.0, 1.0}
    assert drawn.sum() == k


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_samples_have_exactly_k_ones_at_scale(distribution: str) -> None:
    n = 3_000
    row = DISTRIBUTIONS[distribution](n, generator(0)).float()
    whole = sorted({round(k) for k in budgets(n)} | {0, n})
    pairs = [(k, t) for k in whole for t in (0.0, *TEMPERATURES)]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    drawn = sample_topk(row.expand(len(pairs), n), k, t, generator=generator(1))
    assert ((drawn == 0) | (drawn == 1)).all()
    assert torch.equal(drawn.double().sum(-1), k)


@pytest.mark.parametrize("t", [0.0, 0.05, 0.5, 5.0])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_inclusion_frequencies_are_the_soft_mask(t: float, largest: bool) -> None:
    """Within 5 standard deviations of a binomial count."""
    draws, n, k = 20_000, 24, 7
    scores = torch.randint(0, 12, (n,), generator=generator(1)).double() / 8
    mask = torch.arange(n) % 5 != 0
    p = soft_topk(scores, k, t, largest=largest, mask=mask)
    drawn = sample_topk(
        scores.expand(draws, n), k, t, largest=largest, mask=mask, generator=generator(2)
    )
    assert (drawn.sum(-1) == k).all()
    frequency = drawn.mean(0)
    sigma = (p * (1 - p) / draws).sqrt()
    assert ((frequency - p).abs() <= 5 * sigma + 1e-12).all()


def test_samples_come_from_the_generator_alone() -> None:
    scores = normal(10, 50)
    state = torch.get_rng_state()
    one = sample_topk(scores, 9, generator=generator(3))
    two = sample_topk(scores, 9, generator=generator(3))
    other = sample_topk(scores, 9, generator=generator(4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    default = sample_topk(scores, 9)
    torch.manual_seed(5)
    assert torch.equal(default, sample_topk(scores, 9))


def test_rows_are_sampled_independently() -> None:
    scores = torch.zeros(200, 8)
    drawn = sample_topk(scores, 1, generator=generator(0))
    assert len(drawn.argmax(-1).unique()) == 8
    assert sample_topk(scores.mT, 3, dim=0, generator=generator(0)).sum(0).eq(3).all()


def test_samples_have_no_gradient_and_leave_scores_alone() -> None:
    scores = normal(4, 20).requires_grad_()
    before = scores.detach().clone()
    k = torch.tensor(3.0, requires_grad=True)
    drawn = sample_topk(scores, k, torch.tensor(0.5, requires_grad=True), generator=generator(0))
    assert not drawn.requires_grad
    assert torch.equal(scores, before)


# hard_topk_mask


@settings(max_examples=100)
@given(
    row=st.lists(finite, min_size=1, max_size=60, unique=True),
    share=shares,
    largest=st.booleans(),
    dtype=dtypes,
)
def test_the_hard_mask_is_topk(
    row: list[float], share: float, largest: bool, dtype: torch.dtype
) -> None:
    scores, k = torch.tensor(row, dtype=dtype), round(share * len(row))
    wanted = torch.zeros_like(scores)
    wanted[torch.topk(scores, k, largest=largest).indices] = 1
    assert torch.equal(hard_topk_mask(scores, k, largest=largest), wanted)


@pytest.mark.parametrize("n", [1, 100, 5_000, 100_000])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_hard_mask_has_the_values_of_topk(n: int, distribution: str) -> None:
    """With ties the selected values agree, and the earliest of them are taken."""
    scores = DISTRIBUTIONS[distribution](n, generator(0)).float()
    for k in sorted({0, 1, n // 16, n // 2, n - 1, n}):
        mask = hard_topk_mask(scores, k)
        assert mask.sum() == k
        chosen = scores[mask == 1].sort(descending=True).values
        assert torch.equal(chosen, torch.topk(scores, k).values)
        if 0 < k < n:
            at_boundary = mask[scores == chosen[-1]]
            assert (at_boundary.diff() <= 0).all()

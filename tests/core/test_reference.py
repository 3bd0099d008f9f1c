"""The specification and every backend's threshold against 60 digits of mpmath."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

import fast_lapsum
import mpmath_oracle
from cases import DISTRIBUTIONS, FULL_DTYPES, compute_dtype, generator, normal, ulp
from fast_lapsum import reference
from fast_lapsum.backends.shares import shares_of

CASES = 2_000
FAST_CASES = 150


class Case(NamedTuple):
    """One row and its threshold to 60 digits."""

    name: str
    scores: Tensor
    k: float
    t: float
    b: mpf


def _rows(seed: int) -> Iterator[tuple[str, Tensor]]:
    """An endless stream of rows in float64 that float32 holds exactly."""
    g = generator(seed)
    kinds = {
        **DISTRIBUTIONS,
        "gaps": lambda n, g: 1e4 * torch.randn(n, generator=g, dtype=torch.float64).round(),
        "two_values": lambda n, g: (torch.rand(n, generator=g) < 0.5).double() * 4096,
        "tight_ties": lambda n, g: (torch.rand(n, generator=g) * 3).floor().double() * 1e-30,
        "offset_and_gap": lambda n, g: -3e7 + 4.0 * torch.arange(n, dtype=torch.float64) ** 2,
    }
    while True:
        for name, make in kinds.items():
            n = int(math.exp(float(torch.rand((), generator=g)) * math.log(60))) + 1
            yield name, make(n, g).float().double()


def _cases(dtype: torch.dtype, count: int) -> Iterator[Case]:
    """Cases whose scores, budget and temperature are numbers of float64, the scores of dtype."""
    g = generator(7)

    def uniform() -> float:
        return float(torch.rand((), generator=g, dtype=torch.float64))

    rows = _rows(11 if dtype == torch.float32 else 13)
    made = 0
    while made < count:
        name, scores = next(rows)
        n = len(scores)
        choices = (1e-6, n - 1e-6, float(math.ceil(uniform() * n)), uniform() * n, 0.5, 1.0)
        k = choices[made % len(choices)]
        if not 0 < k < n:
            k = n / 2
        t = 10 ** (9 * uniform() - 6)
        made += 1
        yield Case(name, scores, k, t, mpmath_oracle.threshold(scores.tolist(), k, t))


def _assert_threshold(case: Case, parts: tuple[float, ...], resolution: float, what: str) -> None:
    """The sum of the parts is within 1e-6 t of b, or within what the dtype can tell apart."""
    with mpmath.workdps(mpmath_oracle.DIGITS):
        error = abs(mpmath.fsum(mpf(part) for part in parts) - case.b)
        allowed = mpf(10) ** -6 * mpf(case.t) + mpf(resolution)
        assert error <= allowed, (
            f"{what}: off by {mpmath.nstr(error / case.t, 3)} t on {case.name}, "
            f"n={len(case.scores)}, k={case.k!r}, t={case.t!r}, b={mpmath.nstr(case.b, 20)}"
        )


def _operator_pair(case: Case, dtype: torch.dtype, backend: str) -> tuple[float, ...]:
    _, pair = torch.ops.fast_lapsum.soft_topk(
        case.scores.to(dtype), None, case.k, None, case.t, None, None, True, "mask", dtype, backend
    )
    assert pair.dtype == compute_dtype(dtype)
    assert pair.shape == (2,)
    return tuple(pair.double().tolist())


def _check_backend(case: Case, dtype: torch.dtype, backend: str) -> None:
    b = torch.tensor(float(case.b), dtype=torch.float64)
    kept_ulp = float(ulp(b, dtype))
    # The rounding error of b as one number of the dtype, and as the sum of two of them; and that
    # of the distance to the nearest score in float64, in which all of them are solved.
    distance = float((case.scores - b).abs().min())
    one, two = kept_ulp / 2, kept_ulp * torch.finfo(dtype).eps / 4
    two += distance * torch.finfo(torch.float64).eps
    _assert_threshold(case, _operator_pair(case, dtype, backend), two, f"{backend} pair")
    public = fast_lapsum.threshold(case.scores.to(dtype), case.k, case.t, solver=backend)
    assert public.dtype == dtype
    _assert_threshold(case, (float(public),), one + two, f"{backend} threshold()")


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_threshold_is_within_a_millionth_of_t(backend: str, dtype: torch.dtype) -> None:
    """Gaps of thousands of t, ties, budgets next to 0 and n, huge offsets."""
    for case in _cases(dtype, FAST_CASES):
        _check_backend(case, dtype, backend)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_threshold_is_within_a_millionth_of_t_on_all_cases(
    backend: str, dtype: torch.dtype
) -> None:
    for case in _cases(dtype, CASES):
        _check_backend(case, dtype, backend)


def test_reference_is_right_to_float64() -> None:
    """Threshold, mask and gradients of reference.py, each to a few roundings of float64."""
    eps = torch.finfo(torch.float64).eps
    for index, case in enumerate(_cases(torch.float64, FAST_CASES)):
        found = reference.solve_row(case.scores, case.k, case.t)
        with mpmath.workdps(mpmath_oracle.DIGITS):
            u_error = float(abs((mpf(found.hi) + mpf(found.lo)) - case.b) / mpf(case.t))
        # |lo| / t is the longest distance that the pair has to tell apart.
        assert u_error <= 64 * eps * (1 + abs(found.lo) / case.t), case

        values = case.scores.tolist()
        wanted = mpmath_oracle.mask(values, case.b, case.t)
        mask = reference.mask_row(case.scores, found, case.t)
        u = reference.distances(case.scores, found, case.t).abs()
        relative = u_error + 8 * eps * (1 + u)
        exact = torch.tensor([float(p) for p in wanted], dtype=torch.float64)
        assert ((mask - exact).abs() <= exact * relative + 1e-300).all(), case

        grad = normal(len(values), seed=index)
        by_scores, by_k, by_t = mpmath_oracle.vjp(grad.tolist(), values, case.b, case.t)
        d_scores, d_budget, d_temperature = reference.vjp_row(grad, case.scores, found, case.t)
        phi, spread = torch.exp(-u) / 2, float(u.min()) + 2
        loose = 100 * (u_error + eps * (1 + spread))
        exact = torch.tensor([float(d) for d in by_scores], dtype=torch.float64)
        scale = (phi * (1 + u)).max() * grad.abs().max() / case.t
        assert ((d_scores - exact).abs() <= loose * scale + 1e-290).all(), case
        assert abs(d_budget - float(by_k)) <= loose * float(grad.abs().max()), case
        scale = float((phi * (1 + u)).sum() * grad.abs().max() / case.t) * (1 + spread)
        assert abs(d_temperature - float(by_t)) <= loose * scale + 1e-290, case


def test_gradient_of_a_threshold_beyond_all_scores() -> None:
    """One score has nearly all the weight: its distance from the mean must not be rounding."""
    scores = torch.cat((normal(4000), torch.tensor([-9.0], dtype=torch.float64)))
    k, t = 4001 - 1e-4, 0.25
    grad = normal(4001, seed=1)
    b = mpmath_oracle.threshold(scores.tolist(), k, t)
    wanted = float(mpmath_oracle.vjp(grad.tolist(), scores.tolist(), b, t)[2])
    found = reference.vjp_row(grad, scores, reference.solve_row(scores, k, t), t)[2]
    assert abs(found - wanted) <= 1e-12 * abs(wanted)


@pytest.mark.parametrize(
    ("scores", "k", "t", "wanted"),
    [
        ([3.0, 1.0, 2.0], 0.0, 1.0, [0.0, 0.0, 0.0]),
        ([3.0, 1.0, 2.0], 3.0, 1.0, [1.0, 1.0, 1.0]),
        ([3.0, 1.0, 2.0], 2.0, 0.0, [1.0, 0.0, 1.0]),
        ([3.0, 1.0, 1.0], 1.5, 0.0, [1.0, 0.25, 0.25]),
        ([math.inf, math.inf, 1.0], 1.0, 1.0, [0.5, 0.5, 0.0]),
        ([math.inf, math.inf, 1.0], 2.0, 1.0, [1.0, 1.0, 0.0]),
        ([math.inf, 1.0, 1.0], 2.0, 1.0, [1.0, 0.5, 0.5]),
        ([-math.inf, 1.0, 1.0], 1.0, 1.0, [0.0, 0.5, 0.5]),
        ([-math.inf, -math.inf], 0.0, 1.0, [0.0, 0.0]),
        ([math.nan, 1.0], 1.0, 1.0, [math.nan, math.nan]),
        ([2.0, 1.0], 3.0, 1.0, [math.nan, math.nan]),
        ([2.0, 1.0], 1.0, -1.0, [math.nan, math.nan]),
    ],
)
def test_reference_settles_the_corners(
    scores: list[float], k: float, t: float, wanted: list[float]
) -> None:
    mask = reference.soft_topk(torch.tensor(scores), k, t)
    torch.testing.assert_close(
        mask, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("k", [0.0, 3.0])
def test_reference_at_the_highest_temperatures_with_infinite_scores(k: float) -> None:
    scores = torch.tensor([1.0, -math.inf, 2.0, 3.0], dtype=torch.float64)
    t = torch.finfo(torch.float64).max / reference.HOTTEST
    mask, kernel = (call(scores, k, t) for call in (reference.soft_topk, fast_lapsum.soft_topk))
    assert mask[1] == 0
    torch.testing.assert_close(mask, kernel, rtol=0, atol=1e-30)


@pytest.mark.parametrize("n", [4095, 100_000])
def test_shares_add_up_to_one_however_many(n: int) -> None:
    """torch.softmax is off by an ulp for each of them: of this row by 4e-14."""
    scores = torch.cat((torch.tensor([2.8]), normal(n - 1, seed=1).relu() * 0.4)).double()
    solved = reference.solve_row(scores, 0.5, 0.12)
    u = reference.distances(scores, solved, 0.12)
    q, _ = reference.shares_row(scores, u, u.isfinite(), 0.12)
    of_rows = shares_of(scores, u, u.isfinite(), torch.tensor([0.12]).double(), True).q
    for found in (q, of_rows):
        assert abs(math.fsum(found.tolist()) - 1) < 1e-15

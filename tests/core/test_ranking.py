"""Soft ranks, sorts, quantiles and permutations against their pairwise definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import ranking_cases
from cases import normal
from fast_lapsum import (
    reference_ranking,
    soft_argsort,
    soft_quantile,
    soft_rank,
    soft_sort,
    spearman,
)
from ranking_cases import TOLERANCE, Rows, assert_masses, draw

inf, nan = math.inf, math.nan
FULL = (torch.float32, torch.float64)
pytestmark = pytest.mark.usefixtures("ranking_backend")


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_ranks_are_the_pairwise_sums(ranking_backend: str, dtype: torch.dtype) -> None:
    """Of 5,000 rows of each dtype by the kernels, and of some by plain torch."""
    for rows in draw(1, 200 if ranking_backend == "kernel" else 16, 25, dtype):
        found = soft_rank(rows.scores, rows.temperature)
        wanted = ranking_cases.ranks(rows)
        assert ((found - wanted).abs() <= TOLERANCE[dtype] * wanted).all(), rows.what
        down = soft_rank(rows.scores, rows.temperature, descending=True)
        n = rows.scores.shape[-1]
        # From the definition, not n + 1 - R, which would have lost the digits of small ranks.
        mirrored = ranking_cases.ranks(Rows(-rows.scores, rows.temperature, ""))
        assert ((down - mirrored).abs() <= TOLERANCE[dtype] * mirrored).all(), rows.what
        assert ((down + wanted - n - 1).abs() <= 2 * TOLERANCE[dtype] * n).all(), rows.what


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_sorts_and_quantiles_have_their_masses(ranking_backend: str, dtype: torch.dtype) -> None:
    """Of 5,000 rows of each dtype by the kernels, and of some by plain torch."""
    for rows in draw(2, 200 if ranking_backend == "kernel" else 16, 25, dtype):
        n = rows.scores.shape[-1]
        found = soft_sort(rows.scores, rows.temperature)
        assert_masses(found, torch.arange(n) + 0.5, rows)
        assert (found[:, 1:] >= found[:, :-1]).all(), rows.what
        down = soft_sort(rows.scores, rows.temperature, descending=True)
        assert_masses(-down, torch.arange(n) + 0.5, rows._replace(scores=-rows.scores))
        q = torch.tensor([1e-9, 0.3, 0.5, 2 / 3, 1 - 1e-9], dtype=torch.float64)
        found = soft_quantile(rows.scores, q, rows.temperature)
        is_open = rows.scores.isinf().any(-1)  # a quantile between two infinities is none
        kept = Rows(rows.scores[~is_open], rows.temperature[~is_open], rows.what)
        assert_masses(found.mT[~is_open], q * n, kept)


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_rows_that_are_sorted_by_digits(dtype: torch.dtype) -> None:
    """The same of longer rows, which a CPU does not have torch sort."""
    for rows in draw(7, 60, 4, dtype, lengths=(128, 257, 700)):
        n = rows.scores.shape[-1]
        wanted = ranking_cases.ranks(rows)
        found = soft_rank(rows.scores, rows.temperature)
        assert ((found - wanted).abs() <= TOLERANCE[dtype] * wanted).all(), rows.what
        down = soft_rank(rows.scores, rows.temperature, descending=True)
        assert ((down + wanted - n - 1).abs() <= 2 * TOLERANCE[dtype] * n).all(), rows.what
        assert_masses(soft_sort(rows.scores, rows.temperature), torch.arange(n) + 0.5, rows)


@pytest.mark.parametrize("batches", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_apply_is_the_matrix_of_the_definition(dtype: torch.dtype, batches: int) -> None:
    """Of 1,000 rows of each dtype, and of 5,000 where there is time."""
    for rows in draw(3, batches, 25, dtype):
        n = rows.scores.shape[-1]
        values = normal(25, n, 2, seed=n, dtype=dtype)
        permutation = soft_argsort(rows.scores, rows.temperature)
        P, v = ranking_cases.permutations(rows), values.double()
        for found, matrix in ((permutation.apply(values), P.mT), (permutation.T.apply(values), P)):
            size = matrix @ v.abs()
            assert ((found - matrix @ v).abs() <= 1e-6 * size).all(), rows.what
        dense = permutation.dense()
        assert (dense >= 0).all(), rows.what
        assert (dense - P).abs().max() <= 1e-6, rows.what
        # Columns are differences of masses, which are computed in float64 and as large as n.
        allowed = (1 if dtype == torch.float32 else 8) * n * torch.finfo(dtype).eps
        for dim in (-1, -2):
            assert (dense.sum(dim) - 1).abs().max() <= allowed, rows.what


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_rows_and_columns_of_short_permutations_add_up_to_one(dtype: torch.dtype) -> None:
    """Nearer than the many rows above, of which some in float64 are off by a few times as much."""
    for rows in draw(3, 32, 3, dtype):
        n = rows.scores.shape[-1]
        if n <= 40:
            dense = soft_argsort(rows.scores, rows.temperature).dense()
            for dim in (-1, -2):
                assert (dense.sum(dim) - 1).abs().max() <= n * torch.finfo(dtype).eps, rows.what


@pytest.mark.parametrize("ranking_backend", ["kernel"], indirect=True)  # neither has a part in it
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_permutations_are_those_of_the_reference(dtype: torch.dtype) -> None:
    """What apply is held against, row by row; thresholds of the reference are solved one by one."""
    for rows in draw(3, 32, 3, dtype):
        P = ranking_cases.permutations(rows)
        for scores, t, found in zip(rows.scores, rows.temperature.tolist(), P, strict=True):
            if len(scores) <= 40 and scores.isfinite().all():
                wanted = reference_ranking.permutation_row(scores, t)
                assert (found - wanted).abs().max() <= 1e-14, rows.what


def test_ranks_add_up_and_sorts_move_with_the_scores() -> None:
    scores = normal(4, 50)
    ranks = soft_rank(scores, 0.7)
    torch.testing.assert_close(ranks.sum(-1), torch.full((4,), 50 * 51 / 2).double())
    moved = soft_sort(scores + 3.0, 0.7) - soft_sort(scores, 0.7)
    torch.testing.assert_close(moved, torch.full_like(moved, 3.0))


def test_apply_keeps_the_sum_and_is_not_soft_sort() -> None:
    scores = normal(3, 40)
    sorted_means = soft_argsort(scores, 0.5).apply(scores)
    torch.testing.assert_close(sorted_means.sum(-1), scores.sum(-1))
    quantiles = soft_sort(scores, 0.5)
    assert (quantiles[:, 0] < sorted_means[:, 0]).all()
    assert ((quantiles - sorted_means).abs().amax(-1) > 0.1).all()


def test_temperature_zero_is_the_hard_sort() -> None:
    scores = torch.tensor([[2.0, 5.0, 2.0, -1.0], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    assert soft_rank(scores, 0).tolist() == [[2.5, 4.0, 2.5, 1.0], [2.5] * 4]
    found = soft_sort(scores, 0.0)
    assert found.tolist() == [[-1.0, 2.0, 2.0, 5.0], [0.0] * 4]
    found[0, 1].backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [0.5, 0.0, 0.5, 0.0]
    q = torch.tensor([0.25, 0.5, 0.75, 0.8])
    assert soft_quantile(scores[0], q, 0.0).tolist() == [0.5, 2.0, 3.5, 5.0]
    P = soft_argsort(scores[0], 0.0).dense()
    assert P.tolist() == [[0, 0.5, 0.5, 0], [0, 0, 0, 1], [0, 0.5, 0.5, 0], [1, 0, 0, 0]]


def test_equal_scores_have_equal_ranks_to_the_last_bit() -> None:
    scores = (normal(1, 5000, dtype=torch.float32) * 3).round() / 3
    ranks = soft_rank(scores, 0.37)[0]
    for value in scores.unique():
        assert len(ranks[scores[0] == value].unique()) == 1


def test_a_nan_spoils_its_row_and_no_other() -> None:
    scores = torch.tensor([[1.0, nan, 0.5], [1.0, 2.0, 3.0]], requires_grad=True)
    for function in (soft_rank, soft_sort):
        found = function(scores, 0.5)
        assert found[0].isnan().all()
        torch.testing.assert_close(found[1], function(scores[1], 0.5))
        (grad,) = torch.autograd.grad(found[1].sum() + found[0].nansum(), scores)
        assert grad[0].isnan().all()
        assert grad[1].isfinite().all()
    assert soft_quantile(scores, 0.5).isnan().tolist() == [True, False]
    assert soft_argsort(scores).dense()[0].isnan().all()
    assert not soft_argsort(scores).dense()[1].isnan().any()


def test_infinite_scores_come_first_and_last_without_gradient() -> None:
    scores = torch.tensor([1.0, inf, -inf, 0.5, -inf], requires_grad=True)
    ranks = soft_rank(scores, 0.5)
    assert ranks[[1, 2, 4]].tolist() == [5.0, 1.5, 1.5]
    weights = torch.arange(5.0)
    (grad,) = torch.autograd.grad(ranks @ weights, scores)
    assert grad[[1, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    assert grad[0] != 0
    found = soft_sort(scores, 0.5)
    assert found[[0, 1, 4]].tolist() == [-inf, -inf, inf]
    (grad,) = torch.autograd.grad(found[2:4].sum(), scores, retain_graph=True)
    assert grad[[1, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(grad.sum(), torch.tensor(2.0))
    (grad,) = torch.autograd.grad(found[0], scores)
    assert grad.tolist() == [0.0] * 5


def test_masked_scores_are_left_out() -> None:
    scores = normal(3, 12, dtype=torch.float32)
    mask = torch.rand(3, 12) < 0.6
    mask[1] = False
    scores[2, 0], mask[2, 0] = nan, False
    scores.requires_grad_()
    ranks = soft_rank(scores, 0.3, mask=mask)
    assert torch.equal(ranks.isnan(), ~mask)
    torch.testing.assert_close(ranks[0][mask[0]], soft_rank(scores[0][mask[0]], 0.3))
    (grad,) = torch.autograd.grad(ranks[mask].square().sum(), scores)
    assert (grad[~mask] == 0).all()
    assert (grad[0][mask[0]] != 0).all()
    spoiled = scores.detach().clone()
    spoiled[0, mask[0].nonzero()[0]] = nan
    assert soft_rank(spoiled, 0.3, mask=mask)[0].isnan().all()


@pytest.mark.parametrize("shape", [(0,), (1,), (0, 4), (3, 0), (2, 1), (2, 3, 4)])
def test_empty_and_single_rows(shape: tuple[int, ...]) -> None:
    scores = torch.ones(shape, requires_grad=True)
    for function in (soft_rank, soft_sort):
        found = function(scores, 0.5)
        assert found.shape == shape
        found.sum().backward()
    permutation = soft_argsort(scores, 0.5)
    assert permutation.apply(scores).shape == shape
    assert permutation.T.apply(scores).shape == shape
    assert permutation.dense().shape == (*shape, shape[-1])
    if shape[-1] == 1:
        assert (soft_rank(scores) == 1).all()
        assert (soft_sort(scores) == 1).all()


def test_any_dimension_stride_and_dtype() -> None:
    scores = normal(4, 5, 6).permute(2, 0, 1)
    t = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.2]).double()
    flat = scores.movedim(1, -1).contiguous()
    for function in (soft_rank, soft_sort):
        found = function(scores, t, dim=1)
        torch.testing.assert_close(found.movedim(1, -1), function(flat, t))
    found = soft_quantile(scores, torch.tensor([0.2, 0.7]), t, dim=1)
    assert found.shape == (2, 6, 5)
    torch.testing.assert_close(found[1], soft_quantile(flat, 0.7, t))
    values = normal(*scores.shape, 3)
    moved = soft_argsort(scores, t, dim=1).apply(values)
    wanted = soft_argsort(flat, t).apply(values.movedim(1, 2).contiguous())
    torch.testing.assert_close(moved.movedim(1, 2), wanted)
    for dtype in (torch.float16, torch.bfloat16):
        half = scores.to(dtype).requires_grad_()
        ranks = soft_rank(half, 0.5)
        assert ranks.dtype == torch.float32
        torch.testing.assert_close(ranks, soft_rank(half.detach().float(), 0.5))
        (grad,) = torch.autograd.grad(ranks.square().sum(), half)
        assert grad.dtype == dtype


def test_a_temperature_that_is_none_spoils_its_row() -> None:
    scores = normal(3, 5, dtype=torch.float32)
    t = torch.tensor([-1.0, nan, 1.0])
    for function in (soft_rank, soft_sort):
        assert function(scores, t).isnan().any(-1).tolist() == [True, True, False]
    assert soft_argsort(scores, t).dense().isnan().any(-1).any(-1).tolist() == [True, True, False]


def test_long_rows_have_exact_ranks_and_masses() -> None:
    """Against sums over blocks of pairs, at a few of the scores."""
    for n, t in ((30_000, 1e-4), (30_000, 0.3), (100_000, 100.0)):
        scores = normal(n, seed=n, dtype=torch.float32)
        some = torch.arange(0, n, n // 10)
        rows = Rows(scores[None], torch.tensor([t]).double(), f"n={n}, t={t}")
        wanted = 0.5 + ranking_cases.masses(scores[some][None], rows)[0]
        found = soft_rank(scores, t)[some]
        assert ((found - wanted).abs() <= 2e-6 * wanted).all()
        b = soft_sort(scores, t)[some][None]
        assert_masses(b, some + 0.5, rows)


def test_spearman_is_the_correlation_of_ranks() -> None:
    prediction, target = normal(4, 30, seed=1), normal(4, 30, seed=2).round()
    for row, value in enumerate(spearman(prediction, target, 0.0)):
        ranks = [reference_ranking.rank_row(x[row], 0.0) for x in (prediction, target)]
        torch.testing.assert_close(value, torch.corrcoef(torch.stack(ranks))[0, 1])
    prediction.requires_grad_()
    spearman(prediction, target, 0.5).sum().backward()
    assert prediction.grad is not None
    assert (prediction.grad != 0).all()


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_spearman_holds_at_high_temperatures(dtype: torch.dtype) -> None:
    """Ranks are all near their mean there, and the differences count; of pairs, by expm1."""
    prediction = normal(3, 50, seed=1, dtype=dtype)
    target = normal(3, 50, seed=2, dtype=dtype)
    for t in (0.5, 1e4, 1e6, 1e8):
        given = prediction.clone().requires_grad_()
        found = spearman(given, target, t)
        assert found.dtype == dtype
        wide = prediction.double().requires_grad_()
        u = (wide[:, :, None] - wide[:, None]) / t
        soft = (-torch.expm1(-u.abs()) * u.sign() / 2).sum(-1)
        hard = (target[:, :, None] - target[:, None]).sign().double().sum(-1) / 2
        wanted = (soft * hard).sum(-1) / (soft.norm(dim=-1) * hard.norm(dim=-1))
        assert (found - wanted).abs().max() <= 3e-7
        (grad,) = torch.autograd.grad(found.sum(), given)
        (d_wanted,) = torch.autograd.grad(wanted.sum(), wide)
        assert (grad - d_wanted).abs().max() <= 3e-6 * d_wanted.abs().max()
    close = torch.tensor([1.0, 1.000001, 1.000002], dtype=dtype)
    assert spearman(close, torch.arange(3.0), 100.0) > 0.99


@pytest.mark.parametrize("t", [1.0, 1e3])
def test_ranks_that_differ_by_rounding_alone_have_no_correlation(t: float) -> None:
    target = torch.tensor([1.0, 3.0, 2.0]).double()
    prediction = torch.tensor([[1e-17, 2e-17, 3e-17], [1e-16, 0.0, 2e-16], [1.0, 2.0, 3.0]])
    prediction = prediction.double().requires_grad_()
    found = spearman(prediction, target.expand(3, -1), t)
    assert found.isnan().tolist() == [True, True, False]
    (grad,) = torch.autograd.grad(found[2], prediction)
    assert (grad[:2] == 0).all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 0), (3, 1), (0, 4)])
def test_rows_too_short_for_an_order_have_no_correlation(shape: tuple[int, ...]) -> None:
    scores = torch.ones(shape, requires_grad=True)
    found = spearman(scores, scores.detach(), 0.5)
    assert found.isnan().all()
    assert (torch.autograd.grad(found.sum(), scores)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_grades_are_targets_of_spearman(dtype: torch.dtype) -> None:
    prediction, grades = normal(4, 9), normal(4, 9, seed=1).mul(2).long().abs().to(dtype)
    assert torch.equal(
        spearman(prediction, grades, 0.5), spearman(prediction, grades.double(), 0.5)
    )
    # Whole numbers that float32 cannot tell apart have ranks of their own.
    high = torch.arange(3) + 2**30
    assert spearman(torch.arange(3.0), high, 0.0) == 1


def _refused(function: object, *args: object, **kwargs: object) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        function(*args, **kwargs)  # type: ignore[operator]
    return str(caught.value)


def test_errors_name_the_argument_and_its_value() -> None:
    scores: Tensor = torch.ones(2, 3)
    assert "q must lie in (0, 1), without its ends, got q=0" in _refused(soft_quantile, scores, 0)
    for tiny in (5e-324, torch.tensor([0.5, 1e-310], dtype=torch.float64)):
        assert "q n must be a normal number" in _refused(soft_quantile, scores, tiny)
    assert "got q=1.0" in _refused(soft_quantile, scores, torch.tensor([0.5, 1.0]))
    assert "got shape (1, 1)" in _refused(soft_quantile, scores, torch.full((1, 1), 0.5))
    assert "at least one score" in _refused(soft_quantile, scores[:, :0], 0.5)
    assert "must not require" in _refused(
        soft_quantile, scores, torch.tensor(0.5, requires_grad=True)
    )
    assert "got dim=(0, 1)" in _refused(soft_rank, scores, dim=(0, 1))
    assert "got temperature=-1" in _refused(soft_sort, scores, -1)
    assert "descending must be True or False" in _refused(soft_sort, scores, descending=1)
    assert "got int64" in _refused(soft_rank, scores.long())
    assert "got shape (3,)" in _refused(soft_argsort(scores).apply, torch.ones(3))
    assert "got shape (2,)" in _refused(spearman, scores, torch.ones(2), 1.0)
    assert "target must be a torch.Tensor, got list" in _refused(spearman, scores, [1.0], 1.0)
    assert "target must be of real numbers, got complex64" in _refused(
        spearman, scores, scores.to(torch.complex64), 1.0
    )
    long = torch.zeros(1).expand(2**31)
    for function in (soft_rank, soft_sort, soft_argsort):
        assert "at most 2147483647 scores along dim=0" in _refused(function, long)
    assert "got shape (2147483648,)" in _refused(soft_quantile, long, 0.5)
    assert "got shape (2147483648,)" in _refused(spearman, long, long, 0.5)
    assert "mask must be bool" in _refused(soft_rank, scores, mask=scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    """Whole numbers and a half have no place in two bytes."""

    def results() -> list[Tensor]:
        scores = normal(3, 3000, seed=3, dtype=torch.float32)
        found = []
        for t in (0.05, torch.tensor(0.05, dtype=torch.float32, requires_grad=True)):
            leaf = scores.clone().requires_grad_()
            for out in (soft_rank(leaf, t), soft_sort(leaf, t), soft_quantile(leaf, 0.3, t)):
                found += [out, *torch.autograd.grad(out.square().sum(), leaf, create_graph=True)]
            permutation = soft_argsort(leaf, t)
            found += [permutation.apply(leaf), permutation.T.apply(leaf)]
        return [x.detach() for x in found]

    wanted = results()
    torch.set_default_dtype(dtype)
    try:
        found = results()
    finally:
        torch.set_default_dtype(torch.float32)
    for value, expected in zip(found, wanted, strict=True):
        assert torch.equal(value, expected)


def test_places_over_two_to_the_23() -> None:
    """float32 has no half beside such a number."""
    n = 2**23 + 8
    scores = torch.arange(n, dtype=torch.float64)
    t = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    exact = {"rtol": 0, "atol": 1e-8}  # e^-20 of the neighbours is there
    with torch.no_grad():
        for of_t in (0.05, t):
            torch.testing.assert_close(soft_rank(scores, of_t)[-3:], scores[-3:] + 1, **exact)
            torch.testing.assert_close(soft_sort(scores, of_t)[-3:], scores[-3:], **exact)


@pytest.mark.parametrize("t", [1e24, 1e30])
def test_sorts_next_to_the_largest_numbers(t: float) -> None:
    """Half an ulp of them is 1e31."""
    lowest = torch.finfo(torch.float32).min
    scores = torch.tensor([0.0, lowest, lowest])
    for signed in (scores, -scores):
        found, wanted = soft_sort(signed, t), signed.sort().values
        assert found.isfinite().all()
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=t)
    assert soft_quantile(scores, 0.1, t) == lowest

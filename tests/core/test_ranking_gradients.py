"""Gradients of ranks, sorts, quantiles and permutations: of scores and temperature, twice."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cases import normal
from fast_lapsum import (
    reference_ranking,
    soft_argsort,
    soft_quantile,
    soft_rank,
    soft_sort,
    spearman,
)
from fast_lapsum.reference import Threshold
from ranking_cases import draw

VALUES = normal(2, 5, 2, seed=9)
#: Functions of scores and one temperature per row.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "rank": soft_rank,
    "descending rank": lambda r, t: soft_rank(r, t, descending=True),
    "sort": soft_sort,
    "descending sort": lambda r, t: soft_sort(r, t, descending=True),
    "quantile": lambda r, t: soft_quantile(r, torch.tensor([0.1, 0.5, 0.77]), t),
    "apply": lambda r, t: soft_argsort(r, t).apply(VALUES),
    "transposed apply": lambda r, t: soft_argsort(r, t).T.apply(VALUES),
    "spearman": lambda r, t: spearman(r, VALUES[..., 0], t),
}


pytestmark = pytest.mark.usefixtures("ranking_backend")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name: str) -> None:
    function = FUNCTIONS[name]
    scores = normal(2, 5, seed=3).requires_grad_()
    t = torch.tensor([0.3, 1.7], dtype=torch.float64)
    assert gradcheck(lambda r: function(r, t), (scores,), fast_mode=True)
    assert gradgradcheck(lambda r: function(r, t), (scores,), fast_mode=True)
    t.requires_grad_()
    assert gradcheck(function, (scores, t))
    assert gradgradcheck(function, (scores, t), fast_mode=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # a search, row by row
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_by_torch_func(name: str) -> None:
    function = FUNCTIONS[name]
    scores, t = normal(2, 5, seed=3), torch.tensor([0.3, 1.7], dtype=torch.float64)
    wanted = torch.autograd.functional.jacobian(lambda r: function(r, t), scores)
    torch.testing.assert_close(torch.func.jacrev(function)(scores, t), wanted)
    torch.testing.assert_close(torch.func.jacfwd(function)(scores, t), wanted)
    if "apply" in name or name == "spearman":  # which have values of their own shape
        return
    mapped = torch.vmap(function)(scores, t)
    torch.testing.assert_close(
        mapped, torch.stack([function(*x) for x in zip(scores, t, strict=True)])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_ranks_are_the_pairwise_sums(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for number, rows in enumerate(draw(5, 40, 3, dtype)):
        scores = rows.scores.requires_grad_()
        grad = normal(*scores.shape, seed=number, dtype=dtype)
        (found,) = torch.autograd.grad(soft_rank(scores, rows.temperature), scores, grad)
        for row, t in enumerate(rows.temperature.tolist()):
            one = scores[row].detach()
            wanted, _ = reference_ranking.rank_vjp_row(grad[row], one, t)
            wanted = wanted.to(dtype).double()  # which may be infinite there
            if t == 0:
                assert (found[row] == 0).all(), rows.what
                continue
            near = torch.exp(-reference_ranking.differences(one, one, t).abs()).sum(1)
            slack = 20 * eps * near / t * grad[row].abs().max()
            is_close = (found[row] - wanted).abs() <= slack.double()
            assert (is_close | (found[row] == wanted)).all(), rows.what


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_sorts_are_softmaxes(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for number, rows in enumerate(draw(6, 24, 2, dtype)):
        n = rows.scores.shape[-1]
        if not rows.scores.isfinite().all() or n > 40:
            continue
        scores = rows.scores.requires_grad_()
        grad = normal(*scores.shape, seed=number, dtype=dtype)
        (found,) = torch.autograd.grad(soft_sort(scores, rows.temperature), scores, grad)
        torch.testing.assert_close(found.sum(-1), grad.sum(-1), rtol=1e-4, atol=1e-4)
        for row, t in enumerate(rows.temperature.tolist()):
            if t < torch.finfo(dtype).tiny:
                continue
            one = scores[row].detach()
            wanted = torch.zeros(n, dtype=torch.float64)
            for j in range(n):
                b: Threshold = reference_ranking.quantile_row(one, j + 0.5, t)
                wanted += reference_ranking.quantile_vjp_row(float(grad[row, j]), one, b, t)
            slack = 200 * eps * grad[row].abs().sum()
            assert ((found[row] - wanted).abs() <= slack).all(), rows.what


def test_masks_in_double_backward() -> None:
    scores = normal(2, 6).requires_grad_()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 3] = False

    def kept(r: Tensor) -> Tensor:
        return soft_rank(r, 0.6, mask=mask)[mask]

    assert gradcheck(kept, (scores,))
    assert gradgradcheck(kept, (scores,))


def test_quantiles_in_a_wide_gap_lean_on_both_sides() -> None:
    """The mass in the gap has underflowed; the derivative has not."""
    scores = torch.tensor([0.0, 1e4, 1.0, 1e4 + 2], dtype=torch.float64, requires_grad=True)
    b = soft_quantile(scores, 0.5, 1.0)
    (grad,) = torch.autograd.grad(b, scores, create_graph=True)
    torch.testing.assert_close(grad.sum().detach(), torch.tensor(1.0).double())
    torch.testing.assert_close(grad[0::2].sum().detach(), torch.tensor(0.5).double())
    ratio = (grad[2] / grad[0]).item()
    assert math.isclose(ratio, math.e, rel_tol=1e-9)
    (second,) = torch.autograd.grad(grad[0], scores)
    assert second.isfinite().all()


def test_gradients_of_infinite_and_hard_rows_are_zero() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0], [1.0, math.inf, -math.inf]], requires_grad=True)
    t = torch.tensor([0.0, 0.5], requires_grad=True)
    d_scores, d_t = torch.autograd.grad((soft_rank(scores, t) ** 2).sum(), (scores, t))
    assert (*d_scores.flatten().tolist(), *d_t.tolist()) == (0.0,) * 8


@pytest.mark.parametrize("gap", [100.0, 709.0, 711.0, 1000.0, 1415.0, 1418.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_that_are_far_away_change_no_gradient_of_a_permutation(
    dtype: torch.dtype, gap: float
) -> None:
    """Between clusters the places are as wide as the gap: e^{-gap/t} may be under all numbers."""
    scores = torch.tensor([0.0, 1.0, 1.0 + 0.1 / gap, 1.0 + 0.2 / gap], dtype=dtype)
    values = torch.arange(4.0, dtype=dtype)
    found, wanted = [], []
    for gradients, first in ((found, 0), (wanted, 1)):
        leaf = scores[first:].clone().requires_grad_()
        t = torch.tensor(1 / gap, dtype=dtype, requires_grad=True)
        for permutation in (soft_argsort(leaf, t), soft_argsort(leaf, t).T):
            moved = permutation.apply(values[first:])
            gradients.append(torch.autograd.grad(moved[1 - first], (leaf, t), retain_graph=True))
    for (d_scores, d_t), (wanted_scores, wanted_t) in zip(found, wanted, strict=True):
        torch.testing.assert_close(d_scores[1:], wanted_scores)
        assert abs(d_scores[0]) <= 1e-40
        torch.testing.assert_close(d_t, wanted_t)


def test_a_permutation_of_relus_has_gradients() -> None:
    scores = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.7, 2.5], requires_grad=True)
    soft_argsort(scores, 1e-3).apply(torch.arange(6.0)).square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().amax() < 1e-6


@pytest.mark.parametrize("t", [1e-150, 1e-155, 1e-160, 1e-300])
def test_gradients_at_tiny_temperatures_that_are_learned_are_zero(t: float) -> None:
    """Where 1 / t^2 is over the largest number."""
    functions = (soft_rank, soft_sort, lambda r, t: soft_quantile(r, 0.4, t))
    for function in functions:
        scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
        learned = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        out = function(scores, learned)
        d_scores, d_t = torch.autograd.grad((out * normal(*out.shape)).sum(), (scores, learned))
        assert d_scores.isfinite().all()
        assert abs(d_t) < 5


def test_limits_of_a_temperature_are_those_of_the_scores_whatever_is_learned() -> None:
    scores = torch.tensor([0.0, 1.0, 3.0])
    for learned in (False, True):
        t = torch.tensor(1e37, dtype=torch.float64, requires_grad=learned)
        for found in (soft_rank(scores, t), soft_sort(scores, t), soft_argsort(scores, t).dense()):
            assert found.isnan().all()


def test_a_permutation_of_one_score_and_of_a_nan_have_gradients() -> None:
    scores = torch.tensor([[2.0], [math.inf]], requires_grad=True)
    moved = soft_argsort(scores).apply(torch.ones(2, 1))
    assert torch.equal(moved, torch.ones(2, 1))
    assert torch.equal(torch.autograd.grad(moved.sum(), scores)[0], torch.zeros(2, 1))
    spoilt = torch.tensor([[0.0, math.nan, 1.0], [0.0, 2.0, 1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(soft_argsort(spoilt).apply(torch.ones(2, 3)).sum(), spoilt)
    assert gradient[0].isnan().all()
    assert gradient[1].isfinite().all()


@pytest.mark.parametrize("sort", [soft_sort, lambda r, t: soft_quantile(r, 0.15, t)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tied_scores_share_a_hard_sort_however_it_is_derived(
    sort: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    scores = torch.tensor([1.0, 1.0, 1.0, 2.0, math.inf], dtype=dtype)
    wanted = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0, 0], dtype=dtype)

    def first(r: Tensor, t: Tensor | float = 0.0) -> Tensor:
        return sort(r, t).flatten()[0]

    leaf = scores.clone().requires_grad_()
    learned = torch.tensor(0.0, requires_grad=True)
    found = [torch.autograd.grad(first(leaf, t), leaf)[0] for t in (0.0, learned.detach(), learned)]
    found += torch.autograd.grad(first(leaf), leaf, create_graph=True)
    found.append(torch.func.grad(first)(scores))
    found.append(torch.func.vmap(torch.func.grad(first))(scores[None])[0])
    for gradient in found:
        torch.testing.assert_close(gradient, wanted)


def test_what_arrives_at_ranks_of_infinite_scores_has_no_effect() -> None:
    scores = torch.tensor([1.0, math.inf, 0.0, -math.inf], requires_grad=True)
    t = torch.tensor(0.5, requires_grad=True)
    arriving = torch.tensor([1.0, math.nan, 2.0, math.nan])
    found = [torch.autograd.grad(soft_rank(scores, x), scores, arriving)[0] for x in (0.5, t)]
    torch.testing.assert_close(found[1], found[0])
    assert found[0].isfinite().all()


#: Functions of scores and a temperature, empty where the scores are.
EMPTY: dict[str, Callable[..., Tensor]] = {
    "rank": soft_rank,
    "sort": soft_sort,
    "quantile": lambda r, t: soft_quantile(r, 0.5, t),
    "quantiles": lambda r, t: soft_quantile(r, torch.tensor([0.2, 0.5]), t),
    "apply": lambda r, t: soft_argsort(r, t).apply(torch.ones_like(r)),
    "transposed apply": lambda r, t: soft_argsort(r, t).T.apply(torch.ones_like(r)),
    "matrix": lambda r, t: soft_argsort(r, t).dense(),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (3, 0), (3, 1)])
def test_empty_scores_have_gradients_twice(name: str, shape: tuple[int, ...]) -> None:
    """Those of a learned temperature are 0; single scores do not depend on one either."""
    if name.startswith("quantile") and shape[-1] < 2:
        pytest.skip("no scores have no quantile, and one has quantiles that hang on t")
    per_row = torch.full(shape[:-1], 0.5, requires_grad=True)
    for t in (0.5, torch.tensor(0.5, requires_grad=True), per_row):
        scores = torch.zeros(shape, requires_grad=True)
        leaves = (scores, t) if isinstance(t, Tensor) else (scores,)
        out = EMPTY[name](scores, t)
        found = torch.autograd.grad(out.sum(), leaves, create_graph=True)
        for gradient, leaf in zip(found, leaves, strict=True):
            assert gradient.shape == leaf.shape
            assert gradient is found[0] or (gradient == 0).all()
        assert torch.autograd.grad(found[0].sum(), scores)[0].shape == shape


@pytest.mark.parametrize("fill", [torch.finfo(torch.float64).min, torch.finfo(torch.float64).max])
def test_a_score_that_is_infinitely_many_temperatures_away(fill: float) -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = []
    for away in (fill, math.copysign(1e6, fill)):
        scores = torch.tensor([0.0, 1.0, 1.5, away], dtype=torch.float64, requires_grad=True)
        t = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        for permutation in (soft_argsort(scores, t), soft_argsort(scores, t).T):
            moved = permutation.apply(values)
            found.append(torch.autograd.grad(moved[1], (scores, t), retain_graph=True))
    assert abs(found[0][1]) > 0.1
    for one, two in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(one, two)

"""Derivatives of every order: gradcheck, gradgradcheck, forward mode, corners without NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cases import DISTRIBUTIONS, FULL_DTYPES, TEMPERATURES, budgets, generator, normal
from fast_lapsum import log_soft_topk, reference, soft_topk, threshold

inf, nan = math.inf, math.nan
MASK = torch.tensor([[True, True, False, True, True, True], [True, False, True, True, True, True]])
#: Keyword arguments, and the scores they go with where those are special.
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "smallest": {"largest": False},
    "mask": {"mask": MASK},
    "mask_and_smallest": {"mask": MASK, "largest": False},
    "other_dim": {"dim": 0},
}


def _leaves(dim: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """Scores without ties near the threshold, where |u| has its kink."""
    scores = normal(2, 6, seed=3)
    rows = scores.shape[1 - dim % 2]
    length = scores.shape[dim]
    k = torch.linspace(0.3, 0.7, rows, dtype=torch.float64) * (length - 1) + 0.13
    t = torch.linspace(0.4, 1.3, rows, dtype=torch.float64)
    return scores.requires_grad_(), k.requires_grad_(), t.requires_grad_()


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradcheck(backend: str, function: Callable[..., Tensor], variant: str) -> None:
    """Reverse and forward mode against finite differences, for scores, k and t together."""
    arguments = VARIANTS[variant]
    leaves = _leaves(int(arguments.get("dim", -1)))  # type: ignore[call-overload]

    def call(*inputs: Tensor) -> Tensor:
        out = function(*inputs, **arguments, solver=backend)
        return out[out.detach().isfinite()]  # log 0 of what is left out has no difference

    assert gradcheck(call, leaves, check_forward_ad=True, check_batched_grad=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradgradcheck(backend: str, function: Callable[..., Tensor], variant: str) -> None:
    arguments = VARIANTS[variant]
    leaves = _leaves(int(arguments.get("dim", -1)))  # type: ignore[call-overload]

    def call(*inputs: Tensor) -> Tensor:
        out = function(*inputs, **arguments, solver=backend)
        return out[out.detach().isfinite()]

    assert gradgradcheck(call, leaves, fast_mode=variant != "plain")


@pytest.mark.parametrize("which", ["scores", "k", "t"])
def test_each_argument_alone(backend: str, function: Callable[..., Tensor], which: str) -> None:
    """The others as numbers: a gradient for one must not need a graph for all."""
    scores = normal(7, seed=4)
    values = {"scores": scores, "k": torch.tensor(2.6).double(), "t": torch.tensor(0.7).double()}
    leaf = values[which].requires_grad_()

    def call(x: Tensor) -> Tensor:
        if which == "scores":
            return function(x, 2.6, 0.7, solver=backend)
        if which == "k":
            return function(scores, x, 0.7, solver=backend)
        return function(scores, 2.6, x, solver=backend)

    assert gradcheck(call, leaf)
    assert gradgradcheck(call, leaf)


def test_gradcheck_around_infinities(backend: str, function: Callable[..., Tensor]) -> None:
    """Scores of both infinities stay where they are; the finite ones move."""
    finite = normal(5, seed=5).requires_grad_()
    k = torch.tensor(2.7, dtype=torch.float64, requires_grad=True)
    t = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    fixed = torch.tensor([inf, -inf, -inf], dtype=torch.float64)

    def call(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        out = function(torch.cat((fixed[:1], x[:2], fixed[1:], x[2:])), k, t, solver=backend)
        return out[out.detach().isfinite()]

    assert gradcheck(call, (finite, k, t), check_forward_ad=True)
    assert gradgradcheck(call, (finite, k, t))


def test_gradcheck_with_ties(backend: str, function: Callable[..., Tensor]) -> None:
    """Equal scores away from the threshold are ordinary scores."""
    scores = torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5, 2.0], dtype=torch.float64)
    leaves = (
        scores.requires_grad_(),
        torch.tensor(2.3, dtype=torch.float64, requires_grad=True),
        torch.tensor(0.9, dtype=torch.float64, requires_grad=True),
    )
    assert gradcheck(lambda *x: function(*x, solver=backend), leaves, check_forward_ad=True)
    assert gradgradcheck(lambda *x: function(*x, solver=backend), leaves)


def test_gradcheck_of_both_gradient_modes_together(backend: str) -> None:
    """Forward over reverse: what torch.func.hessian does."""
    leaves = _leaves()
    assert gradgradcheck(
        lambda *x: soft_topk(*x, solver=backend),
        leaves,
        check_fwd_over_rev=True,
        check_rev_over_rev=False,
        check_undefined_grad=False,
        fast_mode=True,
    )


def test_third_order(backend: str) -> None:
    """The threshold stays differentiable at every order, not only at the second."""
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in _leaves())
    weights = normal(2, 6, seed=9)

    def slope(*inputs: Tensor) -> Tensor:
        p = soft_topk(*inputs, solver=backend)
        grads = torch.autograd.grad((p * weights).sum(), inputs, create_graph=True)
        return torch.cat([grad.reshape(-1) for grad in grads]).square().sum()

    assert gradgradcheck(slope, leaves, fast_mode=True)


@pytest.mark.parametrize("create_graph", [False, True], ids=["first_order", "create_graph"])
@pytest.mark.parametrize("t", [1e-3, 0.3, 1.0])
def test_hard_has_the_soft_gradient(backend: str, t: float, create_graph: bool) -> None:
    """Straight through: hard forward, soft backward, for scores, k and t."""
    leaves = (
        normal(3, 9).requires_grad_(),
        torch.tensor([2.0, 5.0, 8.0], dtype=torch.float64, requires_grad=True),
        torch.full((3,), t, dtype=torch.float64, requires_grad=True),
    )
    upstream = normal(3, 9, seed=1)
    grads = [
        torch.autograd.grad(
            soft_topk(*leaves, hard=hard, solver=backend),
            leaves,
            upstream,
            create_graph=create_graph,
        )
        for hard in (False, True)
    ]
    for soft, hard in zip(*grads, strict=True):
        assert torch.equal(soft, hard)
        assert soft.abs().max() > 0 or t == 1e-3


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_gradients_are_finite_on_every_path(
    backend: str, dtype: torch.dtype, distribution: str
) -> None:
    """The kernel's backward, the differentiable backward, and forward mode: no NaN, no Inf."""
    n = 90
    row = DISTRIBUTIONS[distribution](n, generator(1)).to(dtype)
    pairs = [(k, t) for t in (0.0, *TEMPERATURES) for k in (0.0, *budgets(n), float(n))]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    leaves = (row.expand(len(pairs), n).clone(), k, t)
    for leaf in leaves:
        leaf.requires_grad_()
    upstream = normal(len(pairs), n, seed=2, dtype=dtype)
    for create_graph in (False, True):
        p = soft_topk(*leaves, solver=backend)
        grads = torch.autograd.grad(p, leaves, upstream, create_graph=create_graph)
        for name, grad in zip(("scores", "k", "t"), grads, strict=True):
            bad = ~grad.isfinite().reshape(len(pairs), -1).all(-1)
            where = [pairs[i] for i in bad.nonzero()[:3, 0].tolist()]
            assert not bad.any(), f"gradient for {name} at (k, t) in {where}"
    tangents = tuple(torch.ones_like(leaf) for leaf in leaves)
    _, tangent = torch.func.jvp(
        lambda *x: soft_topk(*x, solver=backend),
        tuple(leaf.detach() for leaf in leaves),
        tangents,
    )
    assert tangent.isfinite().all()


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_log_gradients_for_scores_are_finite(
    backend: str, dtype: torch.dtype, distribution: str
) -> None:
    """d log p / dr is at most 1 / t in size, however far in the tail."""
    n = 90
    row = DISTRIBUTIONS[distribution](n, generator(1)).to(dtype)
    pairs = [(k, t) for t in TEMPERATURES for k in (*budgets(n), float(n))]
    k, t = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    scores = row.expand(len(pairs), n).clone().requires_grad_()
    log_p = log_soft_topk(scores, k, t, solver=backend)
    (grad,) = torch.autograd.grad(log_p, scores, normal(len(pairs), n, seed=2, dtype=dtype))
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_huge_distances_do_not_turn_into_nan(backend: str, dtype: torch.dtype) -> None:
    """|r - b| / t beyond the largest number: p is settled there, so its gradients are zero."""
    far = 1e30 if dtype == torch.float32 else 1e300
    leaves = (
        torch.tensor([far, 0.0, 1.0, -far], dtype=dtype, requires_grad=True),
        torch.tensor(1.5, requires_grad=True),
        torch.tensor(1e-10, dtype=torch.float64, requires_grad=True),
    )
    for create_graph in (False, True):
        p = soft_topk(*leaves, solver=backend)
        grads = torch.autograd.grad(p, leaves, torch.ones_like(p), create_graph=create_graph)
        assert all(grad.isfinite().all() for grad in grads)
    log_p = log_soft_topk(*leaves, solver=backend)
    (grad,) = torch.autograd.grad(log_p[2], leaves[:1])
    assert grad.isfinite().all()


@pytest.mark.parametrize("gap", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_log_gradient_for_k_across_a_wide_gap(backend: str, dtype: torch.dtype, gap: float) -> None:
    """d log p_0 / dk = q_0 / p_0 = 1/2, though the density at b underflows."""
    scores = torch.tensor([gap, 0.0], dtype=dtype)
    k = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    log_p = log_soft_topk(scores, k, 1.0, solver=backend)
    (grad,) = torch.autograd.grad(log_p[0], k)
    assert grad.item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("k", [0.0, 6.0])
def test_corners_of_the_budget(backend: str, dtype: torch.dtype, k: float) -> None:
    """k = 0 and k = n: d p / dk = q = softmax(+-r / t), everything else zero, second order finite.

    Near the corner p is linear in k, so that the limits exist.
    """
    scores = normal(6, dtype=dtype)
    leaves = (scores, torch.tensor(k, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
    for leaf in leaves:
        leaf.requires_grad_()
    side = 1 if k == 0 else -1
    q = torch.softmax(side * scores.detach().double() / 0.7, 0)
    for create_graph in (False, True):
        p = soft_topk(*leaves, solver=backend)
        grads = torch.autograd.grad(p[2], leaves, create_graph=create_graph)
        assert (grads[0] == 0).all()
        assert grads[1].item() == pytest.approx(float(q[2]), rel=1e-5)
        assert abs(grads[2].item()) < 1e-30
    second = torch.autograd.grad(sum(grad.sum() for grad in grads), leaves)
    for name, grad in zip(("scores", "k", "t"), second, strict=True):
        assert grad.isfinite().all(), f"second derivative for {name} is {grad}"
    # d^2 p / (dk dr_j) = q (delta - q_j) / t up to the side.
    wanted = side * q[2] * ((torch.arange(6) == 2).double() - q) / 0.7
    torch.testing.assert_close(second[0].double(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_log_and_threshold_at_the_full_budget(backend: str, dtype: torch.dtype) -> None:
    """At k = n: log p = 0 with d log p / dk = q; b has gradients q for scores."""
    scores = normal(6, dtype=dtype).requires_grad_()
    k = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    q = torch.softmax(-scores.detach().double() / 0.7, 0)
    log_p = log_soft_topk(scores, k, t, solver=backend)
    d_scores, d_k, d_t = torch.autograd.grad(log_p[2], (scores, k, t))
    assert (d_scores == 0).all()
    assert d_k.item() == pytest.approx(float(q[2]), rel=1e-5)
    assert d_t == 0
    b = threshold(scores, k, t, solver=backend)
    d_scores, d_t = torch.autograd.grad(b, (scores, t))
    torch.testing.assert_close(d_scores.double(), q, rtol=1e-5, atol=1e-7)
    assert d_t.isfinite()


def test_upstream_nan_stays_with_what_takes_part(backend: str) -> None:
    """Whatever comes back for a score that was left out, it has no say."""
    scores = torch.tensor([1.0, -inf, inf, 0.5, 2.0], requires_grad=True)
    mask = torch.tensor([True, True, True, True, False])
    upstream = torch.tensor([1.0, nan, nan, 2.0, nan])
    for create_graph in (False, True):
        p = soft_topk(scores, 1.5, mask=mask, solver=backend)
        (grad,) = torch.autograd.grad(p, scores, upstream, create_graph=create_graph)
        assert grad.isfinite().all()
        assert grad[0] != 0
        assert (grad[[1, 2, 4]] == 0).all()


@pytest.mark.parametrize("bad", [inf, nan])
def test_what_arrives_at_a_threshold_stays_with_what_takes_part(backend: str, bad: float) -> None:
    mask = torch.tensor([True, True, True, True, False])
    for create_graph in (False, True):
        scores = torch.tensor([1.0, -inf, 1.5, 0.5, 2.0], requires_grad=True)
        b = threshold(scores, 1.5, mask=mask, solver=backend)
        (grad,) = torch.autograd.grad(b, scores, torch.tensor(bad), create_graph=create_graph)
        assert (grad[[1, 4]] == 0).all()
        assert not grad[[0, 2, 3]].isfinite().any()


def test_the_gradient_does_not_depend_on_how_it_is_asked_for(backend: str) -> None:
    """backward(), grad(create_graph=True), torch.func.vjp, and jvp transposed agree."""
    scores, k, t = normal(3, 8), torch.tensor([2.5, 3.0, 6.1]).double(), torch.tensor(0.4).double()
    upstream, direction = normal(3, 8, seed=1), (normal(3, 8, seed=2), normal(3, seed=3), normal())

    def call(*x: Tensor) -> Tensor:
        return soft_topk(*x, solver=backend)

    leaves = tuple(x.clone().requires_grad_() for x in (scores, k, t))
    plain = torch.autograd.grad(call(*leaves), leaves, upstream)
    graph = torch.autograd.grad(call(*leaves), leaves, upstream, create_graph=True)
    out, pull_back = torch.func.vjp(call, scores, k, t)
    for one, two, three in zip(plain, graph, pull_back(upstream), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(one, three, rtol=1e-12, atol=1e-14)
    value, tangent = torch.func.jvp(call, (scores, k, t), direction)
    assert torch.equal(value, out)
    forward = (tangent * upstream).sum()
    reverse = sum((g * d).sum() for g, d in zip(plain, direction, strict=True))
    torch.testing.assert_close(forward, reverse)


def test_the_budget_has_no_gradient_through_scores(backend: str) -> None:
    """sum(p) = k: its gradient is 0 for scores and t, and 1 for k."""
    leaves = _leaves()
    grads = torch.autograd.grad(soft_topk(*leaves, solver=backend).sum(), leaves)
    torch.testing.assert_close(grads[0], torch.zeros_like(grads[0]), rtol=0, atol=1e-14)
    torch.testing.assert_close(grads[1], torch.ones_like(grads[1]))
    torch.testing.assert_close(grads[2], torch.zeros_like(grads[2]), rtol=0, atol=1e-14)


def test_threshold_moves_with_its_scores(backend: str) -> None:
    """The gradient of b is q for scores, -t / sum(phi) for k and -<q, u> for t."""
    scores = normal(7).requires_grad_()
    k = torch.tensor(2.4, dtype=torch.float64, requires_grad=True)
    t = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(threshold(scores, k, t, solver=backend), (scores, k, t))
    found = reference.solve_row(scores.detach(), 2.4, 0.8)
    u = reference.distances(scores.detach(), found, 0.8)
    phi = torch.exp(-u.abs()) / 2
    q = phi / phi.sum()
    torch.testing.assert_close(grads[0], q)
    torch.testing.assert_close(grads[1], -0.8 / phi.sum())
    torch.testing.assert_close(grads[2], -(q * u).sum())

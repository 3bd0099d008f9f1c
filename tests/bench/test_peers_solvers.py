"""The peers that solve for a threshold or project, and the published packages where installed."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import Tensor

from cases import DISTRIBUTIONS, FULL_DTYPES, assert_budget, generator, normal
from fast_lapsum import soft_topk
from fast_lapsum.bench.peers import (
    bisection,
    capped_simplex,
    colt5,
    lml,
    official_lapsum,
    published,
    sparse_topk,
)
from fast_lapsum.bench.peers.protocol import Peer

SPARSE = sparse_topk.PEERS
LAPSUM = (*official_lapsum.PEERS, bisection.PEER)
RAMPS = (*SPARSE, capped_simplex.PEER)
EXACT = (*RAMPS, *LAPSUM, lml.PEER)
MINE = (*EXACT, colt5.PEER)
FRACTIONAL = tuple(peer for peer in MINE if peer not in SPARSE)
ENTMAX, DIFFSORT, DIFFTOPK = published.PEERS


def parametrize(*peers: Peer) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", peers, ids=lambda p: p.name)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def assert_same(actual: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=atol)


def gradient(peer: Peer, scores: Tensor, k: float, t: float, weights: Tensor) -> Tensor:
    scores = scores.clone().requires_grad_()
    (result,) = torch.autograd.grad((peer.function(scores, k, t) * weights).sum(), scores)
    return result


# What each method is, by hand.


@parametrize(*RAMPS)
def test_ramp_by_hand(peer: Peer) -> None:
    scores = row(0, 4, 2, 2.5)
    # 4 is in; (2 - theta) + (2.5 - theta) = 1 gives theta = 1.75; 0 is out.
    assert_same(peer.function(scores, 2, 1.0), row(0, 1, 0.25, 0.75))
    # s/t = (0, 2, 1, 1.25): 2 is in; (1 - theta) + (1.25 - theta) = 1 gives theta = 0.625.
    assert_same(peer.function(scores, 2, 2.0), row(0, 1, 0.375, 0.625))
    # A gap of more than t between the second and the third: nothing is soft.
    assert_same(peer.function(scores, 2, 0.25), row(0, 1, 0, 1))


@parametrize(*RAMPS)
def test_ramp_gradient_by_hand(peer: Peer) -> None:
    # The mean over the two active scores is taken off: (3 - 4, 5 - 4) = (-1, 1), divided by t.
    weights = row(1, 2, 3, 5)
    assert_same(gradient(peer, row(0, 4, 2, 2.5), 2, 2.0, weights), row(0, 0, -1, 1) * (1 / 2))
    assert_same(gradient(peer, row(0, 4, 2, 2.5), 2, 0.25, weights), row(0, 0, 0, 0))


@parametrize(*RAMPS)
def test_ramp_of_a_hard_mask_has_no_gradient(peer: Peer) -> None:
    # Also where scores are tied at the edges of the gap.
    scores, weights = row(0.1, 3.3, 3.3, 0.1, 0.1, 7.7), row(1, 2, 3, 5, 8, 13)
    assert_same(peer.function(scores, 3, 0.7), row(0, 1, 1, 0, 0, 1))
    assert_same(gradient(peer, scores, 3, 0.7, weights), torch.zeros_like(scores))


def test_ramp_with_a_fractional_budget_by_hand() -> None:
    # (2 - theta) + (2.5 - theta) = 0.5 gives theta = 2.
    assert_same(capped_simplex.capped_simplex(row(0, 4, 2, 2.5), 1.5, 1.0), row(0, 1, 0, 0.5))


@parametrize(*LAPSUM)
def test_lapsum_by_hand(peer: Peer) -> None:
    # sigma(-ln 2) = 1/4, sigma(0) = 1/2, sigma(ln 4) = 1 - 1/8; the threshold is 5, t is 3.
    u = row(-math.log(2), 0, math.log(4))
    assert_same(peer.function(5 + 3 * u, 1.625, 3.0), row(0.25, 0.5, 0.875))


def test_lml_by_hand() -> None:
    # The logits of 1/4, 1/2 and 3/4 are -ln 3, 0 and ln 3.
    u = row(-math.log(3), 0, math.log(3))
    assert_same(lml.lml(5 + 2 * u, 1.5, 2.0), row(0.25, 0.5, 0.75))


def test_colt5_by_hand() -> None:
    scores = row(8, 2, 1, 1).log()
    # a = log 2 - log 12, so that exp(s + a) = (8, 2, 1, 1) / 6, and what is over 1 is cut off.
    first = row(1, 1 / 3, 1 / 6, 1 / 6)
    assert_same(colt5.colt5(scores, 2, 1.0, iterations=1), first)
    # The solution is min(1, (8, 2, 1, 1) / 4), which sums to 2.
    assert_same(colt5.colt5(scores, 2, 1.0), row(1, 1 / 2, 1 / 4, 1 / 4))
    assert_same(colt5.colt5(3 * scores, 2, 3.0), row(1, 1 / 2, 1 / 4, 1 / 4))
    # With a budget of 1 no cap binds: a softmax, after one step.
    one = colt5.colt5(normal(3, 9), 1, 0.5, iterations=1)
    assert_same(one, torch.softmax(normal(3, 9) / 0.5, -1))


# The optimisation problems: a feasible point that meets the KKT conditions is the solution.


def assert_optimal(p: Tensor, marginal: Tensor, atol: float) -> None:
    """No mass can move with profit from a score that has some to a score that has room."""
    given_up = marginal.masked_fill(p <= 1e-9, math.inf).amin(-1)
    gained = marginal.masked_fill(p >= 1 - 1e-9, -math.inf).amax(-1)
    assert (gained <= given_up + atol).all()


@pytest.mark.parametrize("t", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("k", [1, 4, 9])
@parametrize(*RAMPS)
def test_ramp_is_the_projection(peer: Peer, k: int, t: float) -> None:
    scores = normal(20, 10)
    p = peer.function(scores, k, t)
    assert_budget(p, k)
    assert_optimal(p, scores / t - p, 1e-8)


@pytest.mark.parametrize("t", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("k", [0.5, 7, 15.9])
def test_lml_is_the_solution(k: float, t: float) -> None:
    scores = normal(5, 16)
    p = lml.lml(scores, k, t)
    assert_budget(p, k)
    price = scores / t - torch.logit(p)
    # The logit of a p next to 1 is only as good as 1 - p.
    wanted = price.gather(-1, (p - 0.5).abs().argmin(-1, keepdim=True)).expand_as(price)
    certain = p < 0.999
    assert_same(price[certain], wanted[certain], 1e-11)


@pytest.mark.parametrize("k", [1.5, 4, 9])
def test_colt5_is_the_solution_in_the_limit(k: float) -> None:
    scores, t = normal(5, 16), 0.5
    p = colt5.colt5(scores, k, t, iterations=3000)
    assert_budget(p, k)
    assert_optimal(p, scores / t - p.log(), 1e-9)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_colt5_misses_the_budget_of_sharp_masks(dtype: torch.dtype) -> None:
    p = colt5.colt5(normal(4, 64, dtype=dtype), 8, 0.01)
    assert (p <= 1).all()
    assert (p.sum(-1) < 7).all()
    assert not colt5.PEER.exact_budget


@pytest.mark.parametrize("t", [0.05, 1.0, 3.0])
def test_pav_equals_the_capped_simplex(t: float) -> None:
    scores, weights = normal(6, 1000), normal(6, 1000, seed=1)
    wanted = capped_simplex.capped_simplex(scores, 60, t)
    assert_same(sparse_topk.sparse_topk_pav(scores, 60, t), wanted)
    assert_same(
        gradient(SPARSE[0], scores, 60, t, weights),
        gradient(capped_simplex.PEER, scores, 60, t, weights),
    )


def test_pooled_block_by_hand() -> None:
    # (3, 1, 2, 0): 1 and 2 are out of order, their mean 1.5 is in order with 3 and with 0.
    assert sparse_topk._pooled_block([3, 1, 2, 0], 2) == (1, 3)
    # (1.2, 1, 2, 1.4): 1.2 < 1.5 joins, the mean is 1.4; 1.4 is not over it.
    assert sparse_topk._pooled_block([1.2, 1, 2, 1.4], 2) == (0, 3)
    assert sparse_topk._pooled_block([3, 2, 1, 0], 2) == (2, 2)
    assert sparse_topk._pooled_block([1, 2], 0) == (0, 0)
    assert sparse_topk._pooled_block([2, 1], 2) == (2, 2)


@pytest.mark.parametrize("t", [1e-3, 0.05, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("distribution", ["normal", "three_clusters", "sixteen_levels", "constant"])
@parametrize(lml.PEER, capped_simplex.PEER)
def test_float32_is_as_good_as_float64(peer: Peer, distribution: str, t: float) -> None:
    n, g = 2000, generator(3)
    scores = torch.stack([DISTRIBUTIONS[distribution](n, g) for _ in range(2)]).float()
    for k in (0.01, 1, n / 3, n / 2, n - 1, n - 0.01):
        mask, wide = peer.function(scores, k, t), peer.function(scores.double(), k, t)
        torch.testing.assert_close(mask.double().sum(-1), wide.sum(-1), rtol=1e-6, atol=1e-7)
        assert_same(wide.sum(-1), torch.full_like(wide[:, 0], k), 1e-9)
        assert_same(mask.double(), wide, 1e-6 if t > 0.01 else 1e-5)


@parametrize(lml.PEER, capped_simplex.PEER)
def test_threshold_needs_no_look_at_the_scores(peer: Peer) -> None:
    for k in (6, 15.5):
        assert peer.function(torch.empty(3, 20, device="meta"), k, 0.5).shape == (3, 20)


# The same operator as ours.


@pytest.mark.parametrize("t", [0.02, 1.0, 30.0])
@pytest.mark.parametrize(
    "distribution", ["normal", "log_normal", "three_clusters", "sixteen_levels", "constant"]
)
@parametrize(*LAPSUM)
def test_lapsum_equals_soft_topk(peer: Peer, distribution: str, t: float) -> None:
    g = generator(3)
    scores = torch.stack([DISTRIBUTIONS[distribution](200, g) for _ in range(3)])
    weights = normal(3, 200, seed=1)
    for k in (0.3, 12, 100, 187.5, 199.99):
        ours = scores.clone().requires_grad_()
        wanted = soft_topk(ours, k, t)
        (wanted_gradient,) = torch.autograd.grad((wanted * weights).sum(), ours)
        assert_same(peer.function(scores, k, t), wanted.detach(), 1e-11)
        assert_same(gradient(peer, scores, k, t, weights), wanted_gradient, 1e-11 / t)


@parametrize(*LAPSUM)
def test_lapsum_equals_soft_topk_in_float32(peer: Peer) -> None:
    scores = normal(4, 1000, dtype=torch.float32)
    for t in (0.05, 1.0):
        actual = peer.function(scores, 62, t)
        torch.testing.assert_close(actual, soft_topk(scores, 62, t), rtol=0, atol=3e-5)


# What the protocol promises.


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.01, 1.0, 30.0])
@parametrize(*EXACT)
def test_exact_budget(peer: Peer, t: float, dtype: torch.dtype) -> None:
    assert peer.exact_budget
    scores = normal(4, 256, dtype=dtype)
    mask = peer.function(scores, 20, t)
    assert mask.dtype == dtype
    assert mask.shape == scores.shape
    assert_budget(mask, 20)


@parametrize(*(peer for peer in EXACT if peer not in SPARSE))
def test_exact_fractional_budget(peer: Peer) -> None:
    for k in (0.01, 3.7, 255.5):
        assert_budget(peer.function(normal(4, 256), k, 0.1), k)


@parametrize(*(peer for peer in EXACT if peer not in SPARSE or peer is SPARSE[0]))
def test_offset_scores_keep_the_budget(peer: Peer) -> None:
    scores = 1000 + normal(4, 256)
    mask = peer.function(scores, 20, 1e-3)
    assert_same(mask.sum(-1), torch.full((4,), 20.0, dtype=torch.float64), 1e-8)


@parametrize(*EXACT)
def test_all_or_nothing(peer: Peer) -> None:
    scores, weights = normal(2, 7), normal(2, 7, seed=1)
    for k in (0, 7):
        assert_same(peer.function(scores, k, 0.5), torch.full_like(scores, k / 7))
        assert_same(gradient(peer, scores, k, 0.5, weights), torch.zeros_like(scores))


@pytest.mark.parametrize("t", [0.4, 2.0])
@pytest.mark.parametrize("k", [1, 4])
@parametrize(*MINE)
def test_gradient_by_finite_differences(peer: Peer, k: int, t: float) -> None:
    scores = normal(2, 7, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: peer.function(s, k, t), scores, atol=1e-6)


@parametrize(*FRACTIONAL)
def test_gradient_with_a_fractional_budget(peer: Peer) -> None:
    scores = normal(2, 7, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: peer.function(s, 3.4, 0.7), scores, atol=1e-6)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@parametrize(*MINE)
def test_gradient_keeps_the_dtype(peer: Peer, dtype: torch.dtype) -> None:
    scores, weights = normal(2, 30, dtype=dtype), normal(2, 30, seed=1, dtype=dtype)
    result = gradient(peer, scores, 5, 0.5, weights)
    assert result.dtype == dtype
    assert result.isfinite().all()
    wide = gradient(peer, scores.double(), 5, 0.5, weights.double())
    torch.testing.assert_close(result.double(), wide, rtol=0, atol=2e-5)


@parametrize(*MINE)
def test_rows_are_independent(peer: Peer) -> None:
    scores = normal(3, 40)
    together = peer.function(scores, 6, 0.3)
    apart = torch.cat([peer.function(scores[i : i + 1], 6, 0.3) for i in range(3)])
    assert_same(together, apart)


@parametrize(*MINE, *published.PEERS)
def test_budget_out_of_range(peer: Peer) -> None:
    for k in (-1, 5):
        with pytest.raises(ValueError, match="k must lie in"):
            peer.function(normal(2, 4), k, 1.0)


@parametrize(*SPARSE, DIFFSORT, DIFFTOPK)
def test_whole_budgets_only(peer: Peer) -> None:
    with pytest.raises(ValueError, match=r"k must be a whole number .* k = 2.5"):
        peer.function(normal(2, 4), 2.5, 1.0)


def test_colt5_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="k must be positive"):
        colt5.colt5(normal(2, 4), 0, 1.0)


def test_names_are_unique() -> None:
    names = [peer.name for peer in (*MINE, *published.PEERS)]
    assert len(set(names)) == len(names)


# Published packages.


@parametrize(*published.PEERS)
def test_missing_package_is_named(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = peer.available()
    assert reason is not None
    assert "is not installed" in reason
    # docs/benchmarks.md says so: in isolation it would be built against a torch of its own.
    built_here = "(pip install --no-build-isolation torchsort)" in reason
    assert built_here == reason.startswith("torchsort")


def test_old_package_is_named() -> None:
    reason = published._needs("math", "budget_bisect")()
    assert reason is not None
    assert "has no budget_bisect" in reason


def require(peer: Peer) -> None:
    if (reason := peer.available()) is not None:
        pytest.skip(reason)


def test_entmax_is_the_capped_simplex() -> None:
    require(ENTMAX)
    scores, weights = normal(4, 64), normal(4, 64, seed=1)
    for k in (0.5, 8):
        wanted = capped_simplex.capped_simplex(scores, k, 0.7)
        assert_same(ENTMAX.function(scores, k, 0.7), wanted, 1e-9)
        assert_same(
            gradient(ENTMAX, scores, k, 0.7, weights),
            gradient(capped_simplex.PEER, scores, k, 0.7, weights),
            1e-9,
        )


@parametrize(DIFFSORT, DIFFTOPK)
def test_network_by_hand(peer: Peer) -> None:
    require(peer)
    # One soft swap: sigmoid((3 - 1) / t) of the larger score is taken.
    share = 1 / (1 + math.exp(-2 / 0.5))
    assert_same(peer.function(row(3, 1), 1, 0.5), row(share, 1 - share), 1e-6)
    for n in (6, 8):
        scores = normal(3, n, dtype=torch.float32)
        mask = peer.function(scores, 2, 0.1)
        torch.testing.assert_close(mask.sum(-1), torch.full((3,), 2.0))
        hard = torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1.0)
        torch.testing.assert_close(peer.function(scores, 2, 1e-4), hard, rtol=0, atol=1e-4)
        result = gradient(peer, scores, 2, 0.1, normal(3, n, seed=1, dtype=torch.float32))
        assert result.isfinite().all()

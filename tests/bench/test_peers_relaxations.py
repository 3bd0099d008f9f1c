"""The peers that relax sorting, transport or noise, DFTopK and the hard yardsticks."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, normal
from fast_lapsum import hard_topk_mask
from fast_lapsum.bench import gpu_overhead
from fast_lapsum.bench.peers import (
    MODULES,
    PEERS,
    dftopk,
    hard,
    neuralsort,
    perturbed,
    sinkhorn,
    softsort,
)
from fast_lapsum.bench.peers.protocol import Peer

SOFT = (neuralsort.PEER, softsort.PEER, sinkhorn.PEER, perturbed.PEER, dftopk.PEER)
MINE = (*SOFT, *hard.PEERS)
FRACTIONAL = (neuralsort.PEER, softsort.PEER, sinkhorn.PEER)
WHOLE = tuple(peer for peer in MINE if peer not in FRACTIONAL)
SMOOTH = (*FRACTIONAL, dftopk.PEER)  # no randomness

every = pytest.mark.parametrize("peer", MINE, ids=lambda p: p.name)
every_soft = pytest.mark.parametrize("peer", SOFT, ids=lambda p: p.name)
every_smooth = pytest.mark.parametrize("peer", SMOOTH, ids=lambda p: p.name)
every_fractional = pytest.mark.parametrize("peer", FRACTIONAL, ids=lambda p: p.name)
every_whole = pytest.mark.parametrize("peer", WHOLE, ids=lambda p: p.name)
both_dtypes = pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def softmax(*logits: float) -> Tensor:
    powers = [math.exp(x) for x in logits]
    return row(*(x / sum(powers) for x in powers))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def logit(p: float) -> float:
    return math.log(p / (1 - p))


# What each method is, by hand.


def test_neuralsort_by_hand() -> None:
    # s = (0, 1, 3): A 1 = (0+1+3, 1+0+2, 3+2+0) = (4, 3, 5), and n + 1 - 2 i = 2, 0, -2.
    first = softmax((0 - 4) / 2, (2 - 3) / 2, (6 - 5) / 2)
    second = softmax(-4 / 2, -3 / 2, -5 / 2)
    third = softmax((0 - 4) / 2, (-2 - 3) / 2, (-6 - 5) / 2)
    rows = {1: first, 2: first + second, 3: first + second + third, 1.25: first + 0.25 * second}
    for k, wanted in rows.items():
        torch.testing.assert_close(neuralsort.neuralsort(row(0, 1, 3), k, 2.0), wanted)


def test_softsort_by_hand() -> None:
    # s = (0, 1, 3), sorted (3, 1, 0).
    first = softmax(-3 / 2, -2 / 2, -0.0)
    second = softmax(-1 / 2, -0.0, -2 / 2)
    third = softmax(-0.0, -1 / 2, -3 / 2)
    rows = {1: first, 2: first + second, 3: first + second + third, 1.25: first + 0.25 * second}
    for k, wanted in rows.items():
        torch.testing.assert_close(softsort.softsort(row(0, 1, 3), k, 2.0), wanted)


def test_sinkhorn_by_hand() -> None:
    # Two scores share k = 1 around their middle; the masses 0.2 + 0.5 + 0.8 make k = 1.5.
    for t in (0.1, 1.0, 10.0):
        wanted = row(sigmoid(-1 / t), sigmoid(1 / t))
        torch.testing.assert_close(sinkhorn.sinkhorn(row(3, 5), 1, t), wanted)
    for t, shift in ((0.5, 0.0), (1.0, 7.0), (4.0, -30.0)):
        masses = (0.2, 0.5, 0.8)
        scores = row(*(shift + t * logit(p) for p in masses))
        torch.testing.assert_close(sinkhorn.sinkhorn(scores, 1.5, t), row(*masses))


def test_sinkhorn_is_the_plan_of_the_definition() -> None:
    """The textbook iteration on the Gibbs kernel, with the paper's masses and no logarithms."""
    scores, k, t, n = normal(4, 30, seed=3), 6.5, 0.4, 30
    for one in scores:
        low, high = float(one.min()), float(one.max())
        x = (one - low) / (high - low)
        epsilon = 2 * t / (high - low)
        gibbs = torch.stack((torch.exp(-(x**2) / epsilon), torch.exp(-((x - 1) ** 2) / epsilon)), 1)
        mu, nu = torch.full((n,), 1 / n), torch.tensor([1 - k / n, k / n])
        mu, nu, v = mu.double(), nu.double(), torch.ones(2, dtype=torch.float64)
        for _ in range(2000):
            u = mu / (gibbs @ v)
            v = nu / (gibbs.T @ u)
        plan = u[:, None] * gibbs * v
        torch.testing.assert_close(
            sinkhorn.sinkhorn(one[None], k, t)[0], n * plan[:, 1], rtol=1e-6, atol=1e-6
        )


def sinkhorn_in_the_log_domain(scores: Tensor, k: float, t: float, steps: int) -> Tensor:
    """The steps of the module's docstring: potentials of the points and of both anchors."""
    low, high = (x[:, None] for x in torch.aminmax(scores, dim=-1))
    x = (scores - low) / (high - low)
    kernel = -torch.stack((x**2, (x - 1) ** 2), -2) * ((high - low) / (2 * t))[..., None]
    n = scores.shape[-1]
    log_mass = torch.tensor([math.log(n - k), math.log(k)], dtype=scores.dtype)
    anchors = torch.zeros_like(kernel[..., 0])
    for _ in range(steps):
        points = -torch.logsumexp(anchors[..., None] + kernel, -2)
        anchors = log_mass - torch.logsumexp(points[..., None, :] + kernel, -1)
    return torch.exp(points + anchors[..., 1:] + kernel[..., 1, :])


@both_dtypes
@pytest.mark.parametrize("t", [0.02, 0.5, 20.0])
def test_sinkhorn_takes_the_steps_of_the_log_domain(t: float, dtype: torch.dtype) -> None:
    skewed = torch.cat((normal(2, 300), normal(2, 300, seed=1).mul(0.5).exp()))
    scores, weights = skewed.to(dtype).requires_grad_(), normal(4, 300, seed=2, dtype=dtype)
    for k, steps in ((0.3, 200), (19, 1), (19, 7), (19, 200), (290, 3), (290, 200), (299.7, 200)):
        mask = sinkhorn.sinkhorn(scores, k, t, iterations=steps)
        wanted = sinkhorn_in_the_log_domain(scores.detach().double(), k, t, steps)
        # At t = 0.02, d is in the hundreds, and so are the units in its last place in float32.
        rounding = 1e-12 if dtype == torch.float64 else 1e-6 if t > 0.1 else 1e-4
        error = mask.detach() - wanted
        assert float(error.abs().max()) < rounding * max(1.0, float(wanted.max()))
        # The implicit gradient of a converged mask, at whatever mask there is.
        (gradient,) = torch.autograd.grad(mask, scores, weights)
        w = (wanted * (1 - wanted)).clamp(min=0)
        mean = (w * weights).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
        error = t * gradient - w * (weights - mean)
        assert float(error.abs().max()) < 20 * rounding * max(1.0, float(wanted.max()) ** 2)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_sinkhorn_of_ties_and_of_the_ends_of_the_budget(dtype: torch.dtype) -> None:
    tied = torch.full((2, 8), 3.0, dtype=dtype, requires_grad=True)
    mask = sinkhorn.sinkhorn(tied, 2, 0.1)
    torch.testing.assert_close(mask, torch.full_like(mask, 0.25))
    (gradient,) = torch.autograd.grad(mask[:, 0].sum(), tied)
    assert gradient.isfinite().all()
    scores = normal(2, 8, dtype=dtype)
    for k, value in ((0, 0.0), (8, 1.0)):
        mask = sinkhorn.sinkhorn(scores, k, 0.5)
        torch.testing.assert_close(mask, torch.full_like(mask, value))


def test_sinkhorn_keeps_its_budget_but_not_its_mask_when_200_steps_are_too_few() -> None:
    scores, t = normal(1, 1000), 0.01
    for k in (62, 938):
        below, above = scores.min() - 1, scores.max() + 1  # of the logistic mask's threshold
        for _ in range(100):
            middle = (below + above) / 2
            too_much = torch.sigmoid((scores - middle) / t).sum() > k
            below, above = (middle, above) if too_much else (below, middle)
        wanted = torch.sigmoid((scores - below) / t)
        few, many = (sinkhorn.sinkhorn(scores, k, t, iterations=i) for i in (200, 2000))
        torch.testing.assert_close(many, wanted)
        assert float((few - wanted).abs().max()) > 0.3
        assert abs(float(few.sum()) - k) < 1e-9


def test_perturbed_of_two_scores_is_a_normal_distribution_function() -> None:
    # The first wins where s_1 - s_2 + sigma (Z_1 - Z_2) > 0, and Z_1 - Z_2 has variance 2.
    samples, sigma, gap = 40_000, 0.8, 0.5
    scores = row(gap, 0.0).requires_grad_()
    mask = perturbed.perturbed(scores, 1, sigma, samples=samples)
    scale = sigma * math.sqrt(2)
    wanted = NormalDist().cdf(gap / scale)
    slope = NormalDist().pdf(gap / scale) / scale
    noise = 5 / math.sqrt(samples)
    (gradient,) = torch.autograd.grad(mask[0, 0], scores)
    mask = mask.detach()
    assert abs(float(mask[0, 0]) - wanted) < noise
    assert abs(float(mask[0, 1]) - (1 - wanted)) < noise
    assert abs(float(gradient[0, 0]) - slope) < noise / sigma
    assert abs(float(gradient[0, 1]) + slope) < noise / sigma


def test_perturbed_is_the_mean_over_its_samples() -> None:
    scores, weights = normal(3, 9, seed=1).requires_grad_(), normal(3, 9, seed=2)
    k, sigma, samples, seed = 4, 0.7, 5, 11
    mask = perturbed.perturbed(scores, k, sigma, samples=samples, seed=seed)
    (gradient,) = torch.autograd.grad(mask, scores, weights)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((samples, 3, 9), generator=generator, dtype=torch.float64)
    wanted, jacobian = torch.zeros(3, 9).double(), torch.zeros(3, 9, 9).double()
    for z in noise:
        chosen = hard_topk_mask(scores.detach() + sigma * z, k)
        wanted += chosen / samples
        jacobian += chosen[:, :, None] * z[:, None, :] / (sigma * samples)
    torch.testing.assert_close(mask, wanted)
    torch.testing.assert_close(gradient, torch.einsum("bi,bij->bj", weights, jacobian))


def test_perturbed_repeats_and_leaves_the_global_generator_alone() -> None:
    scores = normal(2, 20)
    state = torch.get_rng_state()
    first, second = (perturbed.perturbed(scores, 5, 1.0) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, perturbed.perturbed(scores, 5, 1.0, seed=1))


def test_dftopk_by_hand() -> None:
    # The second largest of (0, 4, 2, 3) is 3, the third 2: theta = 2.5.
    wanted = row(*(sigmoid((s - 2.5) / 2) for s in (0, 4, 2, 3)))
    torch.testing.assert_close(dftopk.dftopk(row(0, 4, 2, 3), 2, 2.0), wanted)


def test_dftopk_misses_the_budget_of_gaussian_scores_by_246_percent() -> None:
    n = 100_000
    scores = normal(1, n, dtype=torch.float32)
    mask = dftopk.dftopk(scores, n // 16, 1.0)
    excess = float(mask.double().sum()) / (n // 16) - 1
    assert abs(excess - 2.46) < 0.05
    assert not dftopk.PEER.exact_budget


def test_the_gpu_benchmark_measures_this_dftopk() -> None:
    assert gpu_overhead.dftopk is dftopk.dftopk
    assert dftopk.PEER.name == gpu_overhead.PEER


@both_dtypes
@pytest.mark.parametrize("peer", hard.PEERS, ids=lambda p: p.name)
def test_the_yardsticks_are_hard_masks_without_a_gradient(peer: Peer, dtype: torch.dtype) -> None:
    scores = normal(4, 33, dtype=dtype).requires_grad_()
    for k in (0, 1, 7, 33):
        mask = peer.function(scores, k, 1.0)
        assert torch.equal(mask, hard_topk_mask(scores.detach(), k))
        assert not mask.requires_grad
    ties = torch.zeros(2, 10, dtype=dtype)
    assert peer.function(ties, 4, 1.0).sum(-1).tolist() == [4, 4]


# What all of them share.


@every
@both_dtypes
def test_cold_limit_is_the_hard_mask(peer: Peer, dtype: torch.dtype) -> None:
    scores = torch.tensor([[0, 5, 1, 4, 2, 3], [2, 0, 1, 5, 3, 4]], dtype=dtype)
    wanted = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1]], dtype=dtype)
    torch.testing.assert_close(peer.function(scores, 3, 0.04), wanted, rtol=0, atol=1e-4)


@every
@both_dtypes
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_exact_budgets_are_exact(peer: Peer, dtype: torch.dtype, temperature: float) -> None:
    n, tolerance = 50, 1e-12 if dtype == torch.float64 else 1e-5
    scores = normal(3, n, seed=5, dtype=dtype)
    for k in (1, 7, 49):
        mask = peer.function(scores, k, temperature)
        assert (mask >= 0).all()
        error = (mask.double().sum(-1) / k - 1).abs().max()
        if peer.exact_budget:
            assert error < tolerance, f"k = {k}"
        elif temperature == 10 and k != 7:
            assert error > 0.1, f"k = {k}: claims no exact budget, and has one"


@every_fractional
@both_dtypes
def test_fractional_budgets_are_exact(peer: Peer, dtype: torch.dtype) -> None:
    scores = normal(3, 50, seed=6, dtype=dtype)
    for k in (0.3, 7.25, 49.9):
        sums = peer.function(scores, k, 0.7).sum(-1)
        torch.testing.assert_close(sums, torch.full_like(sums, k))


@pytest.mark.parametrize("peer", [neuralsort.PEER, softsort.PEER], ids=lambda p: p.name)
def test_rows_of_relaxed_permutations_may_agree_on_one_score(peer: Peer) -> None:
    """Their budgets are exact, their entries no probabilities."""
    assert float(peer.function(row(0, 0.1, 10), 3, 20.0).max()) > 1


@every_smooth
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_gradients_are_finite_differences(peer: Peer, temperature: float) -> None:
    scores = normal(2, 7, seed=8).requires_grad_()
    budgets = (1, 3, 5.4) if peer in FRACTIONAL else (1, 3)
    for k in budgets:
        assert torch.autograd.gradcheck(
            lambda s, k=k: peer.function(s, k, temperature), (scores,), eps=1e-5, atol=1e-6
        )


@every_soft
@both_dtypes
def test_shape_dtype_and_gradient(peer: Peer, dtype: torch.dtype) -> None:
    scores = normal(4, 40, seed=9, dtype=dtype).requires_grad_()
    mask = peer.function(scores, 5, 0.5)
    assert mask.shape == scores.shape
    assert mask.dtype == dtype
    (gradient,) = torch.autograd.grad(mask, scores, normal(4, 40, seed=10, dtype=dtype))
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
    assert (gradient != 0).any(-1).all()


@every_smooth
def test_rows_do_not_meet(peer: Peer) -> None:
    scores = normal(5, 20, seed=12)
    together = peer.function(scores, 6, 0.5)
    for one, wanted in zip(scores, together, strict=True):
        torch.testing.assert_close(peer.function(one[None], 6, 0.5)[0], wanted)


@pytest.mark.parametrize("peer", [*SMOOTH, *hard.PEERS], ids=lambda p: p.name)
def test_nothing_on_the_host_depends_on_the_scores(peer: Peer) -> None:
    """A tensor without data cannot be looked at, so on a GPU nothing waits."""
    scores = torch.empty(3, 20, device="meta")
    assert peer.function(scores, 6, 0.5).shape == (3, 20)


@every_whole
def test_whole_budgets_only(peer: Peer) -> None:
    with pytest.raises(ValueError, match=r"k must be a whole number .* k = 2\.5"):
        peer.function(normal(2, 8), 2.5, 1.0)
    assert torch.equal(peer.function(normal(2, 8), 3.0, 1.0), peer.function(normal(2, 8), 3, 1.0))


@every
@pytest.mark.parametrize("k", [-1, 9, math.nan])
def test_impossible_budgets_are_errors(peer: Peer, k: float) -> None:
    with pytest.raises(ValueError, match=f"k = {k}"):
        peer.function(normal(2, 8), k, 1.0)


def test_dftopk_needs_a_score_on_either_side() -> None:
    for k in (0, 8):
        with pytest.raises(ValueError, match=rf"k must lie in \[1, 7\] .* k = {k}"):
            dftopk.dftopk(normal(2, 8), k, 1.0)


def test_the_registry_holds_them_in_order() -> None:
    names = list(PEERS)
    assert all(PEERS[name].name == name for name in names)
    assert [name for name in names if PEERS[name] in MINE] == [peer.name for peer in MINE]
    assert len(set(MODULES)) == len(MODULES)


@every
def test_every_entry_is_filled_in(peer: Peer) -> None:
    assert peer.available() is None
    assert peer.differentiable is (peer in SOFT)
    assert peer.memory.startswith("O(n")
    assert peer.paper
    assert peer.temperature.endswith(".")

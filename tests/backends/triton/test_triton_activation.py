"""Gated activations, interpreted, against the operations of torch that they stand for."""

from __future__ import annotations

import copy
import math
import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

from cases import normal
from fast_lapsum import hard_topk_mask
from fast_lapsum.backends.triton import activation_entry
from fast_lapsum.nn import (
    BatchTopK,
    BudgetGate,
    RunningThreshold,
    TopKActivation,
    sparse_activation,
)
from interpreting import poison  # noqa: F401

inf, nan = math.inf, math.nan
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
# A GPU makes a NaN of a product with infinity without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three programs of several blocks, the last one in part."""
    monkeypatch.setattr(activation_entry, "BLOCK", 64)
    monkeypatch.setattr(activation_entry, "MOST_PROGRAMS", 3)


def _checked(scores: Tensor, gate: Tensor, b: float) -> Tensor:
    out, counts, best = activation_entry.activate(scores, gate, torch.tensor(b))
    wanted = torch.relu(scores) * gate
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert out.dtype == scores.dtype
    assert counts.sum() == (scores.float() > b).sum()
    left = scores.float().masked_fill(gate == 1, -inf).amax()
    torch.testing.assert_close(best.amax(), left, rtol=0, atol=0, equal_nan=True)
    return out


@DTYPES
@pytest.mark.parametrize("n", [1, 63, 64, 500])
def test_one_pass_gives_all_of_it(dtype: torch.dtype, n: int) -> None:
    scores = normal(n).to(dtype)
    for k in {0, n // 8, n}:
        gate = hard_topk_mask(scores, k)
        for b in (0.5, -inf, inf, nan):
            _checked(scores, gate, b)


def test_ties_infinities_and_nans() -> None:
    scores = (normal(300) * 2).round().float()
    _checked(scores, hard_topk_mask(scores, 40), 1.0)
    scores[:20], scores[290:] = -inf, inf
    _checked(scores, hard_topk_mask(scores, 40), 1.0)
    _checked(scores, hard_topk_mask(scores, 5), 1.0)  # infinities that are left out make NaNs
    scores[100] = nan
    assert _checked(scores, hard_topk_mask(scores, 40), 1.0).isnan().all()


@DTYPES
@pytest.mark.parametrize("with_gate", [True, False])
def test_gradients(dtype: torch.dtype, with_gate: bool) -> None:
    scores, grad = normal(300).to(dtype), normal(300, seed=1).to(dtype)
    scores[5] = 0.0
    gate = hard_topk_mask(scores.float(), 200)  # some of them negative; float32 as under autocast
    d_scores, d_gate = activation_entry.activate_backward(grad, scores, gate, with_gate)
    torch.testing.assert_close(d_scores, (grad * gate * (scores > 0)).to(dtype), rtol=0, atol=0)
    assert (d_gate is not None) == with_gate
    if d_gate is not None:
        wanted = grad.float() * torch.relu(scores.float())
        torch.testing.assert_close(d_gate, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("momentum", [0.01, 0.6, None])
def test_a_step_of_a_threshold_is_that_of_the_layer(momentum: float | None) -> None:
    """Of batches that are close, far, spoilt, all over the threshold and all below it."""
    wanted = RunningThreshold(momentum=momentum)
    found = copy.deepcopy(wanted)
    names = ("threshold", "mean_miss", "mean_size", "mean_distance", "num_batches")
    drawn = normal(3, 3000, seed=5).float()
    steps = [(400, 1.0), (0, nan), (390, 1.1), (400, inf), (420, 1.05), (0, 7.0), (9000, -4.0)]
    steps += [(400, -inf)] + [(400 + round(40 * float(x)), 1 + float(x) / 9) for x in drawn[0, :40]]
    for number, (count, best) in enumerate([(0, nan), (0, -inf), *steps]):
        parts = torch.full((2000,), -inf)
        parts[number * 31], counts = best, torch.zeros(2000, dtype=torch.int64)
        counts[number * 7], counts[1999 - number] = count // 2, count - count // 2
        wanted._move(torch.tensor(count / 410 - 1), torch.tensor(best))
        state = tuple(getattr(found, name) for name in names)
        activation_entry.move(counts, parts, state, 410.0, momentum or 0.0)
        for name in names:
            one, other = getattr(found, name), getattr(wanted, name)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)
            other.copy_(one)  # so that rounding does not add up


def test_without_a_miss_in_sight_a_threshold_stays() -> None:
    """Sizes of misses have become so small that their quotients are infinite: 0 times that is 0."""
    wanted = RunningThreshold(momentum=0.5)
    for name, value in (("threshold", 1.5), ("mean_size", 1e-42), ("mean_distance", 0.3)):
        getattr(wanted, name).fill_(value)
    wanted.num_batches.fill_(200)
    found = copy.deepcopy(wanted)
    names = ("threshold", "mean_miss", "mean_size", "mean_distance", "num_batches")
    wanted._move(torch.tensor(0.0), torch.tensor(1.2))
    counts, best = torch.tensor([410]), torch.tensor([1.2])
    activation_entry.move(counts, best, tuple(getattr(found, x) for x in names), 410.0, 0.5)
    assert float(found.threshold) == float(wanted.threshold) == 1.5


@pytest.mark.parametrize(
    "plain",
    [
        *(BatchTopK(k, t) for k in (3, 2.5, 0, 40) for t in (0.1, 0.0)),
        BatchTopK(2.5, 0.5, hard=False),
        BatchTopK(torch.tensor(2.5)),
        TopKActivation(3),
        TopKActivation(3, 0.3, hard=False, inference="threshold"),
    ],
    ids=str,
)
def test_layers_are_the_same_with_it(plain: BudgetGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations, gradients, derivatives of those, and all that the threshold is made of."""
    layer = copy.deepcopy(plain)
    for seed in range(4):
        scores = normal(6, 40, seed=seed).float()
        found = _all_of(layer, scores, monkeypatch, with_kernel=True)
        wanted = _all_of(plain, scores, monkeypatch, with_kernel=False)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        for name, value in plain.state_dict().items():
            one = layer.state_dict()[name]
            torch.testing.assert_close(one, value, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)


def _all_of(
    layer: BudgetGate, scores: Tensor, monkeypatch: pytest.MonkeyPatch, with_kernel: bool
) -> tuple[Tensor, ...]:
    monkeypatch.setattr(sparse_activation, "has_kernel", lambda *given: with_kernel)
    leaf, upstream = scores.clone().requires_grad_(), torch.ones_like(scores) + scores
    out = layer(leaf)
    (gradient,) = torch.autograd.grad(out, leaf, upstream, retain_graph=True)
    (again,) = torch.autograd.grad(out, leaf, upstream, create_graph=True)
    if not again.requires_grad:
        return out, gradient, again
    (second,) = torch.autograd.grad(again.square().sum(), leaf)
    return out, gradient, again, second

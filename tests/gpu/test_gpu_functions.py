"""Hard masks, log p, thresholds, random masks and selections on a GPU, as on a CPU in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from cases import assert_near, corners, normal
from fast_lapsum import (
    hard_topk_mask,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)
from function_cases import wanted

NoSync = Callable[[], AbstractContextManager[None]]
SHAPES = ((7, 8), (5, 100), (3, 5000), (100, 40_000), (2, 300_000))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 0.01, 1.0])
def test_log_and_threshold(shape: tuple[int, ...], t: float) -> None:
    scores = normal(*shape, dtype=torch.float32)
    k = shape[-1] / 3
    for name, function in (("log", log_soft_topk), ("threshold", threshold)):
        leaf = scores.cuda().requires_grad_()
        value = function(leaf, k, t)
        grad = normal(*value.shape, seed=2, dtype=torch.float32)
        (found,) = torch.autograd.grad(value, leaf, grad.cuda())
        rows = slice(0, 3)
        want = wanted(name, scores[rows], k, t, grad[rows])
        got = value.cpu()[rows]
        ends = want.value.isinf()
        assert torch.equal(got[ends].double(), want.value[ends])
        finite = (x.masked_fill(ends, 0.0) for x in (got, want.value))
        assert_near(*finite, want.value_tolerance, name)
        assert_near(found.cpu()[rows], want.d_scores, want.d_scores_tolerance, "d scores")


@pytest.mark.parametrize("name", ["log", "threshold"])
def test_corners(name: str) -> None:
    rows, k, t = corners(60, torch.float32)
    some = (rows != -math.inf).any(-1)
    rows, k, t = rows[some], k[some], t[some]
    function = log_soft_topk if name == "log" else threshold
    value = function(rows.cuda(), k.cuda(), t.cuda()).cpu()
    grad = torch.zeros_like(value)
    want = wanted(name, rows, k, t, grad)
    ends = want.value.isinf()
    assert torch.equal(value[ends].double(), want.value[ends])
    assert_near(
        value.masked_fill(ends, 0.0), want.value.masked_fill(ends, 0.0), want.value_tolerance, name
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_selection_is_the_hard_mask_with_soft_weights(
    shape: tuple[int, ...], is_sorted: bool
) -> None:
    scores = (8 * normal(*shape, dtype=torch.float32)).round() / 8  # with ties
    k = shape[-1] // 3
    leaf = scores.cuda().requires_grad_()
    chosen = select_topk(leaf, k, 0.2, sorted=is_sorted)
    on_host = select_topk(scores, k, 0.2, sorted=is_sorted)
    assert torch.equal(chosen.indices.cpu(), on_host.indices)
    torch.testing.assert_close(chosen.weights.cpu(), on_host.weights, rtol=1e-4, atol=1e-5)
    hard = hard_topk_mask(scores.cuda(), k)
    assert torch.equal(hard.gather(-1, chosen.indices), torch.ones_like(chosen.weights))
    grad = normal(*chosen.weights.shape, seed=3, dtype=torch.float32).cuda()
    (found,) = torch.autograd.grad(chosen.weights, leaf, grad)
    p = soft_topk(leaf, k, 0.2)
    spread = torch.zeros_like(p).scatter(-1, chosen.indices, grad)
    (want,) = torch.autograd.grad(p, leaf, spread)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_masks(shape: tuple[int, ...]) -> None:
    scores = normal(*shape, dtype=torch.float32).cuda()
    for k in (0, 1, shape[-1] // 2, shape[-1]):
        g = torch.Generator("cuda").manual_seed(k)
        drawn = sample_topk(scores, k, 0.3, generator=g)
        assert torch.equal(
            drawn.sum(-1, dtype=torch.float64), torch.full_like(drawn[:, 0], k).double()
        )
        p = soft_topk(scores.double(), k, 0.3)
        g.manual_seed(k)
        start = torch.rand(shape[:-1], generator=g, device="cuda", dtype=torch.float64)
        ahead = drawn.double().cumsum(-1) - p.cumsum(-1) + start[:, None]
        slack = 1e-5 * (1 + k)
        assert ahead.amin() >= -slack
        assert ahead.amax() <= 1 + slack


def test_nothing_waits_for_the_device(no_sync: NoSync) -> None:
    scores = normal(4, 5000, dtype=torch.float32).cuda().requires_grad_()
    g = torch.Generator("cuda").manual_seed(0)

    def everything() -> list[Tensor]:
        outs = [log_soft_topk(scores, 50, 0.1), threshold(scores, 50, 0.1)]
        outs.append(select_topk(scores, 50, 0.1).weights)
        grads = [torch.autograd.grad(out.sum(), scores)[0] for out in outs]
        return [*outs, *grads, sample_topk(scores, 50, 0.1, generator=g)]

    everything()  # compiles
    with no_sync():
        everything()


def test_all_but_one_of_very_many_tied_scores() -> None:
    """Their share rounds to 1 in float32, and is not all of them."""
    scores = torch.zeros(40_000_000, device="cuda")
    k = scores.numel() - 1
    hard = hard_topk_mask(scores, k)
    assert int(hard.sum(dtype=torch.float64)) == k
    assert hard[-1] == 0
    indices, _ = select_topk(scores, k)
    assert torch.equal(indices, torch.arange(k, device="cuda"))

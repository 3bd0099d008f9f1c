"""Compiled calls on a GPU: recorded launches, numbers that change, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from fast_lapsum import hard_topk_mask, soft_topk, threshold

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns about itself


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def _grads(call: Callable[..., Tensor], scores: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    out = call(leaf, *rest)
    (grad,) = torch.autograd.grad(out, leaf, _scores(*out.shape, seed=9))
    return out.detach().clone(), grad.clone()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("shape", [(1000,), (64, 64), (1_000_000,)], ids=str)
@pytest.mark.parametrize("function", [soft_topk, threshold], ids=lambda f: f.__name__)
def test_numbers_that_change_are_not_those_of_the_recording(
    function: Callable[..., Tensor], shape: tuple[int, ...], mode: str
) -> None:
    compiled = torch.compile(function, fullgraph=True, mode=mode)
    for step, (k, t) in enumerate(
        [(6, 0.5)] * 4 + [(7, 0.5)] * 3 + [(8, 0.4), (8, 0.3), (9, 0.2), (9, 0.0)]
    ):
        scores = _scores(*shape, seed=step)
        torch.compiler.cudagraph_mark_step_begin()
        found = _grads(compiled, scores, k, t)
        for one, two in zip(found, _grads(function, scores, k, t), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_tensors_that_change(mode: str) -> None:
    compiled = torch.compile(soft_topk, fullgraph=True, mode=mode)
    for step in range(6):
        scores = _scores(64, 64, seed=step)
        k, t = torch.full((64,), 6.5 + step, device="cuda"), torch.tensor(0.1 + step).cuda()
        torch.compiler.cudagraph_mark_step_begin()
        found = _grads(compiled, scores, k, t)
        for one, two in zip(found, _grads(soft_topk, scores, k, t), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("changing", [False, True])
def test_a_compiled_call_does_not_wait(
    no_sync: Callable[[], AbstractContextManager[None]], changing: bool
) -> None:
    compiled = torch.compile(soft_topk, fullgraph=True)
    scores = _scores(64, 64)
    for t in (0.5, 0.4) if changing else (0.5,):
        _grads(compiled, scores, 6, t)
    with no_sync():
        leaf = scores.clone().requires_grad_()
        out = compiled(leaf, 6, 0.3 if changing else 0.5)
        torch.autograd.grad(out, leaf, scores)


def test_several_dimensions_clamp_and_boundary() -> None:
    scores = _scores(4, 6, 50)
    mask = torch.rand(4, 6, 50, generator=torch.Generator().manual_seed(1)).cuda() < 0.5
    flat = scores.flatten(1)
    for k in (6, 1000):
        found, b = soft_topk(
            scores, k, 0.2, dim=(1, 2), mask=mask, clamp=True, hard=True, return_threshold=True
        )
        budget = mask.flatten(1).sum(-1).clamp(max=k)
        expected = hard_topk_mask(flat, budget, mask=mask.flatten(1))
        assert torch.equal(found.flatten(1), expected)
        assert torch.equal(found, ((scores > b[:, None, None]) & mask).float())

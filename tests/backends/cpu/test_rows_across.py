"""Rows along any dimension are the rows of a contiguous copy, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases import DTYPES, generator, normal, num_threads
from fast_lapsum import soft_topk
from fast_lapsum.backends.cpu import loader

pytestmark = pytest.mark.skipif(
    not loader.status().available, reason="plain torch adds up as torch does"
)
#: Short rows, rows that are copied sixteen at a time, and rows that are sampled, too.
LENGTHS = (5, 197, 600, 2500)


def results(
    scores: Tensor, k: Tensor, t: Tensor, mask: Tensor | None, upstream: Tensor, largest: bool
) -> list[Tensor]:
    """Mask, threshold and all gradients of rows along the last dimension."""
    leaves = [x.detach().requires_grad_() for x in (scores, k, t)]
    p, b = soft_topk(
        leaves[0], leaves[1], leaves[2], mask=mask, largest=largest, return_threshold=True
    )
    return [p.detach(), b, *torch.autograd.grad(p, leaves, upstream)]


def across(x: Tensor) -> Tensor:
    """The same tensor, with the last dimension outermost in memory."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_rows_that_lie_across(n: int, masked: bool, dtype: torch.dtype) -> None:
    for rows in (2, 7, 16, 37):
        scores, upstream = normal(rows, n, dtype=dtype), normal(rows, n, seed=1, dtype=dtype)
        mask = torch.rand(rows, n, generator=generator(2)) < 0.7 if masked else None
        count = torch.full((rows,), float(n)) if mask is None else mask.sum(-1)
        k = count.double() * torch.rand(rows, generator=generator(3)).double()
        t = 0.05 + torch.rand(rows, generator=generator(4)).double()
        for largest in (True, False):
            wanted = results(scores, k, t, mask, upstream, largest)
            for other in (across(upstream), upstream):
                place = None if mask is None else across(mask)
                found = results(across(scores), k, t, place, other, largest)
                for got, want in zip(found, wanted, strict=True):
                    assert torch.equal(got, want), (rows, largest)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_middle_of_three_dimensions(n: int, threads: int) -> None:
    scores = normal(3, n, 21, dtype=torch.float32)
    rows = scores.movedim(1, -1).contiguous()
    k = 0.3 * n
    with num_threads(threads):
        for hard in (False, True):
            budget = int(k) if hard else k
            found = soft_topk(scores, budget, 0.2, dim=1, hard=hard)
            assert torch.equal(found.movedim(1, -1), soft_topk(rows, budget, 0.2, hard=hard))


@pytest.mark.parametrize("n", LENGTHS)
def test_a_gradient_that_is_expanded(n: int) -> None:
    scores = normal(19, n, dtype=torch.float32)
    k, t = torch.full((19,), n / 3).double(), torch.full((19,), 0.3).double()
    for upstream in (torch.ones(()).expand(19, n), normal(n).float().expand(19, n)):
        wanted = results(scores, k, t, None, upstream, True)
        for got, want in zip(
            results(across(scores), k, t, None, upstream, True), wanted, strict=True
        ):
            assert torch.equal(got, want)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_gradient_that_alone_lies_across(n: int) -> None:
    scores = normal(3, 5, n, dtype=torch.float32)
    k, t = (x * torch.ones(3, 5, dtype=torch.float64) for x in (n / 3, 0.3))
    upstream = normal(3, 5, n, seed=1, dtype=torch.float32)
    middle = upstream.mT.contiguous().mT  # across within each of the three
    wanted = results(scores, k, t, None, upstream, True)
    for place in (middle, across(upstream)):
        found = results(scores, k, t, None, place, True)
        for got, want in zip(found, wanted, strict=True):
            assert torch.equal(got, want)


def test_the_scores_of_a_tensor_that_is_not_dense() -> None:
    """Rows across a slice: neighbours in memory, with others in between that are not theirs."""
    for n in LENGTHS:
        base = normal(n, 40, dtype=torch.float32)
        rows = base[:, 3:25].mT
        wanted = soft_topk(rows.contiguous(), 0.25 * n, 0.2)
        assert torch.equal(soft_topk(rows, 0.25 * n, 0.2), wanted)
        assert torch.equal(soft_topk(base[:, ::2].mT, 0.25 * n, 0.2)[2], wanted[1])

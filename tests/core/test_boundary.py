"""``return_threshold`` of a hard mask: the score beyond which lie the chosen ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import generator, normal
from fast_lapsum import reference, soft_topk

inf, nan = math.inf, math.nan


def _boundary(scores: Tensor, k: float | Tensor, **rest: object) -> tuple[Tensor, Tensor]:
    return soft_topk(scores, k, 0.5, hard=True, return_threshold=True, **rest)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 4, 11, 12])
def test_scores_beyond_it_are_the_mask(
    backend: str, dtype: torch.dtype, largest: bool, k: int
) -> None:
    scores = torch.randperm(60, generator=generator(k)).view(5, 12).to(dtype)
    mask, b = _boundary(scores, k, largest=largest, solver=backend)
    assert b.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not b.requires_grad
    beyond = scores > b[:, None] if largest else scores < b[:, None]
    assert torch.equal(mask, beyond.to(dtype))
    side = 1 if largest else -1
    assert (side * b).tolist() == [reference.boundary_row(side * row, k) for row in scores]


def test_ties_at_it(backend: str) -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0, 5.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    mask, b = _boundary(scores, 2, solver=backend)
    assert b.tolist() == [2.0, 3.0]
    assert mask[0].tolist() == [0, 1, 0, 0, 1]
    assert (mask[scores > b[:, None]] == 1).all()
    assert (mask[scores < b[:, None]] == 0).all()


@pytest.mark.parametrize(
    ("row", "k", "expected"),
    [
        ([1.0, -inf, 3.0], 2, -inf),
        ([1.0, -inf, 3.0], 1, 1.0),
        ([inf, inf, 3.0], 1, inf),
        ([inf, inf, 3.0], 2, 3.0),
        ([1.0, nan, 3.0], 1, nan),
        ([1.0, 2.0, 3.0], 4, nan),
        ([1.0, 2.0, 3.0], 1.5, nan),
        ([], 0, -inf),
        ([], 1, nan),
    ],
)
def test_corners(backend: str, row: list[float], k: float, expected: float) -> None:
    scores = torch.tensor([row])
    _, b = _boundary(scores, torch.tensor([float(k)]), solver=backend)
    torch.testing.assert_close(b, torch.tensor([expected]), equal_nan=True)
    assert repr(reference.boundary_row(scores[0], k)) == repr(expected)


def test_what_is_masked_out_has_no_part() -> None:
    scores = torch.tensor([[9.0, 5.0, 4.0, 3.0]])
    mask = torch.tensor([False, True, True, True])
    assert _boundary(scores, 1, mask=mask)[1].item() == 4.0
    assert _boundary(scores, 3, mask=mask)[1].item() == -inf
    assert _boundary(scores, 3, mask=mask, largest=False)[1].item() == inf


def test_one_for_a_whole_batch_and_its_gradient() -> None:
    scores = normal(4, 10).requires_grad_()
    mask, b = _boundary(scores, 7, dim=None)
    assert b.shape == ()
    assert torch.equal(mask, (scores > b).double())
    plain = soft_topk(scores, 7, 0.5, hard=True, dim=None)
    upstream = normal(4, 10, seed=1)
    one, two = (torch.autograd.grad(x, scores, upstream)[0] for x in (mask, plain))
    assert torch.equal(one, two)


@pytest.mark.parametrize("n", [20, 700, 5000])
@pytest.mark.parametrize("k", [0, 5, "all"])
def test_it_may_be_the_next_warm_start(backend: str, n: int, k: Any) -> None:
    """An infinite one, too: of a layer that takes all there is."""
    scores, count = normal(3, n, dtype=torch.float32), n if k == "all" else k
    cold, b = _boundary(scores, count, solver=backend)
    assert torch.equal(_boundary(scores, count, solver=backend, warm_start=b)[0], cold)
    soft = soft_topk(scores, count, 0.5, solver=backend)
    warm = soft_topk(scores, count, 0.5, solver=backend, warm_start=b)
    torch.testing.assert_close(warm, soft)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_is_eager() -> None:
    compiled = torch.compile(_boundary, fullgraph=True, backend="aot_eager")
    scores = normal(4, 10)
    for k in (2, 3):
        for one, two in zip(compiled(scores, k), _boundary(scores, k), strict=True):
            assert torch.equal(one, two)

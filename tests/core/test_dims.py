"""One budget over several dimensions: ``dim`` as a tuple, a list or None."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import generator, normal
from fast_lapsum import (
    hard_topk_mask,
    lapsum,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)
from fast_lapsum._layout import move_dims

SHAPE = (2, 3, 4, 5)
DIMS = [
    dims
    for count in (1, 2, 3, 4)
    for dims in itertools.permutations(range(4), count)
    if count < 3 or dims[0] in (0, 2)
]


def _hard(scores: Tensor, k: Any, t: Any, **rest: Any) -> Tensor:
    return soft_topk(scores, k, t, hard=True, **rest)


def _hard_mask(scores: Tensor, k: Any, t: Any, **rest: Any) -> Tensor:
    return hard_topk_mask(scores, k, **rest)


def _sampled(scores: Tensor, k: Any, t: Any, **rest: Any) -> Tensor:
    return sample_topk(scores, k, t, generator=generator(7), **rest)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "soft_topk": soft_topk,
    "hard": _hard,
    "log_soft_topk": log_soft_topk,
    "threshold": threshold,
    "hard_topk_mask": _hard_mask,
    "sample_topk": _sampled,
}


def _by_hand(
    name: str, scores: Tensor, k: Any, t: Any, dims: tuple[int, ...], **rest: Any
) -> Tensor:
    """The same with the dimensions flattened by hand, in their order."""
    others = [dim for dim in range(scores.dim()) if dim not in dims]
    order = [*others, *dims]
    mask = rest.pop("mask", None)
    if mask is not None:
        rest["mask"] = mask.expand(scores.shape).permute(order).flatten(len(others))
    flat = scores.permute(order).flatten(len(others))
    out = FUNCTIONS[name](flat, k, t, **rest)
    if name == "threshold":
        return out
    out = out.reshape([scores.shape[dim] for dim in order])
    return out.permute([order.index(dim) for dim in range(scores.dim())])


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_what_flattening_by_hand_gives(name: str, dims: tuple[int, ...]) -> None:
    """Values and gradients, for k and temperature of the rows that are left, with a mask."""
    rows = [size for dim, size in enumerate(SHAPE) if dim not in dims]
    mask = torch.rand(3, 1, 5, generator=generator(1)) < 0.7  # some rows have nothing left
    results = []
    for by_hand in (False, True):
        scores = normal(*SHAPE).requires_grad_()
        k = torch.ones(rows, dtype=torch.float64).requires_grad_()
        t = torch.rand(rows, generator=generator(2), dtype=torch.float64).requires_grad_()
        if by_hand:
            out = _by_hand(name, scores, k, t, dims, mask=mask)
        else:
            out = FUNCTIONS[name](scores, k, t, dim=dims, mask=mask)
        found = [out]
        if out.requires_grad:
            kept = torch.where(out.isfinite(), out, 0.0)
            upstream = normal(*out.shape, seed=3)
            found += torch.autograd.grad(kept, (scores, k, t), upstream)
        results.append(found)
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_none_is_all_dimensions(name: str) -> None:
    scores = normal(3, 4, 5)
    found = FUNCTIONS[name](scores, 7, 0.3, dim=None)
    flat = FUNCTIONS[name](scores.flatten(), 7, 0.3)
    assert torch.equal(found, flat if name == "threshold" else flat.view(3, 4, 5))
    assert torch.equal(found, FUNCTIONS[name](scores, 7, 0.3, dim=[0, 1, 2]))
    one = FUNCTIONS[name](scores[0, 0], 2, 0.3, dim=None)
    assert torch.equal(one, FUNCTIONS[name](scores[0, 0], 2, 0.3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_negative_and_numpy_dimensions(name: str) -> None:
    scores = normal(3, 4, 5)
    for dim, same in (
        ((-2, -1), (1, 2)),
        ((np.int64(1), np.int32(-1)), (1, 2)),
        (np.int64(1), 1),
        (np.array(1), 1),
        ((2,), 2),
    ):
        one, two = (FUNCTIONS[name](scores, 3, 0.3, dim=x) for x in (dim, same))
        assert torch.equal(one, two)


def test_ties_go_by_the_order_of_dim() -> None:
    scores = torch.zeros(2, 3)
    for function in (lambda dim: hard_topk_mask(scores, 2, dim=dim),
                     lambda dim: soft_topk(scores, 2, hard=True, dim=dim)):  # fmt: skip
        assert function((0, 1)).tolist() == [[1, 1, 0], [0, 0, 0]]
        assert function((1, 0)).tolist() == [[1, 0, 0], [1, 0, 0]]
        assert torch.equal(function(None), function((0, 1)))


@pytest.mark.parametrize(
    ("strides", "dims", "is_view"),
    [
        ("contiguous", (0, 1), True),
        ("contiguous", (1, 2), True),
        ("contiguous", (0, 1, 2), True),
        ("contiguous", (1, 0), False),
        ("contiguous", (0, 2), False),
        ("transposed", (1, 0), True),
        ("transposed", (0, 1), False),
        ("batch cut", (1, 2), True),
        ("row cut", (1, 2), False),
    ],
)
def test_which_layouts_are_copied(strides: str, dims: tuple[int, ...], is_view: bool) -> None:
    whole = normal(4, 6, 8)
    scores = {
        "contiguous": whole,
        "transposed": whole.transpose(0, 1),
        "batch cut": whole[::2],
        "row cut": whole[..., :5],
    }[strides]
    rows, _, moved = move_dims(scores, None, dims)
    assert (rows.data_ptr() == scores.data_ptr()) == is_view
    assert not isinstance(moved, int)
    assert torch.equal(moved.back(rows), scores)


@pytest.mark.parametrize("dims", [(1, 2), (2, 0), None], ids=str)
def test_the_result_lies_in_memory_as_the_scores_do(dims: tuple[int, ...] | None) -> None:
    scores = normal(4, 6, 8)
    out = soft_topk(scores, 3, dim=dims)
    if dims != (2, 0):
        assert out.stride() == scores.stride()
    assert out.shape == scores.shape


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_empty_dimensions(shape: tuple[int, ...]) -> None:
    scores = torch.zeros(shape)
    k = 0 if 0 in shape[1:] else 1
    assert soft_topk(scores, k, dim=(1, 2)).shape == shape
    assert threshold(scores, k, dim=(1, 2)).shape == shape[:1]
    assert soft_topk(scores, 0, dim=None).shape == shape


def test_return_threshold_and_warm_start() -> None:
    scores = normal(2, 3, 4, 5)
    out, b = soft_topk(scores, 3.5, 0.2, dim=(3, 1), return_threshold=True)
    assert b.shape == (2, 4)
    assert torch.equal(b, threshold(scores, 3.5, 0.2, dim=(3, 1)))
    again = soft_topk(scores, 3.5, 0.2, dim=(3, 1), warm_start=b)
    torch.testing.assert_close(again, out)


def test_vmap_counts_dimensions_without_the_mapped_one() -> None:
    scores = normal(3, 4, 5, 2)
    mask = torch.rand(4, 5, generator=generator(5)) < 0.8
    for dims in ((0, 1), (1, 0), None):
        mapped = torch.vmap(lambda x, d=dims: soft_topk(x, 3, 0.4, dim=d, mask=mask), in_dims=3)
        expected = [soft_topk(scores[..., i], 3, 0.4, dim=dims, mask=mask) for i in range(2)]
        torch.testing.assert_close(mapped(scores), torch.stack([*expected])[:, :3])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dims", [(1, 2), (2, 0), None], ids=str)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "sample_topk"])
def test_compiled_is_eager(name: str, dims: tuple[int, ...] | None) -> None:
    function = FUNCTIONS[name]
    mask = torch.rand(4, 1, 5, generator=generator(5)) < 0.9

    def call(scores: Tensor, k: int, t: float) -> Tensor:
        return function(scores, k, t, dim=dims, mask=mask)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for t in (0.5, 0.25):
        scores = normal(4, 3, 5, seed=int(8 * t))
        assert torch.equal(compiled(scores, 2, t), call(scores, 2, t))


@pytest.mark.parametrize("alpha", [-0.5, torch.tensor(-0.5), torch.tensor([-0.5, 0.25])], ids=repr)
def test_the_papers_operator(alpha: float | Tensor) -> None:
    scores = normal(3, 2, 4)
    out = lapsum(scores, 3, alpha, dim=(2, 0))
    flat = lapsum(scores.permute(1, 2, 0).flatten(1), 3, alpha)
    torch.testing.assert_close(out, flat.view(2, 4, 3).permute(2, 0, 1))


def test_a_selection_has_one_dimension() -> None:
    with pytest.raises(TypeError, match=r"dim must be an int.*several dimensions.*dim=\(0, 1\)"):
        select_topk(normal(3, 4), 2, dim=(0, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dim must be an int.*dim=None"):
        select_topk(normal(3, 4), 2, dim=None)  # type: ignore[arg-type]


def test_k_has_the_shape_of_what_is_left() -> None:
    with pytest.raises(
        ValueError, match=r"k must broadcast .* without dim, \(3,\), got shape \(2,\)"
    ):
        soft_topk(normal(3, 4, 5), torch.ones(2), dim=(1, 2))
    with pytest.raises(ValueError, match=r"k must lie in \[0, 20\] for 20 scores"):
        soft_topk(normal(3, 4, 5), 21, dim=(1, 2))

"""select_topk: the right places, the mask's weights there, and their gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import fast_lapsum
from cases import (
    DISTRIBUTIONS,
    DTYPES,
    FULL_DTYPES,
    LAYOUTS,
    SHAPES,
    TEMPERATURES,
    assert_near,
    expected,
    generator,
    leaf_of,
    normal,
    same,
)
from fast_lapsum import hard_topk_mask, reference, select_topk, soft_topk
from fast_lapsum.backends.cpu import kernel

inf, nan = math.inf, math.nan


@pytest.fixture(params=["kernel", "composed"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel, and what a backend without one composes of masks."""
    if request.param == "composed":
        monkeypatch.setattr(kernel, "supports", lambda tensor: False)
    return str(request.param)


def _check(
    scores: Tensor,
    k: int,
    t: float | Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    is_sorted: bool = False,
) -> None:
    """Places, weights and gradients of a call against the reference, row by row."""
    leaf = scores.detach().requires_grad_()
    temperature = t.clone().requires_grad_() if isinstance(t, Tensor) else t
    found = select_topk(leaf, k, temperature, dim=dim, largest=largest, mask=mask, sorted=is_sorted)
    indices, weights = found.indices.movedim(dim, -1), found.weights.movedim(dim, -1)
    assert found.indices.dtype == torch.int64
    assert found.weights.dtype == scores.dtype
    side = 1 if largest else -1
    rows = side * scores.detach().movedim(dim, -1)
    if mask is not None:
        rows = rows.masked_fill(~mask.expand(scores.shape).movedim(dim, -1), -inf)
    outer = rows.shape[:-1]
    assert indices.shape == weights.shape == (*outer, k)
    n = rows.shape[-1]
    flat, temperatures = (
        rows.reshape(-1, n),
        torch.as_tensor(t, dtype=torch.float64).expand(outer).reshape(-1).tolist(),
    )
    wanted = [
        reference.select_row(row, k, one, is_sorted)
        for row, one in zip(flat, temperatures, strict=True)
    ]
    places = torch.stack([one for one, _ in wanted]).reshape(indices.shape)
    assert torch.equal(indices, places)
    valid = (rows != -inf).sum(-1).clamp(max=k).double()
    upstream = normal(*weights.shape, seed=3, dtype=scores.dtype)
    spread = torch.zeros(*outer, n + 1, dtype=scores.dtype)
    spread = spread.scatter(-1, torch.where(places < 0, n, places), upstream)[..., :n]
    want = expected(rows, valid, torch.as_tensor(t, dtype=torch.float64), spread)
    at = places.clamp(min=0)
    tolerance = want.mask_tolerance.gather(-1, at) if k else want.mask_tolerance[..., :0]
    assert_near(
        weights, torch.stack([x for _, x in wanted]).reshape(weights.shape), tolerance, "weights"
    )
    leaves = (leaf, temperature) if isinstance(temperature, Tensor) else (leaf,)
    grads = torch.autograd.grad(weights, leaves, upstream)
    d_scores = side * grads[0].movedim(dim, -1)
    assert_near(d_scores, want.d_scores, want.d_scores_tolerance, "d scores")
    if isinstance(temperature, Tensor):
        shape = temperature.shape
        assert_near(
            grads[1],
            want.d_temperature.sum_to_size(shape),
            want.d_temperature_tolerance.sum_to_size(shape),
            "d temperature",
        )


@pytest.mark.parametrize("is_sorted", [False, True], ids=["by_index", "sorted"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_shape_dim_and_stride(
    dtype: torch.dtype, shape: tuple[int, ...], dim: int, layout: str, is_sorted: bool
) -> None:
    scores = LAYOUTS[layout](normal(*shape, dtype=dtype))
    temperature = 0.1 + torch.rand((), generator=generator(2), dtype=torch.float64)
    _check(scores, shape[dim] // 3, temperature, dim=dim, is_sorted=is_sorted)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_any_distribution_temperature_and_count(dtype: torch.dtype, distribution: str) -> None:
    for n in (2, 67, 1025):
        row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
        t = torch.tensor((0.0, *TEMPERATURES), dtype=torch.float64)
        for k in {1, n // 3, n - 1}:
            for is_sorted in (False, True):
                _check(row.expand(len(t), n), k, t, is_sorted=is_sorted)


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("ties", [False, True])
def test_a_long_row(ties: bool) -> None:
    """Long enough for several threads; with ties that are left over, and without."""
    scores = normal(1, 300_001, dtype=torch.float32)
    _check((8 * scores).round() / 8 if ties else scores, 20_000, 0.1)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_mask_and_side(largest: bool) -> None:
    scores = normal(4, 3, 21)
    mask = torch.rand(4, 1, 21, generator=generator(4)) < 0.7
    for is_sorted in (False, True):
        _check(scores, 5, 0.4, largest=largest, mask=mask, is_sorted=is_sorted)
        _check(scores, 2, torch.tensor([0.4]).double(), dim=1, largest=largest, is_sorted=is_sorted)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_the_ends_of_k(k: int) -> None:
    scores = normal(3, 4).requires_grad_()
    chosen = select_topk(scores, k, 0.5)
    assert chosen.indices.shape == chosen.weights.shape == (3, k)
    (grad,) = torch.autograd.grad(chosen.weights.sum(), scores)
    assert grad.isfinite().all()
    if k == 4:
        same(chosen.indices, torch.arange(4).expand(3, 4))
        same(chosen.weights, torch.ones(3, 4))


@pytest.mark.parametrize("t", [0.0, 0.5])
def test_the_earliest_of_ties(t: float) -> None:
    scores = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])
    same(select_topk(scores, 2, t).indices, [1, 2])
    same(select_topk(scores, 2, t, sorted=True).indices, [1, 2])
    same(select_topk(scores, 2, t, largest=False).indices, [0, 4])
    same(select_topk(scores, 2, t, largest=False, sorted=True).indices, [4, 0])
    same(select_topk(torch.zeros(6), 3, t).indices, [0, 1, 2])


def test_weights_at_zero_temperature_are_those_of_the_hard_limit() -> None:
    scores = leaf_of([1.0, 4.0, 2.0, 2.0, 2.0])
    chosen = select_topk(scores, 2, 0.0)
    same(chosen.indices, [1, 2])
    same(chosen.weights, [1.0, 1 / 3])
    same(torch.autograd.grad(chosen.weights.sum(), scores)[0], [0.0] * 5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 0.5])
def test_a_row_with_too_few_scores(dtype: torch.dtype, t: float) -> None:
    scores = leaf_of([[-inf, 2.0, -inf, 1.0], [4.0, 3.0, 2.0, 1.0], [-inf] * 4], dtype=dtype)
    for is_sorted in (False, True):
        chosen = select_topk(scores, 3, t, sorted=is_sorted)
        same(chosen.indices, [[1, 3, -1], [0, 1, 2], [-1, -1, -1]])
        same(chosen.weights[0], [1.0, 1.0, 0.0])
        same(chosen.weights[2], [0.0, 0.0, 0.0])
        (grad,) = torch.autograd.grad(chosen.weights, scores, torch.ones_like(chosen.weights))
        assert (grad[[0, 2]] == 0).all()
        assert grad.isfinite().all()
    mask = torch.tensor([[False, True, False, True]] + [[True] * 4] * 2)
    with pytest.raises(ValueError, match=r"k must lie in .*in row \(0,\)"):
        select_topk(scores, 3, t, validate=True)
    with pytest.raises(ValueError, match=r"k must lie in .*in row \(0,\)"):
        select_topk(scores.nan_to_num(neginf=0.0), 3, t, mask=mask, validate=True)
    select_topk(scores, 3, t, largest=False, validate=True)  # -inf comes first there


def test_rows_without_an_answer() -> None:
    scores = normal(4, 6)
    scores[1, 2] = nan
    t = torch.tensor([0.5, 0.5, -1.0, nan], dtype=torch.float64)
    scores.requires_grad_()
    chosen = select_topk(scores, 2, t)
    same(chosen.indices[1:], [[-1, -1]] * 3)
    same(chosen.weights[1:], [[nan, nan]] * 3)
    assert chosen.weights[0].isfinite().all()
    (grad,) = torch.autograd.grad(chosen.weights, scores, torch.ones_like(chosen.weights))
    assert grad[0].isfinite().all()
    assert grad[1:].isnan().all()


def test_infinities_come_first() -> None:
    scores = torch.tensor([0.0, inf, 1.0, inf, inf])
    same(select_topk(scores, 4, 0.5).indices, [1, 2, 3, 4])
    same(select_topk(scores, 4, 0.5, sorted=True).indices, [1, 3, 4, 2])
    few = select_topk(scores, 2, 0.5)
    same(few.indices, [1, 3])
    same(few.weights, [2 / 3, 2 / 3])


def test_the_selection_is_the_hard_mask_and_the_soft_weights() -> None:
    scores = normal(50, 200, dtype=torch.float32)
    chosen = select_topk(scores, 17, 0.2)
    ones = torch.zeros(50, 200).scatter(-1, chosen.indices, 1.0)
    assert torch.equal(ones, hard_topk_mask(scores, 17))
    soft = soft_topk(scores, 17, 0.2).gather(-1, chosen.indices)
    torch.testing.assert_close(chosen.weights, soft, rtol=1e-5, atol=1e-7)
    again = select_topk(scores, 17, 0.2)
    assert torch.equal(again.indices, chosen.indices)
    assert torch.equal(again.weights, chosen.weights)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 4), (3, 0)], ids=str)
def test_no_rows_and_no_scores(shape: tuple[int, ...]) -> None:
    scores = torch.empty(shape, requires_grad=True)
    k = 2 if shape[-1] else 0
    chosen = select_topk(scores, k)
    assert chosen.indices.shape == chosen.weights.shape == (*shape[:-1], k)
    (grad,) = torch.autograd.grad(chosen.weights.sum(), scores)
    assert grad.shape == shape


def test_what_is_refused() -> None:
    scores = normal(3, 8)
    for dim in ((0, 1), [1]):
        with pytest.raises(TypeError, match=r"dim must be an int: .*flatten"):
            select_topk(scores, 2, dim=dim)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"k must be one whole number.*got a tensor"):
        select_topk(scores, torch.tensor(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"whole number.*k=2\.5"):
        select_topk(scores, 2.5)  # type: ignore[arg-type]
    for k in (math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"whole number.*k={k}"):
            select_topk(scores, k)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k must lie in \[0, 8\]"):
        select_topk(scores, 9)
    with pytest.raises(ValueError, match=r"k must lie in \[0, 8\]"):
        select_topk(scores, -1)
    same(select_topk(scores, 2.0).indices, select_topk(scores, 2).indices)  # type: ignore[arg-type]


def test_autocast_gives_float32_weights() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert select_topk(normal(3, 9, dtype=torch.bfloat16), 2).weights.dtype == torch.float32


# derivatives


def _weights(**arguments: object) -> Callable[..., Tensor]:
    return lambda *x: select_topk(x[0], 3, x[1], **arguments).weights  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"largest": False}, {"sorted": True}, {"mask": normal(2, 6, seed=8) > -0.8}],
    ids=["plain", "smallest", "sorted", "mask"],
)
def test_gradcheck_and_gradgradcheck(arguments: dict[str, object]) -> None:
    leaves = (normal(2, 6, seed=3).requires_grad_(), leaf_of([0.4, 1.3]))
    assert gradcheck(_weights(**arguments), leaves, check_forward_ad=True)
    assert gradgradcheck(_weights(**arguments), leaves)


def test_functorch() -> None:
    scores, t = normal(4, 6), torch.tensor(0.7, dtype=torch.float64)

    def call(row: Tensor, t: Tensor) -> Tensor:
        return select_topk(row, 2, t).weights

    mapped = torch.func.vmap(call, (0, None))(scores, t)
    torch.testing.assert_close(mapped, call(scores, t))
    jacobian = torch.func.vmap(torch.func.jacrev(call), (0, None))(scores, t)
    forward = torch.func.vmap(torch.func.jacfwd(call), (0, None))(scores, t)
    torch.testing.assert_close(jacobian, forward)
    grads = torch.func.grad(lambda row: call(row, t).sum())(scores[0])
    torch.testing.assert_close(grads, jacobian[0].sum(0))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_is_eager() -> None:
    def call(scores: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        chosen = select_topk(torch.tanh(scores), 3, t)
        return chosen.indices, chosen.weights * 2

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    scores, t = normal(3, 10, dtype=torch.float32), torch.tensor(0.5)
    results = []
    for run in (call, compiled):
        leaves = tuple(x.clone().requires_grad_() for x in (scores, t))
        indices, weights = run(*leaves)
        upstream = normal(3, 3, seed=2, dtype=torch.float32)
        results.append((indices, weights, *torch.autograd.grad(weights, leaves, upstream)))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("per_row", [False, True])
def test_opcheck(per_row: bool) -> None:
    scores = normal(3, 10, dtype=torch.float32)
    t = torch.tensor([0.5, 0.1, 1.0], dtype=torch.float64) if per_row else None
    mask = normal(3, 10, seed=7) > -1
    for given in (scores, scores.bfloat16(), normal(10, 3).mT):
        for rest in ((None, True, False), (mask, False, True)):
            keep, largest, is_sorted = rest
            arguments = (given, 4, t, 0.5, keep, largest, is_sorted, given.dtype)
            opcheck(torch.ops.fast_lapsum.select_topk.default, arguments)
            indices, weights, pair = torch.ops.fast_lapsum.select_topk(*arguments)
            grad = normal(*weights.shape, seed=1, dtype=given.dtype)
            opcheck(
                torch.ops.fast_lapsum.select_topk_backward.default,
                (grad, indices, given, t, 0.5, keep, pair, largest, per_row),
            )


def test_nothing_of_the_size_of_a_row_is_kept() -> None:
    """What is saved for backward beside the scores has the size of the selection."""
    scores = normal(2, 5000, dtype=torch.float32).requires_grad_()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.append(x.numel()) or x, lambda x: x
    ):
        fast_lapsum.select_topk(scores, 3, 0.1)
    assert sorted(saved)[:-1] == [4, 6]

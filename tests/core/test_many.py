"""One budget over many tensors: the masks are those of all scores in one row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    assert_near,
    corners,
    expected,
    generator,
    normal,
    num_threads,
)
from fast_lapsum import reference, soft_topk, soft_topk_list
from fast_lapsum.backends.cpu import entry as cpu_kernel
from fast_lapsum.backends.cpu import ragged_entry as cpu
from fast_lapsum.backends.torch import ragged_entry as plain

inf, nan = math.inf, math.nan
BACKENDS = {"kernel": cpu, "plain torch": plain}
SHAPES = ((7, 3), (), (0,), (2, 5, 4), (1,), (40,))
f64: Any = {"dtype": torch.float64}


@pytest.fixture(params=BACKENDS)
def entry(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


def _cut(row: Tensor, *places: int) -> list[Tensor]:
    return list(row.tensor_split(torch.tensor(places, dtype=torch.int64)))


def _join(tensors: list[Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.cat([x.reshape(-1).to(dtype) for x in tensors])


def _check(entry: Any, tensors: list[Tensor], k: float, t: float, largest: bool = True) -> None:
    """Masks and all gradients against the reference on one row."""
    *masks, pair = entry.list_forward(tensors, None, k, None, t, largest, "mask", False)
    grads = [normal(*x.shape, seed=i, dtype=x.dtype) for i, x in enumerate(tensors)]
    given: Any = (grads, tensors, None, t, pair, largest, "mask")
    *d_scores, d_k, d_t = entry.list_backward(*given, True)
    alone = entry.list_backward(*given, False)
    assert len(alone) == len(tensors)
    side = 1 if largest else -1
    want = expected(side * _join(tensors, pair.dtype), k, t, _join(grads, pair.dtype))
    for x, mask, d, other in zip(tensors, masks, d_scores, alone, strict=True):
        assert (mask.shape, mask.dtype, mask.stride()) == (x.shape, x.dtype, x.stride())
        assert (d.shape, d.dtype) == (x.shape, x.dtype)
        torch.testing.assert_close(d, other, equal_nan=True)
    half = torch.cat([torch.full((x.numel(),), torch.finfo(x.dtype).eps, **f64) for x in tensors])
    rounding = half * (want.mask.abs() + 2.0**-14) + want.mask_tolerance
    assert_near(_join(masks), want.mask, rounding, "masks")
    rounding = half * (want.d_scores.abs() + 2.0**-14) + want.d_scores_tolerance
    assert_near(side * _join(d_scores), want.d_scores, rounding, "d scores")
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_any_shapes(entry: Any, dtype: torch.dtype, largest: bool) -> None:
    tensors = [normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(SHAPES)]
    _check(entry, tensors, 17.5, 0.3, largest)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [67, 5000])
def test_any_distribution(entry: Any, distribution: str, n: int) -> None:
    """Cut anywhere, within and beside what the kernel reads at a time."""
    row = DISTRIBUTIONS[distribution](n, generator(n)).float()
    for k, t in ((n / 16, 1e-3), (n - 1.5, 1.0)):
        _check(entry, _cut(row, 1, 13, n // 2, n - 3), k, t)


def test_corners(entry: Any) -> None:
    """NaN, infinities, ties, all and nothing, the hard limit; no error for a tensor's k."""
    for row, k, t in zip(*corners(30, torch.float32), strict=True):
        *masks, _ = entry.list_forward(_cut(row, 4, 11), k, nan, t, nan, True, "mask", False)
        want = expected(row, k, t, torch.zeros(30))
        assert_near(_join(masks), want.mask, want.mask_tolerance, f"mask for k={k}, t={t}")


def test_dtypes_and_strides_together(entry: Any) -> None:
    """Transposed and expanded, with gaps, channels last, 16 and 32 bits; solved in the widest."""
    images = normal(2, 3, 4, 5, seed=1, dtype=torch.bfloat16)
    tensors = [
        normal(6, 4, seed=2, dtype=torch.float32).mT,
        images.to(memory_format=torch.channels_last),
        normal(30, seed=3, dtype=torch.float16),
    ]
    _check(entry, tensors, 25.0, 0.2)
    gaps = [normal(40, seed=4, dtype=torch.float32)[::2], normal(1, 5, seed=5).expand(3, 5)]
    masks = soft_topk_list([*tensors, *gaps], 25.0, 0.2)
    want = soft_topk(_join([*tensors, *gaps]), 25.0, 0.2)
    torch.testing.assert_close(_join(masks), want, atol=4e-3, rtol=4e-3)
    assert [x.dtype for x in masks] == [x.dtype for x in (*tensors, *gaps)]


def test_bits_are_those_of_one_row_whatever_the_cuts() -> None:
    row = normal(300_000, dtype=torch.float32)
    want = soft_topk(row, 30_000, 0.01)
    for threads in (1, 2):
        with num_threads(threads):
            for cuts in ((1, 2049, 150_000), (), (7,)):
                assert torch.equal(_join(soft_topk_list(_cut(row, *cuts), 30_000, 0.01)), want)


def test_the_order_of_the_list_changes_roundings_alone() -> None:
    tensors = [normal(n, seed=n) for n in (50, 7, 2000)]
    there = soft_topk_list(tensors, 100, 0.3)
    back = soft_topk_list(tensors[::-1], 100, 0.3)[::-1]
    for one, other in zip(there, back, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("where", BACKENDS)
def test_hard_masks(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly k ones, the earliest of ties in the order of the list, also across tensors."""
    if where == "plain torch":
        monkeypatch.setattr(cpu_kernel, "supports", lambda tensor: False)
    layers = [(2 * normal(*shape, seed=3)).round() for shape in ((3, 40), (0,), (9, 10), (700,))]
    layers[2] = layers[2].mT
    row = _join(layers)
    for k in (0, 1, 100, 450, len(row)):
        masks, b = soft_topk_list(layers, k, 0.5, hard=True, return_threshold=True)
        assert torch.equal(_join(masks), reference.hard_row(row, k))
        assert float(b) == reference.boundary_row(row, k)


def test_gradients_of_any_order() -> None:
    leaves = [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(((3, 2), (4,)))]
    k = torch.tensor(4.3, requires_grad=True, **f64)
    t = torch.tensor(0.7, requires_grad=True, **f64)

    def call(k: Tensor, t: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(soft_topk_list(tensors, k, t))

    assert torch.autograd.gradcheck(call, (k, t, *leaves))
    assert torch.autograd.gradgradcheck(call, (k, t, *leaves))
    assert torch.autograd.gradcheck(
        call, (k, t, *leaves), check_forward_ad=True, check_backward_ad=False
    )


def test_some_masks_without_a_gradient() -> None:
    leaves = [normal(5, seed=i).requires_grad_() for i in range(3)]
    masks, b = soft_topk_list(leaves, 6, 0.5, return_threshold=True)
    assert not b.requires_grad
    masks[1].sum().backward()
    row = _join(leaves).detach().requires_grad_()
    soft_topk(row, 6, 0.5)[5:10].sum().backward()
    torch.testing.assert_close(_join([x.grad for x in leaves]), row.grad)  # type: ignore[misc]


def test_compiled_whole_with_gradients() -> None:
    def call(a: Tensor, b: Tensor, t: float) -> Tensor:
        first, second = soft_topk_list([a, b], 5, t, validate=True)
        return first.square().sum() + second.sum()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for t in (0.3, 0.7):
        leaves = [normal(3, 4, seed=1).requires_grad_(), normal(6, seed=2).requires_grad_()]
        same = [x.detach().clone().requires_grad_() for x in leaves]
        compiled(*leaves, t).backward()
        call(*same, t).backward()
        for got, want in zip(leaves, same, strict=True):
            torch.testing.assert_close(got.grad, want.grad)


def test_operators_are_registered_well() -> None:
    tensors = [normal(3, 4, dtype=torch.float32), normal(5, seed=1, dtype=torch.float16)]
    call: Any = (tensors, None, 4.5, None, 0.5, True, "mask", True)
    torch.library.opcheck(torch.ops.fast_lapsum.list_topk.default, call)
    pair = torch.ops.fast_lapsum.list_topk(*call)[-1]
    back: Any = (tensors, tensors, None, 0.5, pair, True, "mask", True)
    torch.library.opcheck(torch.ops.fast_lapsum.list_topk_backward.default, back)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"tensors": normal(4)}, TypeError, "tensors must be a list of tensors, got Tensor"),
        ({"tensors": []}, ValueError, "tensors must have at least one tensor"),
        ({"tensors": [normal(2), 3.0]}, TypeError, r"tensors\[1\]: scores must be a torch.Tensor"),
        ({"tensors": [torch.ones(2, dtype=torch.int32)]}, TypeError, r"tensors\[0\]: .* int32"),
        ({"tensors": [normal(2), torch.ones(2, device="meta")]}, ValueError, "on one device, got"),
        ({"k": 16}, ValueError, r"k must lie in \[0, 15\] for 15 scores in all"),
        ({"k": torch.ones(2)}, ValueError, r"k must be one number for all .*got shape \(2,\)"),
        ({"temperature": torch.ones(2)}, ValueError, "temperature must be one number for all"),
        ({"temperature": -1.0}, ValueError, "temperature must be finite and lie in"),
        ({"k": 2.5, "hard": True}, ValueError, "k must be a whole number"),
        ({"k": torch.tensor(16), "validate": True}, ValueError, r"k must lie in .* = \[0, 15\]"),
        ({"tensors": [normal(2), torch.full((3,), -inf)], "k": 4}, ValueError, "at most 2, the n"),
    ],
)
def test_errors_name_the_argument(given: dict[str, Any], error: type[Exception], says: str) -> None:
    plain_call: dict[str, Any] = {"tensors": [normal(5), normal(2, 5)], "k": 3}
    with pytest.raises(error, match=says):
        soft_topk_list(**(plain_call | given))


def test_a_clamped_budget_takes_all() -> None:
    tensors = [torch.tensor([1.0, -inf]), torch.tensor([0.0, 3.0])]
    k = torch.tensor(4.0, requires_grad=True)
    masks = soft_topk_list(tensors, k, clamp=True)
    assert _join(masks).tolist() == [1, 0, 1, 1]
    assert float(torch.autograd.grad(masks[0].sum(), k)[0]) == 0


def test_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        masks = soft_topk_list([normal(4, dtype=torch.bfloat16), normal(3)], 2)
    assert [x.dtype for x in masks] == [torch.float32, torch.float64]

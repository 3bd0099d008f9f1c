"""The resize as matrix products: the map and the gradient of F.interpolate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fast_lapsum.apps.attack import resizing
from fast_lapsum.apps.attack.classifiers import Preprocessing
from fast_lapsum.apps.attack.resizing import (
    Resizing,
    matrix,
    products_are_exact,
    suits_products,
)

SIZES = [
    ((64, 96), (16, 24)),
    ((37, 101), (23, 64)),  # odd, down
    ((19, 11), (41, 24)),  # odd, up
    ((50, 7), (13, 29)),  # one side down, the other up
    ((1356, 1100), (256, 208)),  # past one block of the identity
    ((8, 9), (1, 1)),
    ((33, 40), (33, 20)),
]


def interpolate(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size=size, mode="bilinear", antialias=True, align_corners=False)


@pytest.mark.parametrize(("before", "after"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient(
    before: tuple[int, int], after: tuple[int, int], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, *before, generator=generator, dtype=dtype)
    pull = torch.randn(2, 3, *after, generator=generator, dtype=dtype)

    def both(resize: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        leaf = images.clone().requires_grad_()
        out = resize(leaf, after)
        return out.detach(), torch.autograd.grad(out, leaf, pull)[0]

    found, expected = both(Resizing().by_products), both(interpolate)
    assert found[0].is_contiguous()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_cheaper_order_is_the_same_map(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[tuple[int, ...]] = []
    multiply = torch.bmm

    def seen(rows: Tensor, planes: Tensor) -> Tensor:
        products.append(tuple(planes.shape))
        return multiply(rows, planes)

    monkeypatch.setattr(torch, "bmm", seen)
    for before, after in (((100, 40), (10, 38)), ((40, 100), (38, 10))):
        images = torch.rand(1, 3, *before)
        found = Resizing().by_products(images, after)
        torch.testing.assert_close(found, interpolate(images, after), rtol=0, atol=1e-6)
    assert products == [(3, 100, 40), (3, 40, 10)]  # rows first, then columns first


def test_matrices_are_kept_and_few() -> None:
    resize = Resizing()
    images = torch.rand(1, 3, 40, 30)
    resize.by_products(images, (20, 15))
    kept = dict(resize._matrices)
    resize.by_products(images, (20, 15))
    assert all(resize._matrices[key] is kept[key] for key in kept)
    for side in range(10, 30):
        resize.by_products(images, (side, 15))
    assert len(resize._matrices) == resizing._KEPT
    assert (30, 15, images.device, images.dtype) in resize._matrices  # the latest stay


def test_a_matrix_made_in_inference_mode_serves_a_gradient() -> None:
    resize = Resizing()
    images = torch.rand(1, 3, 20, 20)
    with torch.inference_mode():
        resize.by_products(images, (10, 10))
    resize.by_products(images.requires_grad_(), (10, 10)).sum().backward()
    assert images.grad is not None


def test_autocast_does_not_round() -> None:
    images = torch.rand(1, 3, 40, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Resizing().by_products(images, (20, 15))
    torch.testing.assert_close(found, interpolate(images, (20, 15)), rtol=0, atol=1e-6)


def test_a_cpu_keeps_interpolate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Tensor:
        raise AssertionError("products were taken")

    monkeypatch.setattr(Resizing, "by_products", refused)
    images = torch.rand(1, 3, 40, 30)
    assert torch.equal(Resizing()(images, (20, 15)), interpolate(images, (20, 15)))


def test_half_precision_is_left_alone() -> None:
    gpu = torch.device("cuda")
    assert suits_products(gpu, torch.float32)
    assert suits_products(gpu, torch.float64)
    assert not suits_products(gpu, torch.float16)
    assert not suits_products(gpu, torch.bfloat16)
    assert not suits_products(torch.device("cpu"), torch.float32)


def test_rows_of_a_matrix_are_means() -> None:
    assert torch.allclose(matrix(2040, 256, torch.float32).sum(1), torch.ones(256), atol=1e-6)


@pytest.fixture
def tensor_floats() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_products_are_exact_by_default() -> None:
    assert products_are_exact()


@pytest.mark.usefixtures("tensor_floats")
def test_products_of_tensor_floats_are_not_taken() -> None:
    assert not products_are_exact()
    assert not suits_products(torch.device("cuda"), torch.float32)
    assert suits_products(torch.device("cuda"), torch.float64)


def test_preprocessing_keeps_its_state() -> None:
    prepare = Preprocessing(resize=16)
    assert list(prepare.state_dict()) == ["mean", "std"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_gradient_is_the_same_every_time() -> None:
    images = torch.rand(1, 3, 678, 1020, device="cuda")
    prepare = Preprocessing(resize=256).cuda()
    pull = torch.randn(1, 3, 256, 385, device="cuda")
    gradients = []
    for resize in (prepare, prepare, lambda leaf: interpolate(leaf, (256, 385))):
        leaf = images.clone().requires_grad_()
        gradients.append(torch.autograd.grad(resize(leaf), leaf, pull)[0])
    assert torch.equal(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2], rtol=0, atol=1e-5)

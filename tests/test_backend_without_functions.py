"""A backend that has masks and their gradient only, as `backends/triton/launch.py` offers them.

What it has no kernel for is composed of those: one such backend is put in the GPU's place here.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, normal
from fast_lapsum import (
    _ops,
    hard_topk_mask,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)
from fast_lapsum.cpu import kernel


class Masks:
    """The masks of plain torch behind the boundary of a GPU backend."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def supports(self, tensor: Tensor) -> bool:
        return tensor.dtype.is_floating_point

    def forward(
        self,
        scores: Tensor,
        budget: Tensor | None,
        budget_number: float,
        temperature: Tensor | None,
        temperature_number: float,
        mask: Tensor | None,
        warm_start: Tensor | None,
        largest: bool,
        hard: bool,
        out_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        self.calls.append("hard" if hard else "soft")
        return _ops.plain.forward(
            scores,
            _ops.per_row_values(budget, budget_number, scores),
            _ops.per_row_values(temperature, temperature_number, scores),
            mask,
            warm_start,
            largest,
            "hard" if hard else "mask",
            out_dtype,
            "two_exponential",
        )

    def backward(
        self,
        grad: Tensor,
        scores: Tensor,
        temperature: Tensor | None,
        temperature_number: float,
        mask: Tensor | None,
        threshold: Tensor,
        largest: bool,
        per_row: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        self.calls.append("backward")
        temperatures = _ops.per_row_values(temperature, temperature_number, scores)
        found = _ops.plain_gradients.backward(
            grad, scores, temperatures, mask, threshold, largest, "mask"
        )
        return found if per_row else (found[0], None, None)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Masks:
    found = Masks()
    monkeypatch.setattr(_ops, "gpu", found)
    monkeypatch.setattr(kernel, "supports", lambda tensor: False)
    return found


def _all(scores: Tensor, k: Any, t: Any, **more: Any) -> list[Tensor]:
    leaf = scores.clone().requires_grad_()
    outs = [
        soft_topk(leaf, k, t, **more),
        soft_topk(leaf, k, t, hard=True, **more),
        log_soft_topk(leaf, k, t, **more),
        threshold(leaf, k, t, **more),
    ]
    if not isinstance(k, Tensor):
        chosen = select_topk(leaf, k, t, **more)
        outs += [chosen.weights, chosen.indices]
    grads = []
    for out in outs:
        if out.requires_grad:
            fit = torch.where(out.detach().isfinite(), out, 0.0)
            grads += torch.autograd.grad(fit.square().sum(), leaf)
    outs += [hard_topk_mask(scores, k, **more)]
    start = torch.Generator().manual_seed(1)
    outs += [sample_topk(scores, k, t, generator=start, **more)]
    return [x.detach() for x in (*outs, *grads)]


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_everything_is_what_the_kernel_says(
    dtype: torch.dtype, largest: bool, request: pytest.FixtureRequest
) -> None:
    scores = normal(6, 40, dtype=dtype)
    scores[1, 3], scores[2, 5] = math.inf, -math.inf
    mask = normal(6, 40, seed=2) > -1
    k, t = torch.tensor([3.0, 5, 1, 0, 7, 2]).double(), torch.full((6,), 0.3).double()
    calls = [(5, 0.4, {}), (5, 0.0, {}), (k, t, {}), (4, t, {"mask": mask})]
    with_kernel = [_all(scores, *call[:2], largest=largest, **call[2]) for call in calls]
    masks = request.getfixturevalue("masks")
    for call, wanted in zip(calls, with_kernel, strict=True):
        found = _all(scores, *call[:2], largest=largest, **call[2])
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert {"soft", "hard", "backward"} <= set(masks.calls)


def test_the_boundary_is_that_of_the_gpu_kernels() -> None:
    """The arguments that are passed by position are those of launch.py, in their order."""
    launch = pytest.importorskip("fast_lapsum.backends.triton.launch", exc_type=ImportError)
    for name in ("forward", "backward"):
        theirs = list(inspect.signature(getattr(launch, name)).parameters)
        ours = list(inspect.signature(getattr(Masks(), name)).parameters)
        assert theirs[: len(ours)] == ours

"""The GPU benchmark's checks, on a CPU: float64 formulas, the errors they notice, and budgets."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fast_lapsum import reference, soft_topk
from fast_lapsum.bench import gpu_budget, gpu_parity
from fast_lapsum.bench.parity import ParityError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scores_and_weights() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores, weights = torch.randn(2, 3, 5000, generator=generator).unbind()
    return scores, weights


@pytest.mark.parametrize("temperature", [10.0, 1.0, 0.01, 1e-6])
@pytest.mark.parametrize("k", [1.0, 17.5, 312.5, 4999.0])
@pytest.mark.parametrize("slice_size", [1 << 25, 1000])
def test_the_float64_formulas_agree_with_the_reference(
    temperature: float,
    k: float,
    slice_size: int,
    scores_and_weights: tuple[Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_parity, "SLICE", slice_size)
    scores, weights = scores_and_weights
    _, start = soft_topk(scores, k, temperature, return_threshold=True)
    b = gpu_parity.solve(scores, k, temperature, start)
    roots = [reference.solve_row(row, k, temperature) for row in scores]
    masks = torch.stack(
        [reference.mask_row(row, b, temperature) for row, b in zip(scores, roots, strict=True)]
    )
    gradients = torch.stack(
        [
            reference.vjp_row(w, row, b, temperature)[0]
            for w, row, b in zip(weights, scores, roots, strict=True)
        ]
    )
    assert float(gpu_parity.mask_error(masks, scores, temperature, b)) < 1e-9
    assert float(gpu_parity.gradient_error(gradients, weights, scores, temperature, b)) < 1e-7
    assert float(gpu_parity.budget_errors(masks, k).max()) < 1e-9
    gpu_parity.check(scores, k, temperature, weights)


def test_a_gradient_that_cancels_is_not_held_to_what_is_left_of_it() -> None:
    """With half a score left and t small against the gaps, one score holds all of q."""
    generator = torch.Generator().manual_seed(0)
    scores, weights = (torch.randn(1_000_000, generator=generator) for _ in range(2))
    errors = gpu_parity.check(scores, 17.5, 0.001, weights)
    assert errors["gradient_error"] < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes_with_its_own_rounding(
    dtype: torch.dtype, scores_and_weights: tuple[Tensor, Tensor]
) -> None:
    scores, weights = (tensor.to(dtype) for tensor in scores_and_weights)
    errors = gpu_parity.check(scores, 312.5, 1.0, weights)
    assert errors["mask_error"] > gpu_parity.MASK_TOLERANCE


@pytest.mark.parametrize("wrong", ["mask", "budget", "gradient", "nan", "threshold"])
def test_parity_notices_each_kind_of_error(
    wrong: str, scores_and_weights: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(scores: Tensor, k: float, temperature: float, **kwargs: Any) -> Any:
        if kwargs:
            mask, b = soft_topk(scores, k, temperature, **kwargs)
            return mask, b + 100 * temperature * (wrong == "threshold")
        mask = soft_topk(scores, k, temperature)
        if wrong == "mask":  # the budget stays, two entries swap mass
            shift = torch.zeros_like(mask)
            shift[..., 0], shift[..., 1] = 1e-5, -1e-5
            return mask + shift
        if wrong == "budget":
            return mask * (1 + 2e-6)
        if wrong == "gradient":
            return mask.detach() + 1.0001 * (mask - mask.detach())
        if wrong == "nan":
            return torch.cat((mask[..., :-1], mask[..., -1:] * math.nan), -1)
        return mask

    monkeypatch.setattr(gpu_parity, "soft_topk", spoiled)
    scores, weights = scores_and_weights
    with pytest.raises(ParityError, match="no float64 root" if wrong == "threshold" else wrong[:3]):
        gpu_parity.check(scores, 312.5, 0.5, weights)


def test_above_the_limit_only_the_budget_is_checked(
    scores_and_weights: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_parity, "MOST_SCORES", 14_999)
    assert set(gpu_parity.check(scores_and_weights[0], 16.0, 1.0, scores_and_weights[1])) == {
        "budget_error"
    }


@pytest.mark.parametrize("name", gpu_budget.DISTRIBUTIONS)
def test_distributions_are_finite_float32_and_repeatable(name: str) -> None:
    def draw() -> Tensor:
        return gpu_budget.DISTRIBUTIONS[name]((3, 500), torch.Generator().manual_seed(1))

    scores = draw()
    assert scores.shape == (3, 500)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert scores.equal(draw())


def test_a_nan_in_the_budget_grid_is_a_miss_and_fit_for_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sometimes_nan(scores: Tensor, k: float, temperature: float) -> Tensor:
        return soft_topk(scores, k, temperature) * (math.nan if k == 17.5 else 1.0)

    monkeypatch.setattr(gpu_budget, "soft_topk", sometimes_nan)
    entries = gpu_budget.check_budgets((2, 64), CPU, lambda step: None)
    json.dumps(entries, allow_nan=False)
    assert all(e["met"] is False and e["worst"] is None and e["k"] == 17.5 for e in entries)

"""Checks that run before any timing: a fast wrong answer is not worth a number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast_lapsum import reference, soft_topk

#: Largest error of a float32 mask: 1e-6 t of threshold moves p by 5e-7, rounding adds the rest.
MASK_TOLERANCE = 1e-6
#: Largest error of a gradient, relative to the largest gradient of the row.
GRADIENT_TOLERANCE = 1e-5


class ParityError(RuntimeError):
    """The operator does not agree with the specification, so nothing was timed."""


def check(scores: Tensor, k: float, temperature: float, weights: Tensor) -> dict[str, float]:
    """Errors of mask, budget and gradient against ``reference``; ParityError where too large.

    Args:
        scores: float32 on the CPU, rows along the last dimension.
        k: the budget of every row.
        temperature: the temperature of every row.
        weights: what the gradient is taken against, in the shape of ``scores``.
    """
    scores = scores.detach().requires_grad_()
    mask = soft_topk(scores, k, temperature)
    (gradient,) = torch.autograd.grad(mask, scores, weights)
    errors = {"mask_error": 0.0, "budget_error": 0.0, "gradient_error": 0.0}
    n = scores.shape[-1]
    rows = (tensor.detach().reshape(-1, n) for tensor in (scores, mask, gradient, weights))
    for row, row_mask, row_gradient, row_weights in zip(*rows, strict=True):
        threshold = reference.solve_row(row, k, temperature)
        expected_mask = reference.mask_row(row, threshold, temperature)
        expected, _, _ = reference.vjp_row(row_weights, row, threshold, temperature)
        found = {
            "mask_error": (row_mask - expected_mask).abs().max(),
            "budget_error": (row_mask.double().sum() - k).abs(),
            "gradient_error": (row_gradient - expected).abs().max() / expected.abs().max(),
        }
        for name, error in found.items():  # written so that a NaN sticks
            errors[name] = float(torch.maximum(error, torch.tensor(errors[name])))
    limits = {
        "mask_error": MASK_TOLERANCE,
        "budget_error": budget_tolerance(k),
        "gradient_error": GRADIENT_TOLERANCE,
    }
    for name, limit in limits.items():
        if not errors[name] <= limit:
            raise ParityError(
                f"{name} is {errors[name]:.3g}, expected at most {limit:.3g}, for scores of shape "
                f"{tuple(scores.shape)}, k = {k:g}, temperature = {temperature:g}"
            )
    return errors


def budget_tolerance(k: float) -> float:
    """32 units in the last place of float32 k, and the rounding of the p that were added up."""
    ulp = 2.0 ** (math.floor(math.log2(k)) - 23) if k > 0 else 0.0
    return 32 * ulp + k * 2.0**-24

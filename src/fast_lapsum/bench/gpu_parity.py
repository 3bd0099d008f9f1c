"""Checks before any GPU timing: float64 torch on the device, in slices that fit beside the data.

The kernel's threshold is only where the search for the float64 root starts: an answer that is off
by more than rounding does not pass, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .parity import GRADIENT_TOLERANCE, ParityError

#: Largest |sum p - k| / k.
BUDGET_TOLERANCE = 1e-6
MASK_TOLERANCE = 2e-6
#: Above so many scores only the budget is checked.
MOST_SCORES = 300_000_000
#: Scores that are in float64 at a time.
SLICE = 1 << 25
NEWTON_STEPS = 16
#: A root is found when a Newton step moves it by less than this, in temperatures.
ROOT_TOLERANCE = 1e-8
#: Gradients below this underflow on the way: what they are relative to is not smaller.
SMALLEST_GRADIENT = 1e-30


def check(scores: Tensor, k: float, temperature: float, weights: Tensor) -> dict[str, float]:
    """Errors of budget, mask and gradient; ParityError where one is too large.

    Args:
        scores: rows along the last dimension, on the device where they are timed.
        k: the budget of every row.
        temperature: the temperature of every row.
        weights: what the gradient is taken against, in the shape of ``scores``.
    """
    leaf = scores.detach().requires_grad_()
    mask = soft_topk(leaf, k, temperature)
    rounding = _rounding(scores.dtype)
    errors = {"budget_error": float(budget_errors(mask.detach(), k).max())}
    limits = {"budget_error": BUDGET_TOLERANCE + rounding}
    if scores.numel() <= MOST_SCORES:
        (gradient,) = torch.autograd.grad(mask, leaf, weights)
        _, start = soft_topk(scores, k, temperature, return_threshold=True)
        b = solve(scores, k, temperature, start)
        errors["mask_error"] = float(mask_error(mask.detach(), scores, temperature, b))
        errors["gradient_error"] = float(gradient_error(gradient, weights, scores, temperature, b))
        limits["mask_error"] = MASK_TOLERANCE + rounding
        limits["gradient_error"] = GRADIENT_TOLERANCE + rounding
    for name, limit in limits.items():
        if not errors[name] <= limit:
            raise ParityError(f"{name} is {errors[name]:.3g}, expected at most {limit:.3g}")
    return errors


def budget_errors(mask: Tensor, k: float) -> Tensor:
    """|sum p - k| / k of every row, added up in float64."""
    total = mask.new_zeros(mask.shape[:-1], dtype=torch.float64)
    for start in range(0, mask.shape[-1], _width(mask)):
        total += mask[..., start : start + _width(mask)].sum(-1, dtype=torch.float64)
    return (total - k).abs() / k


def solve(scores: Tensor, k: float, temperature: float, start: Tensor) -> Tensor:
    """The float64 threshold of every row by Newton's method from a threshold near it."""
    b = start.double()
    for _ in range(NEWTON_STEPS):
        excess, density = _balance(scores, k, temperature, b)
        # Without density every score is far away, and the mask is 0 or 1 at any b around.
        step = torch.where(density > 0, excess / density, excess.sign()).clamp(-2, 2)
        b = b + step * temperature
        if float(step.abs().max()) <= ROOT_TOLERANCE:
            return b
    raise ParityError(
        f"no float64 root within {NEWTON_STEPS} Newton steps of the returned threshold"
    )


def _balance(scores: Tensor, k: float, temperature: float, b: Tensor) -> tuple[Tensor, Tensor]:
    """Mass at b less the budget, and its density.

    The mass is a count of whole scores and the tails beyond them: what is left of their difference
    with k keeps its digits even where the tails are tiny.
    """
    whole, tails, density = (torch.zeros_like(b) for _ in range(3))
    for u, _ in _slices(scores, temperature, b):
        above = u > 0
        decay = torch.exp(-u.abs()) / 2
        whole += above.sum(-1)
        tails += torch.where(above, -decay, decay).sum(-1)
        density += decay.sum(-1)
    return (whole - k) + tails, density


def mask_error(mask: Tensor, scores: Tensor, temperature: float, b: Tensor) -> Tensor:
    """Largest |p - sigma((r - b) / t)|, NaN if there is one."""
    worst = b.new_zeros(())
    for u, (part,) in _slices(scores, temperature, b, mask):
        decay = torch.exp(-u.abs()) / 2
        expected = torch.where(u > 0, 1 - decay, decay)
        worst = torch.maximum(worst, (part - expected).abs().max())
    return worst


def gradient_error(
    gradient: Tensor, weights: Tensor, scores: Tensor, temperature: float, b: Tensor
) -> Tensor:
    """Largest error against phi / t (g - <g, q>), relative to the row's phi / t (|g| + |<g, q>|).

    That is the largest gradient but for a factor, unless one score holds all of q: then g and
    <g, q> cancel, and what is left of them is rounding in any precision.
    """
    nearest = torch.full_like(b, torch.inf)
    for u, _ in _slices(scores, temperature, b):
        nearest = torch.minimum(nearest, u.abs().amin(-1))
    total, weighted = torch.zeros_like(b), torch.zeros_like(b)
    for u, (g,) in _slices(scores, temperature, b, weights):
        q = torch.exp(nearest[..., None] - u.abs())
        total += q.sum(-1)
        weighted += (q * g).sum(-1)
    mean = (weighted / total)[..., None]
    error, largest = torch.zeros_like(b), torch.full_like(b, SMALLEST_GRADIENT)
    for u, (g, found) in _slices(scores, temperature, b, weights, gradient):
        slope = torch.exp(-u.abs()) / (2 * temperature)
        error = torch.maximum(error, (found - slope * (g - mean)).abs().amax(-1))
        largest = torch.maximum(largest, (slope * (g.abs() + mean.abs())).amax(-1))
    return (error / largest).max()


def _slices(
    scores: Tensor, temperature: float, b: Tensor, *others: Tensor
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """u = (r - b) / t in float64, slice by slice of the rows, and the same slices of others."""
    width = _width(scores)
    for start in range(0, scores.shape[-1], width):
        part, *rest = (x[..., start : start + width].double() for x in (scores, *others))
        yield (part - b[..., None]) / temperature, rest


def _width(tensor: Tensor) -> int:
    """Scores of every row that make up a slice."""
    return max(1, SLICE * tensor.shape[-1] // tensor.numel())


def _rounding(dtype: torch.dtype) -> float:
    """Half a unit in the last place of 1 where that, not arithmetic, limits a half-precision p."""
    return torch.finfo(dtype).eps / 2 if dtype.itemsize < 4 else 0.0

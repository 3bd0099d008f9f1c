"""What the peers with one threshold per row share: p_i = F((s_i - b) / t) with sum_i p_i = k.

F is the peer's own increasing curve from 0 to 1. Whatever it is, implicit differentiation of the
budget gives, with the slopes f_i = F'((s_i - b) / t) and a gradient g for the mask,

    d_scores_i = f_i / t * (g_i - sum_j f_j g_j / sum_j f_j).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: The bracket is 2^-64 of its first width at the end: enough wherever that is below 2^50 t.
BISECTION_STEPS = 64
NEWTON_STEPS = 2


class _ThresholdMask(torch.autograd.Function):
    """The mask itself, with the gradient of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, mask: Tensor, slopes: Tensor, temperature: float
    ) -> Tensor:
        ctx.save_for_backward(slopes)
        ctx.temperature = temperature
        return mask.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        total = slopes.sum(-1, keepdim=True).clamp(min=torch.finfo(slopes.dtype).tiny)
        mean = (slopes * grad).sum(-1, keepdim=True) / total
        return slopes * (grad - mean) / ctx.temperature, None, None, None


def with_gradient(scores: Tensor, mask: Tensor, slopes: Tensor, temperature: float) -> Tensor:
    """``mask``, computed without autograd, as a differentiable function of the scores."""
    result: Tensor = _ThresholdMask.apply(  # type: ignore[no-untyped-call]
        scores, mask, slopes.to(scores.dtype), temperature
    )
    return result


@torch.no_grad()
def solve(
    scores: Tensor,
    k: float,
    temperature: float,
    *,
    curve: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    quantile: float,
) -> Tensor:
    """u = (s - b) / t in float64, at the threshold where ``curve(u)`` sums to k, 0 < k < n.

    Bisection of b in full passes over the scores. If all n scores were equal to r, b would be
    r - t F^-1(k/n); it grows with every score, so the lowest and the highest bracket it.
    ``quantile`` is F^-1(k/n). Newton steps in u then remove what the rounding of b has left.
    """
    wide = scores.detach().double()
    low, high = (x[..., None] - temperature * quantile for x in torch.aminmax(wide, dim=-1))
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        mass = curve((wide - middle) / temperature).sum(-1, keepdim=True)
        # Where the curve is flat, any b of the flat piece will do: both ends meet at the first.
        low, high = torch.where(mass >= k, middle, low), torch.where(mass <= k, middle, high)
    u = (wide - (low + high) / 2) / temperature
    for _ in range(NEWTON_STEPS):
        surplus = curve(u).sum(-1, keepdim=True) - k
        steepness = slope(u).sum(-1, keepdim=True)
        u = u - torch.where(steepness > 0, surplus / steepness, 0)
    return u

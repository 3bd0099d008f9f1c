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

#: Passes over the scores, by the dtype of the work. The bracket is 2^-steps of the scores' range at
#: the end: enough for the Newton steps where the range is below 2^steps t.
BISECTION_STEPS = {torch.float32: 22, torch.float64: 50}
NEWTON_STEPS = 3


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
        total = slopes.sum(-1, keepdim=True).clamp_(min=torch.finfo(slopes.dtype).tiny)
        result = slopes * grad
        mean = result.sum(-1, keepdim=True).div_(total)
        torch.sub(grad, mean, out=result)
        return result.mul_(slopes).div_(ctx.temperature), None, None, None


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
    curve: Callable[[Tensor, Tensor], Tensor],
    slope: Callable[[Tensor, Tensor], Tensor],
    quantile: float,
) -> Tensor:
    """u = (s - b) / t at the threshold where ``curve`` of u sums to k, 0 < k < n.

    ``curve(u, out)`` writes F(u), ``slope(u, out)`` F'(u); out may be u. ``quantile`` is F^-1(k/n).
    In the dtype of the scores, float32 at least, in two buffers, and with a fixed number of passes:
    nothing waits for a GPU. Solve for the smaller of k and n - k, whose sum is the better known:
    with -t and n - k, u is that of the scores that are left out.

    b is bisected first. If all n scores were equal to r, it would be r - t F^-1(k/n); it grows with
    every score, so the lowest and the highest bracket it. Newton steps in u, none longer than what
    is left of the bracket, then remove this rest and the rounding of b.
    """
    scores = scores.detach()
    if scores.dtype not in BISECTION_STEPS:
        scores = scores.float()
    steps = BISECTION_STEPS[scores.dtype]
    low, high = torch.aminmax(scores, dim=-1, keepdim=True)
    centre = (low + high).div_(2)
    reach = torch.maximum(high - centre, centre - low).div_(abs(temperature))
    z = (scores - centre).div_(temperature)
    u = torch.empty_like(z)
    b = torch.full_like(centre, -quantile)  # in units of t, from the centre
    for step in range(1, steps + 1):
        torch.sub(z, b, out=u)
        surplus = curve(u, u).sum(-1, keepdim=True).sub_(k)
        # Where the curve is flat, any b of the flat piece will do: it stays at the first.
        b.addcmul_(surplus.sign_(), reach, value=2.0**-step)
    # From the scores themselves, in whose dtype b is threshold + rest: u is small where it matters.
    b.mul_(temperature)
    threshold = centre + b
    rest = centre.sub_(threshold).add_(b).div_(temperature)
    torch.sub(scores, threshold, out=u).div_(temperature).sub_(rest)
    longest = reach.mul_(2.0 ** (1 - steps))
    for _ in range(NEWTON_STEPS):
        # In float64: a unit in the last place of k may be many slopes.
        surplus = curve(u, z).sum(-1, keepdim=True, dtype=torch.float64).sub_(k).to(z.dtype)
        steepness = slope(u, z).sum(-1, keepdim=True).clamp_(min=torch.finfo(z.dtype).tiny)
        u.sub_(surplus.div_(steepness).clamp_(-longest, longest))
    return u

"""Perturbed top-k: the average of hard masks under Gaussian noise.

Q. Berthet, M. Blondel, O. Teboul, M. Cuturi, J.-P. Vert, F. Bach, "Learning with Differentiable
Perturbed Optimizers", NeurIPS 2020. With y*(s) the hard top-k mask and Z standard normal,

    p = E[y*(s + sigma Z)],     dp_i/ds_j = E[y*_i(s + sigma Z) Z_j] / sigma,

both estimated from the same M = 100 samples; sigma is the temperature. The gradient of a loss with
dL/dp = g is therefore the mean of <g, y*> Z / sigma, an unbiased but noisy estimate. The noise
comes from a generator with a fixed seed: equal calls give equal answers.

Every sample has k ones, so the mask sums to k; k must be whole. Memory O(n M).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .protocol import Peer, whole_budget

SAMPLES = 100
SEED = 0


class _Perturbed(torch.autograd.Function):
    """Scores [B, n] and noise [M, B, n] -> the mean of M masks."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, noise: Tensor, k: int, sigma: float) -> Tensor:
        chosen = torch.topk(scores + sigma * noise, k, -1, sorted=False).indices
        ctx.save_for_backward(noise, chosen)
        ctx.sigma = sigma
        # One row of M k indices per row of scores; whole counts add up without rounding.
        merged = chosen.movedim(0, -2).flatten(-2)
        ones = scores.new_ones(()).expand(merged.shape)
        return torch.zeros_like(scores).scatter_add_(-1, merged, ones) / len(noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        noise, chosen = ctx.saved_tensors
        gains = grad.expand(noise.shape).gather(-1, chosen).sum(-1)  # <g, y*> of every sample
        return (gains[..., None] * noise).mean(0) / ctx.sigma, None, None, None


def perturbed(
    scores: Tensor, k: float, temperature: float, *, samples: int = SAMPLES, seed: int = SEED
) -> Tensor:
    """The mask of every row of scores [B, n].

    >>> perturbed(torch.tensor([[0.0, 9.0, 5.0]]), 1, 0.1)
    tensor([[0., 1., 0.]])
    """
    budget = whole_budget(k, scores.shape[-1])
    generator = torch.Generator(scores.device).manual_seed(seed)
    noise = torch.randn(
        (samples, *scores.shape), generator=generator, device=scores.device, dtype=scores.dtype
    )
    mask: Tensor = _Perturbed.apply(scores, noise, budget, temperature)  # type: ignore[no-untyped-call]
    return mask


PEER = Peer(
    name="Perturbed top-k",
    paper="Berthet, Blondel, Teboul, Cuturi, Vert, Bach 2020, Learning with Differentiable "
    "Perturbed Optimizers, NeurIPS",
    function=perturbed,
    exact_budget=True,
    memory="O(n M), M = 100 samples",
    temperature="t is sigma, the standard deviation of the noise on the scores.",
)

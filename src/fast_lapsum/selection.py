"""The public functions that choose whole scores: the hard mask and a random one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._call import Number, prepare
from ._ops import row_dtype


def hard_topk_mask(
    scores: Tensor,
    k: Number | Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    validate: bool = False,
) -> Tensor:
    """Mask of exactly k ones at the k largest scores, the earliest of tied scores first.

    The hard counterpart of :func:`soft_topk`, in the scores' dtype, without a gradient.

    Example:
        >>> hard_topk_mask(torch.tensor([1.0, 3.0, 3.0, 3.0]), k=2)
        tensor([0., 1., 1., 0.])
    """
    call = prepare(scores, k, 0.0, dim, largest, mask, "hard", None, "auto", validate)
    return call.restore(call.detach().write())


def sample_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate: bool = False,
) -> Tensor:
    """Random mask of exactly k ones that selects score i with probability p_i of the soft mask.

    Systematic sampling: one uniform number u per row, and score i is taken when the running sum of
    p passes one of u, u + 1, ..., u + k - 1. O(n), without a gradient, in the scores' dtype. Which
    scores come together depends on their order: shuffle them where pairs matter.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = sample_topk(torch.randn(1000, generator=generator), 10, generator=generator)
        >>> float(drawn.sum())
        10.0
    """
    call = prepare(scores, k, temperature, dim, largest, mask, "hard", None, "auto", validate)
    call = call.detach()
    wide = row_dtype(scores)
    soft = call._replace(settings=call.settings._replace(output="mask", out_dtype=wide))
    p = soft.write()
    budget = call.settings.budget_number if call.budget is None else call.budget[..., None]
    passed = p.cumsum(-1)
    passed = passed * (budget / passed[..., -1:])  # the last sum is k itself
    start = torch.rand(p.shape[:-1], generator=generator, device=p.device, dtype=wide)
    steps = torch.floor(passed + start[..., None])
    drawn = torch.diff(steps, dim=-1, prepend=torch.zeros_like(steps[..., :1])).clamp(0, 1)
    # Rounding of the running sum may miss one in a billion: the hard mask of drawn + p is drawn
    # itself when it holds k ones, and makes up for the odd one with the likeliest score otherwise.
    rank = torch.where(p.isnan() | (p > 0), drawn + p, -math.inf)
    settings = call.settings._replace(temperature_number=0.0, largest=True)
    ranked = call._replace(scores=rank, temperature=None, mask=None, settings=settings)
    return call.restore(ranked.write())

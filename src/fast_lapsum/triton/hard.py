"""Exactly k ones in long rows, in torch operations: one k for all rows needs no sort."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def write_hard_mask(
    out: Tensor, scores: Tensor, mask: Tensor | None, largest: bool, k: int, threshold: Tensor
) -> None:
    """Ones for the k largest (or smallest) scores, the earliest of tied ones first.

    A row whose threshold is NaN has no answer and gets NaN. 0 <= k <= n.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf if largest else math.inf)
    if k == 0:
        chosen = torch.zeros_like(scores, dtype=torch.bool)
    else:
        best = torch.topk(scores, k, largest=largest, sorted=False).values
        boundary = best.amin(-1, keepdim=True) if largest else best.amax(-1, keepdim=True)
        chosen = scores > boundary if largest else scores < boundary
        tied = scores == boundary
        room = k - chosen.sum(-1, keepdim=True)
        counter = torch.int32 if scores.shape[-1] < 2**31 else torch.int64
        chosen |= tied & (tied.cumsum(-1, dtype=counter) <= room)
    out.copy_(chosen)
    out.masked_fill_(threshold[..., :1].isnan(), math.nan)

"""Sparse attention by its definition, in float64 and plain torch, differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, k: int, t: float, block_size: int
) -> Tensor:
    """Causal attention with weights p e^(q k), p the soft mask of the blocks that a query sees."""
    queries, keys = query.shape[-2], key.shape[-2]
    position = torch.arange(keys - queries, keys).unsqueeze(-1)
    sees_block = torch.arange(0, keys, block_size) <= position
    sees_key = torch.arange(keys) <= position
    p = _soft_mask(scores, sees_block, k, t).repeat_interleave(block_size, -1)[..., :keys]
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    weights = p * torch.exp(logits - logits.detach().amax(-1, keepdim=True)) * sees_key
    return (weights / weights.sum(-1, keepdim=True)) @ value


def _soft_mask(scores: Tensor, valid: Tensor, k: int, t: float) -> Tensor:
    """By bisection, with its gradient by one step of Newton's method; short rows are whole."""
    valid = valid.expand(scores.shape)
    fixed = scores.detach()
    low, high = (fixed.aminmax(dim=-1, keepdim=True)[i] + (100 * i - 50) * t for i in (0, 1))

    def mass(b: Tensor) -> Tensor:
        u = (scores - b) / t
        half = torch.exp(-u.abs()) / 2
        return torch.where(u > 0, 1 - half, half) * valid

    with torch.no_grad():
        for _ in range(200):
            middle = (low + high) / 2
            is_over = mass(middle).sum(-1, keepdim=True) > k
            low, high = torch.where(is_over, middle, low), torch.where(is_over, high, middle)
        b = (low + high) / 2
        slope = -(torch.exp(-((fixed - b) / t).abs()) / (2 * t) * valid).sum(-1, keepdim=True)
    p = mass(b - (mass(b).sum(-1, keepdim=True) - k) / slope)
    return torch.where(valid.sum(-1, keepdim=True) > k, p, valid.to(p.dtype))

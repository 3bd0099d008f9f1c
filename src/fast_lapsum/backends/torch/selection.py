"""Selections and random masks, made of masks: more readings and memory, nothing to the host."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import compute_dtype, per_row_values, row_dtype, spread_over_rows
from .backward import backward
from .forward import forward, mask_at


def select(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places and weights of the k selected scores, [..., k], and threshold pairs [..., 2]."""
    valid = scores != (-math.inf if largest else math.inf)
    valid = valid if mask is None else valid & mask
    budget = valid.sum(-1).clamp(max=k).to(row_dtype(scores))
    temperatures = per_row_values(temperature, temperature_number, scores)
    hard, threshold = forward(
        *(scores, budget, 0.0, temperatures, 1.0, mask, None, largest, "hard", scores.dtype)
    )
    chosen = hard == 1
    places = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    # What is not chosen goes to a place of its own, which is cut off.
    to = torch.where(chosen, chosen.cumsum(-1) - 1, k)
    indices = torch.full((*scores.shape[:-1], k + 1), -1, device=scores.device)
    indices = indices.scatter(-1, to, places)[..., :k]
    picked = scores.gather(-1, indices.clamp(min=0)) if k else scores[..., :0]
    picked = picked if largest else -picked
    if is_sorted:
        order = picked.masked_fill(indices < 0, -math.inf)
        order = order.argsort(dim=-1, descending=True, stable=True)
        indices, picked = indices.gather(-1, order), picked.gather(-1, order)
    weights = mask_at(picked, threshold, temperatures, compute_dtype(scores.dtype))
    weights = torch.where((indices < 0) & ~weights.isnan(), 0.0, weights)
    return indices.contiguous(), weights.to(out_dtype), threshold


def select_backward(
    grad: Tensor,
    indices: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the weights for scores, and with ``per_row`` for temperature."""
    spread = spread_over_rows(grad, indices, scores)
    d_scores, _, d_temperature = backward(
        spread, scores, temperature, temperature_number, mask, threshold, largest, "mask", per_row
    )
    return d_scores, d_temperature


def sample(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    start: Tensor,
    largest: bool,
    out_dtype: torch.dtype,
) -> Tensor:
    """Random masks of exactly k ones, for a ``start`` of each row."""
    wide = row_dtype(scores)
    p, _ = forward(
        *(scores, budget, budget_number, temperature, temperature_number, mask, None, largest),
        *("mask", wide),
    )
    budgets = per_row_values(budget, budget_number, scores)[..., None]
    passed = p.cumsum(-1)
    passed = passed * (budgets / passed[..., -1:])  # the last sum is k itself
    whole = passed.floor()
    steps = whole + (passed - whole > start[..., None].to(wide))  # how many of start + j it passed
    drawn = torch.diff(steps, dim=-1, prepend=torch.zeros_like(steps[..., :1])).clamp(0, 1)
    # Rounding of the running sum may miss one in a billion: the hard mask of drawn + p is drawn
    # itself when it holds k ones, and makes up for the odd one with the likeliest score otherwise.
    drawn = torch.where(p < 1, drawn, 1.0)
    rank = torch.where(p.isnan() | (p > 0), drawn + p, -math.inf)
    return forward(*(rank, budgets[..., 0], 0.0, None, 0.0, None, None, True, "hard", out_dtype))[0]

"""The plain-torch backend: any device, any floating dtype, every solver.

It owns what all solvers share. Rows with a corner in them (NaN, infinities, k = 0 or k = n, t = 0,
no answer at all) are settled here, so that a solver only ever sees clean rows.

A row's threshold is stored as a pair. For a soft row it is (hi, lo) with b = hi + lo. For a row in
the hard limit, which is one with t = 0 or hi = +inf, it is (boundary score, share of a tied score).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..common import (
    SATURATION,
    check_budget_fits,
    compute_dtype,
    distances,
    is_hard,
    max_temperature,
    per_row_values,
    row_dtype,
)
from . import bisect, noised_bracket, sort_scan, two_exponential
from .closed_form import laplace_cdf

Solver = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

SOLVERS: dict[str, Solver] = {
    "two_exponential": two_exponential.solve,
    "bisect": bisect.solve,
    "sort_scan": sort_scan.solve,
    "noised_bracket": noised_bracket.solve,
}


def supports(tensor: Tensor) -> bool:
    """Whether plain torch can take this tensor: always, as far as is known."""
    return True


def forward(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    solver: str = "two_exponential",
) -> tuple[Tensor, Tensor]:
    """What ``output`` says along the last dimension, and threshold pairs [..., 2]."""
    if budget is None and scores.is_cpu:  # elsewhere looking would wait for the device
        check_budget_fits(scores, mask, largest, budget_number)
    budget = per_row_values(budget, budget_number, scores)
    temperature = per_row_values(temperature, temperature_number, scores)
    rows = as_rows(scores, mask, largest)
    budgets = budget.reshape(-1).to(rows.dtype)
    temperatures = temperature.reshape(-1).to(rows.dtype)
    start = None if warm_start is None else warm_start.reshape(-1).to(rows.dtype)
    if start is not None and not largest:
        start = -start
    kept = compute_dtype(scores.dtype)
    hi, lo = _threshold_pair(rows, budgets, temperatures, start, solver, kept)
    threshold = torch.stack((hi, lo), -1).reshape(*scores.shape[:-1], 2).to(kept)
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype), threshold
    if output == "log":
        out = _log_mask(rows, budgets, hi, lo, temperatures, kept)
    else:
        out = mask_rows(rows, hi, lo, temperatures, kept)
        out = _hard_mask(rows, budgets, out) if output == "hard" else out
    like_scores = torch.empty_like(scores, dtype=out_dtype)
    return like_scores.copy_(out.reshape(scores.shape)), threshold


def mask_at(scores: Tensor, threshold: Tensor, temperature: Tensor, kept: torch.dtype) -> Tensor:
    """p of any scores [..., m], the largest side up, for threshold pairs that are known."""
    widest = row_dtype(scores)
    rows = scores.to(widest).reshape(math.prod(scores.shape[:-1]), scores.shape[-1])
    hi, lo = threshold.reshape(-1, 2).to(widest).unbind(-1)
    p = mask_rows(rows, hi, lo, temperature.reshape(-1).to(widest), kept)
    return p.reshape(scores.shape)


def as_rows(scores: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    """Scores as [rows, n] in the widest dtype of the device, the excluded ones as -inf."""
    widest = row_dtype(scores)
    rows = scores.to(widest)
    rows = rows if largest else -rows
    rows = rows if mask is None else rows.masked_fill(~mask, -math.inf)
    return rows.reshape(math.prod(scores.shape[:-1]), scores.shape[-1])


def _threshold_pair(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    start: Tensor | None,
    solver: str,
    kept: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if scores.shape[-1] == 0:
        zero = torch.zeros_like(budget)
        return torch.where((budget == 0) & _usable(temperature, kept), zero, math.nan), zero
    excluded = scores == -math.inf
    infinite = scores == math.inf
    infinite_count = infinite.sum(-1)
    valid_count = scores.shape[-1] - excluded.sum(-1)
    finite_count = valid_count - infinite_count
    answerable = (budget >= 0) & (budget <= valid_count) & _usable(temperature, kept)
    answerable &= ~scores.isnan().any(-1)
    remaining = budget - infinite_count
    soft = answerable & (temperature >= torch.finfo(kept).tiny) & (remaining >= 0)
    is_clean = soft & (remaining > 0) & (remaining < finite_count)

    # The solver sees harmless numbers in the rows that are settled here.
    dull = torch.arange(scores.shape[-1], device=scores.device, dtype=scores.dtype)
    clean = torch.where(is_clean[:, None], scores.masked_fill(infinite, -math.inf), dull)
    half = torch.full_like(remaining, scores.shape[-1] / 2)
    clean_budget = torch.where(is_clean, remaining, half)
    clean_temperature = torch.where(is_clean, temperature, 1.0)
    if solver == "two_exponential":
        hi, lo = two_exponential.solve(clean, clean_budget, clean_temperature, start)
    else:
        hi, lo = SOLVERS[solver](clean, clean_budget, clean_temperature)
    hi, lo = renormalise(hi, lo, kept)

    finite = ~(excluded | infinite)
    highest = scores.masked_fill(~finite, -math.inf).amax(-1)
    lowest = scores.masked_fill(~finite, math.inf).amin(-1)
    edge = (SATURATION * temperature).clamp(max=torch.finfo(kept).max / 2)
    none_left, all_taken = soft & (remaining == 0), soft & (remaining == finite_count)
    hi = torch.where(all_taken, lowest, torch.where(none_left, highest, hi))
    lo = torch.where(all_taken, -edge, torch.where(none_left, edge, lo))
    no_finite = soft & (finite_count == 0)
    hi, lo = hi.masked_fill(no_finite, 0.0), lo.masked_fill(no_finite, 0.0)

    settled = answerable & ~soft
    if bool(settled.any()):  # a sort that soft rows should not pay for
        boundary, share = _hard_limit(scores, budget)
        hi, lo = torch.where(settled, boundary, hi), torch.where(settled, share, lo)
    return hi.masked_fill(~answerable, math.nan), lo.masked_fill(~answerable, math.nan)


def _usable(temperature: Tensor, kept: torch.dtype) -> Tensor:
    return (temperature >= 0) & (temperature <= max_temperature(kept))


def renormalise(hi: Tensor, lo: Tensor, kept: torch.dtype) -> tuple[Tensor, Tensor]:
    """Move all that the kept dtype can hold of b into hi, exactly, so that lo stays small."""
    limit = torch.finfo(kept).max
    rounded = (hi + lo).clamp(-limit, limit).to(kept).to(hi.dtype)
    return rounded, (hi - rounded) + lo


def _hard_limit(scores: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """(boundary score, share of each score tied with it) as t goes to 0."""
    ordered = scores.sort(-1, descending=True).values
    last = budget.nan_to_num().ceil().long().clamp(1, scores.shape[-1]) - 1
    boundary = ordered.gather(-1, last[:, None])
    above, tied = (scores > boundary).sum(-1), (scores == boundary).sum(-1)
    is_empty = ordered[:, 0] == -math.inf  # no valid score, and a budget of 0
    share = ((budget - above) / tied).masked_fill(is_empty, 0.0)
    return boundary[:, 0].masked_fill(is_empty, 0.0), share


def mask_rows(
    scores: Tensor, hi: Tensor, lo: Tensor, temperature: Tensor, kept: torch.dtype
) -> Tensor:
    """p of rows [rows, n] for thresholds [rows] that are known."""
    hi, lo, t = hi[:, None], lo[:, None], temperature[:, None]
    soft = laplace_cdf(((scores - hi) - lo) / t)
    limit = torch.where(scores == hi, lo, (scores > hi).to(scores.dtype))
    limit = limit.masked_fill(scores == -math.inf, 0.0)
    out = torch.where(is_hard(hi, t, kept), limit, soft)
    return out.masked_fill(hi.isnan(), math.nan)


def _log_mask(
    scores: Tensor,
    budget: Tensor,
    hi: Tensor,
    lo: Tensor,
    temperature: Tensor,
    kept: torch.dtype,
) -> Tensor:
    hi, lo, t = hi[:, None], lo[:, None], temperature[:, None]
    u = distances(scores, hi, lo, t)
    above = torch.log1p(-torch.exp(-u.clamp(min=0)) / 2)
    soft = torch.where(u <= 0, u - math.log(2), above)
    # A budget that the +inf scores use up leaves nothing, not the little that the threshold of
    # such a row would give.
    used_up = (budget == (scores == math.inf).sum(-1))[:, None]
    soft = torch.where(used_up & (scores != math.inf), -math.inf, soft)
    # In the hard limit: a share next to 1 would lose digits if it were rounded first.
    is_over, is_tied = scores > hi, scores == hi
    part, tied = budget - is_over.sum(-1), is_tied.sum(-1).clamp(min=1)
    share = torch.where(2 * part > tied, ((part - tied) / tied).log1p(), (part / tied).log())
    limit = torch.where(is_tied, share[:, None], is_over.to(scores.dtype).log())
    limit = limit.masked_fill(scores == -math.inf, -math.inf)
    out = torch.where(is_hard(hi, t, kept), limit, soft)
    return out.masked_fill(hi.isnan(), math.nan)


def _hard_mask(scores: Tensor, budget: Tensor, soft: Tensor) -> Tensor:
    """Exactly k ones per row, the earliest of tied scores first; NaN where there is no answer."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    chosen = torch.zeros_like(scores).scatter(-1, order, (rank < budget[:, None]).to(scores.dtype))
    whole = (budget == budget.floor())[:, None] & ~soft.isnan().any(-1, keepdim=True)
    return torch.where(whole, chosen, math.nan)

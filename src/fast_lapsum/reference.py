"""The specification: one row at a time, float64, no cleverness.

Every backend is tested against this file. With u_i = (r_i - b) / t and the Laplace CDF sigma,

    p_i = sigma(u_i),   sum_i p_i = k,   phi_i = exp(-|u_i|) / 2,   q = softmax(-|u|).

The threshold b is kept as a pair (hi, lo) with b = hi + lo, because one float cannot hold it when
|b| is large against t. A row in the hard limit (t below the smallest normal number of the dtype in
which thresholds are kept, or more +inf scores than budget) is kept as (boundary score, share of
each score tied with it). Thresholds of float64 scores are kept in float64, all others in float32;
temperatures over a 256th of that dtype's largest number have no answer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Distance from the outermost score, in temperatures, at which a float64 mask is exactly 0 or 1.
SATURATION = 800.0
#: The highest temperature is this part of the largest number: distances of 128 t must exist.
HOTTEST = 256.0
#: Farther away than this phi is 0 however far: differences of such distances must not overflow.
FARTHEST = 1e4
#: Distances that overflow are so large, so that sums of them are finite.
_REACH = torch.finfo(torch.float64).max / 2**20
#: Temperatures from the threshold to the nearest score beyond which both sides weigh the same.
WIDE = 300.0


class Threshold(NamedTuple):
    """The threshold of one row: ``hi + lo``, or (boundary score, tie share) when ``is_hard``."""

    hi: float
    lo: float
    is_hard: bool = False


def solve_row(scores: Tensor, budget: float, temperature: float) -> Threshold:
    """Threshold of one row; a NaN threshold when the row has no answer."""
    valid = scores[scores != -math.inf]
    infinite = int((valid == math.inf).sum())
    valid_count = valid.numel()
    kept = torch.finfo(torch.float64 if scores.dtype == torch.float64 else torch.float32)
    answerable = 0 <= budget <= valid_count and 0 <= temperature <= kept.max / HOTTEST
    if scores.isnan().any() or not answerable:
        return Threshold(math.nan, math.nan)
    if infinite > budget:
        return Threshold(math.inf, budget / infinite, is_hard=True)
    if temperature < kept.tiny:
        return _hard_limit(valid, budget)
    ordered = valid[valid != math.inf].double().sort(descending=True).values
    budget -= infinite
    if len(ordered) == 0:
        return Threshold(0.0, 0.0)
    outside = min(SATURATION * temperature, torch.finfo(torch.float64).max / 2)
    if budget == 0:
        return Threshold(float(ordered[0]), outside)
    if budget == len(ordered):
        return Threshold(float(ordered[-1]), -outside)
    return _closed_form(ordered, budget, temperature)


def _hard_limit(valid: Tensor, budget: float) -> Threshold:
    if len(valid) == 0:
        return Threshold(0.0, 0.0, is_hard=True)
    ordered = valid.sort(descending=True).values
    boundary = ordered[max(math.ceil(budget) - 1, 0)]
    above = int((valid > boundary).sum())
    tied = int((valid == boundary).sum())
    return Threshold(float(boundary), (budget - above) / tied, is_hard=True)


def _closed_form(ordered: Tensor, budget: float, temperature: float) -> Threshold:
    """Find the two neighbouring scores that hold b by bisecting on the index, then the root."""

    def mass_at(index: int) -> float:
        return float(laplace_cdf((ordered - ordered[index]) / temperature).sum())

    below, above = len(ordered), -1  # b lies in [ordered[below], ordered[above]]
    while below - above > 1:
        middle = (below + above) // 2
        above, below = (middle, below) if mass_at(middle) <= budget else (above, middle)

    upper, lower = ordered[: above + 1], ordered[below:]
    # Tail sums relative to the interval's own ends, so that neither can underflow.
    upper_sum = (
        float(torch.exp((ordered[above] - upper) / temperature).sum()) if above >= 0 else 0.0
    )
    lower_sum = (
        float(torch.exp((lower - ordered[below]) / temperature).sum()) if len(lower) else 0.0
    )
    excess = len(upper) - budget
    if above < 0:
        return Threshold(float(ordered[0]), temperature * _log_quotient(lower_sum, 2 * budget))
    if not len(lower):
        return Threshold(float(ordered[-1]), -temperature * _log_quotient(upper_sum, 2 * excess))
    half_gap = float(ordered[above] / 2 - ordered[below] / 2)  # the gap itself may overflow
    coupling = math.sqrt(upper_sum * lower_sum) * math.exp(-half_gap / temperature)
    root = math.hypot(excess, coupling)
    if excess > 0:
        return Threshold(
            float(ordered[above]), -temperature * _log_quotient(upper_sum, root + excess)
        )
    if excess < 0:
        return Threshold(
            float(ordered[below]), temperature * _log_quotient(lower_sum, root - excess)
        )
    # Both sums are equal at b, a little off the middle: from the end that is nearer.
    aside = temperature * math.log(lower_sum / upper_sum) / 2
    if aside < 0:
        return Threshold(float(ordered[below]), half_gap + aside)
    return Threshold(float(ordered[above]), aside - half_gap)


def _log_quotient(total: float, share: float) -> float:
    """log(total / share): a denormal share makes the quotient overflow."""
    quotient = total / share
    return math.log(quotient) if quotient < math.inf else math.log(total) - math.log(share)


def laplace_cdf(u: Tensor) -> Tensor:
    """sigma(u) = e^u / 2 for u <= 0 and 1 - e^-u / 2 for u > 0."""
    half = torch.exp(-u.abs()) / 2
    return torch.where(u > 0, 1 - half, half)


def distances(scores: Tensor, threshold: Threshold, temperature: float) -> Tensor:
    """u = ((r - hi) - lo) / t in float64, by halves: r - hi may be over the largest float."""
    half = (scores.double() / 2 - threshold.hi / 2) - threshold.lo / 2
    return half / temperature * 2


def _reached(scores: Tensor, threshold: Threshold, temperature: float) -> tuple[Tensor, Tensor]:
    """The finite scores of a soft row, and their distances, which do not overflow."""
    live = scores.isfinite() & (not threshold.is_hard)
    if threshold.is_hard:
        return scores.double(), live
    return distances(scores, threshold, temperature).clamp(-_REACH, _REACH), live


def mask_row(scores: Tensor, threshold: Threshold, temperature: float) -> Tensor:
    """The soft mask p of one row, in float64."""
    if math.isnan(threshold.hi):
        return torch.full_like(scores, math.nan, dtype=torch.float64)
    if threshold.is_hard:
        share = torch.full_like(scores, threshold.lo, dtype=torch.float64)
        mask = torch.where(scores == threshold.hi, share, (scores > threshold.hi).double())
        return mask.masked_fill(scores == -math.inf, 0.0)
    return laplace_cdf(distances(scores, threshold, temperature))


def vjp_row(
    grad: Tensor, scores: Tensor, threshold: Threshold, temperature: float
) -> tuple[Tensor, float, float]:
    """Gradients of <grad, p> for scores, budget and temperature, in float64."""
    grad = grad.double()
    if math.isnan(threshold.hi):
        return torch.full_like(grad, math.nan), math.nan, math.nan
    if threshold.is_hard:
        return torch.zeros_like(grad), 0.0, 0.0
    u, live = _reached(scores, threshold, temperature)
    if not live.any():
        return torch.zeros_like(grad), 0.0, 0.0
    phi = torch.exp(-u.abs()) / 2
    q, _ = shares_row(scores, u, live, temperature)
    grad, u = torch.where(live, grad, 0.0), torch.where(live, u, 0.0)
    u = u.clamp(-FARTHEST, FARTHEST)
    mean_grad = (grad * q).sum()
    d_scores = phi / temperature * (grad - mean_grad)
    # From the score with most weight: what q lacks of 1 by rounding has no part in the difference.
    from_nearest = u - u[q.argmax()]
    d_temperature = -(grad * phi * (from_nearest - (q * from_nearest).sum())).sum() / temperature
    return d_scores, float(mean_grad), float(d_temperature)


def log_mask_row(scores: Tensor, threshold: Threshold, budget: float, temperature: float) -> Tensor:
    """log p of one row, in float64; p itself may have underflowed."""
    if math.isnan(threshold.hi):
        return mask_row(scores, threshold, temperature)
    if threshold.is_hard:
        return _log_limit_row(scores, threshold.hi, budget)
    if budget == int((scores == math.inf).sum()):  # nothing is left for finite scores
        return (scores == math.inf).double().log()
    u = distances(scores, threshold, temperature)
    return torch.where(u > 0, torch.log1p(-torch.exp(-u.abs()) / 2), u - math.log(2))


def _log_limit_row(scores: Tensor, boundary: float, budget: float) -> Tensor:
    """log p in the hard limit; that of a share next to 1 is not taken from its rounded value."""
    tied = int((scores == boundary).sum())
    part = budget - int((scores > boundary).sum())
    share = torch.tensor(part / max(tied, 1), dtype=torch.float64).log()
    if 2 * part > tied:
        share = torch.tensor((part - tied) / tied, dtype=torch.float64).log1p()
    out = torch.where(scores == boundary, share, (scores > boundary).double().log())
    return out.masked_fill(scores == -math.inf, -math.inf)


def log_vjp_row(
    grad: Tensor, scores: Tensor, threshold: Threshold, temperature: float
) -> tuple[Tensor, float, float]:
    """Gradients of <grad, log p> for scores, budget and temperature, in float64."""
    grad = grad.double()
    if math.isnan(threshold.hi):
        return torch.full_like(grad, math.nan), math.nan, math.nan
    u = distances(scores, threshold, temperature) if not threshold.is_hard else scores.double()
    live = u.isfinite() & (not threshold.is_hard)  # no log p is infinite
    if not live.any():
        return torch.zeros_like(grad), 0.0, 0.0
    q, mean_u = shares_row(scores, u, live, temperature)
    grad, u = torch.where(live, grad, 0.0), torch.where(live, u, 0.0)
    half = torch.exp(-u.clamp(min=0)) / 2  # above the threshold p = 1 - half and phi = half
    weighted = grad * torch.where(u > 0, half / (1 - half), 1.0)  # grad phi / p
    d_scores = torch.where(live, (weighted - q * weighted.sum()) / temperature, 0.0)
    d_budget = (torch.where(u > 0, grad / (1 - half), 0.0) * q).sum()
    # Below it q / p is 1 / sum(phi).
    d_budget += torch.where(u > 0, 0.0, grad).sum() * _inverse_density(u, live)
    d_temperature = -((weighted * u).sum() - weighted.sum() * mean_u) / temperature
    return d_scores, float(d_budget), float(d_temperature)


def threshold_vjp_row(
    grad: float, scores: Tensor, threshold: Threshold, temperature: float
) -> tuple[Tensor, float, float]:
    """Gradients of grad * b for scores, budget and temperature, in float64."""
    if math.isnan(threshold.hi):
        return torch.full_like(scores, math.nan, dtype=torch.float64), math.nan, math.nan
    u, live = _reached(scores, threshold, temperature)
    if not live.any():
        return torch.zeros_like(u), 0.0, 0.0
    q, mean_u = shares_row(scores, u, live, temperature)
    u = torch.where(live, u, 0.0)
    d_budget = -grad * temperature * _inverse_density(u, live)
    return grad * q, d_budget, -grad * mean_u


def shares_row(scores: Tensor, u: Tensor, live: Tensor, temperature: float) -> tuple[Tensor, float]:
    """q = softmax(-|u|) of the scores that take part, and <q, u>.

    If the threshold is in a wide gap, the budget is the number of scores above it, and either side
    has half of q. There u is no help: the threshold is rounded, and by many temperatures.
    """
    decay = torch.where(live, -u.abs(), -math.inf)
    q = softmax(decay)
    above, below = live & (u > 0), live & (u <= 0)
    if not (above.any() and below.any() and decay.max() < -WIDE):
        return q, float((q * torch.where(live, u, 0.0)).sum())
    logs, means = [], []
    for side, end in ((above, scores[above].min()), (below, scores[below].max())):
        away = ((scores[side].double() / 2 - end.double() / 2) / temperature * 2).abs()
        away = away.clamp(max=_REACH)
        q[side] = softmax(-away) / 2
        logs.append(float(torch.logsumexp(-away, dim=0)))
        means.append(float((q[side] * away).sum()))
    # Equal sums on both sides say how much farther away the nearest score above is.
    return q, means[0] - means[1] + (logs[0] - logs[1]) / 2


def softmax(x: Tensor) -> Tensor:
    """torch.softmax adds numbers one by one: of thousands it is off by as many roundings."""
    found = torch.exp(x - x.max())
    return found / found.sum()


def _inverse_density(u: Tensor, live: Tensor) -> float:
    """1 / sum(phi), finite: where it would overflow it is only ever multiplied with zero."""
    log_density = float(torch.logsumexp(torch.where(live, -u.abs(), -math.inf), 0)) - math.log(2)
    return math.exp(min(-log_density, math.log(torch.finfo(torch.float64).max) - 10))


def select_row(
    scores: Tensor, count: int, temperature: float, is_sorted: bool = False
) -> tuple[Tensor, Tensor]:
    """Places of the ``count`` largest scores, the earliest of ties, and the soft mask's p there.

    A row of fewer valid scores gives all of them, then -1 with weight 0; without an answer it has
    -1 with weight NaN.
    """
    valid = int((scores != -math.inf).sum())
    budget = min(count, valid)
    threshold = solve_row(scores, budget, temperature)
    indices, weights = torch.full((count,), -1), torch.zeros(count, dtype=torch.float64)
    if math.isnan(threshold.hi):
        return indices, weights.fill_(math.nan)
    places = scores.double().sort(descending=True, stable=True).indices[:budget]
    places = places if is_sorted else places.sort().values
    indices[:budget] = places
    weights[:budget] = mask_row(scores, threshold, temperature)[places]
    return indices, weights


def hard_row(scores: Tensor, budget: float) -> Tensor:
    """Exactly k ones at the largest scores, the earliest of ties; NaN without an answer."""
    mask = torch.zeros_like(scores, dtype=torch.float64)
    if math.isnan(solve_row(scores, budget, 0.0).hi) or budget != int(budget):
        return mask.fill_(math.nan)
    mask[select_row(scores, int(budget), 0.0)[0]] = 1.0
    return mask


def clamped_budget(scores: Tensor, budget: float, hard: bool = False) -> float:
    """k limited to the number of valid scores of the row, and rounded down for a hard mask.

    Where it is limited the gradient for k is 0; rounding down leaves the gradient alone.

    >>> clamped_budget(torch.tensor([1.0, -math.inf, 2.0]), 2.5), clamped_budget(torch.ones(3), 2.5)
    (2.0, 2.5)
    """
    limited = min(budget, float((scores != -math.inf).sum()))
    return float(math.floor(limited)) if hard else limited


def boundary_row(scores: Tensor, budget: float) -> float:
    """The largest score that the hard mask leaves out: b with scores > b the mask, up to ties at b.

    -inf where no valid score is left out; NaN without an answer.

    >>> boundary_row(torch.tensor([4.0, 1.0, 3.0]), 2)
    1.0
    """
    if math.isnan(solve_row(scores, budget, 0.0).hi) or budget != int(budget):
        return math.nan
    return max(scores[hard_row(scores, budget) == 0].tolist(), default=-math.inf)


def sample_row(scores: Tensor, budget: float, temperature: float, start: float) -> Tensor:
    """Systematic sampling: score i is taken where the running sum of p passes one of start + j.

    j = 0, 1, ..., k - 1 and 0 <= start < 1, so that exactly k are taken, each with probability p_i.
    """
    p = mask_row(scores, solve_row(scores, budget, temperature), temperature)
    if p.isnan().any() or budget != int(budget):
        return torch.full_like(p, math.nan)
    sums = p.cumsum(0)
    passed = (sums.floor() + (sums % 1 > start)).clamp(0, budget)  # how many of start + j are below
    passed[p.flip(0).cumsum(0).flip(0) == p] = budget  # from the last p > 0 on, however sums round
    return torch.diff(passed, prepend=torch.zeros(1, dtype=torch.float64))


def soft_topk(scores: Tensor, k: Tensor | float, temperature: Tensor | float) -> Tensor:
    """The mask of every row along the last dimension, in float64; k and temperature per row.

    >>> round(float(soft_topk(torch.tensor([3.0, 1.0, 2.0]), 1, 0.5).sum()), 15)
    1.0
    """
    rows = scores.reshape(-1, scores.shape[-1])
    outer = scores.shape[:-1]
    budgets = torch.as_tensor(k, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    temperatures = (
        torch.as_tensor(temperature, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    )
    masks = [
        mask_row(row, solve_row(row, budget, t), t)
        for row, budget, t in zip(rows, budgets, temperatures, strict=True)
    ]
    if not masks:
        return torch.zeros(scores.shape, dtype=torch.float64)
    return torch.stack(masks).reshape(scores.shape)

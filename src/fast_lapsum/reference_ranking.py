"""The specification of soft ranks, sorts, quantiles and permutations: pairwise, float64.

Every backend is tested against this file. With the Laplace CDF F and phi(u) = exp(-|u|) / 2,

    R_i = 1/2 + sum_j F((r_i - r_j) / t),      b(m):  sum_i F((b - r_i) / t) = m,
    P_ij = F((b(j) - r_i) / t) - F((b(j - 1) - r_i) / t),    b(0) = -inf, b(n) = +inf.

Equal scores count half, infinite ones too. Below the smallest normal number t is the hard limit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .reference import Threshold, laplace_cdf, softmax, solve_row


def is_hard(scores: Tensor, temperature: float) -> bool:
    """Whether t is below the smallest normal number of the dtype that results have."""
    kept = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return temperature < torch.finfo(kept).tiny


def differences(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """(left_i - right_j) / t, by halves; 0 for equal scores, infinite in the hard limit."""
    hard = is_hard(right, temperature)
    left, right = left.double()[:, None], right.double()[None]
    u = (left / 2 - right / 2) / (1.0 if hard else temperature) * 2
    u = torch.where(left > right, math.inf, -math.inf).double() if hard else u
    return torch.where(left == right, 0.0, u)


def rank_row(scores: Tensor, temperature: float) -> Tensor:
    """Soft ranks of one row, 1 for the smallest; NaN for a row with a NaN.

    >>> rank_row(torch.tensor([5.0, 7.0, 5.0]), 0.0).tolist()
    [1.5, 3.0, 1.5]
    """
    if scores.isnan().any():
        return torch.full_like(scores, math.nan, dtype=torch.float64)
    return 0.5 + laplace_cdf(differences(scores, scores, temperature)).sum(1)


def rank_vjp_row(grad: Tensor, scores: Tensor, temperature: float) -> tuple[Tensor, float]:
    """Gradients of <grad, R> for scores and temperature."""
    grad = grad.double()
    if scores.isnan().any():
        return torch.full_like(grad, math.nan), math.nan
    u = differences(scores, scores, temperature)
    is_live = scores.isfinite() & (not is_hard(scores, temperature))
    phi = torch.where(is_live[:, None] & is_live[None], torch.exp(-u.abs()) / 2, 0.0)
    t = temperature if is_live.any() else 1.0
    d_scores = (phi * (grad[:, None] - grad[None])).sum(1) / t
    moved = torch.where(phi > 0, phi * u, 0.0)
    return d_scores, -float((grad[:, None] * moved).sum()) / t


def quantile_row(scores: Tensor, mass: float, temperature: float) -> Threshold:
    """b with the mass m, 0 < m < n, as a pair; infinite where that many scores are.

    Where m scores are -inf and all others +inf every number has the mass, and b is 0.

    >>> quantile_row(torch.tensor([4.0, 1.0, 3.0, 2.0]), 2.0, 0.0).hi
    2.5
    """
    n = len(scores)
    if scores.isnan().any():
        return Threshold(math.nan, math.nan)
    ordered = scores.double().sort().values
    finite = int(scores.isfinite().sum())
    lowest, highest = int((ordered == -math.inf).sum()), int((ordered < math.inf).sum())
    if mass <= lowest and lowest:
        return Threshold(-math.inf if mass < lowest or finite else 0.0, 0.0)
    if mass >= highest and highest < n:
        return Threshold(math.inf, 0.0)
    if is_hard(scores, temperature):
        at = math.ceil(mass) - 1
        if mass == int(mass):
            return Threshold(float(ordered[at] / 2 + ordered[at + 1] / 2), 0.0)
        return Threshold(float(ordered[at]), 0.0)
    return solve_row(scores, n - mass, temperature)


def quantile_vjp_row(grad: float, scores: Tensor, b: Threshold, temperature: float) -> Tensor:
    """Gradient of grad * b for the scores of a soft row: the softmax of -|b - r_i| / t."""
    half = (scores.double() / 2 - b.hi / 2) - b.lo / 2
    return grad * softmax(-(half / temperature * 2).abs())


def permutation_row(scores: Tensor, temperature: float) -> Tensor:
    """P of one row of finite scores, [score, place]."""
    n = len(scores)
    columns = [torch.zeros(n, dtype=torch.float64)]
    for mass in range(1, n):
        b = quantile_row(scores, mass, temperature)
        if is_hard(scores, temperature):
            columns.append(_hard_column(scores, mass))
            continue
        half = (b.hi / 2 - scores.double() / 2) + b.lo / 2
        columns.append(laplace_cdf(half / temperature * 2))
    columns.append(torch.ones(n, dtype=torch.float64))
    return torch.stack(columns, 1).diff(dim=1)


def _hard_column(scores: Tensor, mass: int) -> Tensor:
    """What lies below place ``mass`` of every score: 1, 0, or an even share of a tied one."""
    boundary = scores.sort().values[mass - 1]
    below = int((scores < boundary).sum())
    tied = int((scores == boundary).sum())
    share = (mass - below) / tied
    return torch.where(scores == boundary, share, (scores < boundary).double())

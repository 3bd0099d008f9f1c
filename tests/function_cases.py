"""What the reference says of log p and of thresholds, and how close is close, for every test.

As in ``cases.py`` tolerances come from the data: a few units in the last place of u, and what they
mean for what is made of it. With w = g phi / p, W = sum(w) and q = softmax(-|u|) the gradients are

    log p      d r = (w - q W) / t   d k = <g / p, q>         d t = -(<w, u> - W <q, u>) / t
    threshold  d r = g q             d k = -g t / sum(phi)    d t = -g <q, u>.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cases import U_ROUNDING, compute_dtype, num_threads, ulp
from fast_lapsum import reference

#: Roundings of a sum of floats before it goes on in float64, in units of eps.
SUM_ROUNDING = 16.0


class Wanted(NamedTuple):
    """A function's value and gradients of rows [rows, n], and how far a backend may be off."""

    value: Tensor
    d_scores: Tensor
    d_budget: Tensor
    d_temperature: Tensor
    value_tolerance: Tensor
    d_scores_tolerance: Tensor
    d_budget_tolerance: Tensor
    d_temperature_tolerance: Tensor


class _Slack(NamedTuple):
    """u of one row in float64, and what its rounding comes to."""

    u: Tensor
    q: Tensor
    live: Tensor
    eps: float
    of_u: Tensor  # of each u, that of the threshold included
    of_threshold: Tensor  # of b, in temperatures
    of_mean_u: Tensor
    tiny: Tensor  # of q: what is smaller than the smallest normal number may be 0


def wanted(
    function: str,
    scores: Tensor,
    k: Tensor | float,
    temperature: Tensor | float,
    grad: Tensor,
    out_dtype: torch.dtype | None = None,
) -> Wanted:
    """The reference for rows [..., n] of "log" or "threshold", whose grad has no last dimension."""
    outer = scores.shape[:-1]
    rows = scores.reshape(-1, scores.shape[-1])
    grads = grad.reshape(len(rows), -1)
    ks = torch.as_tensor(k, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    ts = torch.as_tensor(temperature, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    row_wanted = ROWS[function]
    with num_threads(1):
        found = [
            row_wanted(row, budget, t, g, out_dtype or scores.dtype)
            for row, budget, t, g in zip(rows, ks, ts, grads, strict=True)
        ]
    columns = [torch.stack(column) for column in zip(*found, strict=True)]
    return Wanted(*(x.reshape((*outer, *x.shape[1:])) for x in columns))


def _slack(scores: Tensor, threshold: reference.Threshold, t: float) -> _Slack:
    info = torch.finfo(compute_dtype(scores.dtype))
    u = reference.distances(scores, threshold, t)
    live = u.isfinite()
    u = torch.where(live, u, 0.0)
    q = torch.softmax(torch.where(live, -u.abs(), -math.inf), 0).nan_to_num(nan=0.0)
    of_u = U_ROUNDING * info.eps * (1 + u.abs())
    of_threshold = (q * of_u).sum() + SUM_ROUNDING * info.eps
    mean_u = (q * u).sum()
    # q is a ratio: each share is off by what its own u is, and by what they are on average.
    of_q = of_u + of_threshold
    of_mean_u = (q * (of_u + (u - mean_u).abs() * of_q)).sum() + of_threshold
    # Sums under 2^-60 are taken relative to the nearest scores.
    density = torch.exp(-u.abs()[live]).sum().clamp(min=2.0**-60)
    tiny = 4 * info.tiny / torch.where(density == 2.0**-60, 1.0, density).clamp(max=1.0)
    return _Slack(u, q, live, info.eps, of_u + of_threshold, of_threshold, of_mean_u, tiny)


def _log_row(scores: Tensor, k: float, t: float, grad: Tensor, out_dtype: torch.dtype) -> Wanted:
    threshold = reference.solve_row(scores, k, t)
    value = reference.log_mask_row(scores, threshold, k, t)
    found = reference.log_vjp_row(grad, scores, threshold, t)
    info = torch.finfo(compute_dtype(scores.dtype))
    rounding = ulp(value.nan_to_num(neginf=0.0), out_dtype) + info.tiny
    if threshold.is_hard or math.isnan(threshold.hi):
        return _settled(value, found, rounding)
    slack = _slack(scores, threshold, t)
    u, q, of_u, eps = slack.u, slack.q, slack.of_u, slack.eps
    g = torch.where(slack.live, grad.double(), 0.0).abs()
    half = torch.exp(-u.clamp(min=0)) / 2
    is_above = u > 0
    ratio = torch.where(is_above, half / (1 - half), 1.0)
    w = g * ratio
    # Above the threshold phi / p moves with u by up to twice itself; below it is 1.
    of_w = w * (2 * of_u * is_above + 2 * eps)
    total, of_total = w.sum(), of_w.sum() + SUM_ROUNDING * eps * w.sum()
    of_q = q * (2 * of_u + slack.of_threshold + eps) + slack.tiny
    d_scores_error = (of_w + of_q * total + q * of_total) / t
    above, below = torch.where(is_above, g / (1 - half), 0.0), torch.where(is_above, 0.0, g).sum()
    density = torch.logsumexp(torch.where(slack.live, -u.abs(), -math.inf), 0) - math.log(2)
    inverse = torch.exp(-density).clamp(max=torch.finfo(torch.float64).max / 1e5)
    of_inverse = torch.expm1((2 * (q * of_u).sum() + SUM_ROUNDING * eps).clamp(max=700.0))
    d_budget_error = (above * (of_q + 2 * q * of_u)).sum() + SUM_ROUNDING * eps * (above * q).sum()
    d_budget_error += (below * inverse) * (of_inverse + SUM_ROUNDING * eps)
    mean_u = (q * u).sum()
    d_t_error = (of_w * (u.abs() + mean_u.abs())).sum() + (w * of_u).sum()
    d_t_error += SUM_ROUNDING * eps * ((w * u.abs()).sum() + total * mean_u.abs())
    d_t_error += of_total * mean_u.abs() + total * slack.of_mean_u
    tiny = info.tiny / t * (1 + g.sum())
    dtype = scores.dtype
    return Wanted(
        value,
        found[0],
        torch.tensor(found[1], dtype=torch.float64),
        torch.tensor(found[2], dtype=torch.float64),
        rounding + ratio * of_u,
        ulp(found[0], dtype) + d_scores_error + tiny + torch.finfo(dtype).tiny,
        d_budget_error + info.tiny * (1 + g.sum()),
        d_t_error / t + tiny,
    )


def _threshold_row(
    scores: Tensor, k: float, t: float, grad: Tensor, out_dtype: torch.dtype
) -> Wanted:
    threshold = reference.solve_row(scores, k, t)
    g = float(grad)
    found = reference.threshold_vjp_row(g, scores, threshold, t)
    kept = compute_dtype(scores.dtype)
    value = torch.tensor(
        threshold.hi if threshold.is_hard else threshold.hi + threshold.lo, dtype=torch.float64
    )
    limit = torch.finfo(kept).max
    rounding = ulp(value.clamp(-limit, limit), kept)
    if threshold.is_hard or math.isnan(threshold.hi):
        return _settled(value, found, rounding)
    slack = _slack(scores, threshold, t)
    of_inverse = torch.expm1(((slack.q * slack.of_u).sum() * 2).clamp(max=700.0))
    size = abs(g)
    d_budget = torch.tensor(found[1], dtype=torch.float64)
    return Wanted(
        value,
        found[0],
        d_budget,
        torch.tensor(found[2], dtype=torch.float64),
        rounding + t * slack.of_threshold,
        ulp(found[0], scores.dtype)
        + size * slack.q * (2 * slack.of_u + slack.of_threshold)
        + (1 + size) * slack.tiny,
        d_budget.abs() * (of_inverse + SUM_ROUNDING * slack.eps) + slack.tiny,
        size * (slack.of_mean_u + slack.tiny * slack.u.abs().sum()) + slack.tiny,
    )


def _settled(value: Tensor, found: tuple[Tensor, float, float], rounding: Tensor) -> Wanted:
    """A row in the hard limit, or without an answer: gradients are 0 or NaN."""
    zero = torch.zeros((), dtype=torch.float64)
    per_row = (zero + found[1], zero + found[2])
    return Wanted(value, found[0], *per_row, rounding, torch.zeros_like(found[0]), zero, zero)


ROWS: dict[str, Callable[..., Wanted]] = {"log": _log_row, "threshold": _threshold_row}

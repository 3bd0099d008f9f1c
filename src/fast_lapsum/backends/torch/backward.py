"""The gradients in plain torch (the paper's eq. vjp), for threshold pairs that are known.

With u = ((r - hi) - lo) / t, phi = e^-|u| / 2 and q = softmax(-|u|):

    mask       d r = phi / t (g - <g, q>)   d k = <g, q>            d t = -<g phi, u - <q, u>> / t
    log p      d r = (w - q sum(w)) / t     d k = <g / p, q>        d t = -<w, u - <q, u>> / t
    threshold  d r = g q                    d k = -g t / sum(phi)   d t = -g <q, u>

with w = g phi / p, where phi / p is 1 below the threshold however small both are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import compute_dtype, distances, half_distances, is_hard, per_row_values
from ..shares import inverse_density, reached, shares_of
from .forward import as_rows

#: Farther away in temperatures phi is 0, and its product with a distance must not be NaN.
FARTHEST = 1e4

Gradients = tuple[Tensor, Tensor, Tensor]


def backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``output`` for scores, and with ``per_row`` for budget and temperature."""
    temperature = per_row_values(temperature, temperature_number, scores)
    row = _SoftRows(scores, temperature, mask, threshold, largest, output == "log")
    if output == "threshold":
        found = _of_threshold(row, grad, largest)
    else:
        grads = grad.reshape(row.u.shape).to(row.u.dtype).masked_fill(~row.live, 0.0)
        found = _of_log_mask(row, grads) if output == "log" else _of_mask(row, grads)
    d_scores, d_budget, d_temperature = found
    settle = torch.where(row.unanswerable, math.nan, 0.0)
    settled = row.is_hard | row.unanswerable
    d_scores = torch.where(settled[:, None], settle[:, None], d_scores)
    d_scores = d_scores if largest else -d_scores
    out = torch.empty_like(scores).copy_(d_scores.reshape(scores.shape))
    if not per_row:
        return out, None, None
    return (
        out,
        torch.where(settled, settle, d_budget).reshape(scores.shape[:-1]),
        torch.where(settled, settle, d_temperature).reshape(scores.shape[:-1]),
    )


class _SoftRows:
    """What the gradients of every row are made of, [rows, n]."""

    def __init__(
        self,
        scores: Tensor,
        temperature: Tensor,
        mask: Tensor | None,
        threshold: Tensor,
        largest: bool,
        is_log: bool,
    ) -> None:
        rows = as_rows(scores, mask, largest)
        hi, lo = threshold.reshape(-1, 2).to(rows.dtype).unbind(-1)
        self.t = temperature.reshape(-1, 1).to(rows.dtype)
        self.is_hard = is_hard(hi, self.t[:, 0], compute_dtype(scores.dtype))
        self.unanswerable = hi.isnan()
        given = rows, hi[:, None], lo[:, None]
        u = distances(*given, self.t) if is_log else reached(half_distances(*given), self.t)
        self.live = (u if is_log else rows).isfinite()  # no log p is infinite
        self.u = u.masked_fill(~self.live, 0.0)
        decay = (-self.u.abs()).masked_fill(~self.live, -math.inf)
        self.phi = torch.exp(decay) / 2
        shares = shares_of(rows, self.u, self.live, self.t, rows.is_cpu)
        self.q, self.mean_u = shares.q, shares.mean[:, 0]
        self.inverse_density = inverse_density(shares.log_density[:, 0])
        self.inverse_density = self.inverse_density.masked_fill(~self.live.any(-1), 0.0)


def _of_mask(row: _SoftRows, grads: Tensor) -> Gradients:
    weighted = grads * row.phi
    mean_grad = (grads * row.q).sum(-1)
    d_scores = (grads - mean_grad[:, None]) * row.phi / row.t
    u = row.u.clamp(-FARTHEST, FARTHEST)
    mean_u = (row.q * u).sum(-1)
    d_temperature = -(weighted * (u - mean_u[:, None])).sum(-1) / row.t[:, 0]
    return d_scores, mean_grad, d_temperature


def _of_log_mask(row: _SoftRows, grads: Tensor) -> Gradients:
    is_below = row.u <= 0
    half = torch.exp(-row.u.clamp(min=0)) / 2
    weighted = grads * torch.where(is_below, 1.0, half / (1 - half))
    total = weighted.sum(-1)
    d_scores = (weighted - row.q * total[:, None]) / row.t
    # q / p is q / (1 - half) above the threshold and 1 / sum(phi) below it.
    d_above = torch.where(is_below, 0.0, grads * row.q / (1 - half)).sum(-1)
    d_below = torch.where(is_below, grads, 0.0).sum(-1) * row.inverse_density
    d_temperature = -((weighted * row.u).sum(-1) - total * row.mean_u) / row.t[:, 0]
    return torch.where(row.live, d_scores, 0.0), d_above + d_below, d_temperature


def _of_threshold(row: _SoftRows, grad: Tensor, largest: bool) -> Gradients:
    # Of b in the caller's sense, which is -b where the smallest are selected.
    g = grad.reshape(-1).to(row.u.dtype)
    g = g if largest else -g
    d_temperature = -g * row.mean_u
    d_scores = torch.where(row.live, g[:, None] * row.q, 0.0)  # where g is no number, too
    return d_scores, -g * row.t[:, 0] * row.inverse_density, d_temperature

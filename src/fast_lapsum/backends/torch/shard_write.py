"""A rank's part of masks and gradients, once all ranks know the thresholds; see backward.py.

What a rank needs of the others' scores for its gradients are sums over whole rows. Those of
e^{-|u|} are relative to the rank's own nearest score, `shift` temperatures from the threshold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import compute_dtype, distances, is_hard
from ..shards import GRADIENT_COLUMNS, Answers, Totals
from .forward import as_rows, mask_rows


def write(
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    answers: Answers,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """What ``output`` says of this rank's scores [..., n]; temperatures and answers are [rows]."""
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype)
    rows, kept = as_rows(scores, mask, largest), compute_dtype(scores.dtype)
    if output == "hard":
        found = _hard(rows, answers)
    elif output == "log":
        found = _log(rows, temperature, answers, kept)
    else:
        found = mask_rows(rows, answers.hi, answers.lo, temperature, kept)
    out = torch.empty_like(scores, dtype=out_dtype)
    return out.copy_(found.reshape(scores.shape))


def _hard(rows: Tensor, answers: Answers) -> Tensor:
    boundary = answers.boundary[:, None]
    is_tied = rows == boundary
    is_early = is_tied.cumsum(-1) <= answers.quota[:, None]
    chosen = (rows > boundary) | (is_tied & is_early)
    return chosen.to(rows.dtype).masked_fill(boundary.isnan(), math.nan)


def _log(rows: Tensor, temperature: Tensor, answers: Answers, kept: torch.dtype) -> Tensor:
    hi, lo, t = answers.hi[:, None], answers.lo[:, None], temperature[:, None]
    u = distances(rows, hi, lo, t)
    above = torch.log1p(-torch.exp(-u.clamp(min=0)) / 2)
    soft = torch.where(u <= 0, u - math.log(2), above)
    is_left = answers.is_used_up[:, None] & (rows != math.inf)
    soft = torch.where(is_left, -math.inf, soft)
    limit = torch.where(rows == hi, answers.log_share[:, None], (rows > hi).to(rows.dtype).log())
    limit = limit.masked_fill(rows == -math.inf, -math.inf)
    out = torch.where(is_hard(hi, t, kept), limit, soft)
    return out.masked_fill(hi.isnan(), math.nan)


class _Part:
    """u of this rank's scores [rows, n], and e^{-|u|} relative to the nearest."""

    def __init__(
        self,
        scores: Tensor,
        temperature: Tensor,
        mask: Tensor | None,
        threshold: Tensor,
        largest: bool,
    ) -> None:
        rows = as_rows(scores, mask, largest)
        hi, lo = threshold.reshape(-1, 2).to(rows.dtype).unbind(-1)
        settled = is_hard(hi, temperature, compute_dtype(scores.dtype)) | hi.isnan()
        self.t = torch.where(settled, 1.0, temperature)[:, None]
        u = distances(rows, hi[:, None], lo[:, None], self.t)
        self.live = u.isfinite() & ~settled[:, None]
        self.u = u.masked_fill(~self.live, 0.0)
        distance = self.u.abs().masked_fill(~self.live, math.inf)
        # A rank may have no scores at all.
        self.shift = torch.nn.functional.pad(distance, (0, 1), value=math.inf).amin(-1)
        self.distance = distance

    def decay(self, shift: Tensor) -> Tensor:
        """e^{shift - |u|}, and 0 for what takes no part."""
        return torch.exp(shift[:, None] - self.distance).masked_fill(~self.live, 0.0)

    def only_live(self, grad: Tensor) -> Tensor:
        return grad.reshape(self.u.shape).to(self.u.dtype).masked_fill(~self.live, 0.0)

    def log_weights(self, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """g phi / p, g / p above the threshold (0 below), and g below it (0 above)."""
        is_below = self.u <= 0
        half = torch.exp(-self.u.clamp(min=0)) / 2
        over_p = grads / (1 - half)
        weighted = torch.where(is_below, grads, half * over_p)
        return weighted, over_p.masked_fill(is_below, 0.0), grads.masked_fill(~is_below, 0.0)


def gradient_sums(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
) -> Tensor:
    """This rank's part of the sums that gradients of ``output`` need, [rows, 7]."""
    part = _Part(scores, temperature, mask, threshold, largest)
    e = part.decay(part.shift)
    found = [part.shift, e.sum(-1), (part.u * e).sum(-1)]
    zero = torch.zeros_like(part.shift)
    if output == "threshold":
        g = grad.reshape(-1).to(e.dtype)
        found += [g if largest else -g, zero, zero, zero]
    elif output == "log":
        weighted, above, below = part.log_weights(part.only_live(grad))
        found += [weighted.sum(-1), (weighted * part.u).sum(-1), (above * e).sum(-1), below.sum(-1)]
    else:
        grads = part.only_live(grad)
        found += [(grads * e).sum(-1), (grads * part.u * e).sum(-1), zero, zero]
    assert len(found) == GRADIENT_COLUMNS
    return torch.stack(found, -1)


def write_gradient(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    totals: Totals,
    largest: bool,
    output: str,
) -> Tensor:
    """The gradient for this rank's scores, from the sums over whole rows, [rows] each."""
    part = _Part(scores, temperature, mask, threshold, largest)
    q = part.decay(totals.shift) / totals.e[:, None]
    level = totals.level[:, None]
    if output == "threshold":
        found = level * q
    elif output == "log":
        weighted = part.log_weights(part.only_live(grad))[0]
        found = ((weighted - q * level) / part.t).masked_fill(~part.live, 0.0)
    else:
        found = torch.exp(-part.distance) / 2 / part.t * (part.only_live(grad) - level)
    found = found if largest else -found
    found = found.masked_fill(threshold.reshape(-1, 2)[:, :1].isnan(), math.nan)
    return torch.empty_like(scores).copy_(found.reshape(scores.shape))

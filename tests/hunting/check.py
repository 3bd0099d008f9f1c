"""Whether rows are right, told without the solver: sums against budgets, some p by p.

The bound of a sum comes from the mask itself. p is rounded to its dtype, and before that u is off
by a few units in the last place of 1 + |u|: so much moves p by phi times that. With eps the spacing
of the dtype that is computed in,

    |sum p - k| <= eps / 2 * sum p + eps * sum phi (S + U (1 + |u|)),   phi = min(p, 1 - p).

U is the units in the last place that u may be off, S what adding up exponentials may lose: every
kernel adds at most 32 of them one after the other before sums go to a tree or into float64.

The sum is taken as #{p > 1/2} - k plus sums of phi, which are exact but for float64's rounding of
those: adding up ones in float64 would round by more than a float64 mask is allowed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cases import U_ROUNDING, expected
from fast_lapsum import soft_topk

from .rows import Batch

#: S above: 32 roundings of half a unit each.
SUM_ROUNDING = 16.0

Verdict = tuple[Tensor, Tensor, Tensor]


def solve(batch: Batch, solver: str = "auto") -> Tensor:
    """The mask, in float32 for half-precision scores: their own rounding would hide a defect."""
    scores = batch.scores
    if solver == "interpreted":
        return interpreted(batch)
    with torch.autocast(scores.device.type, enabled=scores.dtype.itemsize == 2):
        return soft_topk(
            scores,
            batch.k,
            batch.temperature,
            mask=batch.mask,
            largest=batch.largest,
            solver=solver,  # type: ignore[arg-type]
        )


def interpreted(batch: Batch) -> Tensor:
    """The mask by the GPU kernels, run by Triton's interpreter (TRITON_INTERPRET=1)."""
    from interpreting import forward

    out_dtype = torch.float32 if batch.scores.dtype.itemsize == 2 else None
    return forward(*batch[:3], mask=batch.mask, largest=batch.largest, out_dtype=out_dtype)[0]


def judge(batch: Batch, p: Tensor) -> Verdict:
    """Which rows are wrong, by how much their sum is off, and that over its bound; each [rows]."""
    k = torch.as_tensor(batch.k, dtype=torch.float64, device=p.device).expand(p.shape[:-1])
    eps = torch.finfo(p.dtype).eps
    is_most = p > 0.5
    phi = torch.where(is_most, 1 - p, p)
    signed = torch.where(is_most, -phi, phi).sum(-1, dtype=torch.float64)
    error = ((is_most.sum(-1) - k) + signed).abs()
    # phi (S + U (1 + |u|)), with |u| = -log(2 phi)
    constant = SUM_ROUNDING + U_ROUNDING * (1 - math.log(2))
    weight = (constant * phi + U_ROUNDING * torch.special.entr(phi)).sum(-1, dtype=torch.float64)
    n = p.shape[-1]
    adding = torch.finfo(torch.float64).eps * math.log2(n + 1) * phi.sum(-1, dtype=torch.float64)
    bound = eps / 2 * k + eps * weight + adding + torch.finfo(p.dtype).tiny * n
    wrong = ~(error <= bound) | ~(phi >= 0).all(-1)  # a p outside of [0, 1], or a NaN
    if batch.mask is not None:
        wrong |= (p.masked_fill(batch.mask, 0.0) != 0).any(-1)
    has_nan = batch.scores.isnan()
    has_nan = has_nan if batch.mask is None else has_nan & batch.mask
    has_nan = has_nan.any(-1)
    wrong = torch.where(has_nan, ~p.isnan().all(-1), wrong)
    return wrong, error, torch.where(has_nan, 0.0, error / bound)


def against_reference(batch: Batch, solver: str = "auto") -> list[str]:
    """What differs from the float64 reference by more than rounding: p, and the gradients."""
    scores = batch.scores.detach().clone().requires_grad_()
    rows_shape = scores.shape[:-1]
    k, t = (
        torch.as_tensor(x, dtype=torch.float64, device=scores.device)
        .expand(rows_shape)
        .clone()
        .requires_grad_()
        for x in (batch.k, batch.temperature)
    )
    p = solve(batch._replace(scores=scores, k=k, temperature=t), solver)
    g = torch.Generator().manual_seed(scores.shape[-1])
    grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p)
    got = (p, *torch.autograd.grad(p, (scores, k, t), grad))
    side = 1 if batch.largest else -1
    rows = side * batch.scores.cpu()
    rows = rows if batch.mask is None else rows.masked_fill(~batch.mask.cpu(), -math.inf)
    want = expected(rows, k.detach().cpu(), t.detach().cpu(), grad.cpu(), p.dtype)
    got = tuple(x.detach().double().cpu() for x in got)
    got = (got[0], side * got[1], *got[2:])
    # Exponentials are taken at hi and carried to b by a factor of up to e^3: what that makes of
    # the smallest normal number may be 0.
    tiny = torch.finfo(torch.float64 if p.dtype == torch.float64 else torch.float32).tiny
    want = want._replace(mask_tolerance=want.mask_tolerance + 16 * tiny)
    # A gradient may be over the largest number of a half-precision dtype, and infinite then.
    largest = torch.finfo(scores.dtype).max
    want = want._replace(d_scores=want.d_scores.clamp(-largest, largest))
    got = (got[0], got[1].clamp(-largest, largest), *got[2:])
    names = ("mask", "d scores", "d k", "d temperature")
    pairs = zip(names, got, want[:4], want[4:], strict=True)
    return [text for text in (_difference(*pair) for pair in pairs) if text]


def _difference(name: str, actual: Tensor, want: Tensor, tolerance: Tensor) -> str:
    if not torch.equal(actual.isnan(), want.isnan()):
        return f"{name}: NaN in the wrong places"
    excess = ((actual - want).abs() - tolerance).nan_to_num(nan=0.0)
    if not excess.numel() or excess.max() <= 0:
        return ""
    worst = excess.argmax()
    off = (actual - want).reshape(-1)[worst]
    return (
        f"{name}: {want.reshape(-1)[worst]:.6g} is off by {off:.3g}, "
        f"allowed {tolerance.expand_as(actual).reshape(-1)[worst]:.3g}"
    )

"""Whether hard masks, log p, thresholds, random masks and selections are right, and ragged rows.

The soft mask of the same call is what they are held against, and it is hunted by itself; what it
does not say (the tail of log p, which of tied scores are taken, the number of ones) is told from
the scores. A sample of the rows is compared with the float64 reference as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cases import U_ROUNDING
from fast_lapsum import (
    hard_topk_mask,
    log_soft_topk,
    reference,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)
from function_cases import wanted

from .check import SUM_ROUNDING, Verdict, against_reference
from .ragged import MASKS
from .rows import Batch, in_full

#: Rows that are judged at a time are as many as hold so many scores.
AT_ONCE = 1 << 18
#: Below so many times the smallest normal number p may be 0, or have lost digits.
FLOOR = 1024.0


def prepared(function: str, batch: Batch) -> Batch:
    """The batch as the function can be called with it: a whole k, for a selection one for all."""
    if function in ("log", "threshold", *MASKS):
        return batch
    if function == "select":
        k = torch.as_tensor(batch.k, dtype=torch.float64).median().floor()
        return batch._replace(k=float(k))
    return batch._replace(k=batch.k.floor() if isinstance(batch.k, Tensor) else math.floor(batch.k))


def judge_function(function: str, batch: Batch, solver: str = "auto") -> Verdict:
    """Which rows are wrong, and how far from it the others are."""
    rows, n = batch.scores.shape
    at_once = max(1, AT_ONCE // n)
    found = []
    for first in range(0, rows, at_once):
        here = slice(first, first + at_once)
        part = Batch(
            batch.scores[here],
            *(x[here] if isinstance(x, Tensor) else x for x in (batch.k, batch.temperature)),
            None if batch.mask is None else batch.mask[here],
            batch.largest,
        )
        found.append(_judged(function, part, solver))
    off = torch.cat(found)
    zero = torch.zeros_like(off)
    return Verdict(~(off <= 1), zero, zero, off)


def _judged(function: str, batch: Batch, solver: str) -> Tensor:
    """The largest error over what it may be, [rows]; NaN where a row is wrong altogether."""
    scores = batch.scores.float() if batch.scores.dtype.itemsize == 2 else batch.scores
    rows = scores if batch.largest else -scores
    rows = rows if batch.mask is None else rows.masked_fill(~batch.mask, -math.inf)
    off = JUDGES[function](batch, rows, solver)
    has_nan = rows.isnan().any(-1)
    return torch.where(has_nan, torch.where(off.isnan(), 0.0, 2.0), off)


def _call(function: Callable[..., Tensor], batch: Batch, solver: str) -> Tensor:
    with in_full(batch.scores):
        return function(
            *(batch.scores, batch.k, batch.temperature),
            mask=batch.mask,
            largest=batch.largest,
            solver=solver,
        )


def _soft(batch: Batch, solver: str) -> tuple[Tensor, Tensor]:
    """p of the same call, and the part of phi that rounding may move it by."""
    p = _call(soft_topk, batch, solver)
    phi = torch.where(p > 0.5, 1 - p, p)
    info = torch.finfo(p.dtype)
    # Twice: both the mask and what is held against it are rounded.
    units = 2 * (U_ROUNDING * (1 - torch.log(2 * phi.clamp(min=info.tiny))) + SUM_ROUNDING)
    return p, info.eps * (units * phi + p) + FLOOR * info.tiny


def _largest(off: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, off, 0.0).amax(-1) if off.shape[-1] else off.new_zeros(len(off))


def _log(batch: Batch, rows: Tensor, solver: str) -> Tensor:
    p, slack = _soft(batch, solver)
    log_p = _call(log_soft_topk, batch, solver)
    info = torch.finfo(p.dtype)
    by_mask = _largest((log_p - p.log()).abs() / (2 * slack / p), p > 2.0**40 * info.tiny)
    # Below the threshold log p = u - log 2: one of them tells all the others.
    t = torch.as_tensor(batch.temperature, dtype=torch.float64, device=p.device)
    t = t.expand(len(p))[:, None]
    is_below = (log_p <= -math.log(2)) & (log_p > -math.inf) & (t >= info.tiny)
    anchor = torch.where(is_below, log_p, -math.inf).argmax(-1, keepdim=True)
    at = rows.gather(-1, anchor).double()
    u = ((rows.double() - at) / t) + log_p.gather(-1, anchor)
    allowed = info.eps * (4 * U_ROUNDING * (1 + u.abs()) + 2 * log_p.gather(-1, anchor).abs())
    in_range = is_below & (u > -info.max / 4)
    by_tail = _largest((log_p - u).abs() / allowed, in_range)
    left_out = (rows == -math.inf) & (log_p != -math.inf)
    off = torch.maximum(by_mask, by_tail.to(by_mask.dtype))
    wrong = left_out.any(-1) | (log_p > 0).any(-1) | log_p.isnan().any(-1)
    return torch.where(wrong, math.nan, off)


def _threshold(batch: Batch, rows: Tensor, solver: str) -> Tensor:
    """The masses at b, which is one number here, add up to k."""
    b = _call(threshold, batch, solver).double()[:, None]
    b = b if batch.largest else -b
    info = torch.finfo(rows.dtype)
    k, t = (
        torch.as_tensor(x, dtype=torch.float64, device=rows.device).expand(len(rows))[:, None]
        for x in (batch.k, batch.temperature)
    )
    u = torch.where(rows == b, 0.0, (rows.double() - b) / t)
    p = reference.laplace_cdf(u)
    phi = torch.exp(-u.abs()) / 2
    spacing = info.eps * b.abs() / t
    moved = torch.expm1((2 * spacing).clamp(max=60.0))
    error = (p.sum(-1) - k[:, 0]).abs()
    units = U_ROUNDING * (1 + u.abs().clamp(max=1e4)) + SUM_ROUNDING
    bound = (phi * (moved + info.eps * units)).sum(-1) + 1e-12 * (1 + k[:, 0]) + info.tiny
    # In the hard limit, and where one number cannot hold b, the sum says nothing.
    says = (t >= info.tiny) & (b < math.inf) & (spacing < 0.1)
    off = torch.where(says[:, 0], error / bound, 0.0)
    return torch.where(b[:, 0].isnan(), math.nan, off)


def _is_hard_mask(mask: Tensor, rows: Tensor, k: Tensor) -> Tensor:
    """0 where a mask takes the k largest, the earliest of tied scores first; NaN where not."""
    taken = mask == 1
    last = torch.where(taken, rows, math.inf).amin(-1, keepdim=True)
    right = torch.where(taken | (mask == 0), True, False).all(-1) & (taken.sum(-1) == k)
    right &= ~((rows > last) & ~taken).any(-1) & ~(taken & (rows == -math.inf)).any(-1)
    tied = (rows == last) & (last < math.inf)
    tied |= (rows == last) & taken.any(-1, keepdim=True)
    # Once a tied score is left, no later one is taken.
    left = (tied & ~taken).cumsum(-1) > 0
    right &= ~(left & tied & taken).any(-1)
    return torch.where(right, 0.0, math.nan)


def _hard(batch: Batch, rows: Tensor, solver: str) -> Tensor:
    mask = hard_topk_mask(batch.scores, batch.k, mask=batch.mask, largest=batch.largest)
    k = torch.as_tensor(batch.k, device=rows.device).expand(len(rows))
    return _is_hard_mask(mask, rows, k)


def _select(batch: Batch, rows: Tensor, solver: str) -> Tensor:
    count, n = int(batch.k), rows.shape[-1]  # type: ignore[arg-type]
    with in_full(batch.scores):
        chosen = select_topk(
            *(batch.scores, count, batch.temperature), mask=batch.mask, largest=batch.largest
        )
    valid = (rows != -math.inf).sum(-1).clamp(max=count)
    to = torch.where(chosen.indices < 0, n, chosen.indices)
    mask = torch.zeros(len(rows), n + 1, device=rows.device).scatter(-1, to, 1.0)[:, :n]
    off = _is_hard_mask(mask, rows, valid)
    in_order = (to.diff(dim=-1) > 0) | (to[..., 1:] == n)
    p, slack = _soft(batch._replace(k=valid.double()), solver)
    if not count:  # nothing tells of a NaN
        return torch.where(rows.isnan().any(-1), math.nan, off)
    at = chosen.indices.clamp(min=0)
    error = (chosen.weights - p.gather(-1, at)).abs() / slack.gather(-1, at)
    empty = (chosen.indices < 0) & (chosen.weights != 0)
    wrong = empty.any(-1) | ~in_order.all(-1)
    off = torch.maximum(off, _largest(error, chosen.indices >= 0).to(off.dtype))
    return torch.where(wrong, math.nan, off)


def _sample(batch: Batch, rows: Tensor, solver: str) -> Tensor:
    g = torch.Generator(rows.device).manual_seed(rows.numel())
    start = torch.rand(len(rows), generator=g, device=rows.device, dtype=torch.float64)
    g.manual_seed(rows.numel())
    mask = sample_topk(
        *(batch.scores, batch.k, batch.temperature),
        mask=batch.mask,
        largest=batch.largest,
        generator=g,
    )
    p, slack = _soft(batch, solver)
    k = torch.as_tensor(batch.k, dtype=torch.float64, device=rows.device).expand(len(rows))
    right = ((mask == 0) | (mask == 1)).all(-1) & (mask.sum(-1, dtype=torch.float64) == k)
    right &= ~((mask == 1) & (rows == -math.inf)).any(-1)
    # The number taken so far is that of the running sum, which starts at u.
    ahead = mask.double().cumsum(-1) - p.double().cumsum(-1) + start[:, None]
    allowed = 8 * slack.double().sum(-1) + torch.finfo(p.dtype).eps * k + 1e-9
    off = torch.maximum(-ahead.amin(-1), ahead.amax(-1) - 1).clamp(min=0) / allowed
    return torch.where(right, off, math.nan)


def _as_mask(call: Callable[[Batch, str], Tensor]) -> Callable[[Batch, Tensor, str], Tensor]:
    """Another way to the soft mask, held against it."""

    def judged(batch: Batch, rows: Tensor, solver: str) -> Tensor:
        p, slack = _soft(batch, solver)
        found = call(batch, solver)
        off = ((found - p).abs() / slack).amax(-1)
        # A row with a NaN is NaN everywhere: one that is so in places only counts as a number.
        is_partly_nan = rows.isnan().any(-1) & ~found.isnan().all(-1)
        return torch.where(is_partly_nan, 0.0, off)

    return judged


JUDGES: dict[str, Callable[[Batch, Tensor, str], Tensor]] = {
    **{name: _as_mask(call) for name, call in MASKS.items()},
    "hard": _hard,
    "log": _log,
    "threshold": _threshold,
    "sample": _sample,
    "select": _select,
}


def has_reference(function: str, dtype: torch.dtype) -> bool:
    """Whether rows of the function are compared with the reference.

    The reference draws nothing, and has no tolerance for log p and thresholds in half precision.
    """
    return function != "sample" and (dtype.itemsize > 2 or function not in ("log", "threshold"))


def function_against_reference(function: str, batch: Batch, solver: str = "auto") -> list[str]:
    """What differs from the float64 reference by more than rounding, gradients included.

    Hard masks and selections are compared without gradients.
    """
    if function in MASKS:
        return against_reference(batch, solver, MASKS[function])
    side = 1 if batch.largest else -1
    rows = side * batch.scores.cpu()
    rows = rows if batch.mask is None else rows.masked_fill(~batch.mask.cpu(), -math.inf)
    k, t = (float(x) for x in (batch.k, batch.temperature))
    if function == "hard":
        got = hard_topk_mask(batch.scores, batch.k, mask=batch.mask, largest=batch.largest)
        want = reference.hard_row(rows[0], k)
        same = torch.allclose(got[0].double().cpu(), want, rtol=0, atol=0, equal_nan=True)
        return [] if same else ["not the reference's hard mask"]
    if function == "select":
        chosen = select_topk(
            *(batch.scores, int(k), t), mask=batch.mask, largest=batch.largest, sorted=True
        )
        indices, weights = reference.select_row(rows[0], int(k), t, is_sorted=True)
        if not torch.equal(chosen.indices[0].cpu(), indices):
            return ["not the reference's places"]
        close = torch.allclose(
            chosen.weights[0].double().cpu(), weights, rtol=1e-2, atol=1e-2, equal_nan=True
        )
        return [] if close else ["not the reference's weights"]
    return _differentiable_against_reference(function, batch, rows, side, solver)


def _differentiable_against_reference(
    function: str, batch: Batch, rows: Tensor, side: int, solver: str
) -> list[str]:
    scores = batch.scores.detach().clone().requires_grad_()
    call = log_soft_topk if function == "log" else threshold
    value = _call(call, batch._replace(scores=scores), solver)
    g = torch.Generator().manual_seed(scores.shape[-1])
    grad = torch.randn(value.shape, generator=g, dtype=torch.float64).to(value)
    (d_scores,) = torch.autograd.grad(value, scores, grad)
    sided = 1 if function == "log" else side
    want = wanted(
        function,
        rows,
        *(x.cpu() if isinstance(x, Tensor) else x for x in (batch.k, batch.temperature)),
        sided * grad.cpu(),
    )
    if function == "threshold" and not (rows != -math.inf).any():
        return []  # that of nothing is anywhere
    largest = torch.finfo(value.dtype).max
    told = []
    for name, got, wish, tolerance in (
        (function, sided * value, want.value, want.value_tolerance),
        ("d scores", side * d_scores, want.d_scores, want.d_scores_tolerance),
    ):
        got, wish = got.detach().double().cpu(), wish.masked_fill(wish < -largest, -math.inf)
        ends = wish.isinf() | wish.isnan()
        if not torch.allclose(got[ends], wish[ends], equal_nan=True):
            told.append(f"{name}: infinities or NaN in the wrong places")
        excess = ((got - wish).abs() - tolerance).masked_fill(ends, 0.0)
        if excess.numel() and not excess.max() <= 0:
            worst = excess.argmax()
            off, allowed = (got - wish).reshape(-1)[worst], tolerance.expand_as(got).reshape(-1)
            told.append(
                f"{name}: {wish.reshape(-1)[worst]:.6g} is off by {off:.3g}, "
                f"allowed {allowed[worst]:.3g}"
            )
    return told

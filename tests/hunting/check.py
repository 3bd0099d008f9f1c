"""Whether rows are right, told without the solver: p by other p, and sums against budgets.

One p and its score tell the threshold: with u_a the quantile of p_a, it is

    u_i = (r_i - r_a) / t + u_a,   p_i = sigma(u_i)   for all others,

which the p of every row are held against: all of a short row, of others some at fixed random places
and the nearest to the threshold (`fit.py`). What that leaves open is where the threshold lies, and
the budget says it:

    |sum p - k| <= sum rounding(p) + eps * sum phi (S + U (1 + |u|)),   phi = min(p, 1 - p).

eps is the spacing of the dtype that is computed in, and rounding(p) half a unit of p: eps / 2 * p
up to 1/2, beyond it eps / 4, and next to nothing for a score so far up that 1 has all digits of p.
U is the units in the last place of 1 + |u| that u may be off, S what adding up exponentials may
lose: at most 32 of them are added one after the other (CPU kernel: 32 floats or 16 doubles in each
lane; GPU: what a thread holds) before sums go into float64 or are added in pairs.

The sum is taken as #{p > 1/2} - k plus sums of phi, which are exact but for float64's rounding of
those: adding up ones in float64 would round by more than a float64 mask is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cases import U_ROUNDING, expected
from fast_lapsum import soft_topk

from .fit import NEXT_TO_NOTHING, fitted
from .rows import Batch, in_full

#: S above: 32 roundings of half a unit each.
SUM_ROUNDING = 16.0
#: Scores that are judged at a time: on a CPU what fits the cache, elsewhere what fits the memory.
AT_ONCE = {"cpu": 1 << 18}
AT_ONCE_ELSEWHERE = 1 << 24


class Verdict(NamedTuple):
    """What is said of each row; each field is [rows]."""

    wrong: Tensor
    error: Tensor  # |sum p - k|
    over: Tensor  # that over its bound
    misfit: Tensor  # the largest distance of a p from what another p makes of it, over its bound

    def reason(self, index: int) -> str:
        """What is wrong with a row, for people."""
        return (
            f"sum off by {float(self.error[index]):.3g}, {float(self.over[index]):.3g} of its "
            f"bound; a p off by {float(self.misfit[index]):.3g} of its bound"
        )


def solve(batch: Batch, solver: str = "auto") -> Tensor:
    """The mask, in float32 for half-precision scores: their own rounding would hide a defect."""
    scores = batch.scores
    if solver == "interpreted":
        return interpreted(batch)
    with in_full(scores):
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
    """Which rows are wrong, and how far from it the others are."""
    return Verdict(*(torch.cat(column) for column in zip(*_verdicts(batch, p), strict=True)))


def _verdicts(batch: Batch, p: Tensor) -> Iterator[Verdict]:
    at_once = max(1, AT_ONCE.get(p.device.type, AT_ONCE_ELSEWHERE) // p.shape[-1])
    k, t = (
        torch.as_tensor(x, dtype=torch.float64, device=p.device).expand(p.shape[:-1])[:, None]
        for x in (batch.k, batch.temperature)
    )
    for first in range(0, len(p), at_once):
        here = slice(first, first + at_once)
        mask = None if batch.mask is None else batch.mask[here]
        scores = batch.scores[here].to(p.dtype)
        yield _judge(scores if batch.largest else -scores, mask, k[here], t[here], p[here])


def _judge(scores: Tensor, mask: Tensor | None, k: Tensor, t: Tensor, p: Tensor) -> Verdict:
    info, n = torch.finfo(p.dtype), p.shape[-1]
    wrong = torch.zeros(len(p), dtype=torch.bool, device=p.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
        wrong |= (p.masked_fill(mask, 0.0) != 0).any(-1)
    is_most = p > 0.5
    misfit, all_ones_from = fitted(scores, t, p, is_most)

    phi = torch.where(is_most, 1 - p, p)
    signed = torch.where(is_most, -phi, phi).sum(-1, dtype=torch.float64)
    most = is_most.sum(-1)
    error = ((most - k[:, 0]) + signed).abs()
    whole = (scores > all_ones_from).logical_and_(p == 1).sum(-1)
    rounding = (most - whole) / 4 + NEXT_TO_NOTHING * most
    mass = phi.sum(-1, dtype=torch.float64)
    # phi (S + U (1 + |u|)), with |u| = -log(2 phi), and half a unit of p <= 1/2
    constant = SUM_ROUNDING + U_ROUNDING * (1 - math.log(2)) + 0.5
    weight = constant * mass + U_ROUNDING * torch.special.entr(phi).sum(-1, dtype=torch.float64)
    adding = torch.finfo(torch.float64).eps * math.log2(n + 1) * mass
    bound = info.eps * (rounding + weight) + adding + info.tiny * n
    # A p outside of [0, 1], or a NaN, is neither.
    wrong |= ~(error <= bound) | ~(misfit <= 1) | ~(phi.amin(-1) >= 0)
    has_nan = scores.isnan().any(-1)
    wrong = torch.where(has_nan, ~p.isnan().all(-1), wrong)
    zero = torch.zeros_like(error)
    over, misfit = (torch.where(has_nan, zero, x) for x in (error / bound, misfit.double()))
    return Verdict(wrong, error, over, misfit)


def against_reference(
    batch: Batch, solver: str = "auto", call: Callable[[Batch, str], Tensor] = solve
) -> list[str]:
    """What differs from the float64 reference by more than rounding: p, and the gradients.

    ``call`` makes the mask of the batch, which is that of :func:`solve` however it is asked for.
    """
    scores = batch.scores.detach().clone().requires_grad_()
    # As the call was made: a number stays a number, and has no gradient.
    k, t = (
        x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x
        for x in (batch.k, batch.temperature)
    )
    p = call(batch._replace(scores=scores, k=k, temperature=t), solver)
    g = torch.Generator().manual_seed(scores.shape[-1])
    grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p)
    leaves = {"d scores": scores, "d k": k, "d temperature": t}
    wanted = {name: x for name, x in leaves.items() if isinstance(x, Tensor)}
    found = torch.autograd.grad(p, tuple(wanted.values()), grad)
    got = {name: x.detach().double().cpu() for name, x in zip(wanted, found, strict=True)}
    side = 1 if batch.largest else -1
    rows = side * batch.scores.cpu()
    rows = rows if batch.mask is None else rows.masked_fill(~batch.mask.cpu(), -math.inf)
    want = expected(rows, *(_on_host(x) for x in (batch.k, batch.temperature)), grad.cpu(), p.dtype)
    # Exponentials are taken at hi and carried to b by a factor of up to e^3: what that makes of
    # the smallest normal number may be 0.
    tiny = torch.finfo(torch.float64 if p.dtype == torch.float64 else torch.float32).tiny
    want = want._replace(mask_tolerance=want.mask_tolerance + 16 * tiny)
    # A gradient may be over the largest number of a half-precision dtype, and infinite then.
    largest = torch.finfo(scores.dtype).max
    want = want._replace(d_scores=want.d_scores.clamp(-largest, largest))
    got["d scores"] = (side * got["d scores"]).clamp(-largest, largest)
    got["mask"] = p.detach().double().cpu()
    names = ("mask", "d scores", "d k", "d temperature")
    pairs = zip(names, want[:4], want[4:], strict=True)
    told = (_difference(name, got[name], *pair) for name, *pair in pairs if name in got)
    return [text for text in told if text]


def _on_host(x: Tensor | float) -> Tensor | float:
    return x.detach().cpu() if isinstance(x, Tensor) else x


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

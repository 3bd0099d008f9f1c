"""Derivatives: the one fast autograd function, and the same formulas with a graph of their own.

With u = ((r - hi) - lo) / t, phi = e^-|u| / 2 and q = softmax(-|u|) (the paper's eq. vjp):

    scores       phi / t * (g - <g, q>)
    budget       <g, q>
    temperature  -1 / t * sum_i g_i phi_i (u_i - <q, u>)

:class:`SoftTopK` is the eager and compiled path: its backward is one operator call. Under
``torch.func`` transforms and forward-mode AD :class:`TransformableSoftTopK` takes its place, which
costs more per call. Derivatives of derivatives use the formulas above written in torch operations,
in which the threshold itself stays a differentiable function (:class:`ThresholdOffset`), so that
every order is right and not only the second.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _ops
from .solvers.backend import compute_dtype


class Settings(NamedTuple):
    """What a call carries besides tensors."""

    budget_number: float
    temperature_number: float
    largest: bool
    hard: bool
    out_dtype: torch.dtype
    solver: str


_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_storage = torch._C._has_storage
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
#: A backward returns nothing for the settings, which go to the functions one by one: the
#: ``torch.func`` machinery counts the leaves of its arguments.
_NO_GRADIENTS = (None,) * len(Settings._fields)


def soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Mask and threshold pairs of the rows along the last dimension, differentiable."""
    if _transforms_active():
        return TransformableSoftTopK.apply(  # type: ignore[no-any-return,no-untyped-call]
            scores, budget, temperature, mask, warm_start, *settings
        )
    return SoftTopK.apply(scores, budget, temperature, mask, warm_start, settings)  # type: ignore[no-any-return,no-untyped-call]


def _transforms_active() -> bool:
    if torch.compiler.is_compiling():
        return False
    return _functorch_active() or forward_ad._current_level >= 0


def _is_plain(*tensors: Tensor) -> bool:
    """Nothing is watching the operators, so that a call need not go through the dispatcher."""
    if torch.compiler.is_compiling() or _dispatch_modes() or _functorch_active():
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES or tensor.is_neg() or not _has_storage(tensor):
            return False
    return True


def _call_operator(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    warm_start: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    operator = _ops.soft_topk if _is_plain(scores) else torch.ops.fast_lapsum.soft_topk
    return operator(  # type: ignore[no-any-return]
        scores,
        budget,
        settings.budget_number,
        temperature,
        settings.temperature_number,
        mask,
        warm_start,
        settings.largest,
        settings.hard,
        settings.out_dtype,
        settings.solver,
    )


class SoftTopK(torch.autograd.Function):
    """The fast path, in the old style: its bookkeeping costs a third of the new style's."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        out, threshold = _call_operator(scores, budget, temperature, mask, warm_start, settings)
        ctx.save_for_backward(scores, budget, temperature, mask, threshold)
        ctx.settings = settings
        ctx.mark_non_differentiable(threshold)
        ctx.set_materialize_grads(False)  # no zeros for the threshold, which has no gradient
        return out, threshold

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if grad is None:
            return None, None, None, None, None, None
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        settings = ctx.settings
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            grads = _vjp(grad, scores, budget, temperature, mask, threshold, settings)
        else:
            operator = torch.ops.fast_lapsum.soft_topk_backward
            grads = (_ops.soft_topk_backward if _is_plain(grad, scores) else operator)(
                grad,
                scores,
                temperature,
                settings.temperature_number,
                mask,
                threshold,
                settings.largest,
                budget is not None or temperature is not None,
            )
        d_scores, d_budget, d_temperature = grads
        return (
            d_scores,
            None if budget is None else d_budget,
            None if temperature is None else d_temperature,
            None,
            None,
            None,
        )


class TransformableSoftTopK(torch.autograd.Function):
    """The same function for ``torch.func`` transforms and forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        warm_start: Tensor | None,
        *fields: Any,
    ) -> tuple[Tensor, Tensor]:
        return _call_operator(scores, budget, temperature, mask, warm_start, Settings(*fields))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        scores, budget, temperature, mask, _, *fields = inputs
        ctx.save_for_backward(scores, budget, temperature, mask, output[1])
        ctx.save_for_forward(scores, budget, temperature, mask, output[1])
        ctx.settings = Settings(*fields)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        d_scores, d_budget, d_temperature = _vjp(
            grad, scores, budget, temperature, mask, threshold, ctx.settings
        )
        return (
            d_scores,
            None if budget is None else d_budget,
            None if temperature is None else d_temperature,
            None,
            None,
            *_NO_GRADIENTS,
        )

    @staticmethod
    def jvp(  # type: ignore[override]
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> tuple[Tensor, None]:
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        row = _Row(scores, budget, temperature, mask, threshold, ctx.settings)
        tangent = torch.zeros_like(row.u)
        if d_scores is not None:
            moved = torch.where(row.live, row.side * d_scores.to(row.u.dtype), 0.0)
            tangent = tangent + row.phi / row.t * (moved - row.mean(moved))
        if d_budget is not None:
            tangent = tangent + row.q * d_budget[..., None]
        if d_temperature is not None:
            spread = row.u - row.mean(row.u)
            tangent = tangent - row.phi / row.t * spread * d_temperature[..., None]
        return row.settle(tangent).to(ctx.settings.out_dtype), None


class ThresholdOffset(torch.autograd.Function):
    """lo as a function of scores, budget and temperature; hi is a constant beside it.

    Its derivatives are those of b: q for scores, -t / sum(phi) for the budget and -<q, u> for the
    temperature.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        *fields: Any,
    ) -> Tensor:
        return threshold[..., 1].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.save_for_forward(*inputs[:5])
        ctx.settings = Settings(*inputs[5:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        row = _Row(scores, budget, temperature, mask, threshold, ctx.settings)
        d_scores = row.settle(row.side * grad[..., None] * row.q)
        d_budget = row.settle_rows(-grad * row.t[..., 0] / row.density)
        d_temperature = row.settle_rows(-grad * row.mean(row.u)[..., 0])
        return (
            d_scores.to(scores.dtype),
            None if budget is None else d_budget.to(budget.dtype),
            None if temperature is None else d_temperature.to(temperature.dtype),
            None,
            None,
            *_NO_GRADIENTS,
        )

    @staticmethod
    def jvp(  # type: ignore[override]
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> Tensor:
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        row = _Row(scores, budget, temperature, mask, threshold, ctx.settings)
        tangent = torch.zeros_like(threshold[..., 1])
        if d_scores is not None:
            moved = torch.where(row.live, row.side * d_scores.to(row.u.dtype), 0.0)
            tangent = tangent + row.mean(moved)[..., 0]
        if d_budget is not None:
            tangent = tangent - row.t[..., 0] / row.density * d_budget
        if d_temperature is not None:
            tangent = tangent - row.mean(row.u)[..., 0] * d_temperature
        return row.settle_rows(tangent).to(threshold.dtype)


class _Row:
    """u, phi and q of every row as differentiable functions of scores, budget and temperature."""

    def __init__(
        self,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        settings: Settings,
    ) -> None:
        kept = compute_dtype(scores.dtype)
        offset = ThresholdOffset.apply(scores, budget, temperature, mask, threshold, *settings)  # type: ignore[no-untyped-call]
        hi, lo = threshold[..., :1].detach(), offset[..., None]
        if temperature is None:
            self.t = torch.full_like(hi, settings.temperature_number)
        else:
            self.t = temperature[..., None].to(kept)
        self.side = 1.0 if settings.largest else -1.0
        r = self.side * scores.to(kept)
        self.is_hard = (self.t.detach() < torch.finfo(kept).tiny) | (hi == math.inf)
        self.unanswerable = hi.isnan()
        # Excluded scores and settled rows take no part: keep their infinities out of the graph.
        self.live = r.detach().isfinite() & ~self.is_hard & ~self.unanswerable
        if mask is not None:
            self.live = self.live & mask
        t_safe = torch.where(self.is_hard, 1.0, self.t)
        lo_safe = torch.where(self.live, lo, 0.0)
        self.t = t_safe
        gap = torch.where(self.live, r, hi) - hi
        self.u = torch.where(self.live, (gap - lo_safe) / t_safe, 0.0)
        self.decay = torch.where(self.live, -self.u.abs(), -math.inf)
        self.phi = torch.exp(self.decay) / 2
        nothing = ~self.live.any(-1, keepdim=True)
        self.q = torch.softmax(self.decay.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)

    @property
    def density(self) -> Tensor:
        """sum(phi), per row."""
        return self.phi.sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """<q, values>, kept as a last dimension of one."""
        return (self.q * values).sum(-1, keepdim=True)

    def settle(self, values: Tensor) -> Tensor:
        """NaN in the rows that have no answer."""
        return values.masked_fill(self.unanswerable, math.nan)

    def settle_rows(self, values: Tensor) -> Tensor:
        """Per-row values: zero in hard rows, NaN in rows that have no answer."""
        values = values.masked_fill(self.is_hard[..., 0], 0.0)
        return values.masked_fill(self.unanswerable[..., 0], math.nan)


def _vjp(
    grad: Tensor,
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    """The vector-Jacobian product in torch operations, so that it has derivatives itself."""
    row = _Row(scores, budget, temperature, mask, threshold, settings)
    g = torch.where(row.live, grad.to(row.u.dtype), 0.0)
    mean_grad = row.mean(g)
    d_scores = row.side * row.phi / row.t * (g - mean_grad)
    spread = row.u - row.mean(row.u)
    d_temperature = -(g * row.phi * spread).sum(-1) / row.t[..., 0]
    per_row = torch.float64 if budget is None else budget.dtype
    return (
        row.settle(d_scores).to(scores.dtype),
        row.settle_rows(mean_grad[..., 0]).to(per_row),
        row.settle_rows(d_temperature).to(per_row),
    )


def log_mask(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
) -> Tensor:
    """log p in torch operations over the differentiable threshold."""
    row = _Row(scores, budget, temperature, mask, threshold, settings)
    below = row.u - math.log(2)
    above = torch.log1p(-torch.exp(-row.u.clamp(min=0)) / 2)
    log_p = torch.where(row.u <= 0, below, above)
    # What takes no part in the soft problem: left out, taken whole, or shared in the hard limit.
    r = row.side * scores.to(log_p.dtype)
    r = r if mask is None else r.masked_fill(~mask, -math.inf)
    hi, lo = threshold[..., :1], threshold[..., 1:]
    limit = torch.where(r == hi, lo, (r > hi).to(lo.dtype)).masked_fill(r == -math.inf, 0.0)
    log_p = torch.where(row.live, log_p, limit.log())
    k = settings.budget_number if budget is None else budget.detach()[..., None]
    nothing = torch.as_tensor(k, device=scores.device) == (r.detach() == math.inf).sum(-1, True)
    log_p = log_p.masked_fill(row.live & nothing, -math.inf)
    return row.settle(log_p)

"""The derivatives as torch operations, so that they have derivatives themselves, to any order.

With u = ((r - hi) - lo) / t, phi = e^-|u| / 2 and q = softmax(-|u|) (the paper's eq. vjp):

    mask p       dp = phi / t * ((dr - <q, dr>) - (u - <q, u>) dt) + q dk
    log p        the same divided by p
    threshold b  db = <q, dr> - <q, u> dt - t / sum(phi) dk

They are computed in the widest dtype of the device: in a wide gap |u| is huge and q is not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch.autograd import forward_ad

from ._ops import is_plain
from .backends.common import compute_dtype, distances, half_distances, row_dtype
from .backends.shares import inverse_density, reached, shares_of

Gradients = tuple[Tensor, Tensor, Tensor]


class Settings(NamedTuple):
    """What a call carries besides tensors; numbers may be tensors in the host's memory."""

    budget_number: float | Tensor
    temperature_number: float | Tensor
    largest: bool
    output: str
    out_dtype: torch.dtype
    solver: str


#: A backward returns nothing for the settings, which go to the functions one by one: the
#: ``torch.func`` machinery counts the leaves of its arguments.
NO_GRADIENTS = (None,) * len(Settings._fields)


class Row:
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
        wide = row_dtype(scores)
        self.dtypes = tuple(
            None if x is None else x.dtype for x in (scores, budget, temperature, threshold)
        )
        offset = threshold_offset(scores, budget, temperature, mask, threshold, settings)
        hi, lo = threshold[..., :1].detach().to(wide), offset[..., None].to(wide)
        if temperature is None:
            assert not isinstance(settings.temperature_number, Tensor)  # a graph has no use of this
            t = torch.full_like(hi, settings.temperature_number)
        else:
            t = temperature[..., None].to(wide)
        self.side = 1.0 if settings.largest else -1.0
        r = self.side * scores.to(wide)
        tiny = torch.finfo(compute_dtype(scores.dtype)).tiny
        self.is_hard = (t.detach() < tiny) | (hi == math.inf)
        self.unanswerable = hi.isnan()
        # Excluded and infinite scores and settled rows take no part: keep them out of the graph
        # before anything is computed with them. Nor does a score whose log p is infinite.
        is_log = settings.output == "log"
        of_finite = distances(r.detach(), hi, lo.detach(), t.detach()) if is_log else r.detach()
        self.live = of_finite.isfinite() & ~self.is_hard & ~self.unanswerable
        if mask is not None:
            self.live = self.live & mask
        self.t = torch.where(self.is_hard, 1.0, t)
        near, lo = torch.where(self.live, r, hi), torch.where(self.live, lo, 0.0)
        half = half_distances(near, hi, lo)
        u = half / self.t * 2 if is_log else reached(half, self.t)
        self.u = torch.where(self.live, u, 0.0)
        decay = torch.where(self.live, -self.u.abs(), -math.inf)
        self.phi = torch.exp(decay) / 2
        looks = self.u.is_cpu and is_plain(self.u)
        self.q, self.mean_u, log_density = shares_of(near, self.u, self.live, self.t, looks)
        self.inverse_density = inverse_density(log_density)
        # A row without a score that takes part has no threshold that moves.
        some = self.live.any(-1, keepdim=True)
        self.inverse_density = self.inverse_density.masked_fill(~some, 0.0)

    @classmethod
    def of(cls, ctx: Any) -> Row:
        """From what an autograd function saved: the first five of these arguments, and settings."""
        scores, budget, temperature, mask, threshold = ctx.saved_tensors
        return cls(scores, budget, temperature, mask, threshold, ctx.settings)

    def for_inputs(self, gradients: Gradients) -> tuple[Tensor | None, ...]:
        """Gradients in the dtypes of what they are for; none for what came as a number."""
        return tuple(
            None if dtype is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, self.dtypes[:3], strict=True)
        )

    def mean(self, values: Tensor) -> Tensor:
        """<q, values>, kept as a last dimension of one."""
        return (self.q * values).sum(-1, keepdim=True)

    def only_live(self, values: Tensor) -> Tensor:
        """Zero for what takes no part, whatever was there."""
        return torch.where(self.live, values.to(self.u.dtype), 0.0)

    def settle(self, values: Tensor) -> Tensor:
        """NaN in the rows that have no answer."""
        return values.masked_fill(self.unanswerable, math.nan)

    def settle_rows(self, values: Tensor) -> Tensor:
        """Per-row values: zero in hard rows, NaN in rows that have no answer."""
        values = values[..., 0].masked_fill(self.is_hard[..., 0], 0.0)
        return values.masked_fill(self.unanswerable[..., 0], math.nan)


def mask_vjp(row: Row, grad: Tensor) -> Gradients:
    """Gradients of <grad, p> for scores, budget and temperature."""
    grad = row.only_live(grad)
    mean_grad = row.mean(grad)
    d_scores = row.side * row.phi / row.t * (grad - mean_grad)
    spread = row.u - row.mean_u
    d_temperature = -(grad * row.phi * spread).sum(-1, keepdim=True) / row.t
    return row.settle(d_scores), row.settle_rows(mean_grad), row.settle_rows(d_temperature)


def mask_jvp(
    row: Row, d_scores: Tensor | None, d_budget: Tensor | None, d_temperature: Tensor | None
) -> Tensor:
    """The change of p along a change of scores, budget and temperature."""
    tangent = torch.zeros_like(row.u)
    if d_scores is not None:
        moved = row.side * row.only_live(d_scores)
        tangent = tangent + row.phi / row.t * (moved - row.mean(moved))
    if d_budget is not None:
        tangent = tangent + row.q * d_budget[..., None]
    if d_temperature is not None:
        spread = row.u - row.mean_u
        tangent = tangent - row.phi / row.t * spread * d_temperature[..., None]
    return row.settle(tangent)


def log_mask_vjp(row: Row, grad: Tensor) -> Gradients:
    """Gradients of <grad, log p>; phi / p is 1 below the threshold, however small both are."""
    grad = row.only_live(grad)
    is_below = row.u <= 0
    half = torch.exp(-row.u.clamp(min=0)) / 2
    weighted = grad * torch.where(is_below, 1.0, half / (1 - half))  # grad phi / p
    total = weighted.sum(-1, keepdim=True)
    d_scores = row.side * (weighted - row.q * total) / row.t
    # q / p is q / (1 - half) above the threshold and 1 / sum(phi) below it.
    d_above = torch.where(is_below, 0.0, grad * row.q / (1 - half)).sum(-1, keepdim=True)
    d_below = torch.where(is_below, grad, 0.0).sum(-1, keepdim=True) * row.inverse_density
    d_temperature = -((weighted * row.u).sum(-1, keepdim=True) - total * row.mean_u) / row.t
    return (
        row.settle(d_scores),
        row.settle_rows(d_above + d_below),
        row.settle_rows(d_temperature),
    )


def log_mask_jvp(
    row: Row, d_scores: Tensor | None, d_budget: Tensor | None, d_temperature: Tensor | None
) -> Tensor:
    """The change of log p along a change of scores, budget and temperature."""
    is_below = row.u <= 0
    half = torch.exp(-row.u.clamp(min=0)) / 2
    ratio = torch.where(is_below, 1.0, half / (1 - half))
    tangent = torch.zeros_like(row.u)
    if d_scores is not None:
        moved = row.side * row.only_live(d_scores)
        tangent = tangent + ratio / row.t * (moved - row.mean(moved))
    if d_budget is not None:
        per_budget = torch.where(is_below, row.inverse_density, row.q / (1 - half))
        tangent = tangent + per_budget * d_budget[..., None]
    if d_temperature is not None:
        spread = row.u - row.mean_u
        tangent = tangent - ratio / row.t * spread * d_temperature[..., None]
    return row.settle(torch.where(row.live, tangent, 0.0))


def threshold_vjp(row: Row, grad: Tensor) -> Gradients:
    """Gradients of <grad, lo>, one number per row; hi is a constant beside it."""
    grad = grad[..., None].to(row.u.dtype)
    return (
        row.settle(row.only_live(row.side * grad * row.q)),  # where grad is no number, too
        row.settle_rows(-grad * row.t * row.inverse_density),
        row.settle_rows(-grad * row.mean_u),
    )


def threshold_offset(
    scores: Tensor,
    budget: Tensor | None,
    temperature: Tensor | None,
    mask: Tensor | None,
    threshold: Tensor,
    settings: Settings,
) -> Tensor:
    """lo as a function of scores, budget and temperature; hi is a constant beside it."""
    inputs = (scores, budget, temperature, mask, threshold)
    if transforms_active():
        return TransformableThresholdOffset.apply(*inputs, *settings)  # type: ignore[no-any-return,no-untyped-call]
    return ThresholdOffset.apply(*inputs, settings)  # type: ignore[no-any-return,no-untyped-call]


def _is_mapped() -> bool:
    """Whether the transform at work is ``vmap``."""
    return bool(peek_interpreter_stack().key() == TransformType.Vmap)


# What torch.compiler.assume_constant_result does, which would load the whole compiler for it.
_is_mapped._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether a compiler follows the call line by line, and no ``torch.func`` transform with it.

    Of a derivative that is taken inside of a graph the compiler would make zeros: it follows an
    autograd function forward only.
    """
    if not torch.compiler.is_compiling():
        return False
    if not torch._C._are_functorch_transforms_active():
        return True
    if not _is_mapped():
        raise NotImplementedError(
            "torch.func derivatives (grad, vjp, jvp, jacrev, jacfwd, hessian) of this function"
            " cannot be taken inside of torch.compile: compile the function, and derive"
            " what it returns by torch.autograd.grad or backward()"
        )
    return False


def transforms_active() -> bool:
    """Whether ``torch.func`` or forward-mode AD is at work: only new-style functions serve them."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class ThresholdOffset(torch.autograd.Function):
    """See :func:`threshold_offset`."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        settings: Settings,
    ) -> Tensor:
        ctx.save_for_backward(scores, budget, temperature, mask, threshold)
        ctx.settings = settings
        return threshold[..., 1].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(threshold_vjp(row, grad)), None, None, None)


class TransformableThresholdOffset(torch.autograd.Function):
    """The same for ``torch.func`` transforms and forward-mode AD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        budget: Tensor | None,
        temperature: Tensor | None,
        mask: Tensor | None,
        threshold: Tensor,
        budget_number: float,
        temperature_number: float,
        largest: bool,
        output: str,
        out_dtype: torch.dtype,
        solver: str,
    ) -> Tensor:
        return threshold[..., 1].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row = Row.of(ctx)
        return (*row.for_inputs(threshold_vjp(row, grad)), None, None, *NO_GRADIENTS)

    @staticmethod
    def jvp(
        ctx: Any,
        d_scores: Tensor | None,
        d_budget: Tensor | None,
        d_temperature: Tensor | None,
        *_: None,
    ) -> Tensor:
        row = Row.of(ctx)
        tangent = torch.zeros_like(row.t)
        if d_scores is not None:
            tangent = tangent + row.mean(row.side * row.only_live(d_scores))
        if d_budget is not None:
            tangent = tangent - row.t * row.inverse_density * d_budget[..., None]
        if d_temperature is not None:
            tangent = tangent - row.mean_u * d_temperature[..., None]
        return row.settle_rows(tangent).to(row.dtypes[3])


def save_inputs(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Keep scores, budget, temperature, mask, threshold and settings for both modes of AD."""
    ctx.save_for_backward(*inputs[:5])
    ctx.save_for_forward(*inputs[:5])
    ctx.settings = Settings(*inputs[5:])

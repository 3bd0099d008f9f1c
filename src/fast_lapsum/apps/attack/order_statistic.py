"""The order-statistic probability that the true class stays on top, in closed form.

With rates p = softmax(logits), draws u_j uniform on (0, p_j) and the true class y,

    q = P(u_y >= max_j u_j) = integral_0^1 prod_{j != y} min(t p_y / p_j, 1) dt.

Let d_j = logit_j - logit_y in falling order, a_m = min(exp(d_m), 1), a_0 = 1 and a_{n+1} = 0. On
(a_{m+1}, a_m) exactly the first m factors are below 1, so that the integrand is t^m exp(-sum_{j<=m}
d_j), and

    q = sum_m exp(-sum_{j<=m} d_j) (a_m^{m+1} - a_{m+1}^{m+1}) / (m + 1).

All terms are positive: log q is one logsumexp. The derivative by d_j is minus the share of q that
lies below a_j, a sum of the last terms, so that neither direction subtracts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def log_order_statistic(logits: Tensor, label: Tensor) -> Tensor:
    """log q, differentiable in the logits; O(C log C), in float64 inside.

    Args:
        logits: [..., C], finite. Log probabilities do as well: only differences count.
        label: the true classes, integers [...].

    Returns:
        log q in the logits' dtype, in the shape of ``label``. 0 for a single class.

    Example:
        >>> logits = torch.log(torch.tensor([0.25, 0.5, 0.25]))
        >>> log_order_statistic(logits, torch.tensor(0)).exp()  # integral of t / 2 * t
        tensor(0.1667)
    """
    if label.shape != logits.shape[:-1]:
        raise ValueError(
            f"label must have the shape {tuple(logits.shape[:-1])} of logits without classes,"
            f" got {tuple(label.shape)}"
        )
    return _LogOrderStatistic.apply(logits, label)  # type: ignore[no-any-return, no-untyped-call]


class _LogOrderStatistic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor) -> Tensor:
        index = label.unsqueeze(-1)
        gap = logits.double()
        gap = gap - gap.gather(-1, index)
        # The true class itself goes last: a gap of -inf would spoil the sums, so it is cut off.
        order = gap.scatter(-1, index, -torch.inf).argsort(-1, descending=True)
        order = order[..., :-1]
        falling = gap.gather(-1, order)
        terms = _log_terms(falling)
        log_q = torch.logsumexp(terms, -1)
        below = torch.logcumsumexp(terms.flip(-1), -1).flip(-1)[..., 1:]
        share = torch.exp(below - log_q.unsqueeze(-1))
        gradient = torch.zeros_like(gap).scatter(-1, order, -share)
        gradient.scatter_(-1, index, share.sum(-1, keepdim=True))
        ctx.save_for_backward(gradient.to(logits.dtype))
        return log_q.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return upstream.unsqueeze(-1) * gradient, None


def _log_terms(falling: Tensor) -> Tensor:
    """Logarithms of the n + 1 pieces of q for falling gaps [..., n]."""
    count = falling.shape[-1]
    power = torch.arange(1, count + 2, device=falling.device, dtype=falling.dtype)
    zero = falling.new_zeros((*falling.shape[:-1], 1))
    log_upper = torch.cat((zero, falling.clamp(max=0)), -1)
    log_scale = torch.cat((zero, -falling.cumsum(-1)), -1)
    log_lower = torch.cat((log_upper[..., 1:], torch.full_like(zero, -torch.inf)), -1)
    width = torch.log(-torch.expm1(power * (log_lower - log_upper)))
    return log_scale + power * log_upper + width - power.log()

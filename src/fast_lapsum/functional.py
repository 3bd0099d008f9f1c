"""The public functions: check the arguments, bring rows to the last dimension, dispatch."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from . import _autograd
from ._arguments import (
    check_budget_number,
    check_mask,
    check_number,
    check_per_row,
    check_scores,
    check_temperature_number,
    check_values,
    check_warm_start,
)
from ._derivatives import Settings, threshold_offset
from ._ops import row_dtype
from .solvers.backend import SOLVERS, compute_dtype

Number = int | float
SolverName = Literal["auto", "two_exponential", "bisect", "sort_scan", "noised_bracket"]


@overload
def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    hard: bool = False,
    return_threshold: Literal[False] = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
) -> Tensor: ...


@overload
def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    hard: bool = False,
    return_threshold: Literal[True],
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
) -> tuple[Tensor, Tensor]: ...


def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    hard: bool = False,
    return_threshold: bool = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Differentiable top-k mask whose mass is exactly k.

    .. math:: p_i = \sigma((r_i - b) / t), \qquad \sum_i p_i = k

    with the Laplace CDF sigma and the one threshold b that spends the budget.

    Args:
        scores: r, a float16, bfloat16, float32 or float64 tensor of any shape and strides. A score
            of -inf is left out, a score of +inf is taken whole, a NaN makes its row NaN.
        k: the budget per row, 0 <= k <= n, whole or fractional: a number, or a tensor that
            broadcasts to the shape of ``scores`` without ``dim``. Tensors receive gradients.
        temperature: t >= 0, a number or a tensor like ``k``. Large is soft; 0 is the hard limit.
        dim: the dimension to select along.
        largest: select the largest scores, or the smallest.
        mask: boolean, broadcasts to ``scores``; False leaves a score out (p = 0, gradient 0).
        hard: return the hard mask of exactly k ones with the soft mask's gradient (straight
            through). Needs a whole k; the earliest of tied scores wins.
        return_threshold: also return b, detached, in the shape of ``scores`` without ``dim``.
        warm_start: an earlier threshold. It changes the speed, and the result by rounding at most.
        solver: ``"auto"`` takes the fastest backend; a name takes that algorithm in plain torch.
        validate: look at the values of k and temperature and raise for a row that has no answer.
            Without it such a row is NaN when k or temperature is a tensor, because looking would
            make a GPU wait. Numbers are always checked.

    Returns:
        The mask, in the shape and dtype of ``scores`` (float32 under autocast), and the threshold
        if asked for.

    Example:
        >>> scores = torch.tensor([2.0, 1.0, 0.0, -1.0], requires_grad=True)
        >>> p = soft_topk(scores, k=2, temperature=0.5)
        >>> p
        tensor([0.9751, 0.8161, 0.1839, 0.0249], grad_fn=<SoftTopKBackward>)
        >>> p.sum().item()
        2.0
        >>> p[0].backward()
        >>> scores.grad
        tensor([ 0.0468, -0.0219, -0.0219, -0.0030])
    """
    call = _prepare(scores, k, temperature, dim, largest, mask, hard, warm_start, solver, validate)
    if not return_threshold:
        return call.restore(call.mask_only())
    out, pair = call.solve()
    return call.restore(out), call.threshold_value(pair).detach()


def log_soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
) -> Tensor:
    r"""Logarithm of :func:`soft_topk`, accurate far into the tail where p itself underflows.

    .. math:: \log p_i = u_i - \log 2 \;(u_i \le 0), \quad \log(1 - e^{-u_i} / 2) \;(u_i > 0)

    Arguments are those of :func:`soft_topk` without ``hard`` and ``return_threshold``. Scores that
    are left out have -inf. It runs in torch operations, at many times the price of the mask.

    Example:
        >>> scores = torch.tensor([0.0, -300.0, -600.0])
        >>> soft_topk(scores, k=1)
        tensor([1., 0., 0.])
        >>> log_soft_topk(scores, k=1)
        tensor([  -0.0000, -150.6931, -450.6931])
    """
    call = _prepare(scores, k, temperature, dim, largest, mask, False, warm_start, solver, validate)
    _, pair = call.detach().solve()
    log_p = _autograd.log_soft_topk(
        call.scores, call.budget, call.temperature, call.mask, pair, call.settings
    )
    return call.restore(log_p)


def threshold(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
) -> Tensor:
    """The threshold b at which the soft mask's mass is k, differentiable.

    In the shape of ``scores`` without ``dim``, float64 for float64 scores and float32 for the rest.
    For k = 0 and k = n, where b is at infinity, it is a finite value that gives that mask to
    rounding. At temperature 0 it is the boundary score. Arguments are those of :func:`soft_topk`
    without ``hard`` and ``return_threshold``.

    Example:
        >>> threshold(torch.tensor([4.0, 3.0, 1.0, 0.0]), k=2, temperature=0.01)
        tensor(2.)
    """
    call = _prepare(scores, k, temperature, dim, largest, mask, False, warm_start, solver, validate)
    _, pair = call.detach().solve()
    offset = threshold_offset(
        call.scores, call.budget, call.temperature, call.mask, pair, call.settings
    )
    return call.threshold_value(torch.stack((pair[..., 0], offset), -1))


def hard_topk_mask(
    scores: Tensor,
    k: Number | Tensor,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    validate: bool = False,
) -> Tensor:
    """Mask of exactly k ones at the k largest scores, the earliest of tied scores first.

    The hard counterpart of :func:`soft_topk`, in the scores' dtype, without a gradient.

    Example:
        >>> hard_topk_mask(torch.tensor([1.0, 3.0, 3.0, 3.0]), k=2)
        tensor([0., 1., 1., 0.])
    """
    call = _prepare(scores, k, 0.0, dim, largest, mask, True, None, "auto", validate)
    return call.restore(call.detach().mask_only())


def sample_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate: bool = False,
) -> Tensor:
    """Random mask of exactly k ones that selects score i with probability p_i of the soft mask.

    Systematic sampling: one uniform number u per row, and score i is taken when the running sum of
    p passes one of u, u + 1, ..., u + k - 1. O(n), without a gradient, in the scores' dtype. Which
    scores come together depends on their order: shuffle them where pairs matter.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = sample_topk(torch.randn(1000, generator=generator), 10, generator=generator)
        >>> float(drawn.sum())
        10.0
    """
    call = _prepare(scores, k, temperature, dim, largest, mask, True, None, "auto", validate)
    call = call.detach()
    wide = row_dtype(scores)
    soft = call._replace(settings=call.settings._replace(hard=False, out_dtype=wide))
    p = soft.mask_only()
    budget = call.settings.budget_number if call.budget is None else call.budget[..., None]
    passed = p.cumsum(-1)
    passed = passed * (budget / passed[..., -1:])  # the last sum is k itself
    start = torch.rand(p.shape[:-1], generator=generator, device=p.device, dtype=wide)
    steps = torch.floor(passed + start[..., None])
    drawn = torch.diff(steps, dim=-1, prepend=torch.zeros_like(steps[..., :1])).clamp(0, 1)
    # Rounding of the running sum may miss one in a billion: the hard mask of drawn + p is drawn
    # itself when it holds k ones, and makes up for the odd one with the likeliest score otherwise.
    rank = torch.where(p.isnan() | (p > 0), drawn + p, -math.inf)
    settings = call.settings._replace(temperature_number=0.0, largest=True)
    ranked = call._replace(scores=rank, temperature=None, mask=None, settings=settings)
    return call.restore(ranked.mask_only())


def lapsum(scores: Tensor, k: Number | Tensor, alpha: Number | Tensor, *, dim: int = -1) -> Tensor:
    r"""The paper's operator: :math:`p_i = \sigma((b - r_i) / \alpha)` with mass k.

    A negative alpha gives the largest scores the highest probabilities, a positive one the
    smallest; 0 is the limit from below, a hard mask of the largest. ``lapsum(r, k, -t)`` is
    ``soft_topk(r, k, t)``.

    Example:
        >>> lapsum(torch.tensor([2.0, 1.0, 0.0]), k=1, alpha=-0.5)
        tensor([0.8040, 0.1726, 0.0234])
    """
    if isinstance(alpha, Tensor):
        # The side may differ from row to row, and choosing it on the host would wait for a GPU.
        dim = check_scores(scores, dim)
        shape = scores.shape[:dim] + scores.shape[dim + 1 :]
        smallest = (check_per_row("alpha", alpha, scores, shape).detach() > 0).unsqueeze(dim)
        return soft_topk(torch.where(smallest, -scores, scores), k, alpha.abs(), dim=dim)
    number = check_number("alpha", alpha)
    if not abs(number) < math.inf:
        raise ValueError(f"alpha must be finite, got alpha={number}")
    return soft_topk(scores, k, abs(number), dim=dim, largest=number <= 0)


class _Call(NamedTuple):
    """A checked call: tensors with rows along the last dimension, and where that came from."""

    scores: Tensor
    budget: Tensor | None
    temperature: Tensor | None
    mask: Tensor | None
    warm_start: Tensor | None
    settings: Settings
    dim: int | None

    def detach(self) -> _Call:
        """The same call without a graph."""
        return self._replace(
            scores=self.scores.detach(),
            budget=None if self.budget is None else self.budget.detach(),
            temperature=None if self.temperature is None else self.temperature.detach(),
        )

    def solve(self) -> tuple[Tensor, Tensor]:
        """Mask, rows still last, and threshold pairs."""
        out, pair = _autograd.soft_topk(*self[:6], with_threshold=True)
        assert pair is not None
        return out, pair

    def mask_only(self) -> Tensor:
        """Mask, rows still last."""
        return _autograd.soft_topk(*self[:6], with_threshold=False)[0]

    def restore(self, out: Tensor) -> Tensor:
        """The rows back in the caller's dimension."""
        return out if self.dim is None else out.movedim(-1, self.dim)

    def threshold_value(self, pair: Tensor) -> Tensor:
        """b in the caller's sense: hi + lo, or hi alone where lo is a tie share."""
        hi, lo = pair.unbind(-1)
        is_hard = hi == math.inf
        tiny = torch.finfo(compute_dtype(self.scores.dtype)).tiny
        if self.temperature is not None:
            is_hard = is_hard | (self.temperature.detach() < tiny)
        elif self.settings.temperature_number < tiny:
            is_hard = torch.ones_like(is_hard)
        b = torch.where(is_hard, hi, hi + lo)
        return b if self.settings.largest else -b


def _prepare(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    hard: bool,
    warm_start: Tensor | None,
    solver: str,
    validate: bool,
) -> _Call:
    dim = check_scores(scores, dim)
    if solver != "auto" and solver not in SOLVERS:
        names = ", ".join(repr(name) for name in ("auto", *SOLVERS))
        raise ValueError(f"solver must be one of {names}, got solver={solver!r}")
    moved_from = None if dim == scores.dim() - 1 else dim
    if mask is not None:
        mask = check_mask(mask, scores)
        mask = mask if moved_from is None else mask.movedim(dim, -1)
    scores = scores if moved_from is None else scores.movedim(dim, -1)
    shape = scores.shape
    budget, budget_number, row_temperature, temperature_number = None, 0.0, None, 1.0
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, scores, shape[:-1])
    else:
        budget_number = check_number("k", k)
        check_budget_number(budget_number, shape[-1], hard)
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, scores, shape[:-1])
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, scores.dtype)
    if torch.compiler.is_compiling():
        if budget is None:
            budget, budget_number = _full(scores, budget_number), 0.0
        if row_temperature is None:
            row_temperature, temperature_number = _full(scores, temperature_number), 1.0
    if warm_start is not None:
        warm_start = check_warm_start(warm_start, scores, shape[:-1])
    if validate:
        check_values(
            scores.detach(),
            budget_number if budget is None else budget.detach(),
            temperature_number if row_temperature is None else row_temperature.detach(),
            mask,
            hard,
        )
    out_dtype = scores.dtype
    if out_dtype.itemsize == 2 and torch.is_autocast_enabled(scores.device.type):
        out_dtype = torch.float32
    settings = Settings(budget_number, temperature_number, largest, hard, out_dtype, solver)
    return _Call(scores, budget, row_temperature, mask, warm_start, settings, moved_from)


def _full(scores: Tensor, number: float) -> Tensor:
    """A number per row, for the compiler: it makes a new graph for each new number that an
    operator is given, and none for a number that a tensor is multiplied with.
    """
    return scores.new_ones(scores.shape[:-1], dtype=row_dtype(scores)) * number

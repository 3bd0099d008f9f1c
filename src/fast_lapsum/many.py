"""One budget over many tensors, such as the weights of all layers of a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import SymFloat, Tensor

from . import _list_autograd
from ._arguments import (
    check_budget_number,
    check_flag,
    check_number,
    check_per_row,
    check_scores,
    check_temperature_number,
)
from ._autograd import threshold_value
from ._call import Number, changing_numbers, full_rows
from ._derivatives import Settings
from ._values import raise_for_budgets
from .backends.common import compute_dtype
from .backends.many import kept_dtype

_ONE = torch.Size(())


@overload
def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[False] = False,
    validate: bool = False,
) -> list[Tensor]: ...


@overload
def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[True],
    validate: bool = False,
) -> tuple[list[Tensor], Tensor]: ...


def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: bool = False,
    validate: bool = False,
) -> list[Tensor] | tuple[list[Tensor], Tensor]:
    r"""One soft mask for each tensor, with one threshold for all and masses that sum to k.

    .. math:: p_{ji} = \sigma((r_{ji} - b) / t), \qquad \sum_j \sum_i p_{ji} = k

    The masks are those of :func:`soft_topk` on all scores joined into one row, to rounding,
    whatever the order of the list. The same list gives the same bits.

    Args:
        tensors: at least one tensor, all on one device, of any shapes, strides and floating dtypes
            together. They are solved in the widest dtype, float32 at least. Tensors that fill
            their memory, in any order of their dimensions, are read where they lie; those with
            gaps or overlaps are copied.
        k: the one budget, 0 <= k <= number of all scores: a number, or a tensor of one number.
        temperature: t >= 0, a number or a tensor like ``k``. Both receive gradients.
        largest: select the largest scores, or the smallest.
        clamp: limit k to the number of scores that take part. Where that limits k its gradient is
            0. The scores are read once more for it.
        hard: return hard masks of exactly k ones in all with the soft masks' gradients. The
            earliest of tied scores wins, in the order of the list.
        return_threshold: also return b, detached; with ``hard=True`` the best score left out.
        validate: look at the values of k and temperature and raise where there is no answer.
            Without it all masks are NaN then; numbers are checked against the sizes always.

    Returns:
        A list of masks in the shapes and dtypes of the tensors (float32 for 16 bits under
        autocast), and the threshold if asked for.

    Example:
        >>> layers = [torch.tensor([[3.0, -1.0]]), torch.tensor([0.0, 2.0, -2.0])]
        >>> masks = soft_topk_list(layers, k=2, temperature=0.5)
        >>> masks
        [tensor([[0.9751, 0.0112]]), tensor([0.0825, 0.9298, 0.0015])]
    """
    largest, clamp = check_flag("largest", largest), check_flag("clamp", clamp)
    hard, validate = check_flag("hard", hard), check_flag("validate", validate)
    return_threshold = check_flag("return_threshold", return_threshold)
    given = _check_tensors(tensors)
    first, count = given[0], sum(x.numel() for x in given)
    kept = kept_dtype(given)
    budget, row_temperature = None, None
    budget_number: Any = 0.0
    temperature_number: Any = 1.0
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, first, _ONE)
    else:
        budget_number = check_number("k", k)
        check_budget_number(budget_number, count, hard, clamp)
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, first, _ONE)
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, kept)
    if validate or clamp:
        row_budget = full_rows(first, budget_number, _ONE) if budget is None else budget
        valid = _count_valid(given, largest)
        if validate:
            t = row_temperature
            t = full_rows(first, temperature_number, _ONE) if t is None else t.detach()
            has_nan = torch.stack([x.detach().isnan().any() for x in given]).any()
            counts = valid.masked_fill(has_nan, count)
            raise_for_budgets(row_budget.detach(), t, counts, kept, hard, clamp)
        if clamp:
            limit = valid.to(row_budget.dtype)
            budget = torch.where(row_budget > limit, limit, row_budget)
            if hard:
                budget = budget + (budget.floor() - budget).detach()
            budget_number = 0.0
    if isinstance(budget_number, SymFloat) or isinstance(temperature_number, SymFloat):
        budget, budget_number, row_temperature, temperature_number = changing_numbers(
            first, _ONE, budget, budget_number, row_temperature, temperature_number
        )
    output = "hard" if hard else "mask"
    settings = Settings(budget_number, temperature_number, largest, output, kept, "auto")
    widen = torch.is_autocast_enabled(first.device.type)
    masks, pair = _list_autograd.soft_topk_list(given, budget, row_temperature, settings, widen)
    if not return_threshold:
        return masks
    if hard:
        return masks, _boundary(given, masks, pair, largest)
    return masks, threshold_value(pair, kept, row_temperature, settings).detach()


def _check_tensors(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"tensors must be a list of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ValueError("tensors must have at least one tensor, got an empty list")
    for i, one in enumerate(tensors):
        try:
            check_scores(one.view(-1) if isinstance(one, Tensor) and not one.dim() else one, -1)
        except TypeError as error:
            raise TypeError(f"tensors[{i}]: {error}") from None
        if one.device != tensors[0].device:
            raise ValueError(
                f"tensors must be on one device, got {tensors[0].device} for tensors[0] and "
                f"{one.device} for tensors[{i}]"
            )
    return list(tensors)


def _count_valid(tensors: list[Tensor], largest: bool) -> Tensor:
    left_out = -math.inf if largest else math.inf
    return torch.stack([(x.detach() != left_out).sum() for x in tensors]).sum()


def _boundary(tensors: list[Tensor], masks: list[Tensor], pair: Tensor, largest: bool) -> Tensor:
    """The first score that the hard masks leave out."""
    nothing = -math.inf if largest else math.inf
    kept = compute_dtype(pair.dtype)
    best = [pair.new_full((), nothing)]
    for scores, mask in zip(tensors, masks, strict=True):
        left = scores.detach().masked_fill(mask.detach() == 1, nothing).to(kept)
        if left.numel():
            best.append(left.amax() if largest else left.amin())
    is_nan = torch.stack([mask.detach().isnan().any() for mask in masks]).any() | pair[0].isnan()
    every = torch.stack(best)
    return (every.amax() if largest else every.amin()).masked_fill(is_nan, math.nan)

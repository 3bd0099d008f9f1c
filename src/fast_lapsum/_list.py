"""A checked call on many tensors that share one budget: see ``_call.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
from ._list_values import check_values, limit_budget
from .backends.common import compute_dtype
from .backends.many import kept_dtype, out_dtype_of

_ONE = torch.Size(())
_FOR_ALL = "be one number for all tensors, without dimensions"


def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor,
    largest: bool,
    clamp: bool,
    hard: bool,
    return_threshold: bool,
    validate: bool,
    group: str | None = None,
) -> list[Tensor]:
    """A mask for each tensor, and last the threshold if wanted."""
    largest, clamp = check_flag("largest", largest), check_flag("clamp", clamp)
    hard, validate = check_flag("hard", hard), check_flag("validate", validate)
    given = _check_tensors(tensors)
    if group is not None:
        flags = (largest, clamp, hard, return_threshold, validate)
        return _spread_over_group(given, k, temperature, *flags, group)
    first, count = given[0], sum(x.numel() for x in given)
    kept = kept_dtype(given)
    budget, row_temperature = None, None
    budget_number: Any = 0.0
    temperature_number: Any = 1.0
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, first, _ONE, _FOR_ALL)
    else:
        budget_number = check_number("k", k)
        check_budget_number(budget_number, count, hard, clamp, "in all")
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, first, _ONE, _FOR_ALL)
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, kept)
    if validate or clamp:
        row_budget = full_rows(first, budget_number, _ONE) if budget is None else budget
        if validate:
            t = row_temperature
            t = full_rows(first, temperature_number, _ONE) if t is None else t.detach()
            checked = check_values(given, row_budget, t, largest, hard, clamp)
            if checked is not row_budget:  # in a graph
                budget, row_budget, budget_number = checked, checked, 0.0
        if clamp:
            budget, budget_number = limit_budget(given, row_budget, largest, hard), 0.0
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
        return [*masks, _boundary(given, masks, pair, largest)]
    return [*masks, threshold_value(pair, kept, row_temperature, settings).detach()]


def _spread_over_group(
    tensors: list[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor,
    largest: bool,
    clamp: bool,
    hard: bool,
    return_threshold: bool,
    validate: bool,
    group: str,
) -> list[Tensor]:
    """The same with one budget over the lists of all ranks: this rank's is its part of a row."""
    from . import _sharded

    for name, value in (("k", k), ("temperature", temperature)):
        if isinstance(value, Tensor):
            check_per_row(name, value, tensors[0], _ONE, _FOR_ALL)
    widen = torch.is_autocast_enabled(tensors[0].device.type)
    row = _list_autograd.join(tensors)
    output = "hard" if hard else "mask"
    call = _sharded.prepare(row, k, temperature, -1, largest, None, output, validate, clamp, group)
    found = call.write_with_threshold() if return_threshold else (call.write(),)
    dtypes = [out_dtype_of(x, widen) for x in tensors]
    return [*_list_autograd.part(found[0], tensors, dtypes), *found[1:]]


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

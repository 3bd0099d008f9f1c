"""What looks at the numbers inside many tensors that share one budget: see ``_values.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._autograd import is_plain
from ._ops import LOOKS_AT_NUMBERS, NAMESPACE
from ._values import limited, raise_for_budgets
from .backends.common import row_dtype
from .backends.many import kept_dtype


def check_values(
    tensors: Sequence[Tensor],
    budget: Tensor,
    temperature: Tensor,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    """``validate=True``: the budget again, or an error where it has no answer."""
    given = ([x.detach() for x in tensors], budget.detach(), temperature, largest, hard, clamp)
    if is_plain(*tensors):
        _raise_for_values(*given)
        return budget
    return budget + torch.ops.fast_lapsum.check_list_values(*given)  # type: ignore[no-any-return]


def limit_budget(tensors: Sequence[Tensor], budget: Tensor, largest: bool, hard: bool) -> Tensor:
    """``clamp=True``: at most the number of valid scores."""
    return limited(budget, _count_valid(tensors, largest), hard)


def _count_valid(tensors: Sequence[Tensor], largest: bool) -> Tensor:
    left_out = -math.inf if largest else math.inf
    return torch.stack([(x.detach() != left_out).sum() for x in tensors]).sum()


def _raise_for_values(
    tensors: Sequence[Tensor], k: Tensor, t: Tensor, largest: bool, hard: bool, clamp: bool
) -> None:
    has_nan = torch.stack([x.isnan().any() for x in tensors]).any()
    every = sum(x.numel() for x in tensors)
    counts = _count_valid(tensors, largest).masked_fill(has_nan, every)
    raise_for_budgets(k, t, counts, kept_dtype(tensors), hard, clamp)


torch.library.define(
    f"{NAMESPACE}::check_list_values",
    "(Tensor[] tensors, Tensor budget, Tensor temperature, bool largest, bool hard, bool clamp)"
    " -> Tensor",
    tags=LOOKS_AT_NUMBERS,
)


@torch.library.impl(f"{NAMESPACE}::check_list_values", "default")
def _(
    tensors: Sequence[Tensor],
    budget: Tensor,
    temperature: Tensor,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    _raise_for_values(tensors, budget, temperature, largest, hard, clamp)
    return budget.new_zeros((), dtype=row_dtype(tensors[0]))


@torch.library.register_fake(f"{NAMESPACE}::check_list_values")  # type: ignore[untyped-decorator]
def _(
    tensors: Sequence[Tensor],
    budget: Tensor,
    temperature: Tensor,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    return budget.new_empty((), dtype=row_dtype(tensors[0]))

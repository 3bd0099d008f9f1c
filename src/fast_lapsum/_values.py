"""What looks at the numbers inside tensors, where a caller asks for it: checks, and limits of k."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._autograd import is_plain
from ._ops import LOOKS_AT_NUMBERS, NAMESPACE
from .backends.common import has_nan, max_temperature, row_dtype


def check_values(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    """``validate=True``: the budget again, or an error for the first row that has no answer.

    In a compiled graph it is an operator, kept there by the zero that it adds to the budget.
    """
    given = (scores, budget.detach(), temperature, mask, largest, hard, clamp)
    if is_plain(scores):
        _raise_for_values(*given)
        return budget
    return budget + torch.ops.fast_lapsum.check_values(*given)  # type: ignore[no-any-return]


def limit_budget(
    scores: Tensor, budget: Tensor, mask: Tensor | None, largest: bool, hard: bool
) -> Tensor:
    """``clamp=True``: at most the number of valid scores."""
    return limited(budget, valid_counts(scores, mask, largest), hard)


def limited(budget: Tensor, counts: Tensor, hard: bool) -> Tensor:
    """At most so many, where the gradient for k ends.

    For a hard mask it is rounded down, and the gradient goes on as if it were not.
    """
    counts = counts.to(budget.dtype)
    least = torch.where(budget > counts, counts, budget)
    return least + (least.floor() - least).detach() if hard else least


def valid_counts(scores: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    """How many scores of each row take part."""
    valid = scores != (-math.inf if largest else math.inf)
    valid = valid if mask is None else valid & mask
    return valid.sum(-1)


def _raise_for_values(
    scores: Tensor,
    k: Tensor,
    t: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> None:
    counts = valid_counts(scores, mask, largest)
    # A row with a NaN is NaN, whatever its budget.
    counts = counts.masked_fill(has_nan(scores, mask), scores.shape[-1])
    raise_for_budgets(k, t, counts, scores.dtype, hard, clamp)


def raise_for_budgets(
    k: Tensor, t: Tensor, counts: Tensor, dtype: torch.dtype, hard: bool, clamp: bool
) -> None:
    """An error for the first row whose k or t has no answer, of so many valid scores each."""
    if clamp:
        _raise_first(~(k >= 0), "k", k, "be at least 0", None)
    else:
        fits = (k >= 0) & (k <= counts)
        _raise_first(~fits, "k", k, "lie in [0, number of valid scores]", counts)
        if hard:
            _raise_first(k != k.floor(), "k", k, "be a whole number for a hard mask", None)
    limit = max_temperature(dtype)
    fits = (t >= 0) & (t <= limit)
    _raise_first(~fits, "temperature", t, f"be finite and lie in [0, {limit:.3g}]", None)


def _raise_first(
    bad: Tensor, name: str, values: Tensor, expectation: str, counts: Tensor | None
) -> None:
    if not bool(bad.any()):
        return
    where = tuple(int(i) for i in bad.nonzero()[0])
    row = f" in row {where}" if where else ""
    limit = "" if counts is None else f" = [0, {int(counts[where])}]"
    raise ValueError(f"{name} must {expectation}{limit}, got {name}={values[where].item()}{row}")


torch.library.define(
    f"{NAMESPACE}::check_values",
    "(Tensor scores, Tensor budget, Tensor temperature, Tensor? mask, bool largest, bool hard,"
    " bool clamp) -> Tensor",
    tags=LOOKS_AT_NUMBERS,
)


@torch.library.impl(f"{NAMESPACE}::check_values", "default")
def _(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    _raise_for_values(scores, budget, temperature, mask, largest, hard, clamp)
    return scores.new_zeros((), dtype=row_dtype(scores))


@torch.library.register_fake(f"{NAMESPACE}::check_values")  # type: ignore[untyped-decorator]
def _(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
) -> Tensor:
    return scores.new_empty((), dtype=row_dtype(scores))

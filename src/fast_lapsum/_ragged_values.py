"""What looks at the numbers inside tensors, for rows of several lengths: see ``_values.py``."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ._autograd import is_plain
from ._ops import LOOKS_AT_NUMBERS, NAMESPACE
from ._ragged_autograd import Segments
from ._values import limited, raise_for_budgets
from .backends.common import row_dtype
from .backends.segments import count_in_rows, valid_counts


def check_values(
    scores: Tensor,
    segments: Segments,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
    from_zero: bool,
) -> Tensor:
    """``validate=True``: the budget again, or an error for the first row that has no answer.

    Offsets that a caller has written begin at 0 (``from_zero``); those of a nested tensor need not.
    In a compiled graph it is an operator, kept there by the zero that it adds to the budget.
    """
    options = (largest, hard, clamp, from_zero)
    given = (scores, *segments, budget.detach(), temperature, mask, *options)
    if is_plain(scores):
        _raise_for_values(*given)
        return budget
    return budget + torch.ops.fast_lapsum.check_ragged_values(*given)  # type: ignore[no-any-return]


def limit_budget(
    scores: Tensor,
    segments: Segments,
    budget: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
) -> Tensor:
    """``clamp=True``: at most the number of valid scores."""
    return limited(budget, valid_counts(scores, *segments[:2], mask, largest), hard)


def _raise_for_values(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    k: Tensor,
    t: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
    from_zero: bool,
) -> None:
    if offsets is not None:
        _raise_for_offsets(offsets, scores.shape[-1], from_zero)
    if lengths is not None:
        _raise_for_lengths(lengths, scores.shape[-1])
    counts = valid_counts(scores, offsets, lengths, mask, largest)
    is_nan = scores.isnan()
    has_nan = count_in_rows(is_nan if mask is None else is_nan & mask, offsets, lengths) > 0
    if max_length is not None:
        _raise_for_longest(scores, offsets, lengths, max_length)
    counts = counts.masked_fill(has_nan, scores.shape[-1])
    raise_for_budgets(k, t, counts, scores.dtype, hard, clamp)


def _raise_for_offsets(offsets: Tensor, total: int, from_zero: bool) -> None:
    places = offsets.tolist()
    for i, (before, after) in enumerate(itertools.pairwise(places)):
        if after < before:
            raise ValueError(
                f"cu_seqlens must not fall, got cu_seqlens[{i}]={before} and "
                f"cu_seqlens[{i + 1}]={after}"
            )
    if places[0] < 0 or places[-1] > total:
        i = 0 if places[0] < 0 else len(places) - 1
        raise ValueError(
            f"cu_seqlens must lie in [0, {total}] for {total} scores, got "
            f"cu_seqlens[{i}]={places[i]}"
        )
    if from_zero and places[0] != 0:
        raise ValueError(
            f"cu_seqlens must begin at 0, got cu_seqlens[0]={places[0]}: offsets say where "
            "segments begin and the last one ends, such as [0, 4, 10] for the lengths 4 and 6"
        )


def _raise_for_lengths(lengths: Tensor, total: int) -> None:
    bad = (lengths < 0) | (lengths > total)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        row = f" in row {where}" if where else ""
        raise ValueError(
            f"lengths must lie in [0, {total}] for rows of {total} scores, got "
            f"lengths={int(lengths[where])}{row}"
        )


def _raise_for_longest(
    scores: Tensor, offsets: Tensor | None, lengths: Tensor | None, max_length: int
) -> None:
    if lengths is None:
        assert offsets is not None
        lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > max_length:
        raise ValueError(
            f"max_seqlen must be at least {longest}, the length of the longest segment, got "
            f"max_seqlen={max_length}"
        )


torch.library.define(
    f"{NAMESPACE}::check_ragged_values",
    "(Tensor scores, Tensor? offsets, Tensor? lengths, SymInt? max_length, Tensor budget,"
    " Tensor temperature, Tensor? mask, bool largest, bool hard, bool clamp, bool from_zero)"
    " -> Tensor",
    tags=LOOKS_AT_NUMBERS,
)


@torch.library.impl(f"{NAMESPACE}::check_ragged_values", "default")
def _(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
    from_zero: bool,
) -> Tensor:
    rows = (scores, offsets, lengths, max_length)
    _raise_for_values(*rows, budget, temperature, mask, largest, hard, clamp, from_zero)
    return scores.new_zeros((), dtype=row_dtype(scores))


@torch.library.register_fake(f"{NAMESPACE}::check_ragged_values")  # type: ignore[untyped-decorator]
def _(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    hard: bool,
    clamp: bool,
    from_zero: bool,
) -> Tensor:
    return scores.new_empty((), dtype=row_dtype(scores))

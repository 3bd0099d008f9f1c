"""Rows of several lengths in plain torch: rows of one size, and a mask.

Segments are copied into rows, those of about one length together: the copies are at most twice the
values. How long they are is looked at, for which a GPU is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..common import compute_dtype, per_row_values, row_dtype
from ..segments import Bounds, Padding, bounds_of, check_budget_fits, rows_shape, takes_part
from .backward import backward
from .forward import forward


def ragged_forward(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    solver: str = "two_exponential",
) -> tuple[Tensor, Tensor]:
    """What ``output`` says of every row, and threshold pairs [..., 2]."""
    if budget is None and scores.is_cpu:  # elsewhere looking would wait for the device
        check_budget_fits(scores, offsets, lengths, mask, largest, budget_number)
    budgets = _per_row(budget, budget_number, scores, offsets, lengths)
    temperatures = _per_row(temperature, temperature_number, scores, offsets, lengths)
    nothing = -math.inf if output == "log" else 0.0
    given = (largest, output, out_dtype, solver)
    if offsets is None:
        assert lengths is not None
        inside = takes_part(scores, lengths)
        keep = inside if mask is None else mask & inside
        out, threshold = forward(scores, budgets, 0.0, temperatures, 1.0, keep, warm_start, *given)
        if output != "threshold":
            out.masked_fill_(~inside, nothing)  # also in rows that are NaN
        return out, threshold
    kept = compute_dtype(scores.dtype)
    threshold = scores.new_empty((*rows_shape(scores, offsets, lengths), 2), dtype=kept)
    out = torch.full_like(scores, nothing, dtype=out_dtype)
    if output == "threshold":
        out = scores.new_empty((0,), dtype=out_dtype)
    for which, padding in _classes(bounds_of(scores, offsets, lengths)):
        keep = padding.inside if mask is None else padding.inside & padding.rows(mask)
        start = None if warm_start is None else warm_start[which]
        rows, threshold[which] = forward(
            *(padding.rows(scores), budgets[which], 0.0, temperatures[which], 1.0, keep, start),
            *given,
        )
        if output != "threshold":
            out[padding.places[padding.inside]] = rows[padding.inside]
    return out, threshold


def ragged_backward(
    grad: Tensor,
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``output`` for scores, and with ``per_row`` for budget and temperature."""
    temperatures = _per_row(temperature, temperature_number, scores, offsets, lengths)
    given = (largest, output, per_row)
    if offsets is None:
        assert lengths is not None
        inside = takes_part(scores, lengths)
        keep = inside if mask is None else mask & inside
        found = backward(grad, scores, temperatures, 1.0, keep, threshold, *given)
        found[0].masked_fill_(~inside, 0.0)
        return found
    out = torch.zeros_like(scores)
    d_rows = [torch.empty_like(temperatures) for _ in range(2)]
    for which, padding in _classes(bounds_of(scores, offsets, lengths)):
        keep = padding.inside if mask is None else padding.inside & padding.rows(mask)
        of_rows = grad[which] if output == "threshold" else padding.rows(grad)
        rows, *found_rows = backward(
            *(of_rows, padding.rows(scores), temperatures[which], 1.0, keep, threshold[which]),
            *given,
        )
        out[padding.places[padding.inside]] = rows[padding.inside]
        for d_row, found_row in zip(d_rows, found_rows, strict=True):
            if found_row is not None:
                d_row[which] = found_row
    return (out, d_rows[0], d_rows[1]) if per_row else (out, None, None)


def _per_row(
    values: Tensor | None,
    number: float,
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
) -> Tensor:
    if offsets is None:
        return per_row_values(values, number, scores)
    if values is not None:
        return values
    shape = rows_shape(scores, offsets, lengths)
    return scores.new_full(shape, number, dtype=row_dtype(scores))


def _classes(bounds: Bounds) -> Iterator[tuple[Tensor, Padding]]:
    """Segments whose lengths have the same number of binary digits, as rows of one size."""
    digits = [length.bit_length() for length in bounds.lengths.tolist()]
    for kind in sorted(set(digits)):
        which = torch.tensor(
            [i for i, own in enumerate(digits) if own == kind], device=bounds.starts.device
        )
        own = Bounds(bounds.starts[which], bounds.lengths[which])
        yield which, Padding.of(own, int(own.lengths.max()))

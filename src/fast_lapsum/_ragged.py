"""A checked call on rows of several lengths: see ``_call.py``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import SymFloat, Tensor

from . import _autograd, _ragged_autograd
from ._arguments import (
    PER_ROW,
    Dim,
    check_budget_number,
    check_dims,
    check_flag,
    check_mask,
    check_number,
    check_per_row,
    check_temperature_number,
    check_warm_start,
)
from ._call import Number, changing_numbers, check_solver, full_rows, output_dtype
from ._derivatives import Settings
from ._layout import Moved, move_dims
from ._ragged_autograd import Segments
from ._ragged_values import check_values, limit_budget
from ._segments import check_cu_seqlens, check_lengths, check_max_seqlen
from .backends.common import compute_dtype
from .backends.segments import bounds_of, count_in_rows, rows_shape, takes_part

_PER_SEGMENT = "be one number, or one per segment, of shape {shape}"
_PER_NESTED_ROW = "be one number, or one per row of the nested tensor, of shape {shape}"


class RaggedCall(NamedTuple):
    """Tensors with rows along the last dimension, where the rows are, and where that came from."""

    scores: Tensor
    budget: Tensor | None
    temperature: Tensor | None
    mask: Tensor | None
    warm_start: Tensor | None
    settings: Settings
    segments: Segments
    moved: Moved | int | None

    def write(self) -> Tensor:
        """What the settings ask for, in the caller's dimensions."""
        return self._restore(_ragged_autograd.soft_topk(*self[:7], with_threshold=False)[0])

    def write_with_threshold(self) -> tuple[Tensor, Tensor]:
        """The same, and the thresholds of what is written, detached."""
        out, pair = _ragged_autograd.soft_topk(*self[:7], with_threshold=True)
        assert pair is not None
        if self.settings.output == "hard":
            return self._restore(out), self._boundary(out.detach(), pair)
        b = _autograd.threshold_value(pair, self.scores.dtype, self.temperature, self.settings)
        return self._restore(out), b.detach()

    def threshold(self) -> Tensor:
        """The thresholds alone, in the caller's sense."""
        return _ragged_autograd.threshold(*self[:7])

    def _restore(self, out: Tensor) -> Tensor:
        moved = self.moved
        if moved is None:
            return out
        return out.movedim(-1, moved) if isinstance(moved, int) else moved.back(out)

    def _boundary(self, hard: Tensor, pair: Tensor) -> Tensor:
        """The first score that a hard mask leaves out, beyond which lie the chosen ones."""
        offsets, lengths, _ = self.segments
        largest, scores = self.settings.largest, self.scores.detach()
        nothing = -math.inf if largest else math.inf
        taken = hard == 1
        taken = taken if self.mask is None else taken | ~self.mask
        is_nan = pair[..., 0].isnan() | (count_in_rows(hard.isnan(), offsets, lengths) > 0)
        if offsets is None:
            assert lengths is not None
            left = scores.masked_fill(taken | ~takes_part(scores, lengths), nothing)
            if not scores.shape[-1]:
                left = scores.new_full((*scores.shape[:-1], 1), nothing)
            boundary = left.amax(-1) if largest else left.amin(-1)
        else:
            left = scores.masked_fill(taken, nothing)
            boundary = _of_segments(left, offsets, lengths, nothing, largest)
        return boundary.masked_fill(is_nan, math.nan).to(compute_dtype(scores.dtype))


def _of_segments(
    values: Tensor, offsets: Tensor, lengths: Tensor | None, nothing: float, largest: bool
) -> Tensor:
    """The greatest of each segment's values, or the least; ``nothing`` where there are none."""
    starts, counts = bounds_of(values, offsets, lengths)
    number = starts.shape[0]
    places = torch.arange(values.shape[0], device=values.device)
    own = torch.searchsorted(starts, places, right=True) - 1
    if number:
        is_inside = (own >= 0) & (places < (starts + counts)[own.clamp(min=0)])
        own = torch.where(is_inside, own, number)
    else:
        own = torch.zeros_like(own)
    found = values.new_full((number + 1,), nothing)
    found = found.scatter_reduce(0, own, values, "amax" if largest else "amin")
    return found[:number]


def prepare(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: Dim,
    largest: bool,
    mask: Tensor | None,
    output: str,
    warm_start: Tensor | None,
    solver: str,
    validate: bool,
    clamp: bool,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    lengths: Tensor | None,
    is_nested: bool = False,
) -> RaggedCall:
    """Check the arguments of a public function and bring its rows last.

    Of a nested tensor these are its values, offsets and lengths.
    """
    largest, validate = check_flag("largest", largest), check_flag("validate", validate)
    clamp = check_flag("clamp", clamp)
    dims = check_dims(scores, dim)
    check_solver(solver)
    if mask is not None:
        mask = check_mask(mask, scores)
    moved: Moved | int | None = None
    if cu_seqlens is None and max_seqlen is not None:
        raise ValueError(f"max_seqlen goes with cu_seqlens, got max_seqlen={max_seqlen} alone")
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, scores, dim)
        if lengths is not None and not is_nested:
            raise ValueError("lengths must be left out with cu_seqlens, got both")
    elif dims != scores.dim() - 1:
        scores, mask, moved = move_dims(scores, mask, dims)
    if cu_seqlens is None:
        assert lengths is not None
        lengths = check_lengths(lengths, scores, scores.shape[:-1])
    segments = Segments(cu_seqlens, lengths, check_max_seqlen(max_seqlen))
    rows = rows_shape(scores, cu_seqlens, lengths)
    budget, row_temperature = None, None
    budget_number: Any = 0.0  # a number of the compiler's, in a graph
    temperature_number: Any = 1.0
    is_hard = output == "hard"
    expectation, counted = PER_ROW, "per row"
    if cu_seqlens is not None:
        expectation, counted = _PER_NESTED_ROW if is_nested else _PER_SEGMENT, "in all"
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, scores, rows, expectation)
    else:
        budget_number = check_number("k", k)
        check_budget_number(budget_number, scores.shape[-1], is_hard, clamp, counted)
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, scores, rows, expectation)
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, scores.dtype)
    if warm_start is not None:
        warm_start = check_warm_start(warm_start, scores, rows, expectation)
    if validate or clamp:
        looked_at = scores.detach()
        budgets = full_rows(scores, budget_number, rows) if budget is None else budget
        if validate:
            t = row_temperature
            t = full_rows(scores, temperature_number, rows) if t is None else t.detach()
            given = (t, mask, largest, is_hard, clamp, not is_nested)
            checked = check_values(looked_at, segments, budgets, *given)
            if checked is not budgets:  # in a graph
                budget, budgets, budget_number = checked, checked, 0.0
        if clamp:
            budget = limit_budget(looked_at, segments, budgets, mask, largest, is_hard)
            budget_number = 0.0
    if isinstance(budget_number, SymFloat) or isinstance(temperature_number, SymFloat):
        budget, budget_number, row_temperature, temperature_number = changing_numbers(
            scores, rows, budget, budget_number, row_temperature, temperature_number
        )
    settings = Settings(
        budget_number, temperature_number, largest, output, output_dtype(scores), solver
    )
    given_rows = (scores, budget, row_temperature, mask, warm_start)
    return RaggedCall(*given_rows, settings, segments, moved)

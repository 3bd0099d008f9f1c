"""A checked call on rows that are spread over a process group: see ``_call.py``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import SymFloat, Tensor

from . import _collectives, _sharded_autograd
from ._arguments import (
    Dim,
    check_budget_number,
    check_dims,
    check_flag,
    check_mask,
    check_number,
    check_per_row,
    check_temperature_number,
)
from ._autograd import threshold_value
from ._call import Number, changing_numbers, full_rows, output_dtype
from ._derivatives import Settings
from ._layout import Moved, move_dims
from ._sharded_values import check_values, limit_budget
from .backends.common import compute_dtype


class ShardedCall(NamedTuple):
    """A checked call: this rank's part of the rows along the last dimension."""

    scores: Tensor
    budget: Tensor | None
    temperature: Tensor | None
    mask: Tensor | None
    settings: Settings
    group: str
    moved: Moved | int | None

    def write(self) -> Tensor:
        """This rank's part of what the settings ask for, in the caller's dimensions."""
        return self._restore(_sharded_autograd.soft_topk(*self[:6])[0])

    def write_with_threshold(self) -> tuple[Tensor, Tensor]:
        """The same, and the thresholds of what is written, detached."""
        out, pair = _sharded_autograd.soft_topk(*self[:6])
        settings = self.settings
        if settings.output == "hard":
            b = self._boundary(out.detach(), pair)
        else:
            b = threshold_value(pair, self.scores.dtype, self.temperature, settings).detach()
        return self._restore(out), b

    def threshold(self) -> Tensor:
        """The thresholds alone, in the caller's sense."""
        return _sharded_autograd.threshold(*self[:6])

    def _restore(self, out: Tensor) -> Tensor:
        moved = self.moved
        if moved is None:
            return out
        return out.movedim(-1, moved) if isinstance(moved, int) else moved.back(out)

    def _boundary(self, hard: Tensor, pair: Tensor) -> Tensor:
        """The first score that the hard mask leaves out, on all ranks: one collective more."""
        scores, largest = self.scores.detach(), self.settings.largest
        nothing = -math.inf if largest else math.inf
        taken = hard == 1
        taken = taken if self.mask is None else taken | ~self.mask
        left = scores.masked_fill(taken, nothing).to(compute_dtype(scores.dtype))
        left = torch.cat((left, torch.full_like(pair[..., :1], nothing)), -1)
        # NaN where the row has no answer, which a rank without scores sees at the pair alone.
        unanswered = hard.isnan().any(-1) | pair[..., 0].isnan()
        own = (left.amax(-1) if largest else left.amin(-1)).masked_fill(unanswered, math.nan)
        found = _collectives.gather(own, self.group)
        return found.amax(0) if largest else found.amin(0)


def prepare(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: Dim,
    largest: bool,
    mask: Tensor | None,
    output: str,
    validate: bool,
    clamp: bool,
    group: str,
) -> ShardedCall:
    """Check the arguments of a public function and bring its rows last."""
    largest, validate = check_flag("largest", largest), check_flag("validate", validate)
    clamp = check_flag("clamp", clamp)
    dims = check_dims(scores, dim)
    if mask is not None:
        mask = check_mask(mask, scores)
    moved: Moved | int | None = None
    if dims != scores.dim() - 1:
        scores, mask, moved = move_dims(scores, mask, dims)
    rows_shape = scores.shape[:-1]
    budget, row_temperature = None, None
    budget_number: Any = 0.0
    temperature_number: Any = 1.0
    is_hard = output == "hard"
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, scores, rows_shape)
    else:
        budget_number = check_number("k", k)
        # How many scores there are in all is known to all ranks together.
        check_budget_number(budget_number, 0, False, clamp=True)
        if is_hard and not clamp and math.isfinite(budget_number):
            check_budget_number(budget_number, budget_number, is_hard)
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, scores, rows_shape)
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, scores.dtype)
    if validate or clamp:
        seen = scores.detach()
        row_budget = full_rows(scores, budget_number, rows_shape) if budget is None else budget
        if validate:
            t = row_temperature
            t = full_rows(scores, temperature_number, rows_shape) if t is None else t.detach()
            flags = (largest, output, clamp, group)
            checked = check_values(seen, row_budget, t, mask, *flags)
            if checked is not row_budget:  # in a graph
                budget, row_budget, budget_number = checked, checked, 0.0
        if clamp:
            budget = limit_budget(seen, row_budget, mask, largest, is_hard, group)
            budget_number = 0.0
    if isinstance(budget_number, SymFloat) or isinstance(temperature_number, SymFloat):
        budget, budget_number, row_temperature, temperature_number = changing_numbers(
            scores, rows_shape, budget, budget_number, row_temperature, temperature_number
        )
    settings = Settings(
        budget_number, temperature_number, largest, output, output_dtype(scores), "auto"
    )
    return ShardedCall(scores, budget, row_temperature, mask, settings, group, moved)

"""A checked call: what every public function makes of its arguments."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
from ._derivatives import Settings
from ._ops import row_dtype
from .solvers.backend import SOLVERS

Number = int | float
SolverName = Literal["auto", "two_exponential", "bisect", "sort_scan", "noised_bracket"]


class Call(NamedTuple):
    """A checked call: tensors with rows along the last dimension, and where that came from."""

    scores: Tensor
    budget: Tensor | None
    temperature: Tensor | None
    mask: Tensor | None
    warm_start: Tensor | None
    settings: Settings
    dim: int | None

    def detach(self) -> Call:
        """The same call without a graph."""
        return self._replace(
            scores=self.scores.detach(),
            budget=None if self.budget is None else self.budget.detach(),
            temperature=None if self.temperature is None else self.temperature.detach(),
        )

    def write(self) -> Tensor:
        """What the settings ask for, rows still last."""
        return _autograd.soft_topk(*self[:6], with_threshold=False)[0]

    def write_with_threshold(self) -> tuple[Tensor, Tensor]:
        """The same, and the thresholds, detached."""
        out, pair = _autograd.soft_topk(*self[:6], with_threshold=True)
        assert pair is not None
        settings, dtype = self.settings, self.scores.dtype
        return out, _autograd.threshold_value(pair, dtype, self.temperature, settings).detach()

    def threshold(self) -> Tensor:
        """The thresholds alone, in the caller's sense."""
        return _autograd.threshold(*self[:6])

    def restore(self, out: Tensor) -> Tensor:
        """The rows back in the caller's dimension."""
        return out if self.dim is None else out.movedim(-1, self.dim)


def prepare(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    output: str,
    warm_start: Tensor | None,
    solver: str,
    validate: bool,
) -> Call:
    """Check the arguments of a public function and bring its rows last."""
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
        check_budget_number(budget_number, shape[-1], output == "hard")
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
            largest,
            output == "hard",
        )
    out_dtype = scores.dtype
    if out_dtype.itemsize == 2 and torch.is_autocast_enabled(scores.device.type):
        out_dtype = torch.float32
    settings = Settings(budget_number, temperature_number, largest, output, out_dtype, solver)
    return Call(scores, budget, row_temperature, mask, warm_start, settings, moved_from)


def _full(scores: Tensor, number: float) -> Tensor:
    """A number per row, for the compiler: it makes a new graph for each new number that an
    operator is given, and none for a number that a tensor is multiplied with.
    """
    return scores.new_ones(scores.shape[:-1], dtype=row_dtype(scores)) * number

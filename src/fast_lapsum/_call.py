"""A checked call: what every public function makes of its arguments."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import SymFloat, Tensor

from . import _autograd, _ops, _selection_autograd, _selection_ops
from ._arguments import (
    Dim,
    check_budget_number,
    check_dims,
    check_flag,
    check_mask,
    check_number,
    check_per_row,
    check_temperature_number,
    check_warm_start,
    check_whole_number,
)
from ._derivatives import Settings, transforms_active
from ._layout import Moved, move_dims
from ._values import check_values, limit_budget
from .backends.common import SOLVERS, compute_dtype, row_dtype

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
    moved: Moved | int | None

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

    def write_detached(self) -> Tensor:
        """The same without a graph, and without the bookkeeping for one."""
        is_bare = not self.scores.requires_grad and self.budget is self.temperature is None
        call = self if is_bare else self.detach()
        if transforms_active():
            return call.write()
        return _autograd.call_operator(*call[:6])[0]

    def write_with_threshold(self) -> tuple[Tensor, Tensor]:
        """The same, and the thresholds of what is written, detached."""
        if self.settings.output == "hard":
            out = self.write()
            return out, self._boundary(out.detach())
        out, pair = _autograd.soft_topk(*self[:6], with_threshold=True)
        assert pair is not None
        settings, dtype = self.settings, self.scores.dtype
        return out, _autograd.threshold_value(pair, dtype, self.temperature, settings).detach()

    def threshold(self) -> Tensor:
        """The thresholds alone, in the caller's sense."""
        return _autograd.threshold(*self[:6])

    def restore(self, out: Tensor) -> Tensor:
        """The rows back in the caller's dimensions."""
        moved = self.moved
        if moved is None:
            return out
        return out.movedim(-1, moved) if isinstance(moved, int) else moved.back(out)

    def _boundary(self, hard: Tensor) -> Tensor:
        """The first score that a hard mask leaves out, beyond which lie the chosen ones."""
        scores, nothing = self.scores.detach(), -math.inf if self.settings.largest else math.inf
        if not scores.shape[-1]:  # a budget of 0 is all that there can be
            empty = scores.new_full(scores.shape[:-1], nothing, dtype=compute_dtype(scores.dtype))
            return empty if self.budget is None else empty.masked_fill(self.budget != 0, math.nan)
        taken = hard == 1
        taken = taken if self.mask is None else taken | ~self.mask
        left = scores.masked_fill(taken, nothing)
        boundary = left.amax(-1) if self.settings.largest else left.amin(-1)
        boundary = boundary.masked_fill(hard[..., 0].isnan(), math.nan)
        return boundary.to(compute_dtype(scores.dtype))


def prepare(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: Dim,
    largest: bool,
    mask: Tensor | None,
    output: str,
    warm_start: Tensor | None = None,
    solver: str = "auto",
    validate: bool = False,
    clamp: bool = False,
) -> Call:
    """Check the arguments of a public function and bring its rows last."""
    if largest is not True:
        largest = check_flag("largest", largest)
    if validate or clamp:
        validate, clamp = check_flag("validate", validate), check_flag("clamp", clamp)
    dims = check_dims(scores, dim)
    if solver != "auto":
        check_solver(solver)
    if mask is not None:
        mask = check_mask(mask, scores)
    moved: Moved | int | None = None
    if dims != scores.dim() - 1:
        scores, mask, moved = move_dims(scores, mask, dims)
    shape = scores.shape
    budget, row_temperature = None, None
    budget_number: Any = 0.0  # a number of the compiler's, in a graph
    temperature_number: Any = 1.0
    is_hard = output == "hard"
    if isinstance(k, Tensor):
        budget = check_per_row("k", k, scores, shape[:-1])
    else:
        budget_number = check_number("k", k)
        check_budget_number(budget_number, shape[-1], is_hard, clamp)
    if isinstance(temperature, Tensor):
        row_temperature = check_per_row("temperature", temperature, scores, shape[:-1])
    else:
        temperature_number = check_number("temperature", temperature)
        check_temperature_number(temperature_number, scores.dtype)
    if warm_start is not None:
        warm_start = check_warm_start(warm_start, scores, shape[:-1])
    if validate or clamp:
        looked_at = scores.detach()
        rows = full_rows(scores, budget_number, shape[:-1]) if budget is None else budget
        if validate:
            t = row_temperature
            t = full_rows(scores, temperature_number, shape[:-1]) if t is None else t.detach()
            checked = check_values(looked_at, rows, t, mask, largest, is_hard, clamp)
            if checked is not rows:  # in a graph
                budget, rows, budget_number = checked, checked, 0.0
        if clamp:
            budget = limit_budget(looked_at, rows, mask, largest, is_hard)
            budget_number = 0.0
    if isinstance(budget_number, SymFloat) or isinstance(temperature_number, SymFloat):
        budget, budget_number, row_temperature, temperature_number = changing_numbers(
            scores, shape[:-1], budget, budget_number, row_temperature, temperature_number
        )
    out_dtype = output_dtype(scores)
    settings = Settings(budget_number, temperature_number, largest, output, out_dtype, solver)
    return Call(scores, budget, row_temperature, mask, warm_start, settings, moved)


def select(
    scores: Tensor,
    k: int,
    temperature: Number | Tensor,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    is_sorted: bool,
    validate: bool,
) -> tuple[Tensor, Tensor]:
    """Places and weights of the selected scores."""
    count, is_sorted = check_whole_number(k, dim), check_flag("sorted", is_sorted)
    call = prepare(scores, count, temperature, dim, largest, mask, "hard", None, "auto", validate)
    settings = call.settings._replace(output="mask")
    indices, weights = _selection_autograd.select_topk(
        call.scores, count, call.temperature, call.mask, is_sorted, settings
    )
    return call.restore(indices), call.restore(weights)


def sample(call: Call, generator: torch.Generator | None = None) -> Tensor:
    """A random mask, rows still last."""
    call, settings = call.detach(), call.settings
    scores, k, t = call.scores, settings.budget_number, settings.temperature_number
    # Named even as None it would need a shape that is known, which a graph's may not be.
    by: dict[str, Any] = {} if generator is None else {"generator": generator}
    start = torch.rand(scores.shape[:-1], device=scores.device, dtype=row_dtype(scores), **by)
    operator: Any = _selection_ops.sample_topk
    if not _autograd.is_plain(scores):
        operator = _ops.operator("sample_topk", k, t)
    return operator(  # type: ignore[no-any-return]
        *(scores, call.budget, k, call.temperature, t, call.mask, start),
        *(settings.largest, settings.out_dtype),
    )


def output_dtype(scores: Tensor) -> torch.dtype:
    """What masks are returned in: the scores' dtype, or float32 under autocast."""
    if scores.dtype.itemsize == 2 and torch.is_autocast_enabled(scores.device.type):
        return torch.float32
    return scores.dtype


def check_solver(solver: str) -> None:
    """A name that a call can have."""
    if solver != "auto" and solver not in SOLVERS:
        names = ", ".join(repr(name) for name in ("auto", *SOLVERS))
        raise ValueError(f"solver must be one of {names}, got solver={solver!r}")


def full_rows(scores: Tensor, number: float, rows_shape: torch.Size) -> Tensor:
    """A number for every row: a product, because that is what a compiler follows as the number
    changes.
    """
    one = scores.new_ones((), dtype=row_dtype(scores))
    return (one * number).expand(rows_shape)


def changing_numbers(
    scores: Tensor,
    rows_shape: torch.Size,
    budget: Tensor | None,
    k: float,
    temperature: Tensor | None,
    t: float,
) -> tuple[Tensor | None, float | Tensor, Tensor | None, float | Tensor]:
    """Budget and temperature for a graph of which one is a number that changes and is not whole.

    The compiler holds it as a scalar tensor in the host's memory, and so do the operators: as a
    number it would be compiled anew for every value. A whole one may change as it is.
    """
    if transforms_active():  # which are not to find tensors among the settings
        budget = full_rows(scores, k, rows_shape) if budget is None else budget
        if temperature is None:
            temperature = full_rows(scores, t, rows_shape)
        return budget, 0.0, temperature, 1.0
    # A product with one is what such a number may be used in, and what the compiler leaves out.
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return budget, one * k, temperature, one * t

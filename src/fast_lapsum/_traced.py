"""The calls as a compiler sees them: one operator each, taken apart when the graph is made.

The public functions' arguments are checked while a compiler follows them. From there on it need not
look: an operator of this file is written in terms of the autograd functions, so that the graph ends
up with the operators of ``_ops.py`` and ``_selection_ops.py`` and nothing around them.

Here it is known which numbers may change from call to call. A whole one is handed on, and so is one
that never changes. One that is not whole goes on as a scalar tensor in the host's memory, which is
how the compiler itself holds it: as a number it would be compiled anew for every value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _autograd, _ops, _selection_autograd, _selection_ops
from ._derivatives import Settings, transforms_active
from ._ops import NAMESPACE, row_dtype

Number = float | Tensor


def _call_soft_topk(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    solver: str,
) -> tuple[Tensor, Tensor]:
    """What ``output`` says and the thresholds, detached; for "threshold" these, differentiable."""
    budget, k, temperature, t = _numbers(
        scores, budget, budget_number, temperature, temperature_number
    )
    settings = Settings(k, t, largest, output, out_dtype, solver)
    inputs = (scores, budget, temperature, mask, warm_start, settings)
    if output == "threshold":
        b = _autograd.threshold(*inputs)
        return b, b.detach().clone()
    out, pair = _autograd.soft_topk(*inputs, with_threshold=True)
    assert pair is not None
    return out, _autograd.threshold_value(pair, scores.dtype, temperature, settings).detach()


def _call_select_topk(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Places and weights of the selected scores."""
    _, _, temperature, t = _numbers(scores, None, 0, temperature, temperature_number)
    settings = Settings(0.0, t, largest, "mask", out_dtype, "auto")
    return _selection_autograd.select_topk(scores, k, temperature, mask, is_sorted, settings)


def _call_sample_topk(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    start: Tensor,
    largest: bool,
    out_dtype: torch.dtype,
) -> Tensor:
    """A random mask."""
    budget, k, temperature, t = _numbers(
        scores, budget, budget_number, temperature, temperature_number
    )
    operator = _ops.operator("sample_topk", k, t)
    return operator(  # type: ignore[no-any-return]
        scores, budget, k, temperature, t, mask, start, largest, out_dtype
    )


def _numbers(
    scores: Tensor,
    budget: Tensor | None,
    k: float,
    temperature: Tensor | None,
    t: float,
) -> tuple[Tensor | None, Number, Tensor | None, Number]:
    """Budget and temperature for a graph: if one number is a changing float, both are tensors."""
    if not any(isinstance(number, torch.SymFloat) for number in (k, t)):
        return budget, k, temperature, t
    if transforms_active():  # which are not to find tensors among the settings
        rows = scores.new_ones(scores.shape[:-1], dtype=row_dtype(scores))
        budget = rows * k if budget is None else budget
        return budget, 0.0, rows * t if temperature is None else temperature, 1.0
    # A product with one is what a changing float may be used in, and what is left out later.
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return budget, one * k, temperature, one * t


def _define(name: str, schema: str, function: Any) -> None:
    operator = f"{NAMESPACE}::{name}"
    torch.library.define(operator, schema)
    torch.library.impl(operator, "CompositeImplicitAutograd", function)


_define("call_soft_topk", _ops.SOFT_TOPK, _call_soft_topk)
_define("call_sample_topk", _selection_ops.SAMPLE_TOPK, _call_sample_topk)
_define(
    "call_select_topk",
    _selection_ops.SELECT_TOPK.replace("-> (Tensor, Tensor, Tensor)", "-> (Tensor, Tensor)"),
    _call_select_topk,
)

soft_topk = torch.ops.fast_lapsum.call_soft_topk.default
select_topk = torch.ops.fast_lapsum.call_select_topk.default
sample_topk = torch.ops.fast_lapsum.call_sample_topk.default

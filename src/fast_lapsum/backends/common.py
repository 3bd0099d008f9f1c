"""What all backends share: dtypes, limits, the errors of a call, and pairs of thresholds.

Every backend has the same six entries, in its ``entry.py``, and four more in its
``ragged_entry.py``, which is loaded by the first call that needs it:

| entry | what it gives |
|---|---|
| ``supports(tensor)`` | whether the backend can take this tensor |
| ``forward(...)`` | what ``output`` says, and threshold pairs [..., 2] |
| ``backward(...)`` | gradients for scores, and where asked for budget and temperature |
| ``select(...)`` | places and weights of the k selected scores, and threshold pairs |
| ``select_backward(...)`` | gradients of the weights for scores, and where asked for temperature |
| ``sample(...)`` | a random mask |
| ``ragged_forward(...)``, ``ragged_backward(...)`` | the same of rows of several lengths |
| ``list_forward(...)``, ``list_backward(...)`` | the same of many tensors that are one row |

Rows lie along the last dimension of ``scores``. Budget and temperature come as a tensor with one
value per row, or as a number where that is None.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: What scores may be, and the number by which the C++ kernel knows it (enum Dtype of rows.hpp).
DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
#: Algorithms in plain torch that a call can name (backends/torch/forward.py has them).
SOLVERS = ("two_exponential", "bisect", "sort_scan", "noised_bracket")
#: What a call writes beside the threshold pairs, and the C++ kernel's number for it (call.hpp):
#: the mask, that of exactly k ones, the mask's logarithm, or nothing.
OUTPUTS = {"mask": 0, "hard": 1, "log": 2, "threshold": 3}
#: Distance from the outermost score, in temperatures, at which a mask is exactly 0 or 1.
SATURATION = 800.0
#: The highest temperature is this part of the largest number: distances of 128 t must exist. Beyond
#: them float32 has only zeros; float64 goes on to 745 t, where p may be off at the highest ones.
HOTTEST = 256.0


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which thresholds are kept: float64 for float64, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@functools.cache
def max_temperature(dtype: torch.dtype) -> float:
    """The highest temperature for scores of this dtype."""
    return torch.finfo(compute_dtype(dtype)).max / HOTTEST


def row_dtype(scores: Tensor) -> torch.dtype:
    """The dtype of budgets, temperatures and their gradients."""
    return torch.float32 if scores.device.type == "mps" else torch.float64


def per_row_values(values: Tensor | None, number: float, scores: Tensor) -> Tensor:
    """One value per row, whichever way it was given."""
    if values is not None:
        return values
    return scores.new_full(scores.shape[:-1], number, dtype=row_dtype(scores))


def per_row_tensor(value: Tensor | float, scores: Tensor) -> Tensor:
    """The same of a tensor or a number."""
    return value if isinstance(value, Tensor) else per_row_values(None, value, scores)


def has_nan(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Rows in which a NaN takes part."""
    is_nan = scores.isnan()
    return (is_nan if mask is None else is_nan & mask).any(-1)


def order_rows_by_torch(scores: Tensor, descending: bool) -> tuple[Tensor, Tensor]:
    """Scores in ascending order along the last dimension, and where they were, differentiable.

    Of descending rows it is the negatives that ascend. NaN come last.
    """
    found = torch.sort(-scores if descending else scores, -1)
    return found.values.to(compute_dtype(scores.dtype)), found.indices


def check_budget_fits(scores: Tensor, mask: Tensor | None, largest: bool, k: float) -> None:
    """Raise where a budget given as a number is over the number of valid scores of some row."""
    valid = scores != (-math.inf if largest else math.inf)
    valid = valid if mask is None else valid & mask
    counts = valid.sum(-1).masked_fill(has_nan(scores, mask), scores.shape[-1])
    if not counts.numel() or k <= (least := int(counts.min())):
        return
    where = tuple(int(i) for i in (counts == least).nonzero()[0])
    row = f" in row {where}" if where else ""
    left_out = "-inf" if largest else "+inf"
    raise ValueError(
        f"k must be at most {least}, the number of scores that take part in a row (not masked out, "
        f"not {left_out}), got k={k:g}{row}; clamp=True takes such a row whole"
    )


def check_budget_fits_list(tensors: Sequence[Tensor], largest: bool, k: float) -> None:
    """The same for one budget over many tensors."""
    left_out = -math.inf if largest else math.inf
    if any(bool(x.isnan().any()) for x in tensors):
        return
    count = sum(int((x != left_out).sum()) for x in tensors)
    if k > count:
        raise ValueError(
            f"k must be at most {count}, the number of scores of all tensors that take part (not "
            f"{left_out:+}), got k={k:g}; clamp=True takes all of them whole"
        )


def is_hard(hi: Tensor, temperature: Tensor, kept: torch.dtype) -> Tensor:
    """Whether a threshold pair is that of the hard limit."""
    return (temperature < torch.finfo(kept).tiny) | (hi == math.inf)


def distances(scores: Tensor, hi: Tensor, lo: Tensor, temperature: Tensor) -> Tensor:
    """u = ((r - hi) - lo) / t, by halves: r - hi may be over the largest number where u is not."""
    return half_distances(scores, hi, lo) / temperature * 2


def half_distances(scores: Tensor, hi: Tensor, lo: Tensor) -> Tensor:
    """((r - hi) - lo) / 2."""
    return (scores / 2 - hi / 2) - lo / 2


def spread_over_rows(values: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
    """Values at their places in rows like those of scores, 0 elsewhere."""
    values = values.masked_fill(indices < 0, 0.0)  # left over: nothing is added to the first
    return values.new_zeros(scores.shape).scatter_add(-1, indices.clamp(min=0), values)

"""The operators of soft ranks and sorts as PyTorch sees them: schemas, shapes, choice of backend.

Rows lie along the last dimension of ``scores``. They are sorted here, ascending (their negatives,
where the call is descending), and backends see sorted rows only: [rows, n], contiguous, float64 for
float64 scores and float32 for the rest. Temperatures have one float64 for each row, or are one
number. Places that are masked out are NaN and come last; a row with a NaN that is not masked out is
all NaN then. What is kept for the backward is in rows, too: [rows, n], and [rows, m] of m
thresholds.
"""

from __future__ import annotations

import functools
import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ._ops import NAMESPACE
from .backends.common import compute_dtype, order_rows_by_torch
from .backends.cpu import ranking_entry as cpu
from .backends.torch import ranking_entry as plain
from .backends.triton import loader

SOFT_RANK = (
    "(Tensor scores, Tensor? temperature, Scalar temperature_number, Tensor? mask,"
    " bool descending)"
    " -> (Tensor ranks, Tensor ordered, Tensor order)"
)
SOFT_RANK_BACKWARD = (
    "(Tensor grad, Tensor ordered, Tensor order, Tensor? temperature, Scalar temperature_number,"
    " Tensor? mask, bool descending) -> Tensor"
)
SOFT_THRESHOLDS = (
    "(Tensor scores, Tensor? temperature, Scalar temperature_number, Tensor? masses,"
    " bool descending)"
    " -> (Tensor b, Tensor ordered, Tensor order, Tensor count, Tensor low, Tensor up)"
)
SOFT_THRESHOLDS_BACKWARD = (
    "(Tensor grad, Tensor ordered, Tensor order, Tensor count, Tensor low, Tensor up,"
    " Tensor? temperature, Scalar temperature_number, bool descending) -> Tensor"
)
DECAYED_SUMS = "(Tensor gaps, Tensor values, bool reverse) -> Tensor"


def backend_for(tensor: Tensor) -> Any:
    """The kernels for this tensor, or plain torch."""
    if tensor.is_cuda:
        if loader.entry() is None:
            loader.hint_at_triton()
            return plain
        return _triton()
    return cpu if cpu.supports(tensor) else plain


@functools.cache
def _triton() -> Any:
    return import_module(".backends.triton.ranking_entry", __package__)


def masked_rows(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores, with NaN where they are masked out, or in all of a row that has one besides."""
    if mask is None:
        return scores
    is_bad = (scores.isnan() & mask).any(-1, keepdim=True)
    return scores.masked_fill(~mask | is_bad, math.nan)


def _sorted_rows(scores: Tensor, mask: Tensor | None, descending: bool) -> tuple[Tensor, Tensor]:
    """Sorted scores and where they were, in rows: what backends see."""
    given = masked_rows(scores, mask)
    if not given.numel():
        found = order_rows_by_torch(given, descending)
    else:
        found = backend_for(given).order_rows(given, descending)
    return as_rows(found[0]), as_rows(found[1])


def as_rows(tensor: Tensor) -> Tensor:
    """Two dimensions, contiguous: what backends see."""
    if tensor.dim() == 2 and tensor.is_contiguous():
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1]).contiguous()


def _in_rows(temperature: Tensor | None, number: float) -> Tensor | float:
    """One temperature for each row, or one number: as backends take it."""
    return number if temperature is None else temperature.reshape(-1).contiguous()


def soft_rank(
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    descending: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Soft ranks in the shape of the scores, and the sorted rows for the backward."""
    ordered, order = _sorted_rows(scores, mask, descending)
    t = _in_rows(temperature, temperature_number)
    if not ordered.numel():
        ranks = torch.empty_like(ordered)
    else:
        ranks = backend_for(ordered).rank_rows(ordered, order, t, mask is not None)
    return ranks.view(scores.shape), ordered, order


def soft_rank_backward(
    grad: Tensor,
    ordered: Tensor,
    order: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    descending: bool,
) -> Tensor:
    """Gradient for the scores, in their shape and in the dtype of ``ordered``."""
    if not ordered.numel():
        return ordered.new_empty(grad.shape)
    given = as_rows(grad.to(ordered.dtype))
    given = -given if descending else given
    t = _in_rows(temperature, temperature_number)
    backend = backend_for(ordered)
    found: Tensor = backend.rank_rows_backward(given, ordered, order, t, mask is not None)
    found = found.view(grad.shape)
    return found if mask is None else found.masked_fill(~mask, 0.0)


def soft_thresholds(
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    masses: Tensor | None,
    descending: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """b at every mass, [..., m], and what its backward needs; without masses those of a sort."""
    ordered, order = _sorted_rows(scores, None, descending)
    t = _in_rows(temperature, temperature_number)
    m = scores.shape[-1] if masses is None else len(masses)
    if not ordered.numel() or m == 0:
        b, count, low, up = _new_thresholds(ordered, (len(ordered), m))
    else:
        b, count, low, up = backend_for(ordered).threshold_rows(ordered, t, masses)
    b = -b if descending else b
    return b.view(*scores.shape[:-1], m), ordered, order, count, low, up


def soft_thresholds_backward(
    grad: Tensor,
    ordered: Tensor,
    order: Tensor,
    count: Tensor,
    low: Tensor,
    up: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    descending: bool,
) -> Tensor:
    """Gradient for the scores, in rows; both signs of descending cancel."""
    if not ordered.numel() or not count.numel():
        return torch.zeros_like(ordered)
    given = as_rows(grad.to(ordered.dtype))
    t = _in_rows(temperature, temperature_number)
    backend = backend_for(ordered)
    return backend.threshold_rows_backward(given, count, low, up, ordered, order, t)  # type: ignore[no-any-return]


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """See ``backends/torch/decay_scan.py``: gaps [rows, n - 1], values [rows, columns, n]."""
    if values.numel() == 0 or values.shape[-1] == 1:
        return values.clone()
    return backend_for(values).decayed_sums(gaps.contiguous(), values.contiguous(), reverse)  # type: ignore[no-any-return]


def _new_thresholds(like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    new = [like.new_empty(shape) for _ in range(3)]
    return new[0], like.new_empty(shape, dtype=torch.int32), new[1], new[2]


def _fake_soft_rank(
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    descending: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, kept = _rows_shape(scores), compute_dtype(scores.dtype)
    new = scores.new_empty
    return new(scores.shape, dtype=kept), new(rows, dtype=kept), new(rows, dtype=torch.int64)


def _rows_shape(scores: Tensor) -> tuple[int, int]:
    return math.prod(scores.shape[:-1]), scores.shape[-1]


def _fake_soft_thresholds(
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    masses: Tensor | None,
    descending: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = _rows_shape(scores)
    ordered = scores.new_empty(rows, dtype=compute_dtype(scores.dtype))
    m = scores.shape[-1] if masses is None else masses.shape[0]
    b, count, low, up = _new_thresholds(ordered, (rows[0], m))
    b = b.view(*scores.shape[:-1], m)
    return b, ordered, scores.new_empty(rows, dtype=torch.int64), count, low, up


def _fake_soft_rank_backward(grad: Tensor, ordered: Tensor, *_: Any) -> Tensor:
    return ordered.new_empty(grad.shape)


def _fake_soft_thresholds_backward(grad: Tensor, ordered: Tensor, *_: Any) -> Tensor:
    return ordered.new_empty(ordered.shape)


def _fake_decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    return values.new_empty(values.shape)


for _name, _schema, _function, _fake in (
    ("soft_rank", SOFT_RANK, soft_rank, _fake_soft_rank),
    ("soft_rank_backward", SOFT_RANK_BACKWARD, soft_rank_backward, _fake_soft_rank_backward),
    ("soft_thresholds", SOFT_THRESHOLDS, soft_thresholds, _fake_soft_thresholds),
    (
        "soft_thresholds_backward",
        SOFT_THRESHOLDS_BACKWARD,
        soft_thresholds_backward,
        _fake_soft_thresholds_backward,
    ),
    ("decayed_sums", DECAYED_SUMS, decayed_sums, _fake_decayed_sums),
):
    torch.library.define(f"{NAMESPACE}::{_name}", _schema)
    torch.library.impl(f"{NAMESPACE}::{_name}", "default", _function)
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake)
del _name, _schema, _function, _fake

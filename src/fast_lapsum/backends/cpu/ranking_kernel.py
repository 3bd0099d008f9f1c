"""Calls the compiled kernel for sorted rows, which are contiguous: [rows, n]."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ..common import DTYPES, compute_dtype, order_rows_by_torch, per_row_tensor
from . import kernel

#: struct RankingCall, struct OrderCall and struct SumsCall of ranking_calls.hpp.
_RANKING = struct.Struct("=15q")
_ORDER = struct.Struct("=8q")
_SUMS = struct.Struct("=9q")
#: Shorter rows are sorted by torch, whose vectors are faster there; doubles have more digits.
#: (Rows over the 32 bits of a place are refused before: ``MOST_SCORES``.)
BY_DIGITS_FROM = {torch.float32: 128, torch.float64: 512}


def order_rows(scores: Tensor, descending: bool) -> tuple[Tensor, Tensor]:
    """See ``order_rows_by_torch``; longer rows are sorted by digits."""
    n, dtype = scores.shape[-1], compute_dtype(scores.dtype)
    if n < BY_DIGITS_FROM[dtype]:
        return order_rows_by_torch(scores, descending)
    scores = scores.to(dtype).contiguous()
    ordered, order = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int64)
    head = (DTYPES[scores.dtype], scores.numel() // n, n, torch.get_num_threads(), descending)
    pointers = (x.data_ptr() for x in (scores, ordered, order))
    kernel.call("lapsum_order", _ORDER.pack(*head, *pointers))
    return ordered, order


def rank_rows(
    ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """Ranks of sorted rows, each at the place that ``order`` gives."""
    out = torch.empty_like(ordered)
    given = (
        ordered,
        order,
        per_row_tensor(temperature, ordered),
        None,
        None,
        None,
        None,
        None,
        out,
    )
    _call("lapsum_rank", 0, is_masked, *given)
    return out


def rank_rows_backward(
    grad: Tensor, ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """Gradients of the ranks for the scores, at their places."""
    out = torch.empty_like(ordered)
    given = (
        ordered,
        order,
        per_row_tensor(temperature, ordered),
        None,
        grad,
        None,
        None,
        None,
        out,
    )
    _call("lapsum_rank_backward", 0, is_masked, *given)
    return out


def threshold_rows(
    ordered: Tensor, temperature: Tensor | float, masses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Thresholds, the number of scores below, and coefficients of their gradient."""
    m = ordered.shape[-1] if masses is None else len(masses)
    masses = None if masses is None else masses.to(torch.float64).contiguous()
    b, low, up = (ordered.new_empty(len(ordered), m) for _ in range(3))
    count = ordered.new_empty((len(ordered), m), dtype=torch.int32)
    given = (ordered, None, per_row_tensor(temperature, ordered), masses, None, count, low, up, b)
    _call("lapsum_thresholds", m, False, *given)
    return b, count, low, up


def threshold_rows_backward(
    grad: Tensor,
    count: Tensor,
    low: Tensor,
    up: Tensor,
    ordered: Tensor,
    order: Tensor,
    temperature: Tensor | float,
) -> Tensor:
    """Gradients of the thresholds for the scores, at their places."""
    out = torch.empty_like(ordered)
    given = (ordered, order, per_row_tensor(temperature, ordered), None, grad, count, low, up, out)
    _call("lapsum_thresholds_backward", grad.shape[-1], False, *given)
    return out


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """Sums that decay over gaps: [rows, n - 1], values and result [rows, columns, n]."""
    out = torch.empty_like(values)
    rows, columns, n = values.shape
    head = (DTYPES[values.dtype], rows, columns, n, torch.get_num_threads(), reverse)
    pointers = (x.data_ptr() for x in (gaps, values, out))
    kernel.call("lapsum_decayed_sums", _SUMS.pack(*head, *pointers))
    return out


def _call(name: str, m: int, is_masked: bool, ordered: Tensor, *tensors: Tensor | None) -> None:
    rows, n = ordered.shape
    head = (DTYPES[ordered.dtype], rows, n, m, torch.get_num_threads(), is_masked)
    pointers = (0 if x is None else x.data_ptr() for x in (ordered, *tensors))
    kernel.call(name, _RANKING.pack(*head, *pointers))

"""Ranks, sorts and quantiles as a compiler sees them: one operator each (see ``_traced.py``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import __version__, _ranking_call
from ._ranking_call import Number
from ._traced import define, tensor_and_number

_OF_ROWS = "(Tensor scores, Tensor? temperature, Scalar temperature_number, int dim"
_RANK = f"{_OF_ROWS}, bool descending, Tensor? mask) -> Tensor"
_SORT = f"{_OF_ROWS}, bool descending) -> Tensor"
_QUANTILE = f"{_OF_ROWS}, Tensor? q, Scalar q_number) -> Tensor"


def soft_rank(
    scores: Tensor, temperature: Number | Tensor, dim: int, descending: bool, mask: Tensor | None
) -> Tensor:
    """See ``ranking.soft_rank``."""
    t = tensor_and_number("temperature", temperature)
    given = (scores, *t, dim, descending, mask)
    return torch.ops.fast_lapsum.call_soft_rank(*given, __version__)  # type: ignore[no-any-return]


def soft_sort(scores: Tensor, temperature: Number | Tensor, dim: int, descending: bool) -> Tensor:
    """See ``ranking.soft_sort``."""
    t = tensor_and_number("temperature", temperature)
    given = (scores, *t, dim, descending)
    return torch.ops.fast_lapsum.call_soft_sort(*given, __version__)  # type: ignore[no-any-return]


def soft_quantile(
    scores: Tensor, q: Number | Tensor, temperature: Number | Tensor, dim: int
) -> Tensor:
    """See ``ranking.soft_quantile``."""
    t = tensor_and_number("temperature", temperature)
    given = (scores, *t, dim, *tensor_and_number("q", q))
    return torch.ops.fast_lapsum.call_soft_quantile(*given, __version__)  # type: ignore[no-any-return]


def _given(tensor: Tensor | None, number: Number) -> Number | Tensor:
    return number if tensor is None else tensor


def _call_soft_rank(
    scores: Tensor, t: Tensor | None, t_number: Number, dim: int, *rest: Any
) -> Tensor:
    return _ranking_call.soft_rank(scores, _given(t, t_number), dim, *rest)


def _call_soft_sort(
    scores: Tensor, t: Tensor | None, t_number: Number, dim: int, descending: bool
) -> Tensor:
    return _ranking_call.soft_sort(scores, _given(t, t_number), dim, descending)


def _call_soft_quantile(
    scores: Tensor,
    t: Tensor | None,
    t_number: Number,
    dim: int,
    q: Tensor | None,
    q_number: Number,
) -> Tensor:
    return _ranking_call.soft_quantile(scores, _given(q, q_number), _given(t, t_number), dim)


define("call_soft_rank", _RANK, _call_soft_rank)
define("call_soft_sort", _SORT, _call_soft_sort)
define("call_soft_quantile", _QUANTILE, _call_soft_quantile)

"""Rows of several lengths and many tensors as a compiler sees them: see ``_traced.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import __version__
from ._arguments import Dim
from ._call import Number
from ._list import soft_topk_list
from ._ragged import prepare as prepare_ragged
from ._segments import check_max_seqlen
from ._traced import define, dims_of, tensor_and_number

_RAGGED = (
    "(Tensor scores, Tensor? k, Scalar k_number, Tensor? temperature, Scalar temperature_number,"
    " int[]? dim, bool largest, Tensor? mask, str output, Tensor? warm_start, str solver,"
    " bool validate, bool clamp, Tensor? cu_seqlens, SymInt? max_seqlen, Tensor? lengths,"
    " bool is_nested, bool with_threshold) -> Tensor[]"
)
_LIST = (
    "(Tensor[] tensors, Tensor? k, Scalar k_number, Tensor? temperature, Scalar temperature_number,"
    " bool largest, bool clamp, bool hard, bool with_threshold, bool validate, str? group)"
    " -> Tensor[]"
)


def ragged_topk(
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
    is_nested: bool,
    with_threshold: bool = False,
) -> list[Tensor]:
    """The same of rows of several lengths."""
    return torch.ops.fast_lapsum.call_ragged_topk(  # type: ignore[no-any-return]
        scores,
        *tensor_and_number("k", k),
        *tensor_and_number("temperature", temperature),
        dims_of(dim),
        *(largest, mask, output, warm_start, solver, validate, clamp),
        *(cu_seqlens, check_max_seqlen(max_seqlen), lengths, is_nested, with_threshold),
        __version__,
    )


def list_topk(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor,
    largest: bool,
    clamp: bool,
    hard: bool,
    with_threshold: bool,
    validate: bool,
    group: str | None = None,
) -> list[Tensor]:
    """Masks of many tensors, and last the threshold of them if wanted."""
    return torch.ops.fast_lapsum.call_list_topk(  # type: ignore[no-any-return]
        tensors,
        *tensor_and_number("k", k),
        *tensor_and_number("temperature", temperature),
        *(largest, clamp, hard, with_threshold, validate, group),
        __version__,
    )


def _call_ragged_topk(
    scores: Tensor,
    k: Tensor | None,
    k_number: Number,
    temperature: Tensor | None,
    temperature_number: Number,
    dim: list[int] | None,
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
    is_nested: bool,
    with_threshold: bool,
) -> list[Tensor]:
    call = prepare_ragged(
        scores,
        k_number if k is None else k,
        temperature_number if temperature is None else temperature,
        dim[0] if dim is not None and len(dim) == 1 else dim,
        *(largest, mask, output, warm_start, solver, validate, clamp),
        *(cu_seqlens, max_seqlen, lengths, is_nested),
    )
    if output == "threshold":
        return [call.threshold()]
    return list(call.write_with_threshold()) if with_threshold else [call.write()]


def _call_list_topk(
    tensors: Sequence[Tensor],
    k: Tensor | None,
    k_number: Number,
    temperature: Tensor | None,
    temperature_number: Number,
    largest: bool,
    clamp: bool,
    hard: bool,
    with_threshold: bool,
    validate: bool,
    group: str | None,
) -> list[Tensor]:
    t = temperature_number if temperature is None else temperature
    flags = (largest, clamp, hard, with_threshold, validate, group)
    return soft_topk_list(list(tensors), k_number if k is None else k, t, *flags)


define("call_list_topk", _LIST, _call_list_topk)
define("call_ragged_topk", _RAGGED, _call_ragged_topk)

"""Rows that are spread over a process group, as a compiler sees them: see ``_traced.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from . import __version__
from ._arguments import Dim
from ._call import Number
from ._sharded import prepare
from ._traced import define, dims_of, tensor_and_number

_SHARDED = (
    "(Tensor scores, Tensor? k, Scalar k_number, Tensor? temperature, Scalar temperature_number,"
    " int[]? dim, bool largest, Tensor? mask, str output, bool validate, bool clamp, str group,"
    " bool with_threshold) -> Tensor[]"
)


def sharded_topk(
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
    with_threshold: bool = False,
) -> list[Tensor]:
    """What ``output`` says, and the thresholds of it if wanted."""
    return torch.ops.fast_lapsum.call_sharded_topk(  # type: ignore[no-any-return]
        scores,
        *tensor_and_number("k", k),
        *tensor_and_number("temperature", temperature),
        dims_of(dim),
        *(largest, mask, output, validate, clamp, group, with_threshold),
        __version__,
    )


def _call_sharded_topk(
    scores: Tensor,
    k: Tensor | None,
    k_number: Number,
    temperature: Tensor | None,
    temperature_number: Number,
    dim: list[int] | None,
    largest: bool,
    mask: Tensor | None,
    output: str,
    validate: bool,
    clamp: bool,
    group: str,
    with_threshold: bool,
) -> list[Tensor]:
    call = prepare(
        scores,
        k_number if k is None else k,
        temperature_number if temperature is None else temperature,
        *(dim, largest, mask, output, validate, clamp, group),
    )
    if output == "threshold":
        return [call.threshold()]
    return list(call.write_with_threshold()) if with_threshold else [call.write()]


define("call_sharded_topk", _SHARDED, _call_sharded_topk)

"""The public functions as a compiler sees them: one operator each, taken apart by the compiler.

What a compiler follows line by line it asks about again before every call. So under
``torch.compile`` and ``torch.export`` a public function hands all of its arguments to an operator
of this file, which is the same function again: a graph is made of what it calls, and ends up with
the operators of ``_ops.py`` and ``_selection_ops.py`` and nothing around them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import __version__
from ._arguments import Dim, check_dim_kinds, check_number, check_whole_number
from ._call import Number, prepare, sample, select
from ._ops import NAMESPACE

_CALL = (
    "(Tensor scores, Tensor? k, Scalar k_number, Tensor? temperature, Scalar temperature_number,"
    " int[]? dim, bool largest, Tensor? mask, str output, Tensor? warm_start, str solver,"
    " bool validate, bool clamp, bool with_threshold) -> Tensor[]"
)
_SELECT = (
    "(Tensor scores, SymInt k, Tensor? temperature, Scalar temperature_number, int dim,"
    " bool largest, Tensor? mask, bool sorted, bool validate) -> (Tensor, Tensor)"
)
#: Why not numpy's.
_NUMPY = "where a number of numpy's is a tensor"


def soft_topk(
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
    with_threshold: bool = False,
) -> list[Tensor]:
    """What ``output`` says, "sample" for a random mask, and the thresholds of it if wanted."""
    return torch.ops.fast_lapsum.call_soft_topk(  # type: ignore[no-any-return]
        scores,
        *tensor_and_number("k", k),
        *tensor_and_number("temperature", temperature),
        dims_of(dim),
        largest,
        mask,
        output,
        warm_start,
        solver,
        validate,
        clamp,
        with_threshold,
        __version__,
    )


def select_topk(
    scores: Tensor,
    k: object,
    temperature: Number | Tensor,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    is_sorted: bool,
    validate: bool,
) -> tuple[Tensor, Tensor]:
    """Places and weights of the selected scores."""
    if is_dynamo_compiling() and not isinstance(k, (int, float, Tensor)) and hasattr(k, "shape"):
        raise TypeError(f"k must be a Python number in a graph, {_NUMPY}: say int(k)")
    count = check_whole_number(k, dim)
    given = (*tensor_and_number("temperature", temperature), dim, largest, mask)
    return torch.ops.fast_lapsum.call_select_topk(  # type: ignore[no-any-return]
        scores, count, *given, is_sorted, validate, __version__
    )


def tensor_and_number(name: str, value: Any) -> tuple[Tensor | None, Number]:
    """A value as an operator takes it: a tensor, or a number where that is None."""
    if isinstance(value, Tensor):
        return value, 0
    if isinstance(value, (int, float)):
        return None, value
    # Numbers of numpy's are tensors there.
    if is_dynamo_compiling() and hasattr(value, "shape") and value.shape == ():
        return torch.as_tensor(value), 0
    return None, check_number(name, value)


def dims_of(dim: Dim) -> list[int] | None:
    """Dimensions as an operator takes them."""
    if isinstance(dim, int):
        return [dim]
    if dim is None or isinstance(dim, (tuple, list)):
        return dim  # type: ignore[return-value]
    if is_dynamo_compiling():
        raise TypeError(
            f"dim must be a Python int, a tuple or None in a graph, {_NUMPY}: say int(dim)"
        )
    return [check_dim_kinds(dim)]  # type: ignore[list-item]


def _call_soft_topk(
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
    with_threshold: bool,
) -> list[Tensor]:
    call = prepare(
        scores,
        k_number if k is None else k,
        temperature_number if temperature is None else temperature,
        dim,
        largest,
        mask,
        "hard" if output == "sample" else output,
        warm_start,
        solver,
        validate,
        clamp,
    )
    if output == "sample":
        return [call.restore(sample(call))]
    if output == "threshold":
        return [call.threshold()]
    if not with_threshold:
        return [call.restore(call.write())]
    out, b = call.write_with_threshold()
    return [call.restore(out), b]


def _call_select_topk(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: Number,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    is_sorted: bool,
    validate: bool,
) -> tuple[Tensor, Tensor]:
    t = temperature_number if temperature is None else temperature
    return select(scores, k, t, dim, largest, mask, is_sorted, validate)


def define(name: str, schema: str, function: Any) -> None:
    """An operator that the compiler takes apart.

    Its last argument is the version of the package. What a compiler has made of a graph it keeps on
    disk, and takes for every graph that reads the same; operators of another version may consist of
    other parts.
    """
    operator = f"{NAMESPACE}::{name}"

    def without_version(*given: Any) -> Any:
        return function(*given[:-1])

    torch.library.define(operator, schema.replace(") ->", ", str version) ->"))
    torch.library.impl(operator, "CompositeImplicitAutograd", without_version)


define("call_soft_topk", _CALL, _call_soft_topk)
define("call_select_topk", _SELECT, _call_select_topk)

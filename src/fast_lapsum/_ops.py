"""The operators of the mask as PyTorch sees them: schemas, shapes for tracing, choice of backend.

Rows lie along the last dimension of ``scores``, whatever its strides. Budget and temperature come
either as a tensor with one value per row or as a number, so that a plain call builds no tensor.
Beside every operator there is one by the name of ``NAME_host`` whose numbers are scalar tensors in
the host's memory: that is how a compiled graph holds a number that may change.

``output`` says what a call writes beside the threshold pairs: "mask", "hard" (the mask of exactly k
ones), "log" (the mask's logarithm), or "threshold", which writes nothing: the first result is empty
then. A gradient is that of the mask (of "hard", too), of its logarithm, or of the threshold, whose
``grad`` has one number per row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .backends.common import compute_dtype, row_dtype
from .backends.cpu import entry as cpu
from .backends.torch import entry as plain
from .backends.triton import loader

NAMESPACE = "fast_lapsum"
Dims = tuple[int | None, ...]

#: Numbers are ``Scalar``: a compiler may give one that changes from call to call, if it is whole.
SOFT_TOPK = (
    "(Tensor scores, Tensor? budget, Scalar budget_number, Tensor? temperature,"
    " Scalar temperature_number, Tensor? mask, Tensor? warm_start, bool largest, str output,"
    " ScalarType out_dtype, str solver) -> (Tensor, Tensor)"
)
SOFT_TOPK_BACKWARD = (
    "(Tensor grad, Tensor scores, Tensor? temperature, Scalar temperature_number, Tensor? mask,"
    " Tensor threshold, bool largest, str output, bool per_row) -> Tensor[]"
)
#: For operators that look at numbers when they are called: a graph of CUDA launches would repeat
#: what they saw when it was recorded, or could not wait.
LOOKS_AT_NUMBERS = tuple(
    tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None
)


_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_storage = torch._C._has_storage
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def is_plain(*tensors: Tensor) -> bool:
    """Nothing is watching the operators, so that a call need not go through the dispatcher."""
    if torch.compiler.is_compiling() or _dispatch_modes() or _functorch_active():
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES or tensor.is_neg():
            return False
        if not _has_storage(tensor) or tensor.is_meta or tensor._is_zerotensor():
            return False
    return True


def register(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
) -> None:
    """An operator, and ``NAME_host``, which has its numbers as tensors in the host's memory.

    One without a rule for ``vmap`` is never met by it: the public functions go another way there.
    """
    numbers = [place for place, argument in enumerate(schema.split(",")) if " Scalar " in argument]

    def with_host_numbers(*args: Any) -> Any:
        given = list(args)
        for place in numbers:
            given[place] = args[place].item()
        return function(*given)

    host_schema = schema.replace(" Scalar ", " Tensor ")
    for which, says, does, tags in (
        (name, schema, function, ()),
        (f"{name}_host", host_schema, with_host_numbers, LOOKS_AT_NUMBERS),
    ):
        operator = f"{NAMESPACE}::{which}"
        torch.library.define(operator, says, tags=tags)
        torch.library.impl(operator, "default", does)
        torch.library.register_fake(operator, fake)
        if vmap is not None:
            torch.library.register_vmap(operator, functools.partial(vmap, which))


def operator(name: str, *numbers: object) -> Any:
    """The operator as the dispatcher knows it, for numbers of this kind."""
    on_host = any(isinstance(number, Tensor) for number in numbers)
    return getattr(torch.ops.fast_lapsum, f"{name}_host" if on_host else name).default


def backend_for(scores: Tensor, grad: Tensor | None = None) -> Any:
    """The entries of the fastest backend for these tensors (see backends/common.py).

    Triton is loaded by the first call on a GPU: it would be most of what an import takes.
    """
    if scores.is_cuda:
        backend = loader.entry()
        if backend is None:
            loader.hint_at_triton()
            return plain
    else:
        backend = cpu
    is_whole = backend.supports(scores) and (grad is None or backend.supports(grad))
    return backend if is_whole else plain


def soft_topk(
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
    """The output in ``out_dtype`` and threshold pairs [..., 2], on the fastest backend there is."""
    given = (
        *(scores, budget, budget_number, temperature, temperature_number, mask, warm_start),
        *(largest, output, out_dtype),
    )
    if solver == "auto":
        return backend_for(scores).forward(*given)  # type: ignore[no-any-return]
    return plain.forward(*given, solver)


def soft_topk_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients for scores (in their dtype), and with ``per_row`` for budget and temperature."""
    return backend_for(scores, grad).backward(  # type: ignore[no-any-return]
        grad, scores, temperature, temperature_number, mask, threshold, largest, output, per_row
    )


def _soft_topk_backward_tensors(*args: Any) -> list[Tensor]:
    """The same as an operator must have it: a list of what was asked for."""
    return [found for found in soft_topk_backward(*args) if found is not None]


def _fake_soft_topk(
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
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=compute_dtype(scores.dtype))
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype), threshold
    return torch.empty_like(scores, dtype=out_dtype), threshold


def _fake_soft_topk_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> list[Tensor]:
    of_rows = (scores.new_empty(scores.shape[:-1], dtype=row_dtype(scores)) for _ in range(2))
    return [torch.empty_like(scores), *(of_rows if per_row else ())]


def _vmap_soft_topk(name: str, info: Any, in_dims: Dims, *args: Any) -> tuple[Any, Any]:
    scores, budget, temperature, mask, warm_start = batch_first(
        info.batch_size, in_dims, args, (0, 1, 3, 5, 6)
    )
    out = getattr(torch.ops.fast_lapsum, name)(
        scores, budget, args[2], temperature, args[4], mask, warm_start, *args[7:]
    )
    return out, (None if args[8] == "threshold" else 0, 0)


def _vmap_soft_topk_backward(name: str, info: Any, in_dims: Dims, *args: Any) -> tuple[Any, Any]:
    grad, scores, temperature, mask, threshold = batch_first(
        info.batch_size, in_dims, args, (0, 1, 2, 4, 5)
    )
    out = getattr(torch.ops.fast_lapsum, name)(
        grad, scores, temperature, args[3], mask, threshold, *args[6:]
    )
    return out, [0] * len(out)


def batch_first(
    batch_size: int, in_dims: Dims, args: tuple[Any, ...], which: tuple[int, ...]
) -> list[Any]:
    """The tensor arguments with the mapped dimension first, as one more dimension of rows."""
    moved = []
    for index in which:
        value, dim = args[index], in_dims[index]
        if value is not None:
            value = value.expand(batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        moved.append(value)
    return moved


register("soft_topk", SOFT_TOPK, soft_topk, _fake_soft_topk, _vmap_soft_topk)
register(
    "soft_topk_backward",
    SOFT_TOPK_BACKWARD,
    _soft_topk_backward_tensors,
    _fake_soft_topk_backward,
    _vmap_soft_topk_backward,
)

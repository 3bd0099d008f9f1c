"""From tensors to launches: which plan a call takes, and what its kernels are given."""

from __future__ import annotations

import math
import struct

import torch
import triton.language as tl
from torch import Tensor

from ..common import DTYPES, compute_dtype
from ..layout import Group, groups
from . import relaunch
from .config import (
    BLOCKS_BACKWARD,
    CACHED_BYTES,
    MANY_ROWS,
    TILES_BACKWARD,
    LongBackwardPlan,
    TilePlan,
    long_plan,
    longest_block,
    longest_block_backward,
    reading_plan,
    shared_plan,
    team_plan,
    tile_plan,
)
from .device import can_overlap, on_device, room_of, shrink_room
from .steps import ForwardPlan, backward_steps, forward_steps
from .views import Call, Numbers, Rows, call_of


def supports(tensor: Tensor) -> bool:
    """Whether the kernels can run where this tensor is."""
    return tensor.is_cuda and tensor.dtype in DTYPES and torch.version.hip is None


def _as_float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


def split_float64(number: float) -> tuple[float, float]:
    """A float64 as the sum of two float32, which is what a kernel can be given."""
    head = _as_float32(number)
    return head, number - head


def _fitting(
    values: Tensor | None, number: float, scores: Tensor, *, exactly: bool = False
) -> tuple[Tensor | None, float]:
    """Numbers that two float32 cannot hold become a tensor.

    They hold 48 digits of 53. A budget is to be met ``exactly``; a temperature that is off by so
    little moves p by as much as the rounding of u does, and is spared a launch.
    """
    if values is None and number:
        fits = 1e-25 < abs(number) < 1e38
        if not fits or (exactly and sum(map(_as_float32, split_float64(number))) != number):
            return scores.new_full((), number).expand(scores.shape[:-1]), 0.0
    return values, number


def _rows(tensor: Tensor | None, group: Group, place: int, n: int) -> Rows | None:
    """A tensor of the call as the kernels see it; without a last dimension where n is 0."""
    if tensor is None:
        return None
    offset = group.offsets[place]
    if offset:
        tensor = tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)
    return Rows(tensor, *group.strides[place], n)


def _along(tensor: Tensor | None, n: int) -> int:
    return 1 if tensor is None or n < 2 else tensor.stride(-1)


def _words(count: int, like: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Scratch memory of a call, if it needs any."""
    return (torch.empty(count, dtype=dtype, device=like.device),) if count else ()


def forward(
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
    clamp: bool = False,
    plan: ForwardPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``output`` says (see _ops.py) and threshold pairs.

    A budget that does not fit a row makes the row NaN, or with ``clamp`` all of it is taken.
    """
    n = scores.shape[-1]
    kept = compute_dtype(scores.dtype)
    if kept == torch.float64:
        budget, budget_number = _fitting(budget, budget_number, scores, exactly=True)
        temperature, temperature_number = _fitting(temperature, temperature_number, scores)
    is_written = output != "threshold"
    out = (
        torch.empty_like(scores, dtype=out_dtype)
        if is_written
        else scores.new_empty((0,), dtype=out_dtype)
    )
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=kept)
    numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
    key = None
    plain = budget is temperature is mask is warm_start is None and plan is None
    if plain and n and scores.is_contiguous():
        device, address = scores.device.index, scores.data_ptr()
        of_call = (scores.dtype, out_dtype, scores.numel(), n, largest, output, clamp)
        key = (*of_call, device, address % 16 == 0)
        if (again := relaunch.find(key, device)) is not None:
            call = again.call._replace(
                scores=again.call.scores._replace(start=address), numbers=numbers
            )
            result = again.results[0]._replace(start=out.data_ptr()) if is_written else None
            given = (call, again.row_count, None, result, threshold.data_ptr())
            try:
                relaunch.run(again, device, given, *_words(again.words, scores, torch.int64))
                return out, threshold
            except RuntimeError as error:  # there is less room now
                shrink_room(scores.device, again.room, error)
    if output == "hard" and budget is not None:  # only a whole budget has a hard mask
        budget = torch.where(budget == budget.floor(), budget, math.nan)
    if n > longest_block(kept.itemsize):  # one group of all rows, whatever is expanded
        budget = None if budget is None else budget.contiguous()
        temperature = None if temperature is None else temperature.contiguous()
    compute = tl.float64 if kept == torch.float64 else tl.float32
    tensors = (scores, mask, budget, temperature, warm_start, out if is_written else None)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            steps = (_along(scores, n), _along(mask, n), 1, 1, 1, _along(tensors[-1], n))
            views = [
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            ]
            v_scores, v_mask, v_budget, v_temperature, v_warm, v_out = views
            call = call_of(v_scores, v_mask, v_budget, v_temperature, numbers, n, group.inner)
            pairs = threshold.view(-1, 2)[group.first_row :]
            width = _width(tensors, group)
            lead = (call, row_count, v_warm, v_out, pairs)
            made = None
            while made is None:
                room = room_of(scores.device)
                chosen = plan or _plan(n, row_count, kept.itemsize, width, room, output)
                planned = forward_steps(
                    *(chosen, n, row_count, room, can_overlap(scores.device)),
                    *(largest, output, clamp, compute),
                )
                try:
                    made = relaunch.launch(
                        planned, lead, *_words(planned.words, scores, torch.int64)
                    )
                except RuntimeError as error:
                    shrink_room(scores.device, room, error)
            if key is not None:
                relaunch.keep(key, made._replace(room=room), v_out)
    return out, threshold


def _width(tensors: tuple[Tensor | None, ...], group: Group) -> int:
    """How many scores one access to memory can read: 16 bytes of them where all rows allow it."""
    scores = tensors[0]
    assert scores is not None
    width = 16 // scores.itemsize
    for tensor, strides, offset in zip(tensors, group.strides, group.offsets, strict=True):
        if tensor is None or tensor.dim() < scores.dim():
            continue
        address = tensor.data_ptr() + offset * tensor.itemsize
        is_aligned = address % (width * tensor.itemsize) == 0
        is_aligned &= not any(number % width for number in (*strides, scores.shape[-1]))
        if not is_aligned or tensor.stride(-1) != 1:
            return 1
    return width


def _plan(
    n: int, row_count: int, itemsize: int, width: int, room: int, output: str = "mask"
) -> ForwardPlan:
    """Rows that no program holds: a team's where there are few, one program's where many.

    Where nothing is written there is no memory for lists, and rows are read in every pass; those of
    a hard mask, whose search has more of them, never are.
    """
    is_written = output != "threshold"
    if n <= longest_block(itemsize):
        return tile_plan(n, width, itemsize)
    if row_count >= MANY_ROWS and is_written:
        return long_plan(n, row_count, width)
    team = team_plan(n, row_count, itemsize, width)
    if team is None or team.chunks > room:
        is_cached = output != "hard" and n * row_count * itemsize <= CACHED_BYTES
        is_read = not is_written or is_cached
        team = reading_plan(n, row_count, itemsize, width) if is_read else None
    return team or shared_plan(n, row_count, width)


def backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
    plan: TilePlan | LongBackwardPlan | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of what ``output`` says, and with ``per_row`` those for budget and temperature.

    That of a threshold has one ``grad`` for each row.
    """
    n = scores.shape[-1]
    if scores.dtype == torch.float64:
        temperature, temperature_number = _fitting(temperature, temperature_number, scores)
    output = "mask" if output == "hard" else output
    out = torch.empty_like(scores)
    threshold = threshold.contiguous()
    numbers = Numbers(0.0, 0.0, *split_float64(temperature_number))
    key = None
    plain = temperature is mask is None and plan is None and not per_row
    if plain and n and scores.is_contiguous() and grad.is_contiguous():
        device = scores.device.index
        addresses = scores.data_ptr(), grad.data_ptr(), threshold.data_ptr()
        aligned = tuple(address % 64 for address in addresses)  # grad may be wider than scores
        key = (scores.dtype, grad.dtype, scores.numel(), n, largest, output, device, aligned)
        if (again := relaunch.find(key, device)) is not None:
            call = again.call._replace(
                scores=again.call.scores._replace(start=addresses[0]), numbers=numbers
            )
            of_grad, result = again.results
            of_grad = of_grad._replace(start=addresses[1])
            result = result._replace(start=out.data_ptr())
            given = (call, again.row_count, of_grad, addresses[2], result, None, None)
            relaunch.run(again, device, given, *_words(again.words, scores, torch.float64))
            return out, None, None
    d_rows = [scores.new_empty(scores.shape[:-1], dtype=torch.float64) for _ in range(2 * per_row)]
    compute = tl.float64 if threshold.dtype == torch.float64 else tl.float32
    tensors = (scores, mask, grad, temperature, out)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            along_grad = 1 if output == "threshold" else _along(grad, n)
            steps = (_along(scores, n), _along(mask, n), along_grad, 1, _along(out, n))
            v_scores, v_mask, v_grad, v_temperature, v_out = (
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            )
            call = Call(v_scores, v_mask, None, v_temperature, numbers, n, group.inner)
            pairs = threshold.view(-1, 2)[group.first_row :]
            d_views: list[Tensor | None] = [d.view(-1)[group.first_row :] for d in d_rows]
            lead = (call, row_count, v_grad, pairs, v_out, *(d_views or (None, None)))
            chosen = plan or _backward_plan(n, threshold.itemsize, _width(tensors, group))
            planned = backward_steps(chosen, n, row_count, largest, output, per_row, compute)
            made = relaunch.launch(planned, lead, *_words(planned.words, scores, torch.float64))
            if key is not None:
                relaunch.keep(key, made, v_grad, v_out)
    if not per_row:
        return out, None, None
    return out, d_rows[0], d_rows[1]


def _backward_plan(n: int, itemsize: int, width: int) -> TilePlan | LongBackwardPlan:
    if n <= longest_block_backward(itemsize):
        return tile_plan(n, width, itemsize, TILES_BACKWARD, BLOCKS_BACKWARD)
    return LongBackwardPlan(width=width)

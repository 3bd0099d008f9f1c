"""From tensors to launches: which kernel a call takes, and what it is given."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..._layout import Group, groups
from ...solvers.backend import compute_dtype
from . import relaunch
from .backward import SUMS, scores_backward, sums_backward, tile_backward
from .config import (
    BLOCKS_BACKWARD,
    MANY_ROWS,
    TILES_BACKWARD,
    LongBackwardPlan,
    LongPlan,
    TeamPlan,
    TilePlan,
    long_plan,
    longest_block,
    longest_block_backward,
    power_of_two,
    tile_plan,
)
from .device import on_device, team_count
from .forward import team_forward, tile_forward
from .long_rows import long_forward
from .team import COUNTER_STRIDE, FIELDS
from .views import Call, Numbers, Rows


def split_float64(number: float) -> tuple[float, float]:
    """A float64 as the sum of two float32, which is what a kernel can be given."""
    (head,) = struct.unpack("f", struct.pack("f", number))
    return head, number - head


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


def forward(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    hard: bool,
    out_dtype: torch.dtype,
    plan: TilePlan | TeamPlan | LongPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Mask and threshold pairs. A budget that does not fit a row makes the row NaN."""
    n = scores.shape[-1]
    kept = compute_dtype(scores.dtype)
    out = torch.empty_like(scores, dtype=out_dtype)
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=kept)
    key = None
    plain = budget is temperature is mask is warm_start is None and plan is None
    if plain and n and scores.is_contiguous():
        device, address = scores.device.index, scores.data_ptr()
        key = (scores.dtype, out_dtype, scores.numel(), n, largest, hard, device, address % 16 == 0)
        if (again := relaunch.find(key, device)) is not None:
            numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
            call = again.call._replace(
                scores=again.call.scores._replace(start=address), numbers=numbers
            )
            (result,) = again.results
            result = result._replace(start=out.data_ptr())
            arguments = (call, again.row_count, None, result, threshold.data_ptr(), *again.more)
            relaunch.run(again.kernel, again.programs, device, *arguments, *again.constants)
            return out, threshold
    if hard and budget is not None:  # only a whole budget has a hard mask
        budget = torch.where(budget == budget.floor(), budget, math.nan)
    numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
    compute = tl.float64 if kept == torch.float64 else tl.float32
    tensors = (scores, mask, budget, temperature, warm_start, out)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            steps = (_along(scores, n), _along(mask, n), 1, 1, 1, _along(out, n))
            views = [
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            ]
            v_scores, v_mask, v_budget, v_temperature, v_warm, v_out = views
            call = Call(v_scores, v_mask, v_budget, v_temperature, numbers, n, group.inner)
            pairs = threshold.view(-1, 2)[group.first_row :]
            chosen = plan or _plan(n, row_count, kept.itemsize, _width(tensors, group))
            rest = (call, row_count, v_warm, v_out, pairs, largest, hard, compute)
            launched: relaunch.Kept | None = None
            if isinstance(chosen, TilePlan):
                launched = _launch_tiles(chosen, *rest)
            elif isinstance(chosen, TeamPlan):
                _launch_teams(chosen, *rest)
            else:
                launched = _launch_long(chosen, *rest)
            if key is not None and launched is not None:
                relaunch.keep_call(key, launched)
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


def backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
    plan: TilePlan | LongBackwardPlan | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients for scores, and with ``per_row`` for budget and temperature."""
    n = scores.shape[-1]
    out = torch.empty_like(scores)
    threshold = threshold.contiguous()
    key = None
    plain = temperature is mask is None and plan is None and not per_row
    if plain and n and scores.is_contiguous() and grad.is_contiguous():
        device = scores.device.index
        addresses = scores.data_ptr(), grad.data_ptr(), threshold.data_ptr()
        aligned = tuple(address % 32 for address in addresses)  # grad may be wider than scores
        key = (scores.dtype, grad.dtype, scores.numel(), n, largest, device, aligned)
        if (again := relaunch.find(key, device)) is not None:
            numbers = Numbers(0.0, 0.0, *split_float64(temperature_number))
            call = again.call._replace(
                scores=again.call.scores._replace(start=addresses[0]), numbers=numbers
            )
            v_grad, v_out = again.results
            v_grad = v_grad._replace(start=addresses[1])
            v_out = v_out._replace(start=out.data_ptr())
            arguments = (call, again.row_count, v_grad, addresses[2], v_out, None, None)
            relaunch.run(again.kernel, again.programs, device, *arguments, *again.constants)
            return out, None, None
    d_rows = [scores.new_empty(scores.shape[:-1], dtype=torch.float64) for _ in range(2 * per_row)]
    numbers = Numbers(0.0, 0.0, *split_float64(temperature_number))
    compute = tl.float64 if threshold.dtype == torch.float64 else tl.float32
    tensors = (scores, mask, grad, temperature, out)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            steps = (_along(scores, n), _along(mask, n), _along(grad, n), 1, _along(out, n))
            v_scores, v_mask, v_grad, v_temperature, v_out = (
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            )
            call = Call(v_scores, v_mask, None, v_temperature, numbers, n, group.inner)
            pairs = threshold.view(-1, 2)[group.first_row :]
            d_views: list[Tensor | None] = [d.view(-1)[group.first_row :] for d in d_rows]
            d_views = d_views or [None, None]
            chosen = plan or _backward_plan(n, threshold.itemsize, _width(tensors, group))
            rest = (call, row_count, v_grad, pairs, v_out, d_views, largest, compute)
            if isinstance(chosen, TilePlan):
                launched = _backward_tiles(chosen, *rest)
                if key is not None:
                    relaunch.keep_call(key, launched)
            else:
                _backward_long(chosen, *rest)
    if not per_row:
        return out, None, None
    return out, d_rows[0], d_rows[1]


def _backward_plan(n: int, itemsize: int, width: int) -> TilePlan | LongBackwardPlan:
    if n <= longest_block_backward(itemsize):
        return tile_plan(n, width, itemsize, TILES_BACKWARD, BLOCKS_BACKWARD)
    return LongBackwardPlan(width=width)


def _backward_tiles(
    plan: TilePlan,
    call: Call,
    row_count: int,
    grad: Any,
    pairs: Tensor,
    out: Any,
    d_rows: list[Tensor | None],
    largest: bool,
    compute: tl.dtype,
) -> relaunch.Kept:
    programs = -(-row_count // plan.rows)
    constants = {
        "LARGEST": largest,
        "PADDED": call.n != plan.block,
        "ROWS": plan.rows,
        "REPEATS": plan.parts * plan.repeats,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "COMPUTE": compute,
    }
    kernel = tile_backward[(programs,)](
        call,
        row_count,
        grad,
        pairs,
        out,
        *d_rows,
        **constants,
        num_warps=plan.warps,
        maxnreg=plan.registers,
        enable_fp_fusion=plan.may_fuse,
    )
    return relaunch.Kept(kernel, programs, call, row_count, (grad, out), tuple(constants.values()))


def _backward_long(
    plan: LongBackwardPlan,
    call: Call,
    row_count: int,
    grad: Any,
    pairs: Tensor,
    out: Any,
    d_rows: list[Tensor | None],
    largest: bool,
    compute: tl.dtype,
) -> None:
    tiles = -(-call.n // plan.block)
    summing = max(1, min(tiles, plan.sum_programs // row_count, 1024))
    writing = max(1, min(tiles, plan.write_programs // row_count))
    sums = torch.empty(row_count * summing * SUMS.value, dtype=torch.float64, device=pairs.device)
    sums_backward[(row_count * summing,)](
        call,
        row_count,
        grad,
        pairs,
        sums,
        summing,
        LARGEST=largest,
        PER_ROW=d_rows[0] is not None,
        REPEATS=plan.repeats,
        LANES=plan.lanes,
        WIDTH=plan.width,
        COMPUTE=compute,
        num_warps=plan.warps,
    )
    scores_backward[(row_count * writing,)](
        call,
        row_count,
        grad,
        pairs,
        sums,
        out,
        *d_rows,
        writing,
        summing,
        LARGEST=largest,
        SUM_LANES=power_of_two(summing),
        REPEATS=plan.repeats,
        LANES=plan.lanes,
        WIDTH=plan.width,
        COMPUTE=compute,
        num_warps=plan.warps,
    )


def _plan(n: int, row_count: int, itemsize: int, width: int) -> TilePlan | LongPlan:
    """Of rows that no program holds, each is read by one of them: teams are asked for by name."""
    if n <= longest_block(itemsize):
        return tile_plan(n, width, itemsize)
    return long_plan(n, max(row_count, MANY_ROWS), width)


def _launch_tiles(
    plan: TilePlan,
    call: Call,
    row_count: int,
    warm_start: Rows | None,
    out: Any,
    pairs: Tensor,
    largest: bool,
    hard: bool,
    compute: tl.dtype,
) -> relaunch.Kept:
    programs = -(-row_count // plan.rows)
    constants = {
        "LARGEST": largest,
        "HARD": hard,
        "PADDED": call.n != plan.block,
        "ROWS": plan.rows,
        "PARTS": plan.parts,
        "REPEATS": plan.repeats,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "COMPUTE": compute,
    }
    kernel = tile_forward[(programs,)](
        call,
        row_count,
        warm_start,
        out,
        pairs,
        **constants,
        num_warps=plan.warps,
        maxnreg=plan.registers,
        enable_fp_fusion=plan.may_fuse,
    )
    return relaunch.Kept(kernel, programs, call, row_count, (out,), tuple(constants.values()))


def _launch_teams(
    plan: TeamPlan,
    call: Call,
    row_count: int,
    warm_start: Rows | None,
    out: Any,
    pairs: Tensor,
    largest: bool,
    hard: bool,
    compute: tl.dtype,
) -> None:
    size, teams = team_count(pairs.device, plan, row_count)
    partials, counters = _meeting_places(teams, plan.chunk_lanes, pairs.device)
    team_forward[(teams * size,)](
        call,
        row_count,
        warm_start,
        out,
        pairs,
        partials,
        counters,
        plan.chunks,
        size,
        LARGEST=largest,
        HARD=hard,
        PARTS=plan.parts,
        REPEATS=plan.repeats,
        LANES=plan.lanes,
        WIDTH=plan.width,
        CHUNK_LANES=plan.chunk_lanes,
        SAMPLE=plan.sample,
        COMPUTE=compute,
        num_warps=plan.warps,
        maxnreg=plan.registers,
        launch_cooperative_grid=True,
    )


def _launch_long(
    plan: LongPlan,
    call: Call,
    row_count: int,
    warm_start: Rows | None,
    out: Any,
    pairs: Tensor,
    largest: bool,
    hard: bool,
    compute: tl.dtype,
) -> relaunch.Kept | None:
    is_shared = plan.chunks > 1
    size, teams = 1, row_count
    partials = counters = parts = None
    if is_shared:
        size, teams = team_count(pairs.device, plan, row_count, 2)
        partials, counters = _meeting_places(teams, plan.chunk_lanes, pairs.device)
        parts = torch.empty(teams * plan.chunk_lanes, dtype=torch.int32, device=pairs.device)
    more = (partials, counters, parts, plan.chunks, size, plan.length)
    constants = {
        "LARGEST": largest,
        "HARD": hard,
        "SHARED": is_shared,
        "READ": plan.read,
        "LISTED": plan.listed,
        "WRITTEN": plan.written,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "CHUNK_LANES": plan.chunk_lanes,
        "SAMPLE": plan.sample,
        "COMPUTE": compute,
    }
    kernel = long_forward[(teams * size,)](
        call,
        row_count,
        warm_start,
        out,
        pairs,
        *more,
        **constants,
        num_warps=plan.warps,
        maxnreg=plan.registers,
        enable_fp_fusion=False,
        launch_cooperative_grid=is_shared,
    )
    if is_shared:
        return None  # what they meet at is another one in every call
    programs = teams * size
    constant = tuple(constants.values())
    return relaunch.Kept(kernel, programs, call, row_count, (out,), constant, more)


def _meeting_places(teams: int, chunk_lanes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where members of teams leave what they found, and how many have come."""
    room = teams * 2 * FIELDS.value * chunk_lanes
    partials = torch.empty(room, dtype=torch.float64, device=device)
    return partials, torch.zeros(teams * COUNTER_STRIDE.value, dtype=torch.int32, device=device)

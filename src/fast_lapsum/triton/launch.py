"""Which kernels a call launches: the thin way from tensors to the device (parameters: table.py).

Rows that one program holds go to ``backends.triton``, and so do longer ones where there are many.
A few long ones: several launches, forward in long_rows.py, backward here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from .._layout import groups, slabs
from ..backends.triton import launch as second
from ..backends.triton import relaunch
from ..backends.triton.config import (
    MANY_ROWS,
    longest_block,
    longest_block_backward,
    power_of_two,
)
from ..backends.triton.device import on_device
from ..solvers import backend as plain
from ..solvers.backend import compute_dtype
from .arguments import along, cores_of, fitting, key_of, pair, parts, view
from .backward import SUMS, scores_backward, sums_backward
from .hard import write_hard_mask
from .long_rows import launch_long_rows
from .table import ROWS_AT_ONCE, Streaming, streaming

DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


def supports(tensor: Tensor) -> bool:
    """Whether the kernels can run where this tensor is."""
    return tensor.is_cuda and tensor.dtype in DTYPES and torch.version.hip is None


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
    settings: Streaming | None = None,
) -> tuple[Tensor, Tensor]:
    """Mask and threshold pairs. A budget that does not fit a row makes the row NaN."""
    n = scores.shape[-1]
    kept = compute_dtype(scores.dtype)
    if scores.dtype == torch.float64:
        budget, budget_number = fitting(budget, budget_number, scores, exactly=True)
        temperature, temperature_number = fitting(temperature, temperature_number, scores)
    is_second = n <= longest_block(kept.itemsize) or scores.numel() >= MANY_ROWS * n
    if is_second and settings is None:
        if n > longest_block(kept.itemsize):  # one launch for all rows, whatever is expanded
            budget = None if budget is None else budget.contiguous()
            temperature = None if temperature is None else temperature.contiguous()
        return second.forward(
            scores,
            budget,
            budget_number,
            temperature,
            temperature_number,
            mask,
            warm_start,
            largest,
            hard,
            out_dtype,
        )
    out = torch.empty_like(scores, dtype=out_dtype)
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=kept)
    key = None
    if (
        budget is temperature is mask is warm_start is None
        and settings is None
        and scores.is_contiguous()
        and not hard
    ):
        device, address = scores.device.index, scores.data_ptr()
        rows = scores.numel() // n
        is_aligned = address % 16 == 0
        key = ("forward", scores.dtype, out_dtype, n, rows, largest, device, is_aligned)
        if (known := relaunch.recipe(key, device)) is not None:
            scratch = torch.empty(known.scratch, dtype=torch.uint8, device=scores.device)
            addresses = (address, out.data_ptr(), threshold.data_ptr(), scratch.data_ptr())
            numbers = (*pair(budget_number), *pair(temperature_number))
            relaunch.follow(known, device, addresses, numbers)
            return out, threshold
    if hard and budget is not None:  # only a whole budget has a hard mask
        budget = torch.where(budget == budget.floor(), budget, math.nan)
    numbers = (*pair(budget_number), *pair(temperature_number))
    compute = tl.float64 if kept == torch.float64 else tl.float32
    tensors = (scores, mask, budget, temperature, None, out)
    with on_device(scores):
        for group in (slab for rows_ in groups(tensors) for slab in slabs(rows_, ROWS_AT_ONCE)):
            views = [view(x, o) for x, o in zip(tensors, group.offsets, strict=True)]
            pairs = threshold.view(-1, 2)[group.first_row :]
            steps = [along(x, n) for x in (scores, mask, out)]
            flat = [list(two) for two in group.strides]
            for i, stride in zip((0, 1, 5), steps, strict=True):
                flat[i].append(stride)
            made, scratch = launch_long_rows(
                views,
                pairs,
                numbers,
                n,
                group,
                flat,
                largest,
                hard,
                compute,
                settings,
            )
            if key is not None and group.outer * group.inner == rows:
                relaunch.keep_recipe(key, made, (scores, out, threshold, scratch))
    if hard:
        if budget is None and 0 <= budget_number <= n and budget_number == int(budget_number):
            write_hard_mask(out, scores, mask, largest, int(budget_number), threshold)
        else:
            budgets = budget
            if budgets is None:
                budgets = scores.new_full((), budget_number, dtype=torch.float64)
            plain.write_hard_mask(
                out, scores, mask, largest, budgets.expand(scores.shape[:-1]), threshold
            )
    return out, threshold


def backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
    settings: Streaming | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients for scores, and with ``per_row`` for budget and temperature."""
    n = scores.shape[-1]
    if scores.dtype == torch.float64:
        temperature, temperature_number = fitting(temperature, temperature_number, scores)
    if n <= longest_block_backward(threshold.itemsize) and settings is None:
        return second.backward(
            grad, scores, temperature, temperature_number, mask, threshold, largest, per_row
        )
    out = torch.empty_like(scores)
    threshold = threshold.contiguous()
    key = None
    if (
        temperature is mask is None
        and settings is None
        and not per_row
        and scores.is_contiguous()
        and grad.is_contiguous()
    ):
        device, address, grad_address = scores.device.index, scores.data_ptr(), grad.data_ptr()
        rows = scores.numel() // n
        pairs_address = threshold.data_ptr()
        aligned = address % 16 == 0, grad_address % 16 == 0, pairs_address % 16 == 0
        key = ("backward", scores.dtype, grad.dtype, n, rows, largest, device, aligned)
        if (known := relaunch.recipe(key, device)) is not None:
            scratch = torch.empty(known.scratch, dtype=torch.uint8, device=scores.device)
            pointers = (address, out.data_ptr(), pairs_address, scratch.data_ptr())
            numbers = (0.0, 0.0, *pair(temperature_number))
            relaunch.follow(known, device, (grad_address, *pointers), numbers)
            return out, None, None
    d_rows = [scores.new_empty(scores.shape[:-1], dtype=torch.float64) for _ in range(2 * per_row)]
    t_pair = pair(temperature_number)
    compute = tl.float64 if threshold.dtype == torch.float64 else tl.float32
    default, device = settings is None, scores.device.index
    settings = settings or streaming(n)
    tensors = (scores, grad, mask, temperature, out)
    with on_device(scores):
        for group in groups(tensors):
            views = [view(x, o) for x, o in zip(tensors, group.offsets, strict=True)]
            v_scores, v_grad, v_mask, v_temperature, v_out = views
            pairs = threshold.view(-1, 2)[group.first_row :]
            d_views: list[Any] = [d.view(-1)[group.first_row :] for d in d_rows] or [None, None]
            steps = [along(x, n) for x in (scores, grad, mask, out)]
            flat = [list(two) for two in group.strides]
            for i, stride in zip((0, 1, 2, 4), steps, strict=True):
                flat[i].append(stride)
            reading = (*flat[1], *flat[0], *flat[2], *flat[3])
            row_count = group.outer * group.inner
            cores = cores_of(scores.device)
            summing = settings.sums_programs_per_core * cores // row_count
            summing = max(1, min(-(-n // settings.sums_tile), summing, 1024))
            writing = settings.write_programs_per_core * cores // row_count
            writing = max(1, min(-(-n // settings.write_tile), writing))
            scratch, (sums,) = parts(scores, (row_count * summing * SUMS.value, torch.float64))
            call = None
            if default:
                layout = relaunch.layout((*views, *d_views, pairs))
                call = key_of("sums", n, group, flat, layout, largest, device)
            sums_launch = relaunch.launch(
                call and (*call, "sums"),
                sums_backward,
                row_count * summing,
                device,
                (
                    v_grad,
                    v_scores,
                    v_mask,
                    v_temperature,
                    pairs,
                    sums,
                    *t_pair,
                    n,
                    group.inner,
                    summing,
                    *reading,
                ),
                {
                    "LARGEST": largest,
                    "PER_ROW": per_row,
                    "BLOCK": settings.sums_tile,
                    "COMPUTE": compute,
                },
                num_warps=settings.warps,
                maxnreg=settings.sums_registers,
            )
            scores_launch = relaunch.launch(
                call and (*call, "scores"),
                scores_backward,
                row_count * writing,
                device,
                (
                    v_grad,
                    v_scores,
                    v_mask,
                    v_temperature,
                    pairs,
                    sums,
                    v_out,
                    *d_views,
                    *t_pair,
                    n,
                    group.inner,
                    writing,
                    summing,
                    *reading,
                    *flat[4],
                ),
                {
                    "LARGEST": largest,
                    "BLOCK": settings.write_tile,
                    "LANES": power_of_two(summing),
                    "COMPUTE": compute,
                },
                num_warps=settings.warps,
            )
            if key is not None and row_count == rows:
                relaunch.keep_recipe(
                    key, (sums_launch, scores_launch), (grad, scores, out, threshold, scratch)
                )
    if not per_row:
        return out, None, None
    return out, d_rows[0], d_rows[1]

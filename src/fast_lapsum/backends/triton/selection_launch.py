"""From tensors to the launches that select scores, or draw them: a mask first, then its ones."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..common import compute_dtype, spread_over_rows
from ..layout import groups
from .config import PROGRAMS, longest_block, power_of_two, tile_plan
from .device import on_device
from .launch import _along, _fitting, _rows, _width, backward, forward, split_float64
from .selection import count_chosen, draw_rows, place_chosen, sum_ticks, weigh_chosen
from .views import Call, Numbers, call_of

for _kernel in (count_chosen, draw_rows, place_chosen, sum_ticks, weigh_chosen):  # see steps.py
    getattr(_kernel, "cache_key", None)
del _kernel

#: Scores that a thread of a long row takes at a time, and its threads.
READ, WARPS = 16, 8


def select(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    is_sorted: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places and weights of the k selected scores, [..., k], and threshold pairs [..., 2]."""
    given = (scores, k, temperature, temperature_number, mask, largest, out_dtype)
    indices, weights, threshold = _select_in_order(*given)
    if is_sorted:
        picked = scores.gather(-1, indices.clamp(min=0)) if k else scores[..., :0]
        picked = (picked if largest else -picked).masked_fill(indices < 0, -math.inf)
        order = picked.argsort(dim=-1, descending=True, stable=True)
        indices, weights = indices.gather(-1, order), weights.gather(-1, order)
    return indices, weights, threshold


def _select_in_order(
    scores: Tensor,
    k: int,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, ascending by place."""
    n = scores.shape[-1]
    given = (temperature, temperature_number, mask, None, largest)
    chosen, threshold = forward(scores, None, float(k), *given, "hard", scores.dtype, clamp=True)
    indices = scores.new_empty((*scores.shape[:-1], k), dtype=torch.int64)
    weights = scores.new_empty((*scores.shape[:-1], k), dtype=out_dtype)
    if not indices.numel():
        return indices, weights, threshold
    numbers, temperature = _numbers(scores, 0.0, temperature, temperature_number)
    tensors = (scores, mask, temperature, chosen)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            steps = (_along(scores, n), _along(mask, n), 1, _along(chosen, n))
            v_scores, v_mask, v_temperature, v_chosen = (
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            )
            call = Call(v_scores, v_mask, None, v_temperature, numbers, n, group.inner)
            tile = _Tile(n, row_count, threshold.itemsize, _width(tensors, group))
            sums = None
            if tile.chunks > 1:
                sums = scores.new_empty(row_count * tile.chunks, dtype=torch.int64)
                count_chosen[(row_count * tile.chunks,)](
                    *(call, row_count, v_chosen, sums, tile.chunks, tile.length),
                    **tile.of_part,
                    **tile.options,
                )
            first = group.first_row
            constants = tile.constants(largest, threshold)
            placing = {x: constants[x] for x in constants if x not in ("LARGEST", "COMPUTE")}
            place_chosen[(tile.programs,)](
                *(call, row_count, v_chosen, indices.view(-1, k)[first:]),
                *(sums, tile.chunks, tile.length, k),
                **placing,
                **tile.options,
            )
            lanes = min(power_of_two(k), 32 * WARPS)
            rows, parts = 32 * WARPS // lanes, -(-k // lanes)
            weigh_chosen[(-(-row_count // rows) * parts,)](
                *(call, row_count, threshold.view(-1, 2)[first:]),
                *(indices.view(-1, k)[first:], weights.view(-1, k)[first:], k, parts),
                LARGEST=largest,
                ROWS=rows,
                LANES=lanes,
                COMPUTE=constants["COMPUTE"],
                num_warps=WARPS,
                enable_fp_fusion=False,
            )
    return indices, weights, threshold


def select_backward(
    grad: Tensor,
    indices: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    per_row: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the weights for scores, and with ``per_row`` for temperature."""
    spread = spread_over_rows(grad, indices, scores)
    d_scores, _, d_temperature = backward(
        spread, scores, temperature, temperature_number, mask, threshold, largest, "mask", per_row
    )
    return d_scores, d_temperature


def sample(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    start: Tensor,
    largest: bool,
    out_dtype: torch.dtype,
) -> Tensor:
    """Random masks of exactly k ones, for a ``start`` of each row."""
    n = scores.shape[-1]
    given = (budget, budget_number, temperature, temperature_number, mask, None, largest)
    # Rows that a program holds need no mask; for longer ones its memory is where lists lie.
    is_held = n <= longest_block(compute_dtype(scores.dtype).itemsize)
    out, threshold = forward(scores, *given, "threshold" if is_held else "mask", out_dtype)
    out = torch.empty_like(scores, dtype=out_dtype) if is_held else out
    if not out.numel():
        return out
    numbers, temperature = _numbers(scores, budget_number, temperature, temperature_number)
    tensors = (scores, mask, budget, temperature, start, out)
    with on_device(scores):
        for group in groups(tensors):
            row_count = group.outer * group.inner
            steps = (_along(scores, n), _along(mask, n), 1, 1, 1, _along(out, n))
            v_scores, v_mask, v_budget, v_temperature, v_start, v_out = (
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            )
            call = call_of(v_scores, v_mask, v_budget, v_temperature, numbers, n, group.inner)
            pairs = threshold.view(-1, 2)[group.first_row :]
            tile = _Tile(n, row_count, threshold.itemsize, _width(tensors, group))
            constants = tile.constants(largest, threshold)
            sums = None
            if tile.chunks > 1:
                sums = scores.new_empty(4 * row_count * tile.chunks, dtype=torch.int64)
                summing = {x: y for x, y in constants.items() if x not in ("ROWS", "CHUNK_LANES")}
                sum_ticks[(row_count * tile.chunks,)](
                    *(call, row_count, pairs, sums, tile.chunks, tile.length),
                    **summing,
                    **tile.options,
                )
            draw_rows[(tile.programs,)](
                *(call, row_count, pairs, v_start, v_out, sums, tile.chunks, tile.length),
                **constants,
                **tile.options,
            )
    return out


class _Tile:
    """How rows are read: several short ones by a program, or chunks of a long one."""

    def __init__(self, n: int, row_count: int, itemsize: int, width: int) -> None:
        self.rows, self.repeats, self.lanes, self.width = 1, READ // width, 32 * WARPS, width
        self.warps, self.chunks = WARPS, 1
        if n <= longest_block(itemsize):
            plan = tile_plan(n, width, itemsize)
            self.rows, self.repeats, self.lanes = plan.rows, plan.repeats, plan.lanes
            self.width, self.warps = plan.width, plan.warps
        block = self.repeats * self.lanes * self.width
        if n > longest_block(itemsize):
            self.chunks = max(1, min(4 * PROGRAMS // row_count, -(-n // block)))
        self.length = -(-n // (self.chunks * block)) * block
        self.chunks = -(-n // self.length)
        self.programs = -(-row_count // self.rows) * self.chunks
        # p must be the same number in every loop that adds it up.
        self.options = {"num_warps": self.warps, "enable_fp_fusion": False}
        self.of_part = {"REPEATS": self.repeats, "LANES": self.lanes, "WIDTH": self.width}

    def constants(self, largest: bool, threshold: Tensor) -> dict[str, Any]:
        """What the kernels are told."""
        compute = tl.float64 if threshold.dtype == torch.float64 else tl.float32
        chunk_lanes = power_of_two(self.chunks)
        each = {"LARGEST": largest, "ROWS": self.rows, "CHUNK_LANES": chunk_lanes}
        return each | self.of_part | {"COMPUTE": compute}


def _numbers(
    scores: Tensor, budget_number: float, temperature: Tensor | None, temperature_number: float
) -> tuple[Numbers, Tensor | None]:
    """Numbers as kernels take them, and the temperature as a tensor where it is no such number."""
    if compute_dtype(scores.dtype) == torch.float64:
        temperature, temperature_number = _fitting(temperature, temperature_number, scores)
    numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
    return numbers, temperature

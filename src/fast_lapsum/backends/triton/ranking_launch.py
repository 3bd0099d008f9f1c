"""From sorted rows to the launches of their scans; nothing comes back to the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..common import per_row_tensor
from .config import power_of_two
from .device import on_device
from .launch import split_float64
from .ranking import (
    MASS,
    RANK,
    RANK_GRADIENT,
    SEGMENTS,
    SPREAD,
    SUMS,
    place_ranks,
    scan_chunks,
    total_chunks,
)
from .ranking_thresholds import place_thresholds
from .step_launch import launch_named
from .steps import Step

for _kernel in (place_ranks, place_thresholds, scan_chunks, total_chunks):  # see steps.py
    getattr(_kernel, "cache_key", None)
del _kernel

#: The longest row that a program has whole, and the chunks of longer ones; of float64, whose
#: exponentials are long functions that every node of a thread has a copy of.
LONGEST, LONGEST_DOUBLE = 4096, 1024
#: Nodes of a tile of short rows, and those of a warp, which are 8 for each of its threads.
TILE, OF_WARP = 512, 256
#: Registers of a thread of 16 warps: two such programs fit on a core, so that one can load while
#: the other scans.
REGISTERS = 64
#: Thresholds of a program.
THRESHOLDS = 512


class ScanPlan(NamedTuple):
    """How rows are scanned: tiles of whole rows, or chunks of one."""

    length: int
    rows: int
    chunks: int

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return max(1, min(16, self.length * self.rows // OF_WARP))


def scan_plan(n: int, dtype: torch.dtype) -> ScanPlan:
    """The plan for rows of n nodes."""
    longest = LONGEST_DOUBLE if dtype == torch.float64 else LONGEST
    length = min(longest, max(16, power_of_two(n)))
    return ScanPlan(length, max(1, TILE // length) if n <= longest else 1, -(-n // length))


class Temperatures(NamedTuple):
    """One float64 for each row, or a number as the sum of two float32."""

    values: Tensor | None = None
    head: float = 0.0
    rest: float = 0.0


def _temperatures(temperature: Tensor | float, ordered: Tensor) -> Temperatures:
    """Of a number, where two float32 can hold it as well as a row needs it."""
    if isinstance(temperature, Tensor):
        return Temperatures(temperature)
    if ordered.dtype == torch.float64:
        return Temperatures(per_row_tensor(temperature, ordered))
    return Temperatures(None, *split_float64(float(temperature)))


def rank_rows(
    ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """Ranks of sorted rows, each at the place that ``order`` gives."""
    plan = scan_plan(ordered.shape[-1], ordered.dtype)
    out = torch.empty_like(ordered)
    in_order = torch.empty_like(ordered) if plan.chunks > 1 else None
    t = _temperatures(temperature, ordered)
    _scan(RANK, plan, ordered, order, t, outputs=(out, in_order), masked=is_masked)
    return out


def rank_rows_backward(
    grad: Tensor, ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """Gradients of the ranks for the scores, at their places."""
    out = torch.empty_like(ordered)
    plan, t = scan_plan(ordered.shape[-1], ordered.dtype), _temperatures(temperature, ordered)
    _scan(RANK_GRADIENT, plan, ordered, order, t, (grad,), (out,), masked=is_masked)
    return out


def threshold_rows(
    ordered: Tensor, temperature: Tensor | float, masses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Thresholds, the number of scores below, and coefficients of their gradient."""
    rows, n = ordered.shape
    t = _temperatures(temperature, ordered)
    m = n if masses is None else len(masses)
    masses = None if masses is None else masses.to(torch.float64).contiguous()
    # Masses at the scores, or in a sort the first threshold above each.
    knots = ordered.new_empty(rows, n, dtype=torch.int32 if masses is None else torch.float64)
    lower_sums, upper_sums = torch.empty_like(ordered), torch.empty_like(ordered)
    outputs = (knots, lower_sums, upper_sums)
    _scan(MASS, scan_plan(n, ordered.dtype), ordered, None, t, outputs=outputs)
    b, low, up = (ordered.new_empty(rows, m) for _ in range(3))
    count = ordered.new_empty((rows, m), dtype=torch.int32)
    blocks = -(-m // THRESHOLDS)
    given = (ordered, *t, masses, *outputs, b, count, low, up, n, m, blocks)
    name = (rows * blocks, n.bit_length(), ordered.dtype)
    with on_device(ordered):
        launch_named(ordered.device, name, lambda: _threshold_steps(*name), given)
    return b, count, low, up


def _threshold_steps(programs: int, steps: int, dtype: torch.dtype) -> list[Step]:
    constants = {"STEPS": steps, "LENGTH": THRESHOLDS, "COMPUTE": _compute(dtype)}
    return [Step(place_thresholds, programs, (), constants, {"num_warps": 4})]


def threshold_rows_backward(
    grad: Tensor,
    count: Tensor,
    low: Tensor,
    up: Tensor,
    ordered: Tensor,
    order: Tensor,
    temperature: Tensor | float,
) -> Tensor:
    """Gradients of the thresholds, which ascend, for the scores, at their places."""
    rows, n = ordered.shape
    from_low, from_up = ordered.new_zeros(2, rows, n)
    sums = (from_low, from_up)
    nothing = Temperatures()
    plan = scan_plan(count.shape[-1], ordered.dtype)
    _scan(SEGMENTS, plan, count, None, nothing, (grad, low, up), sums, width=n)
    out = torch.empty_like(ordered)
    plan, t = scan_plan(n, ordered.dtype), _temperatures(temperature, ordered)
    _scan(SPREAD, plan, ordered, order, t, sums, (out,))
    return out


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """Sums that decay over gaps: [rows, n - 1], values and result [rows, columns, n]."""
    out = torch.empty_like(values)
    columns, n = values.shape[1:]
    flat = (values.view(-1, n),), (out.view(-1, n),)
    plan = scan_plan(n, values.dtype)
    _scan(SUMS, plan, gaps, None, Temperatures(), *flat, columns=columns, reverse=reverse)
    return out


def _scan(
    mode: Any,
    plan: ScanPlan,
    nodes: Tensor,
    order: Tensor | None,
    temperature: Temperatures,
    inputs: tuple[Tensor, ...] = (),
    outputs: tuple[Tensor | None, ...] = (),
    masked: bool = False,
    columns: int = 1,
    reverse: bool = False,
    width: int = 0,
) -> None:
    """The launches of one mode: totals of chunks where rows have several, and the scan."""
    values = inputs[0] if inputs else nodes
    rows, n = values.shape
    first, second, third = (*inputs, None, None, None)[:3]
    out, more, most = (*outputs, None, None, None)[:3]
    total_count = rows * plan.chunks
    totals = values.new_empty(6, total_count) if plan.chunks > 1 else None
    given = (
        *(nodes, order, *temperature, first, second, third, totals, out, more, most),
        *(n, rows, plan.chunks, total_count, columns, width),
    )
    name = (mode.value, plan, rows, values.dtype, masked, reverse)
    with on_device(nodes):
        launch_named(nodes.device, name, lambda: _scan_steps(*name), given)


def _scan_steps(
    mode: int, plan: ScanPlan, rows: int, dtype: torch.dtype, masked: bool, reverse: bool
) -> list[Step]:
    total_count, is_shared = rows * plan.chunks, plan.chunks > 1
    placing = {"LENGTH": plan.length, "COMPUTE": _compute(dtype)}
    common = {"MODE": mode, "REVERSE": reverse, **placing}
    scanning = common | {"MASKED": masked, "SHARED": is_shared, "ROWS": plan.rows}
    options = {"num_warps": plan.warps}
    narrow = options | ({"maxnreg": REGISTERS} if plan.warps == 16 else {})
    programs = -(-rows // plan.rows) * plan.chunks
    steps = [Step(scan_chunks, programs, (), scanning, narrow)]
    if is_shared:
        steps.insert(0, Step(total_chunks, total_count, (), common, options))
        if mode == RANK.value:
            steps.append(Step(place_ranks, total_count, (), placing, options))
    return steps


def _compute(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32

"""From sorted rows to the launches of their scans; nothing comes back to the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from .config import power_of_two
from .device import on_device
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

for _kernel in (place_ranks, place_thresholds, scan_chunks, total_chunks):  # see steps.py
    getattr(_kernel, "cache_key", None)
del _kernel

#: The longest row that a program has whole, and the chunks of longer ones; of float64, whose
#: exponentials are long functions that every node of a thread has a copy of.
LONGEST, LONGEST_DOUBLE = 4096, 1024
#: Nodes of a tile of short rows, and those of a warp, which are 8 for each of its threads.
TILE, OF_WARP = 512, 256
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


def rank_rows(ordered: Tensor, order: Tensor, temperature: Tensor, is_masked: bool) -> Tensor:
    """Ranks of sorted rows, each at the place that ``order`` gives."""
    out = torch.empty_like(ordered)
    plan = scan_plan(ordered.shape[-1], ordered.dtype)
    if plan.chunks == 1:
        _scan(RANK, plan, ordered, order, temperature, outputs=(out,), masked=is_masked)
        return out
    ranks = torch.empty_like(ordered)
    _scan(RANK, plan, ordered, order, temperature, outputs=(ranks,), masked=is_masked)
    n = ordered.shape[-1]
    with on_device(ordered):
        place_ranks[(len(ordered) * plan.chunks,)](
            *(ordered, order, ranks, out, n, plan.chunks),
            LENGTH=plan.length,
            COMPUTE=_compute(ordered),
            num_warps=plan.warps,
        )
    return out


def rank_rows_backward(
    grad: Tensor, ordered: Tensor, order: Tensor, temperature: Tensor, is_masked: bool
) -> Tensor:
    """Gradients of the ranks for the scores, at their places."""
    out = torch.empty_like(ordered)
    given = (ordered, order, temperature, (grad,), (out,), is_masked)
    _scan(RANK_GRADIENT, scan_plan(ordered.shape[-1], ordered.dtype), *given)
    return out


def threshold_rows(
    ordered: Tensor, temperature: Tensor, masses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Thresholds, the number of scores below, and coefficients of their gradient."""
    rows, n = ordered.shape
    knots = ordered.new_empty(rows, n, dtype=torch.float64)
    lower_sums, upper_sums = torch.empty_like(ordered), torch.empty_like(ordered)
    outputs = (knots, lower_sums, upper_sums)
    _scan(MASS, scan_plan(n, ordered.dtype), ordered, None, temperature, outputs=outputs)
    m = n if masses is None else len(masses)
    masses = None if masses is None else masses.to(torch.float64).contiguous()
    b, low, up = (ordered.new_empty(rows, m) for _ in range(3))
    count = ordered.new_empty((rows, m), dtype=torch.int32)
    blocks = -(-m // THRESHOLDS)
    with on_device(ordered):
        place_thresholds[(rows * blocks,)](
            *(ordered, temperature, masses, *outputs, b, count, low, up, n, m, blocks),
            STEPS=n.bit_length(),
            LENGTH=THRESHOLDS,
            COMPUTE=_compute(ordered),
            num_warps=4,
        )
    return b, count, low, up


def threshold_rows_backward(
    grad: Tensor,
    count: Tensor,
    low: Tensor,
    up: Tensor,
    ordered: Tensor,
    order: Tensor,
    temperature: Tensor,
) -> Tensor:
    """Gradients of the thresholds, which ascend, for the scores, at their places."""
    from_low, from_up = torch.zeros_like(ordered), torch.zeros_like(ordered)
    n, m = ordered.shape[-1], count.shape[-1]
    sums = (from_low, from_up)
    plan = scan_plan(m, ordered.dtype)
    _scan(SEGMENTS, plan, count, None, None, (grad, low, up), sums, width=n)
    out = torch.empty_like(ordered)
    _scan(SPREAD, scan_plan(n, ordered.dtype), ordered, order, temperature, sums, (out,))
    return out


def decayed_sums(gaps: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """Sums that decay over gaps: [rows, n - 1], values and result [rows, columns, n]."""
    out = torch.empty_like(values)
    columns, n = values.shape[1:]
    flat = (values.view(-1, n),), (out.view(-1, n),)
    plan = scan_plan(n, values.dtype)
    _scan(SUMS, plan, gaps, None, None, *flat, columns=columns, reverse=reverse)
    return out


def _scan(
    mode: Any,
    plan: ScanPlan,
    nodes: Tensor,
    order: Tensor | None,
    temperature: Tensor | None,
    inputs: tuple[Tensor, ...] = (),
    outputs: tuple[Tensor, ...] = (),
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
    common: dict[str, Any] = {
        "MODE": mode.value,
        "REVERSE": reverse,
        "LENGTH": plan.length,
        "COMPUTE": _compute(values),
        "num_warps": plan.warps,
    }
    totals = None
    with on_device(nodes):
        if plan.chunks > 1:
            totals = values.new_empty(6, total_count)
            total_chunks[(total_count,)](
                *(nodes, order, temperature, first, second, third),
                *(totals, n, plan.chunks, total_count, columns),
                **common,
            )
        scan_chunks[(-(-rows // plan.rows) * plan.chunks,)](
            *(nodes, order, temperature, first, second, third, totals, out, more, most),
            *(n, rows, plan.chunks, total_count, columns, width),
            **common,
            MASKED=masked,
            SHARED=plan.chunks > 1,
            ROWS=plan.rows,
        )


def _compute(tensor: Tensor) -> Any:
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32

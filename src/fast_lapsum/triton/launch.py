"""Which kernels a call launches: the thin way from tensors to the device (parameters: table.py).

Rows of up to ``LONGEST_ON_CHIP`` scores: one program per row, one launch. Longer rows: sample,
rounds, mask. Everything is launched whatever the data, and nothing is read back: what a row turns
out not to need returns at once on the device.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from .._layout import Group, groups, slabs
from ..solvers import backend as plain
from ..solvers.backend import compute_dtype
from . import relaunch
from .backward import SUMS, rows_backward, scores_backward, sums_backward
from .hard import write_hard_mask
from .mask import mask_forward
from .plan import STATE_FIELDS
from .precompile import Launch, compile_together
from .primitives import LISTS
from .relaunch import Launched
from .rows import rows_forward
from .sample import CHUNK, SAMPLE_FIELDS, sample_forward
from .settle import settle_forward
from .stream import PARTIAL_FIELDS, TICKET_FIELDS, round_forward
from .table import (
    BAND_BYTES,
    LONGEST_ON_CHIP,
    ROW_REGISTERS,
    ROW_WARPS,
    ROW_WARPS_BACKWARD,
    ROWS_AT_ONCE,
    Streaming,
    streaming,
)

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
    out = torch.empty_like(scores, dtype=out_dtype)
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=kept)
    if scores.dtype == torch.float64:
        budget, budget_number = _fitting(budget, budget_number, scores)
        temperature, temperature_number = _fitting(temperature, temperature_number, scores)
    key = None
    if (
        budget is temperature is mask is warm_start is None
        and settings is None
        and n > 0
        and scores.is_contiguous()
        and (n <= LONGEST_ON_CHIP or not hard)
    ):
        device, address = scores.device.index, scores.data_ptr()
        rows = scores.numel() // n
        key = (
            "forward",
            scores.dtype,
            out_dtype,
            n,
            rows,
            largest,
            hard,
            device,
            address % 16 == 0,
        )
        if n > LONGEST_ON_CHIP:
            if (known := relaunch.recipe(key, device)) is not None:
                scratch = torch.empty(known.scratch, dtype=torch.uint8, device=scores.device)
                addresses = (address, out.data_ptr(), threshold.data_ptr(), scratch.data_ptr())
                numbers = (*_pair(budget_number), *_pair(temperature_number))
                relaunch.follow(known, device, addresses, numbers)
                return out, threshold
        elif (kernel := relaunch.find(key, device)) is not None:
            block = max(_power_of_two(n), 16)
            relaunch.run(
                kernel,
                rows,
                device,
                address,
                None,
                None,
                None,
                None,
                out.data_ptr(),
                threshold.data_ptr(),
                *_pair(budget_number),
                *_pair(temperature_number),
                n,
                1,
                *(n, 0, 1),
                *(0, 0, 1),
                *(0, 0, 0, 0, 0, 0),
                *(n, 0, 1),
                largest,
                hard,
                n != block,
                block,
                tl.float64 if kept == torch.float64 else tl.float32,
            )
            return out, threshold
    if hard and budget is not None:  # only a whole budget has a hard mask
        budget = torch.where(budget == budget.floor(), budget, math.nan)
    numbers = (*_pair(budget_number), *_pair(temperature_number))
    compute = tl.float64 if kept == torch.float64 else tl.float32
    on_chip = n <= LONGEST_ON_CHIP and settings is None
    tensors = (scores, mask, budget, temperature, warm_start if on_chip else None, out)
    most_rows = 1 << 62 if on_chip else ROWS_AT_ONCE
    with _on_device(scores):
        for group in (slab for all_rows in groups(tensors) for slab in slabs(all_rows, most_rows)):
            views = [_view(x, o) for x, o in zip(tensors, group.offsets, strict=True)]
            pairs = threshold.view(-1, 2)[group.first_row :]
            along = [_along(x, n) for x in (scores, mask, out)]
            flat = [list(pair) for pair in group.strides]
            for i, stride in zip((0, 1, 5), along, strict=True):
                flat[i].append(stride)
            if on_chip:
                block = max(_power_of_two(n), 16)
                launched = rows_forward[(group.outer * group.inner,)](
                    *views,
                    pairs,
                    *numbers,
                    n,
                    group.inner,
                    *(stride for strides in flat for stride in strides),
                    LARGEST=largest,
                    HARD=hard,
                    PADDED=n != block,
                    BLOCK=block,
                    COMPUTE=compute,
                    num_warps=_warps(ROW_WARPS, block),
                    maxnreg=ROW_REGISTERS,
                )
                if key is not None:
                    relaunch.keep(key, launched)
            else:
                made, scratch = _stream(
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
    if hard and not on_chip:
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


def _stream(
    views: list[Any],
    pairs: Tensor,
    numbers: tuple[float, float, float, float],
    n: int,
    group: Group,
    strides: list[list[int]],
    largest: bool,
    hard: bool,
    compute: Any,
    settings: Streaming | None,
) -> tuple[list[Launched], Tensor]:
    """The launches that were made, and the scratch memory that they share."""
    scores, mask, budget, temperature, _, out = views
    device = scores.device.index
    key = None
    if settings is None:
        key = _key("stream", n, group, strides, (*views, pairs), largest, device)
    settings = settings or streaming(n)
    s_scores, s_mask, s_budget, s_temperature, _, s_out = strides
    row_count = group.outer * group.inner
    cores = _cores(scores.device)
    overlap = _overlaps(scores.device)
    tiles = -(-n // settings.tile)
    per_core = (settings.programs_per_core, settings.later_programs_per_core)
    first, later = (max(1, min(tiles, count * cores // row_count, 2048)) for count in per_core)
    sample_programs = max(1, min(settings.sample_programs, 4 * cores // row_count))
    wanted = min(max(n // settings.sample_part, settings.sample_least), settings.sample_most, n)
    chunks_each = -(-wanted // (CHUNK.value * sample_programs))
    capacity = min(
        settings.capacity, max(_power_of_two(BAND_BYTES // 4 // row_count) // 2, 2 * LISTS.value)
    )
    rounds = settings.rounds
    spacing = 8 if row_count <= 1024 else 1  # many rows do not queue up at one counter anyway
    ticket_count = TICKET_FIELDS.value * spacing * rounds
    scratch, (state, partials, band, samples, tickets) = _parts(
        scores,
        (row_count * STATE_FIELDS.value, torch.float64),
        (row_count * max(first, later) * PARTIAL_FIELDS.value, torch.float64),
        (row_count * capacity, pairs.dtype),
        (row_count * sample_programs * SAMPLE_FIELDS.value, pairs.dtype),
        (row_count * ticket_count, torch.int32),
    )
    launches = []
    reading = (*s_scores, *s_mask, *s_budget, *s_temperature)
    launches.append(
        Launch(
            "sample",
            sample_forward,
            row_count * sample_programs,
            (
                scores,
                mask,
                budget,
                temperature,
                samples,
                tickets,
                *numbers,
                n,
                group.inner,
                sample_programs,
                ticket_count,
                chunks_each,
                *reading,
            ),
            {
                "LARGEST": largest,
                "SINGLES": settings.singles,
                "CHUNKS": settings.sample_chunks,
                "TICKETS": _power_of_two(ticket_count),
                "OVERLAP": overlap,
                "COMPUTE": compute,
            },
            {"num_warps": settings.sample_warps},
        )
    )
    for number in range(rounds):
        programs = first if number == 0 else later
        launches.append(
            Launch(
                ("round", number),
                round_forward,
                row_count * programs,
                (
                    scores,
                    mask,
                    budget,
                    temperature,
                    samples,
                    state,
                    partials,
                    tickets,
                    band,
                    pairs,
                    *numbers,
                    n,
                    group.inner,
                    programs,
                    sample_programs,
                    sample_programs * chunks_each,
                    ticket_count,
                    TICKET_FIELDS.value * spacing * number,
                    capacity,
                    min(settings.planned, capacity),
                    int(number + 2 < rounds),  # a ladder is for the round after it
                    *reading,
                ),
                {
                    "IS_FIRST": number == 0,
                    "LARGEST": largest,
                    "BLOCK": settings.tile,
                    "SAMPLE_LANES": _power_of_two(sample_programs),
                    "LANES": _power_of_two(programs),
                    "SPACING": spacing,
                    "OVERLAP": overlap,
                    "COMPUTE": compute,
                },
                {
                    "num_warps": settings.warps,
                    "maxnreg": settings.registers if number == 0 else settings.later_registers,
                    "launch_pdl": overlap,
                },
            )
        )
    launches.append(
        Launch(
            "settle",
            settle_forward,
            row_count,
            (
                scores,
                mask,
                budget,
                temperature,
                state,
                tickets,
                band,
                pairs,
                *numbers,
                n,
                group.inner,
                ticket_count,
                *reading,
            ),
            {
                "LARGEST": largest,
                "BLOCK": settings.settle_tile,
                "CAPACITY": capacity,
                "HELD": min(settings.held, capacity),
                "SPACING": spacing,
                "OVERLAP": overlap,
                "COMPUTE": compute,
            },
            {"num_warps": settings.settle_warps, "launch_pdl": overlap},
        )
    )
    if not hard:
        mask_tiles = -(-n // settings.mask_tile)
        launches.append(
            Launch(
                "mask",
                mask_forward,
                row_count * mask_tiles,
                (
                    scores,
                    mask,
                    temperature,
                    out,
                    pairs,
                    *numbers[2:],
                    n,
                    group.inner,
                    mask_tiles,
                    *s_scores,
                    *s_mask,
                    *s_temperature,
                    *s_out,
                ),
                {
                    "LARGEST": largest,
                    "BLOCK": settings.mask_tile,
                    "OVERLAP": overlap,
                    "COMPUTE": compute,
                },
                {"num_warps": settings.mask_warps, "launch_pdl": overlap},
            )
        )
    if key is not None and device is not None:
        kind = (settings, relaunch.layout((*views, pairs)), largest, hard, device)
        compile_together(kind, launches)
    made = [
        relaunch.launch(
            key and (*key, one.name),
            one.function,
            one.programs,
            device,
            one.arguments,
            one.constants,
            **one.options,
        )
        for one in launches
    ]
    return made, scratch


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
    out = torch.empty_like(scores)
    threshold = threshold.contiguous()
    if scores.dtype == torch.float64:
        temperature, temperature_number = _fitting(temperature, temperature_number, scores)
    key = None
    if (
        temperature is mask is None
        and settings is None
        and not per_row
        and n > 0
        and scores.is_contiguous()
        and grad.is_contiguous()
    ):
        device, address, grad_address = scores.device.index, scores.data_ptr(), grad.data_ptr()
        rows = scores.numel() // n
        pairs_address = threshold.data_ptr()
        aligned = address % 16 == 0, grad_address % 16 == 0, pairs_address % 16 == 0
        key = ("backward", scores.dtype, grad.dtype, n, rows, largest, device, aligned)
        if n > LONGEST_ON_CHIP:
            if (known := relaunch.recipe(key, device)) is not None:
                scratch = torch.empty(known.scratch, dtype=torch.uint8, device=scores.device)
                pointers = (address, out.data_ptr(), pairs_address, scratch.data_ptr())
                numbers = (0.0, 0.0, *_pair(temperature_number))
                relaunch.follow(known, device, (grad_address, *pointers), numbers)
                return out, None, None
        elif (kernel := relaunch.find(key, device)) is not None:
            relaunch.run(
                kernel,
                rows,
                device,
                grad_address,
                address,
                None,
                None,
                pairs_address,
                out.data_ptr(),
                None,
                None,
                *_pair(temperature_number),
                n,
                1,
                *(n, 0, 1),
                *(n, 0, 1),
                *(0, 0, 1),
                *(0, 0),
                *(n, 0, 1),
                largest,
                max(_power_of_two(n), 16),
                tl.float64 if threshold.dtype == torch.float64 else tl.float32,
            )
            return out, None, None
    d_rows = [scores.new_empty(scores.shape[:-1], dtype=torch.float64) for _ in range(2 * per_row)]
    t_pair = _pair(temperature_number)
    compute = tl.float64 if threshold.dtype == torch.float64 else tl.float32
    on_chip = n <= LONGEST_ON_CHIP and settings is None
    default, device = settings is None, scores.device.index
    settings = settings or streaming(n)
    tensors = (scores, grad, mask, temperature, out)
    with _on_device(scores):
        for group in groups(tensors):
            views = [_view(x, o) for x, o in zip(tensors, group.offsets, strict=True)]
            v_scores, v_grad, v_mask, v_temperature, v_out = views
            pairs = threshold.view(-1, 2)[group.first_row :]
            d_views: list[Any] = [d.view(-1)[group.first_row :] for d in d_rows] or [None, None]
            along = [_along(x, n) for x in (scores, grad, mask, out)]
            flat = [list(pair) for pair in group.strides]
            for i, stride in zip((0, 1, 2, 4), along, strict=True):
                flat[i].append(stride)
            reading = (*flat[1], *flat[0], *flat[2], *flat[3])
            row_count = group.outer * group.inner
            if on_chip:
                block = max(_power_of_two(n), 16)
                launched = rows_backward[(row_count,)](
                    v_grad,
                    v_scores,
                    v_mask,
                    v_temperature,
                    pairs,
                    v_out,
                    *d_views,
                    *t_pair,
                    n,
                    group.inner,
                    *reading,
                    *flat[4],
                    LARGEST=largest,
                    BLOCK=block,
                    COMPUTE=compute,
                    num_warps=_warps(ROW_WARPS_BACKWARD, block),
                )
                if key is not None:
                    relaunch.keep(key, launched)
                continue
            cores = _cores(scores.device)
            summing = settings.sums_programs_per_core * cores // row_count
            summing = max(1, min(-(-n // settings.sums_tile), summing, 1024))
            writing = settings.write_programs_per_core * cores // row_count
            writing = max(1, min(-(-n // settings.write_tile), writing))
            scratch, (sums,) = _parts(scores, (row_count * summing * SUMS.value, torch.float64))
            call = None
            if default:
                call = _key("sums", n, group, flat, (*views, *d_views, pairs), largest, device)
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
                    "LANES": _power_of_two(summing),
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


def _parts(like: Tensor, *parts: tuple[int, torch.dtype]) -> tuple[Tensor, list[Tensor]]:
    """One allocation and its parts, each as aligned as Triton wants it."""
    ends = [0]
    for count, dtype in parts:
        ends.append(ends[-1] + -(-count * dtype.itemsize // 256) * 256)
    whole = torch.empty(ends[-1], dtype=torch.uint8, device=like.device)
    return whole, [
        whole[start : start + count * dtype.itemsize].view(dtype)
        for start, (count, dtype) in zip(ends, parts, strict=False)
    ]


def _key(
    kind: str,
    n: int,
    group: Group,
    strides: list[list[int]],
    tensors: Sequence[Tensor | None],
    largest: bool,
    device: int | None,
) -> tuple[Hashable, ...]:
    """All that decides how the kernels of a call are compiled and with what numbers launched."""
    flat = tuple(stride for some in strides for stride in some)
    rows = (group.outer, group.inner)
    return (kind, n, rows, flat, relaunch.layout(tensors), largest, device)


def _on_device(scores: Tensor) -> Any:
    """Kernels go to the current device: make it the one of the scores."""
    return torch.cuda.device_of(scores)  # type: ignore[no-untyped-call]


@functools.cache
def _cores(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _overlaps(device: torch.device) -> bool:
    """Whether kernels of one call may come up while the one before still runs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _pair(number: float) -> tuple[float, float]:
    """A float64 as the sum of two float32, which is what a kernel can be given."""
    (hi,) = struct.unpack("f", struct.pack("f", number))
    return hi, number - hi


def _fitting(values: Tensor | None, number: float, scores: Tensor) -> tuple[Tensor | None, float]:
    """Numbers that two float32 cannot hold become a tensor."""
    if values is None and number and not 1e-25 < abs(number) < 1e38:
        return scores.new_full((), number).expand(scores.shape[:-1]), 0.0
    return values, number


def _view(tensor: Tensor | None, offset: int) -> Tensor | None:
    if tensor is None or not offset:
        return tensor
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def _along(tensor: Tensor | None, n: int) -> int:
    return 1 if tensor is None or n < 2 else tensor.stride(-1)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _warps(table: tuple[tuple[int, int], ...], block: int) -> int:
    return next(warps for longest, warps in table if block <= longest)

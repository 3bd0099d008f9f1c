"""What a forward call on long rows launches: sample, rounds, settle, mask.

Everything is launched whatever the data, and nothing is read back: what a row turns out not to
need returns at once on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._layout import Group
from ..backends.triton import relaunch
from ..backends.triton.config import power_of_two
from ..backends.triton.relaunch import Launched
from .arguments import cores_of, key_of, overlaps, parts
from .mask import mask_forward
from .precompile import Launch, compile_together
from .primitives import LISTS
from .sample import CHUNK, SAMPLE_FIELDS, sample_forward
from .settle import settle_forward
from .state import STATE_FIELDS
from .stream import PARTIAL_FIELDS, TICKET_FIELDS, round_forward
from .table import BAND_BYTES, Streaming, streaming


def launch_long_rows(
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
        layout = relaunch.layout((*views, pairs))
        key = key_of("stream", n, group, strides, layout, largest, device)
    settings = settings or streaming(n)
    s_scores, s_mask, s_budget, s_temperature, _, s_out = strides
    row_count = group.outer * group.inner
    cores = cores_of(scores.device)
    overlap = overlaps(scores.device)
    tiles = -(-n // settings.tile)
    per_core = (settings.programs_per_core, settings.later_programs_per_core)
    first, later = (max(1, min(tiles, count * cores // row_count, 2048)) for count in per_core)
    sample_programs = max(1, min(settings.sample_programs, 4 * cores // row_count))
    wanted = min(max(n // settings.sample_part, settings.sample_least), settings.sample_most, n)
    chunks_each = -(-wanted // (CHUNK.value * sample_programs))
    capacity = min(
        settings.capacity, max(power_of_two(BAND_BYTES // 4 // row_count) // 2, 2 * LISTS.value)
    )
    rounds = settings.rounds
    width = pairs.itemsize // 4  # registers of a number
    spacing = 8 if row_count <= 1024 else 1  # many rows do not queue up at one counter anyway
    ticket_count = TICKET_FIELDS.value * spacing * rounds
    scratch, (state, partials, band, samples, tickets) = parts(
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
                "TICKETS": power_of_two(ticket_count),
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
                    "SAMPLE_LANES": power_of_two(sample_programs),
                    "LANES": power_of_two(programs),
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
                "BLOCK": settings.settle_tile // width,
                "CAPACITY": capacity,
                "HELD": min(settings.held // width, capacity),
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
        kind = (settings, layout, largest, hard, device)
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

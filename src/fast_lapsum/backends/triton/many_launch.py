"""One budget over many tensors: a table of where they are, and the launches over their parts.

Scores are read and masks written where they lie. A hard mask is found as that of temperature 0 is,
after the pair of the soft one, and counts ties in the order of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..common import DTYPES
from ..many import as_vector, kept_dtype, matched_vectors, out_dtype_of
from .config import lanes_of
from .device import can_overlap, on_device, room_of, shrink_room
from .gradients import SUMS
from .launch import backward, forward, split_float64
from .many import (
    COLUMNS,
    PART_FIELDS,
    place_many,
    sample_many,
    solve_many,
    write_many,
)
from .many_backward import combine_many, scores_many, sums_many
from .many_gather import compact_many, summarise_many
from .many_hard import count_many, write_hard_many
from .many_search import search_many
from .ragged_launch import exact_number
from .step_launch import launch_steps
from .steps import Step
from .team import LINES
from .views import Call, Numbers, Rows

# Found in Triton's cache on disk whatever was called first: see steps.py.
_KERNELS = (
    *(combine_many, compact_many, count_many, place_many, sample_many, scores_many, search_many),
    *(solve_many, sums_many, summarise_many, write_hard_many, write_many),
)
for _kernel in _KERNELS:
    getattr(_kernel, "cache_key", None)
del _kernel
#: Tables that were sent to a device while a CUDA graph was recorded, which reads them again: some
#: kilobytes for each call that is recorded, as long as the process runs.
_recorded: list[Tensor] = []


class ManyPlan(NamedTuple):
    """How many tensors are read: sizes of parts, of the sample, of the team."""

    part: int = 16384
    block: int = 1024
    warps: int = 4
    #: Of so many scores and fewer all are in the band.
    small: int = 65536
    sample: int = 16384
    sample_warps: int = 16
    read: int = 4
    team: int = 64
    search_team: int = 128

    @property
    def lanes(self) -> int:
        return 32 * self.warps

    @property
    def repeats(self) -> int:
        return max(1, self.block // self.lanes)

    def room(self, total: int) -> int:
        """For so many scores of a band."""
        return total // 16 + self.small


class _Table(NamedTuple):
    """Tensors as kernels see them."""

    entries: Tensor
    rows: int
    parts: int
    total: int
    constants: dict[str, Any]


def list_forward(
    tensors: Sequence[Tensor],
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    largest: bool,
    output: str,
    widen: bool,
    plan: ManyPlan | None = None,
) -> list[Tensor]:
    """One output for each tensor, none for "threshold", and last the threshold pair."""
    kept = kept_dtype(tensors)
    total = sum(x.numel() for x in tensors)
    if output == "threshold" or not total:
        numbers = (budget, budget_number, temperature, temperature_number)
        return _joined_forward(tensors, numbers, largest, output, widen)
    plan, is_hard = plan or ManyPlan(), output == "hard"
    if is_hard and budget is not None:  # only a whole one has an answer
        budget = torch.where(budget == budget.floor(), budget, torch.nan)
    outs = [torch.empty_like(x, dtype=out_dtype_of(x, widen)) for x in tensors]
    vectors, targets = matched_vectors(tensors, outs, in_order=is_hard)
    pair = tensors[0].new_empty((2,), dtype=kept)
    call = _call(budget, budget_number, temperature, temperature_number, tensors[0], kept)
    table = _table_of(vectors, targets, None, plan, kept, largest)
    every = {"PART": plan.part, "BLOCK": plan.block} | table.constants
    every |= {"REPEATS": plan.repeats, "LANES": plan.lanes, "READ": plan.read}
    every |= {"CHUNK_LANES": lanes_of(plan.search_team, plan.warps)}
    shape = (table.entries, table.rows)
    with on_device(tensors[0]):
        state = _solve(call, table, plan, every, kept)
        if is_hard:
            cold = _call(budget, budget_number, None, 0.0, tensors[0], kept)
            hard = _solve(cold, table, plan, every, kept)
            counts = hard.new_empty((2, table.parts))
            _launch(count_many, table.parts, plan.warps, (*shape, hard, counts), every)
            given = (cold, *shape, hard, counts)
            _launch(write_hard_many, table.parts, plan.warps, given, every)
        else:
            _launch(write_many, table.parts, plan.warps, (call, *shape, state), every)
        pair.copy_(state[2:4])
    _copy_back(outs, targets)
    return [*outs, pair]


def _solve(
    call: Call, table: _Table, plan: ManyPlan, every: dict[str, Any], kept: torch.dtype
) -> Tensor:
    """The state that has the pair of all tensors; lists are kept in the memory of the results."""
    total, device = table.total, table.entries.device
    room, lanes = plan.room(total), every["CHUNK_LANES"]
    state = torch.empty(8, dtype=torch.float64, device=device)
    summaries = torch.empty((PART_FIELDS.value, table.parts), dtype=torch.float64, device=device)
    band = torch.empty(room, dtype=kept, device=device)
    # Zeros are meeting places where nobody has been.
    words = torch.zeros((2, lanes * LINES.value), dtype=torch.int64, device=device)
    shape = (table.entries, table.rows)
    given: tuple[Any, ...]
    if total > plan.small:
        sample = torch.empty(plan.sample, dtype=kept, device=device)
        block = min(plan.sample, 1024)
        of_sample = every | {"SAMPLED": plan.sample, "BLOCK": block}
        of_sample |= {"LANES": 32 * plan.sample_warps}
        programs = plan.sample // block
        _launch(sample_many, programs, 4, (*shape, total, sample), of_sample)
        given = (call, total, sample, state, room)
        _launch(place_many, 1, plan.sample_warps, given, of_sample, maxnreg=128)
    else:
        state[:1].fill_(-torch.inf)
        state[1:].fill_(torch.inf)  # also the point: none
    given = (call, *shape, state, summaries)
    _launch(summarise_many, table.parts, plan.warps, given, every)
    given = (*shape, summaries, band, room)
    _launch(compact_many, table.parts, plan.warps, given, every)
    given = (call, total, table.parts, state, summaries, band, room, words[0])
    _launch_team(solve_many, plan.team, plan.warps, given, every)
    given = (call, *shape, total, table.parts, state, summaries, words[1])
    _launch_team(search_many, plan.search_team, plan.warps, given, every)
    return state


def list_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
    plan: ManyPlan | None = None,
) -> list[Tensor]:
    """A gradient for each tensor, and with ``per_row`` those for budget and temperature."""
    total = sum(x.numel() for x in tensors)
    if output == "threshold" or not total:
        rest = (temperature, temperature_number, threshold, largest, output, per_row)
        return _joined_backward(grads, tensors, *rest)
    plan = plan or ManyPlan()
    outs = [torch.empty_like(x) for x in tensors]
    in_order = any(
        x.stride() != out.stride() or x.stride() != g.stride()
        for x, out, g in zip(tensors, outs, grads, strict=True)
    )
    vectors, targets = matched_vectors(tensors, outs, in_order)
    upstream = [as_vector(g, in_order) for g in grads]
    device, kept = tensors[0].device, threshold.dtype
    call = _call(None, 0.0, temperature, temperature_number, tensors[0], kept)
    table = _table_of(vectors, targets, upstream, plan, kept, largest)
    sums = torch.empty((table.parts, SUMS.value), dtype=torch.float64, device=device)
    of_row = torch.empty(3, dtype=torch.float64, device=device)
    pair = threshold.contiguous()
    every = {"PART": plan.part, "REPEATS": plan.repeats, "LANES": plan.lanes} | table.constants
    every["GRAD_KINDS"] = every.pop("OUT_KINDS")
    shape = (table.entries, table.rows)
    with on_device(tensors[0]):
        every["PER_ROW"] = per_row
        _launch(sums_many, table.parts, plan.warps, (call, *shape, pair, sums), every)
        given = (call, pair, sums, table.parts, of_row)
        _launch(combine_many, 1, plan.warps, given, every)
        _launch(scores_many, table.parts, plan.warps, (call, *shape, pair, of_row), every)
    _copy_back(outs, targets)
    return [*outs, *((of_row[1], of_row[2]) if per_row else ())]


def _launch(
    kernel: Any,
    programs: int,
    warps: int,
    given: tuple[Any, ...],
    constants: dict[str, Any],
    **options: Any,
) -> None:
    """One launch, which begins beside the one before where it can; of all constants it gets those
    that are its own.
    """
    tensor = next(x for x in given if isinstance(x, Tensor))
    constants = constants | {"OVERLAP": can_overlap(tensor.device)}
    own = {name: constants[name] for name in kernel.arg_names if name in constants}
    if own["OVERLAP"]:
        options["launch_pdl"] = True
    step = Step(kernel, programs, (), own, {"num_warps": warps, **options})
    launch_steps(tensor.device, [step], given)


def _launch_team(
    kernel: Any, most: int, warps: int, given: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    """The same of programs that wait for each other, as many as there is room for."""
    tensor = next(x for x in given if isinstance(x, Tensor))
    while True:
        room = room_of(tensor.device)
        size = min(room, most)
        try:
            together = {"launch_cooperative_grid": True}
            return _launch(kernel, size, warps, (*given, size), constants, **together)
        except RuntimeError as error:
            shrink_room(tensor.device, room, error)


def _call(
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    like: Tensor,
    kept: torch.dtype,
) -> Call:
    one = like.new_empty((), dtype=kept)
    budget, budget_number = exact_number(budget, budget_number, one, torch.Size(()))
    temperature, temperature_number = exact_number(
        temperature, temperature_number, one, torch.Size(())
    )
    k, t = (None if x is None else Rows(x, 0, 0, 1) for x in (budget, temperature))
    numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
    return Call(None, None, k, t, numbers, 1, 1)


def _table_of(
    vectors: Sequence[Tensor],
    targets: Sequence[Tensor],
    grads: Sequence[Tensor] | None,
    plan: ManyPlan,
    kept: torch.dtype,
    largest: bool,
) -> _Table:
    """The table on the device: sent without waiting, and kept for graphs that send it again."""
    entries = []
    parts = total = kinds = other_kinds = 0
    for i, vector in enumerate(vectors):
        size = vector.numel()
        if not size:
            continue
        other = targets[i] if grads is None else grads[i]
        kind, other_kind = DTYPES[vector.dtype], DTYPES[other.dtype]
        kinds, other_kinds = kinds | 1 << kind, other_kinds | 1 << other_kind
        grad = 0 if grads is None else grads[i].data_ptr()
        places = (vector.data_ptr(), targets[i].data_ptr(), grad)
        entries.append((*places, size, parts, total, kind, other_kind))
        parts, total = parts - (-size // plan.part), total + size
    table = torch.tensor(entries, dtype=torch.int64, device="cpu")
    assert table.shape[1] == COLUMNS.value
    device = vectors[0].device
    if device.type == "cuda":
        with on_device(vectors[0]):
            table = table.pin_memory()
            if torch.cuda.is_current_stream_capturing():
                _recorded.append(table)
            table = table.to(device, non_blocking=True)
    constants = {
        "STEPS": (len(entries) - 1).bit_length() + 1,
        "LARGEST": largest,
        "KINDS": kinds,
        "OUT_KINDS": other_kinds,
        "COMPUTE": tl.float64 if kept == torch.float64 else tl.float32,
    }
    return _Table(table, len(entries), parts, total, constants)


def _copy_back(outs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Results of tensors whose memory is not what was written."""
    for out, target in zip(outs, targets, strict=True):
        if out.data_ptr() != target.data_ptr():
            out.copy_(target.view(out.shape))


def _joined_forward(
    tensors: Sequence[Tensor], given: tuple[Any, ...], largest: bool, output: str, widen: bool
) -> list[Tensor]:
    row = _join(tensors, kept_dtype(tensors))
    every: tuple[Any, ...] = (row, *given, None, None, largest, output, row.dtype)
    out, pair = forward(*every)
    if output == "threshold":
        return [pair]
    return [*_part(out, tensors, [out_dtype_of(x, widen) for x in tensors]), pair]


def _joined_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
) -> list[Tensor]:
    row = _join(tensors, kept_dtype(tensors))
    grad = grads[0] if output == "threshold" else _join(grads, row.dtype)
    out, *of_row = backward(
        *(grad, row, temperature, temperature_number, None, threshold, largest, output, per_row)
    )
    parts = _part(out, tensors, [x.dtype for x in tensors])
    return [*parts, *(found for found in of_row if found is not None)]


def _join(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([x.reshape(-1).to(dtype) for x in tensors])


def _part(row: Tensor, like: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    pieces = row.split_with_sizes([x.numel() for x in like])
    return [
        torch.empty_like(x, dtype=dtype).copy_(piece.view(x.shape))
        for x, dtype, piece in zip(like, dtypes, pieces, strict=True)
    ]

"""From rows of several lengths to launches: one for each class of lengths that there may be."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..common import compute_dtype
from ..layout import Group, groups
from ..segments import rows_shape
from .config import LongBackwardPlan, LongPlan, power_of_two
from .device import can_overlap, on_device, room_of, shrink_room
from .launch import split_float64
from .ragged import (
    fill_outside,
    ragged_block_forward,
    ragged_long_forward,
    ragged_tile_forward,
)
from .ragged_backward import ragged_long_backward, ragged_tile_backward
from .ragged_plan import RaggedPlan, SharedRows, backward_plan, forward_plan
from .ragged_shared import ragged_team_backward, ragged_team_forward
from .step_launch import launch_steps
from .steps import Step
from .team import LINES
from .views import Call, Numbers, Rows, call_of

#: A launch has about so many programs at most. Where there are more rows, a program looks at
#: several, and most of them are of other classes.
MOST_PROGRAMS = 16384
# Found in Triton's cache on disk whatever was called first: see steps.py.
_KERNELS = (
    *(fill_outside, ragged_block_forward, ragged_long_backward, ragged_long_forward),
    *(ragged_team_backward, ragged_team_forward, ragged_tile_backward, ragged_tile_forward),
)
for _kernel in _KERNELS:
    getattr(_kernel, "cache_key", None)
del _kernel
#: Programs that fill what is before and after all segments, and scores of a turn.
FILLING, FILLED = 64, 1024


def ragged_forward(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    warm_start: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    plan: RaggedPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``output`` says, and threshold pairs; a budget that does not fit a row makes it NaN."""
    kept = compute_dtype(scores.dtype)
    rows = rows_shape(scores, offsets, lengths)
    threshold = scores.new_empty((*rows, 2), dtype=kept)
    is_written = output != "threshold"
    nothing = -math.inf if output == "log" else 0.0
    count, longest = math.prod(rows), _longest(scores, max_length)
    total = scores.numel() if offsets is not None else count * longest
    chosen = plan or forward_plan(longest, total, count, kept.itemsize)
    out = torch.empty_like(scores, dtype=out_dtype)  # lists are kept there, if nothing else
    if not is_written and chosen.long is None:
        out = scores.new_empty((0,), dtype=out_dtype)
    elif is_written and _may_have_holes(offsets, lengths, count):
        out.fill_(nothing)
    budget, budget_number = exact_number(budget, budget_number, scores, rows)
    temperature, temperature_number = exact_number(temperature, temperature_number, scores, rows)
    numbers = Numbers(*split_float64(budget_number), *split_float64(temperature_number))
    constants = {
        "LARGEST": largest,
        "OUTPUT": output,
        "COMPUTE": tl.float64 if kept == torch.float64 else tl.float32,
    }
    tensors = (scores, mask, budget, temperature, warm_start, None, out)
    with on_device(scores):
        for lead, views, call in _calls(tensors, offsets, lengths, numbers, rows):
            row_count, pairs = lead[1], threshold.view(-1, 2)[views.first_row :]
            given = (*lead, views.warm_start, views.out if out.numel() else None, pairs)
            if is_written:
                _fill(scores, call, lead, views.out, nothing)
            given = (*given, *_slots(scores, chosen.shared))
            _run(scores, _forward_steps(chosen, row_count, constants), given)
            if chosen.shared is not None:
                _run_teams(scores, _team_forward(chosen, constants), given)
    return (out if is_written else scores.new_empty((0,), dtype=out_dtype)), threshold


def ragged_backward(
    grad: Tensor,
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    max_length: int | None,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
    plan: RaggedPlan | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of what ``output`` says, and with ``per_row`` those for budget and temperature."""
    output = "mask" if output == "hard" else output
    rows = rows_shape(scores, offsets, lengths)
    count, longest = math.prod(rows), _longest(scores, max_length)
    total = scores.numel() if offsets is not None else count * longest
    chosen = plan or backward_plan(longest, total, count, threshold.itemsize)
    out = torch.empty_like(scores)
    if _may_have_holes(offsets, lengths, count):
        out.zero_()
    threshold = threshold.contiguous()
    d_rows = [scores.new_empty(rows, dtype=torch.float64) for _ in range(2 * per_row)]
    temperature, temperature_number = exact_number(temperature, temperature_number, scores, rows)
    numbers = Numbers(0.0, 0.0, *split_float64(temperature_number))
    constants = {
        "LARGEST": largest,
        "OUTPUT": output,
        "COMPUTE": tl.float64 if threshold.dtype == torch.float64 else tl.float32,
    }
    tensors = (scores, mask, None, temperature, None, grad, out)
    of_rows = output == "threshold"
    with on_device(scores):
        for lead, views, call in _calls(tensors, offsets, lengths, numbers, rows, of_rows):
            first = views.first_row
            pairs = threshold.view(-1, 2)[first:]
            d_views: list[Tensor | None] = [d.view(-1)[first:] for d in d_rows]
            given = (*lead, views.grad, pairs, views.out, *(d_views or (None, None)))
            _fill(scores, call, lead, views.out, 0.0)
            given = (*given, *_slots(scores, chosen.shared))
            _run(scores, _backward_steps(chosen, lead[1], constants), given)
            if chosen.shared is not None:
                _run_teams(scores, _team_backward(chosen, constants), given)
    return (out, d_rows[0], d_rows[1]) if per_row else (out, None, None)


class _Views(NamedTuple):
    """Tensors of a group of rows beside the call's own, and the number of its first row."""

    warm_start: Rows | None
    grad: Rows | None
    out: Rows
    first_row: int


def _calls(
    tensors: tuple[Tensor | None, ...],
    offsets: Tensor | None,
    lengths: Tensor | None,
    numbers: Numbers,
    rows: torch.Size,
    is_grad_of_rows: bool = False,
) -> Any:
    """What all launches of a group of rows are told: the call, its rows, offsets and lengths.

    ``tensors`` are scores, mask, budget, temperature, warm start, grad and out. Segments are one
    group.
    """
    scores = tensors[0]
    assert scores is not None
    n = scores.shape[-1]
    if not math.prod(rows):
        return
    lengths = None if lengths is None else lengths.contiguous()
    if offsets is not None:
        views = []
        for place, tensor in enumerate(tensors):
            of_rows = place in (2, 3, 4) or (place == 5 and is_grad_of_rows)
            stride = 0 if tensor is None or tensor.dim() == 0 else tensor.stride(0)
            along = 1 if of_rows else stride  # 0 for the gradient of a sum: one number for all
            views.append(None if tensor is None else Rows(tensor, stride, 0, along))
        group = Group([0] * len(tensors), 0, rows[0], 1, [(0, 0)] * len(tensors))
        yield _call_of(views, n, group, numbers, offsets.contiguous(), lengths)
        return
    assert lengths is not None
    given = tuple(None if x is None or not x.numel() else x for x in tensors)
    if not n:  # rows of no scores have no strides of their own
        given = (scores, None, *tensors[2:5], tensors[5] if is_grad_of_rows else None, None)
    for group in groups(given):
        views = []
        for place, tensor in enumerate(given):
            if tensor is None:
                views.append(None)
                continue
            offset = group.offsets[place]
            if offset:
                tensor = tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)
            has_scores = given[place].dim() == scores.dim() and n > 1  # type: ignore[union-attr]
            along = given[place].stride(-1) if has_scores else 1  # type: ignore[union-attr]
            views.append(Rows(tensor, *group.strides[place], along))
        if views[6] is None:
            views[6] = Rows(tensors[6], 0, 0, 1)
        own = lengths.view(-1)[group.first_row :]
        yield _call_of(views, n, group, numbers, None, own)


def _call_of(
    views: list[Any],
    n: int,
    group: Group,
    numbers: Numbers,
    offsets: Tensor | None,
    lengths: Tensor | None,
) -> tuple[tuple[Any, ...], _Views, Call]:
    scores, mask, budget, temperature, warm_start, grad, out = views
    call = call_of(scores, mask, budget, temperature, numbers, n, group.inner)
    lead = (call, group.outer * group.inner, offsets, lengths)
    return lead, _Views(warm_start, grad, out, group.first_row), call


def _longest(scores: Tensor, max_length: int | None) -> int:
    return scores.shape[-1] if max_length is None else min(max_length, scores.shape[-1])


def _may_have_holes(offsets: Tensor | None, lengths: Tensor | None, count: int) -> bool:
    """Whether there may be values between segments: those of a nested tensor, or no segment."""
    return offsets is not None and (lengths is not None or not count)


def exact_number(
    values: Tensor | None, number: float, scores: Tensor, rows: torch.Size
) -> tuple[Tensor | None, float]:
    """Numbers that two float32 cannot hold become a tensor, for float64 scores; see launch.py."""
    if values is None and number and scores.dtype == torch.float64:
        head, rest = split_float64(number)
        if not 1e-25 < abs(number) < 1e38 or head + split_float64(rest)[0] != number:
            return scores.new_full((), number).expand(rows), 0.0
    return values, number


def _scanned(row_count: int) -> int:
    return power_of_two(-(-row_count // MOST_PROGRAMS))


def _forward_steps(plan: RaggedPlan, row_count: int, constants: dict[str, Any]) -> list[Step]:
    """The steps of all classes; see _in_order."""
    steps: list[Step] = []
    lowest = 0
    for i, held in enumerate(plan.held):
        is_last = i == len(plan.held) - 1 and plan.long is None
        own = constants | {
            "LOWEST": lowest,
            "HIGHEST": held.block,
            "IS_LAST": is_last,
            "PARTS": held.parts,
            "REPEATS": held.repeats,
            "LANES": held.lanes,
            "WIDTH": 1,
        }
        options = {
            "num_warps": held.warps,
            "maxnreg": held.registers,
            "enable_fp_fusion": held.may_fuse,
        }
        if held.rows > 1:
            programs = -(-row_count // held.rows)
            own["ROWS"] = held.rows
            steps.append(Step(ragged_tile_forward, programs, (), own, options))
        else:
            own["SCANNED"] = _scanned(row_count)
            programs = -(-row_count // own["SCANNED"])
            steps.append(Step(ragged_block_forward, programs, (), own, options))
        lowest = held.block + 1
    if plan.long is not None:
        long = plan.long
        assert isinstance(long, LongPlan)
        own = constants | _sharing(plan.shared)
        own |= {
            "LOWEST": lowest,
            "SCANNED": _scanned(row_count),
            "READ": long.read,
            "LISTED": long.listed,
            "WRITTEN": long.written,
            "LANES": long.lanes,
            "SAMPLE": long.sample,
        }
        options = {"num_warps": long.warps, "maxnreg": long.registers, "enable_fp_fusion": False}
        programs = -(-row_count // own["SCANNED"])
        steps.append(Step(ragged_long_forward, programs, (), own, options))
    return _in_order(steps)


def _backward_steps(plan: RaggedPlan, row_count: int, constants: dict[str, Any]) -> list[Step]:
    steps: list[Step] = []
    lowest = 0
    for i, held in enumerate(plan.held):
        is_last = i == len(plan.held) - 1 and plan.long is None
        own = constants | {
            "LOWEST": lowest,
            "HIGHEST": held.block,
            "IS_LAST": is_last,
            "ROWS": held.rows,
            "REPEATS": held.parts * held.repeats,
            "LANES": held.lanes,
        }
        options = {
            "num_warps": held.warps,
            "maxnreg": held.registers,
            "enable_fp_fusion": held.may_fuse,
        }
        steps.append(Step(ragged_tile_backward, -(-row_count // held.rows), (), own, options))
        lowest = held.block + 1
    if plan.long is not None:
        long = plan.long
        assert isinstance(long, LongBackwardPlan)
        own = constants | _sharing(plan.shared)
        own |= {
            "LOWEST": lowest,
            "SCANNED": _scanned(row_count),
            "REPEATS": long.repeats,
            "LANES": long.lanes,
        }
        programs = -(-row_count // own["SCANNED"])
        options = {"num_warps": long.warps}
        steps.append(Step(ragged_long_backward, programs, (), own, options))
    return _in_order(steps)


def _in_order(steps: list[Step]) -> list[Step]:
    """The longest rows first, then the shortest, and up from there.

    A launch begins when all programs of the one before it have. Those that need much of a core wait
    for the longest rows to end, and so would what is launched behind them.
    """
    return [steps[-1], *steps[:-1]]


def _sharing(shared: SharedRows | None) -> dict[str, Any]:
    """What the launch that looks at long rows is told of slots."""
    if shared is None:
        return {"HIGHEST": 0, "SLOTS": 0, "CHUNK_LANES": 1}
    lanes = shared.chunk_lanes
    return {"HIGHEST": shared.highest, "SLOTS": shared.slots, "CHUNK_LANES": lanes}


def _slots(scores: Tensor, shared: SharedRows | None) -> tuple[Tensor | None, Tensor | None]:
    """How many slots are taken and by which rows, and the words of each; none is taken yet."""
    if shared is None:
        return None, None
    slots = scores.new_zeros(shared.slots + 1, dtype=torch.int64)
    size = shared.slots * shared.chunk_lanes * LINES.value
    return slots, scores.new_empty(size, dtype=torch.int64)


def _of_team(plan: RaggedPlan, constants: dict[str, Any], at_once: int) -> dict[str, Any]:
    shared = plan.shared
    assert shared is not None
    own = {"SLOTS": shared.slots, "CHUNK_LANES": shared.chunk_lanes, "LANES": shared.lanes}
    own |= {"LEAST": shared.least, "MOST": shared.most, "STEP": shared.step(at_once)}
    return constants | own


def _team_forward(plan: RaggedPlan, constants: dict[str, Any]) -> Step:
    shared, long = plan.shared, plan.long
    assert shared is not None
    assert isinstance(long, LongPlan)
    own = {"READ": shared.read, "LISTED": shared.listed, "WRITTEN": shared.written}
    own = _of_team(plan, constants, max(own.values())) | own | {"SAMPLE": long.sample}
    options = {"num_warps": shared.warps, "maxnreg": 128, "enable_fp_fusion": False}
    return Step(ragged_team_forward, 1, (), own, options | {"launch_cooperative_grid": True})


def _team_backward(plan: RaggedPlan, constants: dict[str, Any]) -> Step:
    shared = plan.shared
    assert shared is not None
    own = _of_team(plan, constants, shared.written) | {"REPEATS": shared.written}
    options = {"num_warps": shared.warps, "launch_cooperative_grid": True}
    return Step(ragged_team_backward, 1, (), own, options)


def _run_teams(scores: Tensor, step: Step, given: tuple[Any, ...]) -> None:
    """As many programs as can wait for each other, after all other launches."""
    while True:
        room = room_of(scores.device)
        try:
            return launch_steps(scores.device, [step._replace(programs=room)], given)
        except RuntimeError as error:
            shrink_room(scores.device, room, error)


def _run(scores: Tensor, steps: list[Step], given: tuple[Any, ...]) -> None:
    """Launch all classes; each but the first may begin beside the one before."""
    overlap = can_overlap(scores.device)
    made = [
        step._replace(
            constants=step.constants | {"OVERLAP": overlap},
            options=step.options | ({"launch_pdl": True} if overlap and place else {}),
        )
        for place, step in enumerate(steps)
    ]
    launch_steps(scores.device, made, given)


def _fill(scores: Tensor, call: Call, lead: tuple[Any, ...], out: Rows, nothing: float) -> None:
    """What is in no row, before the rows: of offsets that fall it may be more than that."""
    if not scores.numel():
        return
    row_count, offsets = lead[1], lead[2]
    programs = FILLING if offsets is not None else max(1, min(64, call.n // (4 * FILLED)))
    constants = {"NOTHING": nothing, "LANES": FILLED, "OVERLAP": False}
    grid = programs if offsets is not None else row_count * programs
    step = Step(fill_outside, grid, (), constants, {"num_warps": 4})
    launch_steps(scores.device, [step], (*lead, out, programs))

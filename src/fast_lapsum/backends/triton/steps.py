"""The launches that a plan is: kernels, how many programs they have, and what they are told.

Every kernel of a call begins with the same arguments: the call, its rows, its results, and scratch
memory where the plan asks for some. What is here are those that follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from .backward import scores_backward, sums_backward, tile_backward
from .config import (
    SAMPLE,
    LongBackwardPlan,
    LongPlan,
    SharedPlan,
    TeamPlan,
    TilePlan,
    lanes_of,
    power_of_two,
)
from .device import team_size
from .forward import tile_forward
from .gradients import SUMS
from .long_rows import long_forward
from .shared_rows import gather_rows, place_rows, solve_rows, write_rows
from .team import LINES
from .team_rows import guess_rows, team_forward

_KERNELS = (
    *(gather_rows, guess_rows, long_forward, place_rows, scores_backward, solve_rows),
    *(sums_backward, team_forward, tile_backward, tile_forward, write_rows),
)
# A kernel's key in Triton's cache on disk depends on which kernels were asked for theirs before.
# In the same order always, a kernel that another process compiled is found.
for _kernel in _KERNELS:
    getattr(_kernel, "cache_key", None)
del _kernel


class Step(NamedTuple):
    """One launch."""

    kernel: Any
    programs: int
    numbers: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


class Steps(NamedTuple):
    """All launches of a call, and how many words of scratch memory they share."""

    steps: list[Step]
    words: int = 0


ForwardPlan = TilePlan | TeamPlan | LongPlan | SharedPlan


def forward_steps(
    plan: ForwardPlan,
    n: int,
    row_count: int,
    room: int,
    overlap: bool,
    largest: bool,
    output: str,
    clamp: bool,
    compute: tl.dtype,
) -> Steps:
    """``room`` is for so many programs that wait for each other.

    With ``overlap`` a launch begins before the last one has ended, and waits for it where it must.
    With ``clamp`` a budget over the number of valid scores is that number.
    """
    if isinstance(plan, TilePlan):
        return _tiles(plan, n, row_count, largest, output, clamp, compute)
    if isinstance(plan, LongPlan):
        return _long(plan, row_count, largest, output, clamp, compute)
    if isinstance(plan, TeamPlan):
        made = _team(plan, n, row_count, room, largest, output, clamp, compute)
    else:
        made = _shared(plan, n, row_count, room, largest, output, clamp, compute)
    return made._replace(
        steps=[_overlapping(step, i, overlap) for i, step in enumerate(made.steps)]
    )


def _overlapping(step: Step, place: int, overlap: bool) -> Step:
    # The first one waits for all of the launch before it, which may be what makes the scores: later
    # ones may read scores before they wait.
    options = step.options | ({"launch_pdl": True} if overlap and place else {})
    return step._replace(constants=step.constants | {"OVERLAP": overlap}, options=options)


def _tiles(
    plan: TilePlan,
    n: int,
    row_count: int,
    largest: bool,
    output: str,
    clamp: bool,
    compute: tl.dtype,
) -> Steps:
    constants = {
        "LARGEST": largest,
        "OUTPUT": output,
        "CLAMP": clamp,
        "PADDED": n != plan.block,
        "ROWS": plan.rows,
        "PARTS": plan.parts,
        "REPEATS": plan.repeats,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "COMPUTE": compute,
    }
    options = {
        "num_warps": plan.warps,
        "maxnreg": plan.registers,
        "enable_fp_fusion": plan.may_fuse,
    }
    return Steps([Step(tile_forward, -(-row_count // plan.rows), (), constants, options)])


def _long(
    plan: LongPlan, row_count: int, largest: bool, output: str, clamp: bool, compute: tl.dtype
) -> Steps:
    constants = {
        "LARGEST": largest,
        "OUTPUT": output,
        "CLAMP": clamp,
        "READ": plan.read,
        "LISTED": plan.listed,
        "WRITTEN": plan.written,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "SAMPLE": plan.sample,
        "COMPUTE": compute,
    }
    options = {"num_warps": plan.warps, "maxnreg": plan.registers, "enable_fp_fusion": False}
    return Steps([Step(long_forward, row_count, (), constants, options)])


def _team(
    plan: TeamPlan,
    n: int,
    row_count: int,
    room: int,
    largest: bool,
    output: str,
    clamp: bool,
    compute: tl.dtype,
) -> Steps:
    lanes = lanes_of(plan.chunks, plan.warps)
    guess = {
        "LARGEST": largest,
        "OUTPUT": output,
        "SAMPLE": plan.sample,
        "RUN": plan.run,
        "LANES": 32 * plan.sample_warps,
        "CHUNK_LANES": lanes,
        "COMPUTE": compute,
    }
    is_held = not plan.length
    together = {
        "LARGEST": largest,
        "HELD": is_held,
        "OUTPUT": output,
        "CLAMP": clamp,
        "PADDED": n != plan.chunks * plan.block,
        "PARTS": plan.parts,
        "REPEATS": plan.repeats,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "CHUNK_LANES": lanes,
        "COMPUTE": compute,
    }
    size = plan.chunks if is_held else team_size(plan.chunks, room // min(row_count, room))
    teams = max(1, min(row_count, room // size))
    options = {"num_warps": plan.warps, "maxnreg": plan.registers, "launch_cooperative_grid": True}
    shape = (size, plan.chunks, plan.length)
    steps = [
        Step(guess_rows, row_count, (), guess, {"num_warps": plan.sample_warps}),
        Step(team_forward, teams * size, shape, together, options),
    ]
    return Steps(steps, row_count * lanes * LINES.value)


def _shared(
    plan: SharedPlan,
    n: int,
    row_count: int,
    room: int,
    largest: bool,
    output: str,
    clamp: bool,
    compute: tl.dtype,
) -> Steps:
    lanes = lanes_of(plan.chunks, plan.warps)
    size = team_size(plan.chunks, room // min(row_count, room))
    teams = min(row_count, room // size)
    shape = (plan.chunks, plan.length)
    each = {"CHUNK_LANES": lanes, "COMPUTE": compute}
    sample = {"SAMPLE": plan.sample, "RUN": plan.run}
    few = {"SAMPLE": min(plan.sample, SAMPLE), "RUN": plan.run}  # to tell what score is common
    lists = {"LISTED": plan.listed, "LANES": plan.lanes}
    wider = plan.gather_warps // plan.warps  # lists of more threads are shorter
    # Chunks must not overlap, nor their lists. A part of a list has listed * lanes scores: as many
    # where lists are written as where they are read.
    assert plan.listed % wider == plan.gather_warps % plan.warps == 0
    steps_of = (plan.read * wider, plan.read_again, plan.listed, plan.written * plan.width)
    assert not any(plan.length % (plan.lanes * step) for step in steps_of)
    assert plan.piece % (plan.lanes * plan.written * plan.width) == 0
    options = {"num_warps": plan.warps, "maxnreg": 128, "enable_fp_fusion": False}
    each |= {"LARGEST": largest}
    placing = sample | {"LANES": 32 * plan.sample_warps} | each
    gathering = {"READ": plan.read, "LISTED": plan.listed // wider} | each
    gathering |= {"LANES": plan.lanes * wider}
    solving = {"OUTPUT": output, "CLAMP": clamp, "READ": plan.read_again} | lists | few | each
    steps = [
        Step(
            place_rows,
            row_count,
            (),
            placing | {"OUTPUT": output},
            {"num_warps": plan.sample_warps, "maxnreg": 128},
        ),
        Step(
            gather_rows,
            row_count * plan.chunks,
            shape,
            gathering,
            options | {"num_warps": plan.gather_warps, "maxnreg": 64},
        ),
        Step(
            solve_rows,
            teams * size,
            (*shape, size),
            solving,
            options | {"launch_cooperative_grid": True},
        ),
    ]
    shape = (-(-n // plan.piece), plan.piece)
    writing = {"OUTPUT": output, "WRITTEN": plan.written, "LANES": plan.lanes, "WIDTH": plan.width}
    writing |= each
    options = options | {"maxnreg": 64}
    steps.append(Step(write_rows, row_count * shape[0], shape, writing, options))
    return Steps(steps, row_count * lanes * LINES.value)


def backward_steps(
    plan: TilePlan | LongBackwardPlan,
    n: int,
    row_count: int,
    largest: bool,
    output: str,
    per_row: bool,
    compute: tl.dtype,
) -> Steps:
    each = {"OUTPUT": output, "LANES": plan.lanes, "WIDTH": plan.width, "COMPUTE": compute}
    if isinstance(plan, TilePlan):
        repeats = plan.parts * plan.repeats
        constants = {"LARGEST": largest, "PADDED": n != plan.block, "ROWS": plan.rows}
        constants |= {"REPEATS": repeats} | each
        options = {
            "num_warps": plan.warps,
            "maxnreg": plan.registers,
            "enable_fp_fusion": plan.may_fuse,
        }
        return Steps([Step(tile_backward, -(-row_count // plan.rows), (), constants, options)])
    tiles = -(-n // plan.block)
    summing = max(1, min(tiles, plan.sum_programs // row_count, 1024))
    writing = max(1, min(tiles, plan.write_programs // row_count))
    of_sums = {"LARGEST": largest, "PER_ROW": per_row, "REPEATS": plan.repeats} | each
    of_scores = {"LARGEST": largest, "SUM_LANES": power_of_two(summing), "REPEATS": plan.repeats}
    of_scores |= each
    warps = {"num_warps": plan.warps}
    steps = [
        Step(sums_backward, row_count * summing, (summing,), of_sums, warps),
        Step(scores_backward, row_count * writing, (writing, summing), of_scores, warps),
    ]
    return Steps(steps, row_count * summing * SUMS.value)

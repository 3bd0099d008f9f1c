"""The entries of gated activations: from contiguous tensors of one shape to launches."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from .activation import activate_scores, activate_scores_backward, move_threshold
from .activation_backward import (
    ACTIVATION_SUMS,
    scores_activation_backward,
    sums_activation_backward,
    tile_activation_backward,
)
from .activation_forward import write_activations
from .config import (
    BLOCKS_BACKWARD,
    PROGRAMS,
    TILES_BACKWARD,
    LongBackwardPlan,
    SharedPlan,
    longest_block,
    longest_block_backward,
    power_of_two,
    tile_plan,
)
from .device import can_overlap, on_device, room_of, shrink_room
from .launch import _as_float32, _plan, split_float64
from .step_launch import launch_named
from .steps import Step, Steps, forward_steps
from .views import Call, Numbers, Rows

_KERNELS = (
    *(activate_scores, activate_scores_backward, move_threshold),
    *(tile_activation_backward, sums_activation_backward, scores_activation_backward),
    write_activations,
)
for _kernel in _KERNELS:  # see steps.py
    getattr(_kernel, "cache_key", None)
del _kernel

#: Scores that a program has at a time, sixteen for each of its threads.
BLOCK = 2048
#: Programs that share the scores, several for each place on a device: each leaves two numbers.
MOST_PROGRAMS = 4096
#: Of their numbers, so many are read at a time.
LANES = 1024
#: The plan of rows that no program holds, and the longest row that one does.
LONG_BACKWARD = LongBackwardPlan()
LONGEST_BLOCK = longest_block_backward(4)
#: Of one longer row no device has a team that holds it, and :func:`gated_forward` has an answer.
LONGEST_WITH_GATE = PROGRAMS * longest_block(4)
#: Below it a temperature is that of the hard limit.
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
_OPTIONS = {"num_warps": 4}


def activate(scores: Tensor, gate: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """relu(scores) * gate in the dtype of the scores, and of each program two numbers.

    How many scores exceed the threshold, and the best score whose gate is not 1.
    """
    out = torch.empty_like(scores)
    n = scores.numel()
    programs = max(1, min(-(-n // BLOCK), MOST_PROGRAMS))
    counts = torch.empty(programs, dtype=torch.int64, device=scores.device)
    best = torch.empty(programs, dtype=torch.float32, device=scores.device)
    with on_device(scores):
        launch_named(
            scores.device,
            ("activate", programs),
            lambda: [Step(activate_scores, programs, (), {"BLOCK": BLOCK}, _OPTIONS)],
            (scores, gate, threshold, out, counts, best, n),
        )
    return out, counts, best


class GatedRow(NamedTuple):
    """Activations of a row, and all that is to be known of its gate."""

    activations: Tensor
    counts: Tensor
    best: Tensor
    #: A score, and the last index at which one that equals it is let through; float64.
    boundary: Tensor
    #: The soft mask's pair.
    pair: Tensor


def gated_forward(
    scores: Tensor, budget: float | Tensor, temperature: float | Tensor, threshold: Tensor
) -> GatedRow | None:
    """relu(scores) times their hard mask of one long row, which is never in memory.

    The rest is that of :func:`activate`. Budget and temperature are numbers, or float64 tensors of
    one; a budget that is not whole makes all of it NaN, as in a hard mask. None for rows that other
    launches solve: their mask is at hand before it is written.
    """
    n = scores.numel()
    if scores.dim() != 1 or n <= longest_block(4):
        return None
    out = torch.empty_like(scores)
    width = 16 // scores.itemsize
    if n % width or scores.data_ptr() % 16 or out.data_ptr() % 16:
        width = 1
    of_budget, k = _told(budget)
    of_temperature, t = _told(temperature)
    numbers = Numbers(*split_float64(k), *split_float64(t))
    call = Call(Rows(scores, n, 0), None, of_budget, of_temperature, numbers, n, 1)
    pair = scores.new_empty(2, dtype=torch.float32)
    overlap = can_overlap(scores.device)
    with on_device(scores):
        while True:
            room = room_of(scores.device)
            planned = _solving(n, width, room, overlap)
            if planned is None:
                return None
            words = torch.empty(planned.words, dtype=torch.int64, device=scores.device)
            try:
                launch_named(
                    scores.device,
                    ("gated_forward", n, width, room),
                    lambda steps=planned.steps: steps[:-1],  # type: ignore[misc]
                    (call, 1, None, Rows(out, n, 0), pair, words),
                )
                break
            except RuntimeError as error:  # there is less room now
                shrink_room(scores.device, room, error)
        writing = planned.steps[-1]
        counts = torch.empty(writing.programs, dtype=torch.int64, device=scores.device)
        best = torch.empty(writing.programs, dtype=torch.float32, device=scores.device)
        boundary = torch.empty(2, dtype=torch.float64, device=scores.device)
        launch_named(
            scores.device,
            ("write_activations", n, width),
            lambda: [writing],
            (call, Rows(out, n, 0), words, threshold, counts, best, boundary),
        )
    return GatedRow(out, counts, best, boundary, pair)


def _told(value: float | Tensor) -> tuple[Rows | None, float]:
    """A tensor of one number as a kernel sees it, or a number where that is None."""
    return (Rows(value, 0, 0), 0.0) if isinstance(value, Tensor) else (None, value)


@functools.lru_cache(maxsize=64)
def _solving(n: int, width: int, room: int, overlap: bool) -> Steps | None:
    """The launches of a hard mask that several programs share, the last one for activations."""
    plan = _plan(n, 1, 4, width, room, "hard")
    if not isinstance(plan, SharedPlan):
        return None
    planned = forward_steps(plan, n, 1, room, overlap, True, "hard", False, tl.float32)
    *solving, writing = planned.steps
    constants = dict(writing.constants)
    for name in ("OUTPUT", "LARGEST"):
        del constants[name]
    # Sixteen scores of a thread at a time, or registers do not hold what is known of them.
    constants["WRITTEN"] = min(plan.written, max(1, 16 // plan.width))
    writing = writing._replace(kernel=write_activations, constants=constants)
    return planned._replace(steps=[*solving, writing])


def activate_backward(
    grad: Tensor, scores: Tensor, gate: Tensor, with_gate: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients for scores and, if wanted, for the gate."""
    d_scores = torch.empty_like(scores)
    d_gate = torch.empty_like(gate) if with_gate else None
    n = scores.numel()
    programs = max(1, -(-n // BLOCK))
    with on_device(scores):
        launch_named(
            scores.device,
            ("activate_backward", programs),
            lambda: [Step(activate_scores_backward, programs, (), {"BLOCK": BLOCK}, _OPTIONS)],
            (grad, scores, gate, d_scores, d_gate, n),
        )
    return d_scores, d_gate


def gated_backward(
    grad: Tensor,
    scores: Tensor,
    gate: Tensor | None,
    best: Tensor | None,
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
    boundary: Tensor | None = None,
) -> Tensor:
    """The whole gradient of relu(scores) * gate where the gate is a mask of the same scores.

    All are contiguous, with rows along the last dimension.

    Args:
        grad: the upstream gradient.
        scores: of at most four bytes each.
        gate: the soft mask of the scores, or a hard one that has its gradient; None where its
            boundary is known.
        best: the best score that a hard gate of one row leaves out, as the largest of some, if that
            is known: most of the gate need not be read then.
        temperature: of each row, or None where it is a number.
        temperature_number: the temperature of all rows.
        threshold: pairs of the soft mask.
        boundary: of a hard gate of one long row, as :func:`gated_forward` has it.
    """
    out = torch.empty_like(scores)
    n = scores.shape[-1]
    row_count = scores.numel() // max(n, 1)
    if not scores.numel():
        return out
    t_rows = None
    if temperature is not None:
        temperature = temperature.reshape(-1)
        t_rows = Rows(temperature, temperature.stride(0), 0)
    numbers = Numbers(0.0, 0.0, *split_float64(temperature_number))
    call = Call(Rows(scores, n, 0), None, None, t_rows, numbers, n, 1)
    of_gate = None if gate is None else Rows(gate, n, 0)
    given = (call, row_count, Rows(grad, n, 0), of_gate)
    width = 16 // scores.itemsize
    each = (grad, scores, out) if gate is None else (grad, scores, out, gate)
    if n % width or any(x.data_ptr() % (width * x.itemsize) for x in each):
        width = 1
    rest = (threshold, Rows(out, n, 0))
    with on_device(scores):
        if n <= LONGEST_BLOCK:
            assert gate is not None
            launch_named(
                scores.device,
                ("tile_activation_backward", n, row_count, width),
                lambda: [_tile_step(n, row_count, width)],
                (*given, *rest),
            )
            return out
        plan = LONG_BACKWARD._replace(width=width)
        tiles = -(-n // plan.block)
        summing = max(1, min(tiles, plan.sum_programs // row_count, 1024))
        writing = max(1, min(tiles, plan.write_programs // row_count))
        count = row_count * summing * ACTIVATION_SUMS.value
        sums = torch.empty(count, dtype=torch.float64, device=scores.device)
        best = best if row_count == 1 else None
        # Of t = 0 the gate has no gradient, whatever is in the place of the sums. Kernels are told
        # a temperature as two float32, which round it.
        told = sum(map(_as_float32, split_float64(temperature_number)))
        is_hard = temperature is None and told < SMALLEST_NORMAL
        launch_named(
            scores.device,
            ("long_activation_backward", row_count, summing, writing, plan, is_hard),
            lambda: _long_steps(plan, row_count, summing, writing)[is_hard:],
            (*given, boundary, best, 0 if best is None else best.numel(), *rest, sums),
        )
    return out


def _tile_step(n: int, row_count: int, width: int) -> Step:
    plan = tile_plan(n, width, 4, TILES_BACKWARD, BLOCKS_BACKWARD)
    constants = {
        "PADDED": n != plan.block,
        "ROWS": plan.rows,
        "REPEATS": plan.parts * plan.repeats,
        "LANES": plan.lanes,
        "WIDTH": plan.width,
        "COMPUTE": tl.float32,
    }
    options = {
        "num_warps": plan.warps,
        "maxnreg": plan.registers,
        "enable_fp_fusion": plan.may_fuse,
    }
    return Step(tile_activation_backward, -(-row_count // plan.rows), (), constants, options)


def _long_steps(plan: LongBackwardPlan, row_count: int, summing: int, writing: int) -> list[Step]:
    each = {"REPEATS": plan.repeats, "LANES": plan.lanes, "WIDTH": plan.width}
    each |= {"COMPUTE": tl.float32}
    lanes = {"SUM_LANES": power_of_two(summing), "BEST_LANES": LANES}
    warps = {"num_warps": plan.warps}
    return [
        Step(sums_activation_backward, row_count * summing, (summing,), each, warps),
        Step(
            scores_activation_backward,
            row_count * writing,
            (writing, summing),
            lanes | each,
            warps,
        ),
    ]


def move(
    counts: Tensor, best: Tensor, state: tuple[Tensor, ...], budget: float, momentum: float
) -> None:
    """One step of a running threshold, written to its state.

    Args:
        counts: of each program, how many scores exceed the threshold.
        best: of each program, the best score that is left out.
        state: threshold, means of misses, of their sizes and of distances, and number of batches.
        budget: how many scores should exceed the threshold.
        momentum: the least weight of a batch.
    """
    with on_device(counts):
        launch_named(
            counts.device,
            ("move",),
            lambda: [Step(move_threshold, 1, (), {"LANES": LANES}, _OPTIONS)],
            (counts, best, counts.numel(), *state, budget, momentum),
        )

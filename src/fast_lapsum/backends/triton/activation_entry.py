"""The entries of gated activations: from contiguous tensors of one shape to launches."""

from __future__ import annotations

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
from .config import (
    BLOCKS_BACKWARD,
    TILES_BACKWARD,
    LongBackwardPlan,
    longest_block_backward,
    power_of_two,
    tile_plan,
)
from .device import on_device
from .launch import split_float64
from .step_launch import launch_named
from .steps import Step
from .views import Call, Numbers, Rows

_KERNELS = (
    *(activate_scores, activate_scores_backward, move_threshold),
    *(tile_activation_backward, sums_activation_backward, scores_activation_backward),
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
    gate: Tensor,
    best: Tensor | None,
    temperature: Tensor | None,
    temperature_number: float,
    threshold: Tensor,
) -> Tensor:
    """The whole gradient of relu(scores) * gate where the gate is a mask of the same scores.

    All are contiguous, with rows along the last dimension.

    Args:
        grad: the upstream gradient.
        scores: of at most four bytes each.
        gate: the soft mask of the scores, or a hard one that has its gradient.
        best: the best score that a hard gate of one row leaves out, as the largest of some, if that
            is known: most of the gate need not be read then.
        temperature: of each row, or None where it is a number.
        temperature_number: the temperature of all rows.
        threshold: pairs of the soft mask.
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
    given = (call, row_count, Rows(grad, n, 0), Rows(gate, n, 0))
    width = 16 // scores.itemsize
    if n % width or any(x.data_ptr() % (width * x.itemsize) for x in (grad, scores, gate, out)):
        width = 1
    rest = (threshold, Rows(out, n, 0))
    with on_device(scores):
        if n <= LONGEST_BLOCK:
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
        launch_named(
            scores.device,
            ("long_activation_backward", row_count, summing, writing, plan),
            lambda: _long_steps(plan, row_count, summing, writing),
            (*given, best, 0 if best is None else best.numel(), *rest, sums),
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

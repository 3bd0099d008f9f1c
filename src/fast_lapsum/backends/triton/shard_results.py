"""Launches that write a rank's part of masks and gradients: see shard_write.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..common import compute_dtype
from ..layout import groups
from ..shards import GRADIENT_COLUMNS, Answers, Totals
from .backward import sums_backward
from .config import LongBackwardPlan, power_of_two
from .device import on_device
from .gradients import SUMS
from .launch import _along, _rows, _width
from .shard_write import (
    Found,
    add_gradient_sums,
    count_ties,
    write_gradient_pieces,
    write_pieces,
)
from .step_launch import launch_steps
from .steps import Step
from .views import Call, Rows

#: What programs of a call leave is what ranks tell each other.
assert SUMS.value == GRADIENT_COLUMNS
#: Scores of a piece at most, and programs that add up sums for gradients, all rows together.
PIECE = 32768
SUM_PROGRAMS = 512


class _Group(NamedTuple):
    """Rows of two strides, as the kernels see them."""

    call: Call
    grad: Rows | None
    out: Rows | None
    row_count: int
    first_row: int
    width: int  # scores of an access to memory


class _Pieces:
    """How rows are cut into pieces, each of which a program reads part by part."""

    def __init__(self, n: int, width: int) -> None:
        warps, of_thread = (4, 8) if n <= 4096 else (8, 16)
        lanes = 32 * warps
        repeats = max(1, of_thread // width)
        block = repeats * lanes * width
        self.parts = max(1, min(PIECE, n) // block)
        self.pieces = max(1, -(-n // (self.parts * block)))
        self.constants = {"PARTS": self.parts, "REPEATS": repeats, "LANES": lanes}
        self.constants |= {"WIDTH": width}
        # Four programs of eight warps are at work on a core: enough reads at a time.
        self.options = {"num_warps": warps, "maxnreg": 64 if warps == 8 else None}


def write(
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    answers: Answers,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """What ``output`` says of this rank's scores [..., n]; temperatures and answers are [rows]."""
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype)
    out = torch.empty_like(scores, dtype=out_dtype)
    if not out.numel():
        return out
    given = Found(*(x.contiguous() for x in (*answers, temperature)))
    with on_device(scores):
        for group in _groups(scores, mask, None, out, None):
            pieces = _Pieces(scores.shape[-1], group.width)
            programs = group.row_count * pieces.pieces
            found = Found(*(x[group.first_row :] for x in given))
            each = {"LARGEST": largest, **pieces.constants, "COMPUTE": _compute(scores)}
            counts = scores.new_empty((programs,), dtype=torch.int32)
            if output == "hard":
                step = Step(count_ties, programs, (), each, pieces.options)
                _launch(scores, step, group.call, group.row_count, found, counts, pieces.pieces)
            own = {"OUTPUT": output, "PIECE_LANES": power_of_two(pieces.pieces)}
            # The mask is taken where the search took its sums, without fused products.
            options = {**pieces.options, "enable_fp_fusion": False}
            step = Step(write_pieces, programs, (), own | each, options)
            told = (found, group.out, counts, pieces.pieces)
            _launch(scores, step, group.call, group.row_count, *told)
    return out


def gradient_sums(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
) -> Tensor:
    """This rank's part of the sums that gradients of ``output`` need, [rows, 7]."""
    output = "mask" if output == "hard" else output
    n, threshold = scores.shape[-1], threshold.contiguous()
    sums = torch.empty(
        (temperature.numel(), GRADIENT_COLUMNS), dtype=torch.float64, device=scores.device
    )
    plan = LongBackwardPlan()
    with on_device(scores):
        for group in _groups(scores, mask, grad, None, temperature, output):
            plan = plan._replace(width=group.width)
            tiles = -(-n // plan.block)
            programs = max(1, min(tiles, SUM_PROGRAMS // group.row_count, 1024))
            parts = sums.new_empty((group.row_count * programs, SUMS.value))
            pairs = threshold.view(-1, 2)[group.first_row :]
            each = {"LARGEST": largest, "OUTPUT": output}
            own = each | {"PER_ROW": True, "REPEATS": plan.repeats, "LANES": plan.lanes}
            own |= {"WIDTH": plan.width, "COMPUTE": _compute(scores)}
            step = Step(
                sums_backward, group.row_count * programs, (), own, {"num_warps": plan.warps}
            )
            lead = (group.call, group.row_count, group.grad, pairs)
            _launch(scores, step, *lead, None, None, None, parts, programs)
            own = each | {"SUM_LANES": power_of_two(programs), "COMPUTE": _compute(scores)}
            step = Step(add_gradient_sums, group.row_count, (), own, {"num_warps": 4})
            _launch(scores, step, *lead, parts, sums[group.first_row :], programs)
    return sums


def write_gradient(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    totals: Totals,
    largest: bool,
    output: str,
) -> Tensor:
    """The gradient for this rank's scores, from the sums over whole rows, [rows] each."""
    output = "mask" if output == "hard" else output
    out, threshold = torch.empty_like(scores), threshold.contiguous()
    if not out.numel():
        return out
    given = [x.contiguous() for x in totals]
    with on_device(scores):
        for group in _groups(scores, mask, grad, out, temperature, output):
            pieces = _Pieces(scores.shape[-1], group.width)
            own = {"OUTPUT": output, "LARGEST": largest, **pieces.constants}
            own |= {"COMPUTE": _compute(scores)}
            programs = group.row_count * pieces.pieces
            step = Step(write_gradient_pieces, programs, (), own, pieces.options)
            pairs = threshold.view(-1, 2)[group.first_row :]
            told = (group.grad, pairs, *(x[group.first_row :] for x in given), group.out)
            _launch(scores, step, group.call, group.row_count, *told, pieces.pieces)
    return out


def _groups(
    scores: Tensor,
    mask: Tensor | None,
    grad: Tensor | None,
    out: Tensor | None,
    temperature: Tensor | None,
    output: str = "mask",
) -> Iterator[_Group]:
    """Rows of two strides; temperatures are [rows], and so is the gradient of thresholds."""
    n = scores.shape[-1]
    if temperature is not None:
        temperature = temperature.reshape(scores.shape[:-1])
    tensors = (scores, mask, grad, temperature, out)
    along_grad = 1 if output == "threshold" else _along(grad, n)
    steps = (_along(scores, n), _along(mask, n), along_grad, 1, _along(out, n))
    for group in groups(tensors):
        v_scores, v_mask, v_grad, v_temperature, v_out = (
            _rows(x, group, place, step)
            for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
        )
        call = Call(v_scores, v_mask, None, v_temperature, None, n, group.inner)
        rows = group.outer * group.inner
        width = _width(tensors, group) if n else 1
        yield _Group(call, v_grad, v_out, rows, group.first_row, width)


def _compute(scores: Tensor) -> tl.dtype:
    return tl.float64 if compute_dtype(scores.dtype) == torch.float64 else tl.float32


def _launch(scores: Tensor, step: Step, *given: Any) -> None:
    launch_steps(scores.device, [step], given)

"""What the GPU kernels' sample says about a long row, taken from a forward call as it happens.

Import this only where Triton is: the kernels come with it.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# ruff: noqa: N803

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..backends.triton import relaunch
from ..backends.triton.config import longest_block
from ..triton import launch
from ..triton.plan import plan
from ..triton.sample import SAMPLE_FIELDS
from ..triton.state import DONE, GATHERED, STATE_FIELDS
from ..triton.stream import round_forward
from ..triton.table import Streaming, streaming


class Bands(NamedTuple):
    """One value per row: what the sample makes of it, and whether that was enough."""

    #: What the first round is to do, by its number in plan.py.
    wanted: Tensor
    #: The threshold as far as the sample tells it, and the ends of the band around it.
    trial: Tensor
    lower: Tensor
    upper: Tensor
    #: Whether the first round was the last to read the row before the mask.
    is_settled: Tensor


@triton.jit(do_not_specialize=["n", "sample_programs", "sample_chunks", "capacity", "planned"])
def _write_plan(
    samples,
    out,
    k_hi,
    k_lo,
    t_hi,
    t_lo,
    n,
    sample_programs,
    sample_chunks,
    capacity,
    planned,
    SAMPLE_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What the first round of every row does with the sample, written down."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.zeros((), tl.float64) + k_hi + k_lo
    t = tl.zeros((), tl.float64) + t_hi + t_lo
    samples += row * sample_programs * SAMPLE_FIELDS
    wanted, b, _, lo, hi = plan(
        samples, k, t, n, sample_programs, sample_chunks, capacity, planned, SAMPLE_LANES, COMPUTE
    )
    tl.store(out + row * 4, wanted.to(tl.float64))
    tl.store(out + row * 4 + 1, b.to(tl.float64))
    tl.store(out + row * 4 + 2, lo.to(tl.float64))
    tl.store(out + row * 4 + 3, hi.to(tl.float64))


#: The arguments that the first round and the kernel above have in common.
_NUMBERS = (
    *("k_hi", "k_lo", "t_hi", "t_lo"),
    *("n", "sample_programs", "sample_chunks", "capacity", "planned"),
)


def sample_bands(
    scores: Tensor, k: float, temperature: float, settings: Streaming | None = None
) -> Bands:
    """The bands that the sample of rows [B, n] places in a forward call, float64 [B] each.

    The call itself runs, with its own launch parameters; its sample is read once more afterwards.
    """
    rows, n = scores.shape
    longest = longest_block(4)
    if n <= longest and settings is None:
        raise ValueError(f"rows of up to {longest} scores are not sampled, got n = {n}")
    settings = settings or streaming(n)  # given ones: every launch is made one by one
    first_rounds: list[dict[str, Any]] = []
    states: list[Tensor] = []
    real_launch = relaunch.launch

    def watched(
        key: Any, function: Any, programs: int, device: Any, *rest: Any, **options: Any
    ) -> relaunch.Launched:
        if function is round_forward and rest[1]["IS_FIRST"]:
            first_rounds.append(dict(zip(function.arg_names, rest[0], strict=False)) | rest[1])
        made = real_launch(key, function, programs, device, *rest, **options)
        if function is round_forward and rest[1]["IS_FIRST"]:
            states.append(first_rounds[-1]["state"].clone())
        return made

    with mock.patch.object(relaunch, "launch", watched):
        launch.forward(
            scores.contiguous(),
            *(None, float(k), None, float(temperature), None, None, True, False, scores.dtype),
            settings=settings,
        )
    if len(first_rounds) != 1:
        raise RuntimeError(f"expected one group of rows with a sample, got {len(first_rounds)}")
    seen = first_rounds[0]
    out = torch.zeros(rows, 4, dtype=torch.float64, device=scores.device)
    with torch.cuda.device_of(scores):
        _write_plan[(rows,)](
            seen["samples"],
            out,
            *(seen[name] for name in _NUMBERS),
            SAMPLE_LANES=seen["SAMPLE_LANES"],
            COMPUTE=seen["COMPUTE"],
        )
    wanted_next = states[0].view(rows, STATE_FIELDS.value)[:, 0]
    is_settled = (wanted_next == DONE.value) | (wanted_next == GATHERED.value)
    wanted, trial, lower, upper = out.unbind(-1)
    return Bands(wanted, trial, lower, upper, is_settled)

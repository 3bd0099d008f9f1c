"""What the GPU kernels' sample says about a few long rows, taken from a forward call as it happens.

Import this only where Triton is: the kernels come with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

from torch import Tensor

from . import launch, relaunch
from .config import SharedPlan, longest_block, shared_plan
from .team import notes_of


class Bands(NamedTuple):
    """One value per row: the ends of the band that the sample places, and whether that was right.

    The threshold of a settled row lies in it, and one reading of the row was enough.
    """

    lower: Tensor
    upper: Tensor
    is_settled: Tensor


def sample_bands(
    scores: Tensor, k: float, temperature: float, plan: SharedPlan | None = None
) -> Bands:
    """The bands that the sample of rows [B, n] places in a forward call, float64 [B] each."""
    rows, n = scores.shape
    longest = longest_block(4)
    if n <= longest and plan is None:
        raise ValueError(f"rows of up to {longest} scores are not sampled, got n = {n}")
    plan = plan or shared_plan(n, rows, 1)
    seen: list[Tensor] = []
    real_launch = relaunch.launch

    def watched(planned: Any, lead: tuple[Any, ...], *words: Tensor) -> relaunch.Kept:
        made = real_launch(planned, lead, *words)
        seen.extend(words)
        return made

    with mock.patch.object(relaunch, "launch", watched):
        _, pairs = launch.forward(
            scores.contiguous(),
            *(None, float(k), None, float(temperature), None, None, True, "mask", scores.dtype),
            plan=plan,
        )
    (words,) = seen
    lower, upper = notes_of(words, rows)[:, :2].unbind(-1)
    threshold = pairs.double().sum(-1)
    if temperature == 0:
        threshold = pairs[:, 0].double()
    return Bands(lower, upper, (lower <= threshold) & (threshold <= upper))

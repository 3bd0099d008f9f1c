"""What one of several ranks does by itself, beside a call on its scores alone: for one GPU.

The other ranks are taken to say what this one says, so all rows have the threshold that this rank's
part has by itself at its share of the budget. No network is timed, only what a rank computes: a
message is in the others' places without a copy, as if the network had put it there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._sharded_ops import topk_of_rank
from ..functional import soft_topk
from .functions import Limit
from .gpu_timing import device_timing, sync_error
from .parity import ParityError
from .rank_process import TEMPERATURE

ALONE, OF_RANK = "one device", "one of the ranks, without the network"
LIMITS = (Limit(OF_RANK, 1.4, ALONE),)
SECONDS = "per call on the device, percentiles 20, 50 and 80, out of a CUDA graph"
#: How far a mask of float32 may be from that of the scores alone.
TOLERANCE = 1e-5


class LocalCase(NamedTuple):
    """So many ranks, rows, and scores of each row on this rank; k is a sixteenth of a row."""

    ranks: int
    rows: int
    scores: int

    @property
    def name(self) -> str:
        """In words.

        >>> LocalCase(8, 1, 125_000_000).name
        'one of 8 ranks, 125,000,000 scores'
        """
        rows = f"{self.rows} rows of " if self.rows > 1 else ""
        return f"one of {self.ranks} ranks, {rows}{self.scores:,} scores"


def cases_of(quick: bool) -> tuple[tuple[LocalCase, tuple[Limit, ...]], ...]:
    """All cases, with their limits."""
    if quick:
        return ((LocalCase(8, 1, 20_000), LIMITS),)
    return (
        (LocalCase(8, 1, 125_000_000), LIMITS),
        (LocalCase(8, 1, 10_000_000), ()),
        (LocalCase(8, 256, 16_384), ()),
    )


def measure(case: LocalCase, repeats: int, device: torch.device) -> dict[str, Any]:
    """Timings by name, of masks that were checked."""
    generator = torch.Generator(device).manual_seed(0)
    scores = torch.randn(case.rows, case.scores, generator=generator, device=device)
    k = case.scores / 16

    def of_rank() -> Tensor:
        budget = case.ranks * k
        return topk_of_rank(
            *(scores, None, budget, None, TEMPERATURE, None, True, "mask", scores.dtype),
            *(case.ranks, 0, lambda message: message.expand(case.ranks, -1)),
        )[0]

    def alone() -> Tensor:
        return soft_topk(scores, k, TEMPERATURE)

    error = float((of_rank() - alone()).abs().max())
    if not error <= TOLERANCE:
        raise ParityError(f"the mask of a rank is off by {error:.3g}")
    if device.type == "cuda" and (complaint := sync_error(of_rank)) is not None:
        raise ParityError(f"a rank's call waits for the device: {complaint}")
    found = {}
    for name, call in ((ALONE, alone), (OF_RANK, of_rank)):
        found[name] = device_timing([call], repeats=repeats, device=device)._asdict()
    return found

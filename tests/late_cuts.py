"""A rank's part of rows that says as little as the GPU kernels' may, in plain torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fast_lapsum.backends.shards import COLUMNS, INSIDE_COUNT, Measured, Sample
from fast_lapsum.backends.torch import shard_entry as plain

#: From this measurement on masses at cuts are known: see shard_plan.py.
FIRST_CUTS = 2


class LateCuts(plain.Shard):
    """Masses at cuts are known late, and only in the band that was read last.

    The sample is of neighbours in the order of scores, so that most first bands are missed. Nodes
    that stand for others are one number, so that nothing but cuts leads on.
    """

    needed = 0  # measurements that some row of any instance was open for

    def sample(self, size: int) -> Sample:
        self.measured = 0
        none = torch.full((len(self.ordered),), math.inf, dtype=torch.float64)
        self.read = (none, none)
        drawn = min(self.length, size)
        first = (self.length - drawn) // 2
        some = self.ordered[:, first : first + drawn]
        nodes = torch.full((len(self.ordered), size), math.nan, dtype=self.dtype)
        nodes[:, :drawn] = some.to(self.dtype)
        return Sample(nodes, drawn, self.length)

    def measure(self, low: Tensor, high: Tensor, pivots: Tensor, size: int, is_open: Tensor) -> Any:
        found = super().measure(low, high, pivots, size, is_open)
        is_covered = (self.read[0] <= low) & (high <= self.read[1])
        first = torch.where(is_covered, self.read[0], low)
        last = torch.where(is_covered, self.read[1], high)
        self.read = (first, last)
        is_one = ((first == low) & (last <= pivots[:, 1]))[:, None]
        is_known = (first[:, None] <= pivots) & (pivots <= last[:, None]) & ~is_one
        is_known &= self.measured >= FIRST_CUTS
        is_known[:, :3] = True
        self.measured += 1
        if bool(is_open.any()):
            LateCuts.needed = max(LateCuts.needed, self.measured)
        columns = found.columns.clone()
        columns[:, COLUMNS:] = columns[:, COLUMNS:].masked_fill(~is_known.repeat(1, 2), math.nan)
        inside = columns[:, INSIDE_COUNT]
        nodes = found.nodes.clone()
        is_sparse = inside > size
        nodes[is_sparse, : size - 1] = nodes[is_sparse, :1]
        return Measured(columns, nodes)

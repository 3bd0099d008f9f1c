"""The steps between messages of a search for thresholds of rows over many ranks: one C++ call each.

See backends/torch/shard_steps.py. All sums are taken in one order, so ranks agree on every bit.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from ..common import DTYPES
from ..shards import Rows, Sizes, Solved
from .kernel import call

#: struct SearchCall of shard_state.hpp.
_SEARCH = struct.Struct("=15q")
#: Fields of Solved but the ties, in the order of shard_search.hpp.
_FIELDS = ("hi", "lo", "log_share", "is_used_up", "wanted_ties", "valid_count", "has_nan")


class Steps:
    """Where a search is: what is measured next, and what is known of the rows in the end."""

    def __init__(self, budget: Tensor, temperature: Tensor, rows: Rows, sizes: Sizes) -> None:
        """Budgets and temperatures [rows]."""
        self.rows, self.sizes = rows, sizes
        self.budget, self.temperature = budget.contiguous(), temperature.contiguous()
        number = rows.number
        self.state = budget.new_empty((4, number))
        self.low, self.high = self.state[2], self.state[3]
        self.is_open = budget.new_ones(number, dtype=torch.bool)
        self.pivots = budget.new_empty((number, sizes.pivots))
        self._fields = budget.new_full((len(_FIELDS), number), math.nan)
        self._ties = budget.new_zeros((rows.ranks, number))

    @property
    def solved(self) -> Solved:
        """What is known of the rows."""
        return Solved(ties=self._ties, **dict(zip(_FIELDS, self._fields, strict=True)))

    def begin(self, gathered: Tensor) -> None:
        """From the samples of all ranks, bytes [ranks, m]."""
        self._step("lapsum_shard_begin", gathered, self.sizes.sample)

    def advance(self, gathered: Tensor) -> bool:
        """From their measurements: whether all is done."""
        return self._step("lapsum_shard_advance", gathered, self.sizes.nodes) == 0

    def _step(self, name: str, gathered: Tensor, size: int) -> int:
        assert gathered.stride(-1) == 1
        rows = self.rows
        tensors = (self.budget, self.temperature, self.state, self.is_open, self.pivots)
        record = _SEARCH.pack(
            *(DTYPES[rows.dtype], rows.number, rows.ranks, size, self.sizes.cuts),
            *(gathered.data_ptr(), gathered.stride(0)),
            *(x.data_ptr() for x in (*tensors, self._fields, self._ties)),
            torch.get_num_threads(),
        )
        return call(name, record)

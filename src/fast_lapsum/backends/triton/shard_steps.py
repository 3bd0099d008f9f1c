"""The steps between messages of a search for thresholds of rows over many ranks.

Three launches each. See backends/torch/shard_steps.py; shard_search.py has what is computed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..common import compute_dtype
from ..shards import COLUMNS, HEADER, Rows, Sizes, Solved
from .device import on_device
from .shard_curve import BLOCK, sum_blocks
from .shard_launch import launch
from .shard_nodes import Messages, Search, order_nodes
from .shard_plan import vector
from .shard_search import advance_rows, begin_rows
from .steps import Step

#: Fields of Solved but the ties, in the order of shard_search.py.
_FIELDS = ("hi", "lo", "log_share", "is_used_up", "wanted_ties", "valid_count", "has_nan")
#: Nodes whose places a program counts, so few that a large device has work for all of its cores;
#: comparisons at a time: each time is a wait for memory.
_LEAST_OWN, _MOST_OWN, _PROGRAMS, _COMPARED = 16, 64, 512, 4096
#: Nodes of several ranks that are looked at at a time, and warps for as many; fewer need less.
_TOGETHER, _WARPS = 2048, 8
#: Threads decide by sums that all have to the last bit: see config.TilePlan.may_fuse.
_OPTIONS = {"enable_fp_fusion": False}


class Steps:
    """Where a search is: what is measured next, and what is known of the rows in the end."""

    def __init__(self, budget: Tensor, temperature: Tensor, rows: Rows, sizes: Sizes) -> None:
        """Budgets and temperatures [rows]."""
        self.rows, self.sizes = rows, sizes
        number, new = rows.number, budget.new_empty
        most = max(sizes.sample, sizes.nodes) * rows.ranks
        self._fields, self._ties = new((len(_FIELDS), number)), new((rows.ranks, number))
        self._search = Search(
            *(budget.contiguous(), temperature.contiguous(), new((4, number))),
            new((number,), dtype=torch.int32),
            *(new((number, sizes.pivots)), self._fields, self._ties, new((7, number, most))),
        )
        self.low, self.high = self._search.state[2], self._search.state[3]
        self.is_open, self.pivots = self._search.is_open, self._search.pivots

    @property
    def solved(self) -> Solved:
        """What is known of the rows."""
        return Solved(ties=self._ties, **dict(zip(_FIELDS, self._fields, strict=True)))

    def begin(self, gathered: Tensor) -> None:
        """From the samples of all ranks, bytes [ranks, m]."""
        self._step(gathered, self.sizes.sample, is_sample=True)

    def advance(self, gathered: Tensor) -> bool:
        """From their measurements. True where the host may look, and sees that all is done."""
        self._step(gathered, self.sizes.nodes, is_sample=False)
        return self.rows.looks and not bool(self.is_open.any())

    def _step(self, gathered: Tensor, size: int, is_sample: bool) -> None:
        rows, cuts = self.rows, self.sizes.cuts
        columns = 0 if is_sample else COLUMNS + 2 * self.sizes.pivots
        count = rows.ranks * size
        numbers, nodes = _parts(gathered, rows.number * size * rows.dtype.itemsize, rows.dtype)
        assert numbers.shape[-1] == (HEADER if is_sample else rows.number * columns)
        said = Messages(
            *(numbers, numbers.stride(0), columns, nodes, nodes.stride(0), size, rows.ranks)
        )
        named = {"NAME": str(rows.dtype).removeprefix("torch.")}
        wide = compute_dtype(rows.dtype) == torch.float64
        computed = {"COMPUTE": tl.float64 if wide else tl.float32}
        owned = min(_MOST_OWN, max(_LEAST_OWN, vector(rows.number * count // _PROGRAMS)))
        orders, blocks = -(-count // owned), -(-count // BLOCK.value)
        own: dict[str, Any] = {"OWN": owned, "OTHERS": min(_COMPARED // owned, vector(size))}
        own |= {"IS_SAMPLE": is_sample} | named
        ordering = Step(order_nodes, rows.number * orders, (), own, {"num_warps": 4, **_OPTIONS})
        of_blocks = {"IS_SAMPLE": is_sample} | computed
        adding = Step(sum_blocks, rows.number * blocks, (), of_blocks, {"num_warps": 4, **_OPTIONS})
        together = min(max(1, _TOGETHER // vector(size)), vector(rows.ranks))
        each: dict[str, Any] = {"RANKS": together, "SIZE_LANES": vector(size)}
        each |= {"CUT_LANES": vector(self.sizes.pivots), "BLOCKS": vector(blocks)}
        kernel = begin_rows
        if not is_sample:
            each, kernel = each | {"RANK_LANES": vector(rows.ranks)}, advance_rows
        warps = max(4, min(_WARPS, together * vector(size) // 256))
        each |= named | computed
        step = Step(kernel, rows.number, (), each, {"num_warps": warps, **_OPTIONS})
        with on_device(gathered):
            lead = (said, self._search, rows.number)
            device = gathered.device
            launch(device, ordering, (*lead, orders))
            launch(device, adding, (*lead[1:], blocks, count))
            launch(device, step, (*lead, cuts))


def _parts(gathered: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers and scores, [ranks, ...] each, of bytes [ranks, m] of which scores are the last."""
    split = gathered.shape[-1] - length
    places = gathered.data_ptr(), gathered.stride(0), split
    first, second = gathered[:, :split], gathered[:, split:]
    if gathered.stride(1) != 1 or any(place % torch.float64.itemsize for place in places):
        # Numbers of another rank's message lie where they can be read only by chance. A copy of one
        # message would keep its odd length between messages.
        packed = torch.contiguous_format
        first, second = first.clone(memory_format=packed), second.clone(memory_format=packed)
    return first.view(torch.float64), second.view(dtype)

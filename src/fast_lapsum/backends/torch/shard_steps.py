"""The steps between messages of a search for thresholds of rows over many ranks: plain torch.

What ranks have said comes as bytes [ranks, m]: first a sample, then measurements. Each step says
where ranks are to measure next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import compute_dtype
from ..shards import COLUMNS, DRAWN, HEADER, LENGTH, Rows, Sizes
from .shard_search import Asked, Seen, State, first_state
from .shard_solve import advance, unsolved


class Steps:
    """Where a search is: ``low``, ``high``, ``pivots`` and ``is_open`` are what is measured next.

    ``solved`` is what is known of the rows in the end.
    """

    state: State
    pivots: Tensor

    def __init__(self, budget: Tensor, temperature: Tensor, rows: Rows, sizes: Sizes) -> None:
        """Budgets and temperatures [rows]."""
        self.rows, self.sizes = rows, sizes
        self.kept = compute_dtype(rows.dtype)
        self.asked = Asked.of(budget, temperature, self.kept)
        self.solved = unsolved(rows.number, rows.ranks, budget)

    @property
    def low(self) -> Tensor:
        """Where the bands begin, [rows]."""
        return self.state.low

    @property
    def high(self) -> Tensor:
        """Where they end."""
        return self.state.high

    @property
    def is_open(self) -> Tensor:
        """Which rows are still searched."""
        return self.state.is_open

    def begin(self, gathered: Tensor) -> None:
        """From the samples of all ranks."""
        rows, size = self.rows, self.sizes.sample
        numbers, nodes = unpack(gathered, (HEADER,), (rows.number, size), rows.dtype)
        self._go_on(first_state(nodes, numbers[:, LENGTH], numbers[:, DRAWN], self.asked))

    def advance(self, gathered: Tensor) -> bool:
        """From their measurements. True where the host may look, and sees that all is done."""
        rows, sizes = self.rows, self.sizes
        shape = (rows.number, COLUMNS + 2 * sizes.pivots), (rows.number, sizes.nodes)
        columns, nodes = unpack(gathered, *shape, rows.dtype)
        seen = Seen(columns, nodes, self.state, self.asked)
        state, self.solved = advance(seen, self.pivots, self.solved, self.kept, rows.looks)
        if rows.looks and not bool(state.is_open.any()):
            return True
        self._go_on(state)
        return False

    def _go_on(self, state: State) -> None:
        self.state, self.pivots = state, state.pivots(self.sizes.cuts, self.rows.dtype)


def unpack(
    gathered: Tensor, numbers: tuple[int, ...], nodes: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Numbers of the widest dtype and scores of their own, [ranks, ...], from bytes [ranks, m]."""
    split = gathered.shape[-1] - dtype.itemsize * math.prod(nodes)
    parts = (gathered[:, :split], torch.float64, numbers), (gathered[:, split:], dtype, nodes)
    # Copied: bytes of another number lie where they can be read as such only by chance.
    first, second = (x.flatten().clone().view(kind).view(-1, *of) for x, kind, of in parts)
    return first, second

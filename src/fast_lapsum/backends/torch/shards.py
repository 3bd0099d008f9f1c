"""A rank's part of rows that are spread over many, in plain torch: sorted once, then looked up.

A sorted part with its prefix and suffix sums has every measurement at hand, on any device, and the
same bits each time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..shards import COLUMNS, Measured, Sample
from .forward import as_rows
from .sort_scan import scan


class Shard:
    """This rank's part of every row."""

    def __init__(
        self, scores: Tensor, temperature: Tensor, mask: Tensor | None, largest: bool
    ) -> None:
        """Scores [..., n]; temperatures [rows] are positive."""
        rows = as_rows(scores, mask, largest)
        is_nan = rows.isnan()
        self._keep(scores, rows.masked_fill(is_nan, -math.inf), is_nan.sum(-1), temperature)

    def _keep(self, scores: Tensor, rows: Tensor, nan_count: Tensor, temperature: Tensor) -> None:
        self.dtype, self.length = scores.dtype, scores.shape[-1]
        self.nan_count = nan_count
        # One that is left out behind all others, so that there is something at every place.
        padded = torch.nn.functional.pad(rows, (0, 1), value=-math.inf)
        self.ordered = padded.sort(-1, descending=True).values
        self.ascending = -self.ordered
        self.temperature = temperature[:, None]
        is_finite = self.ordered.isfinite()
        self.infinite = (self.ordered == math.inf).sum(-1, keepdim=True)
        self.valid = self.infinite + is_finite.sum(-1, keepdim=True)
        self.highest = self.ordered.masked_fill(~is_finite, -math.inf).amax(-1)
        self.lowest = self.ordered.masked_fill(~is_finite, math.inf).amin(-1)
        # What is not finite stays as a weightless copy of an end.
        clean = torch.where(self.ordered == math.inf, self.highest[:, None], self.ordered)
        clean = torch.where(clean == -math.inf, self.lowest[:, None], clean)
        clean = clean.masked_fill(~clean.isfinite(), 0.0)
        self.upper, self.lower = scan(clean, is_finite.to(clean.dtype), temperature)

    def sample(self, size: int) -> Sample:
        """Quantiles of every row, all of its scores where there are no more."""
        whole = torch.full_like(self.valid, self.length)
        nodes = self._spread(torch.zeros_like(whole), whole, size)
        is_nan = (self.nan_count > 0)[:, None]
        return Sample(nodes.masked_fill(is_nan, math.nan), self.length, self.length)

    def measure(
        self, low: Tensor, high: Tensor, pivots: Tensor, size: int, is_open: Tensor
    ) -> Measured:
        """At bands [rows] and pivots [rows, p]; of rows that are not open nothing is used."""
        up_to_high = self._count_from(high[:, None])
        up_to_low = self._count_from(low[:, None])
        above, inside = up_to_high - self.infinite, up_to_low - up_to_high
        last_above, first_below = (up_to_high - 1).clamp(min=0), up_to_low
        has_above, has_below = above > 0, up_to_low < self.valid
        columns = [
            self.nan_count[:, None],
            self.infinite,
            self.valid,
            self.lowest[:, None],
            self.highest[:, None],
            above,
            torch.where(has_above, self.ordered.gather(-1, last_above), math.inf),
            torch.where(has_above, self.upper.gather(-1, last_above), 0.0),
            inside,
            torch.where(has_below, self.ordered.gather(-1, first_below), -math.inf),
            torch.where(has_below, self.lower.gather(-1, first_below), 0.0),
        ]
        assert len(columns) == COLUMNS
        wide = self.ordered.dtype
        every = torch.cat((*(x.to(wide) for x in columns), *self._masses(pivots)), -1)
        return Measured(every, self._spread(up_to_high, inside, size))

    def _count_from(self, values: Tensor) -> Tensor:
        """How many valid scores are at or above each value, +inf among them."""
        found = torch.searchsorted(self.ascending, (-values).contiguous(), right=True)
        return torch.minimum(found, self.valid)

    def _masses(self, pivots: Tensor) -> tuple[Tensor, Tensor]:
        count = self._count_from(pivots)
        last, first = (count - 1).clamp(min=0), count
        is_above, is_below = count > self.infinite, count < self.valid
        decay = torch.exp((pivots - self.ordered.gather(-1, last)) / self.temperature)
        sum_above = torch.where(is_above, self.upper.gather(-1, last) * decay, 0.0)
        decay = torch.exp((self.ordered.gather(-1, first) - pivots) / self.temperature)
        sum_below = torch.where(is_below, self.lower.gather(-1, first) * decay, 0.0)
        return (count - self.infinite).to(pivots.dtype), (sum_below - sum_above) / 2

    def _spread(self, first: Tensor, count: Tensor, size: int) -> Tensor:
        """``size`` scores of the ``count`` from place ``first`` on, or all, NaN where they end.

        The first and the last are among them: nothing lies beyond.
        """
        index = torch.arange(size, device=first.device)
        apart = index * (count - 1) // (size - 1)
        places = torch.where(count > size, apart, index)
        found = self.ordered.gather(-1, (first + places).clamp(max=self.ordered.shape[-1] - 1))
        return found.masked_fill(places >= count, math.nan).to(self.dtype)

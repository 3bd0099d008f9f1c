"""Rows of several lengths: where each begins, and how many scores it has.

They are given in one of three ways, the same in every function:

| offsets | lengths | rows |
|---|---|---|
| N + 1 | | segments of one vector of values: segment i is [offsets[i], offsets[i + 1]) |
| N or more | N | the same, of which only the first lengths[i] values take part |
| | one per row | rows of one size, of which only the first lengths[i] scores take part |

Whatever the numbers say, nothing outside of the values is read: offsets are clamped to the values,
and a segment that would end before it begins is empty.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Bounds(NamedTuple):
    """First place of each row in a vector of values, and its number of scores; int64."""

    starts: Tensor
    lengths: Tensor


def rows_shape(scores: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> torch.Size:
    """The shape of what has one entry per row."""
    if offsets is None:
        return scores.shape[:-1]
    return offsets[1:].shape if lengths is None else lengths.shape


def bounds_of(scores: Tensor, offsets: Tensor, lengths: Tensor | None) -> Bounds:
    """The bounds of segments, none of them outside of the values."""
    total = scores.shape[-1]
    places = offsets.to(torch.int64).clamp(0, total)
    if lengths is None:
        return Bounds(places[:-1], (places[1:] - places[:-1]).clamp(min=0))
    starts = places[: lengths.shape[0]]
    return Bounds(starts, torch.minimum(lengths.to(torch.int64).clamp(min=0), total - starts))


def takes_part(scores: Tensor, lengths: Tensor) -> Tensor:
    """Which scores of rows of one size are before their row's length; [..., n]."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    return places < lengths[..., None]


def values_of(bounds: Bounds, is_chosen: Tensor, total: int) -> Tensor:
    """Which values are of chosen segments."""
    starts, lengths = bounds
    one = is_chosen.to(torch.int64)
    marks = torch.zeros(total + 1, dtype=torch.int64, device=starts.device)
    marks = marks.index_add(0, starts, one).index_add(0, starts + lengths, -one)
    return marks.cumsum(0)[:-1] > 0


class Padding(NamedTuple):
    """Segments as rows of one size: the place of each score, and which of them there are."""

    places: Tensor  # [rows, width]
    inside: Tensor

    @classmethod
    def of(cls, bounds: Bounds, width: int) -> Padding:
        """Rows of ``width`` scores."""
        index = torch.arange(width, device=bounds.starts.device)
        inside = index < bounds.lengths[:, None]
        return cls(torch.where(inside, bounds.starts[:, None] + index, 0), inside)

    def rows(self, values: Tensor) -> Tensor:
        """Values of segments as rows; what is beyond a segment is any of the values, or zero."""
        if values.shape[0] == 0:
            return values.new_zeros(self.places.shape)
        return values[self.places]

    def values(self, rows: Tensor, total: int, fill: float = 0.0) -> Tensor:
        """The way back, into a vector of values; ``fill`` where no segment is."""
        out = rows.new_full((total + 1,), fill)
        # What is beyond a segment goes to a place of its own, which is cut off.
        to = torch.where(self.inside, self.places, total)
        return out.index_put((to,), rows)[:total]


def valid_counts(
    scores: Tensor, offsets: Tensor | None, lengths: Tensor | None, mask: Tensor | None, side: bool
) -> Tensor:
    """How many scores of each row take part; ``side`` says that the largest are selected."""
    valid = scores != (-math.inf if side else math.inf)
    valid = valid if mask is None else valid & mask
    return count_in_rows(valid, offsets, lengths)


def count_in_rows(flags: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Tensor:
    """How many of the flags of each row are set."""
    if offsets is None:
        assert lengths is not None
        return (flags & takes_part(flags, lengths)).sum(-1)
    starts, counts = bounds_of(flags, offsets, lengths)
    sums = torch.nn.functional.pad(flags.cumsum(0), (1, 0))
    return sums[starts + counts] - sums[starts]


def check_budget_fits(
    scores: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    mask: Tensor | None,
    largest: bool,
    k: float,
) -> None:
    """Raise where a budget given as a number is over the number of valid scores of some row."""
    counts = valid_counts(scores, offsets, lengths, mask, largest)
    is_nan = scores.isnan()
    has_nan = count_in_rows(is_nan if mask is None else is_nan & mask, offsets, lengths) > 0
    is_over = (counts < k) & ~has_nan
    if not bool(is_over.any()):
        return
    where = tuple(int(i) for i in is_over.nonzero()[0])
    row = f" in row {where}" if offsets is None else f" in segment {where[0]}"
    raise ValueError(
        f"k must be at most {int(counts[where])}, the number of scores that take part (within the"
        f" row's length, not masked out, not {'-inf' if largest else '+inf'}), got k={k:g}{row};"
        " clamp=True takes such a row whole"
    )

"""What ranks tell each other of rows that are spread over them.

Rows are [rows, n] on each rank, n its own, the largest side up: -inf is left out. A *band* of a row
is [low, high), two numbers of the scores' dtype. A rank that measures its part of a row at a band
fills in the columns below, in the widest dtype, and *nodes*: the scores inside of the band, or so
many of them as stand for all where they do not fit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Columns of the sums for gradients. The first three: how far the nearest score is from the
#: threshold in temperatures, and with e = e^{-(|u| - shift)} the sums of e and u e. The others,
#: with the upstream gradient g, depend on what it is the gradient of:
#:
#: | mask | sum g e | sum g u e | | |
#: | log p | sum w | sum w u | sum_{u > 0} g e / p | sum_{u <= 0} g, where w = g phi / p |
#: | threshold | g | | | |
SHIFT, DECAYS, MOMENT, FIRST, SECOND, THIRD, FOURTH = range(7)
GRADIENT_COLUMNS = 7

#: Numbers before a sample: how many scores this rank has of each row, of how many of them the
#: sample has quantiles, and what all ranks must have in common.
LENGTH, DRAWN, DTYPE, ROWS, BUDGETS, TEMPERATURES = range(6)
HEADER = 6
#: What is added to a dtype's number (common.py) where the smallest scores are asked for.
SMALLEST = 64

#: Columns of a measurement. Sums are relative to the nearest score on their own side, which is
#: infinite where there is none. Behind them come two columns for each pivot: how many finite scores
#: are at or above it, and (sum_{r < pivot} - sum_{r >= pivot}) e^{-|r - pivot|/t} / 2.
NAN_COUNT = 0
INFINITE_COUNT = 1  # scores of +inf
VALID_COUNT = 2  # scores that are not left out
LOWEST = 3  # of finite scores
HIGHEST = 4
ABOVE_COUNT = 5  # finite scores at or above the band's high end
ABOVE_NEAREST = 6
ABOVE_SUM = 7
INSIDE_COUNT = 8
BELOW_NEAREST = 9
BELOW_SUM = 10
COLUMNS = 11


class Rows(NamedTuple):
    """What all ranks know of the rows beforehand."""

    number: int
    dtype: torch.dtype
    ranks: int
    looks: bool  # whether the host may look at the numbers, to stop when all rows are done
    largest: bool = True


class Sizes(NamedTuple):
    """How much a message holds of each row: the same on all ranks, whatever lies there."""

    sample: int
    nodes: int
    cuts: int

    @classmethod
    def of(cls, rows: int, ranks: int) -> Sizes:
        """One row has long lists, which save a collective; many rows share what one has."""
        most = max(64, min(512, 65536 // ranks) // max(rows, 1))
        return cls(most, most, max(5, 255 // max(rows, 1)))

    @property
    def pivots(self) -> int:
        """The band's ends, the number next to the low one, and the cuts of the bracket."""
        return 3 + self.cuts

    def most_rounds(self, dtype: torch.dtype, looks: bool = False) -> int:
        """So many measurements that any row of this dtype ends.

        A first band that misses the threshold, all that is on that side, a measurement for each
        time that the cuts divide all numbers there are, and one of the number that is left. Where
        the host looks the masses at cuts are known of the band alone, which may be missed before
        each of them; it stops as soon as rows are done.
        """
        divisions = math.ceil(8 * dtype.itemsize / math.log2(self.cuts + 1))
        return 3 + divisions * (3 if looks else 1)


class Sample(NamedTuple):
    """Scores that stand for this rank's part of each row, [rows, m]; NaN where there is none."""

    nodes: Tensor
    drawn: int  # of how many scores they are quantiles: as many as there are, or a random part
    length: int  # of this rank's part
    message: Tensor | None = None  # as bytes behind the numbers before it, where the host looks not


class Measured(NamedTuple):
    """A rank's measurement: columns [rows, COLUMNS + 2 pivots], and nodes [rows, m]."""

    columns: Tensor
    nodes: Tensor
    message: Tensor | None = None  # both as bytes, one behind the other, where they lie so


class Solved(NamedTuple):
    """What all ranks know of each row in the end; [rows] each, in the widest dtype."""

    hi: Tensor  # the threshold pair
    lo: Tensor
    log_share: Tensor  # in the hard limit: log p of a score that is tied with the boundary
    is_used_up: Tensor  # +inf scores leave nothing of the budget
    wanted_ties: Tensor  # in the hard limit: how many scores tied with the boundary are selected
    ties: Tensor  # and how many each rank has, [ranks, rows]
    valid_count: Tensor  # of all ranks
    has_nan: Tensor


class Answers(NamedTuple):
    """What a rank writes its part of a mask from; [rows] each, in the widest dtype."""

    hi: Tensor  # the threshold pair
    lo: Tensor
    log_share: Tensor  # in the hard limit: log p of a score that is tied with the boundary
    is_used_up: Tensor  # +inf scores leave nothing of the budget
    boundary: Tensor  # of the hard mask: the last score that is selected; NaN without an answer
    quota: Tensor  # of a hard mask: how many of this rank's scores that are tied with it
    is_far: Tensor  # the mass may lie many temperatures from the threshold: every digit counts
    ties: Tensor  # how many of this rank's scores are tied with the boundary


class Totals(NamedTuple):
    """What a rank writes its part of a gradient from; [rows] each, in the widest dtype."""

    shift: Tensor  # of all ranks: the least |u|
    e: Tensor  # the sum of e^{shift - |u|}, or 1 where no score takes part
    level: Tensor  # <g, q> of the mask, the sum of w of log p, g of the threshold

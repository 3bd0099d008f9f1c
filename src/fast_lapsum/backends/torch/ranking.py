"""Soft ranks and thresholds of sorted rows, in plain torch; what kernels compute is defined here.

Rows are sorted, s_0 <= s_1 <= ..., with NaN last. With decayed sums over the scores at and below
s_i (L), and at and above it (U), the mass at a score and its rank are

    M_i = sum_j F((s_i - s_j) / t) = i + 1/2 + (U_i - L_i) / 2,      R_i = M_i + 1/2

and between two scores, c of them below b, the mass at b is that of the two exponentials

    m = c - A / 2 + B / 2,    A = L_{c-1} e^{-(b - s_{c-1})/t},    B = U_c e^{-(s_c - b)/t}.

Between -inf and +inf every number has the mass c: b is 0 there, and nothing moves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..common import compute_dtype, max_temperature, per_row_tensor
from .decay_scan import decayed_sums, distance

#: ``decayed_sums``, or the same as another function: gaps, values, reverse.
Sums = Callable[[Tensor, Tensor, bool], Tensor]


class Nodes(NamedTuple):
    """Sorted rows: scores [rows, n], gaps between them in temperatures, and the sums L and U."""

    scores: Tensor
    temperature: Tensor  # [rows, 1]
    kept: torch.dtype  # that of what is kept of the caller's scores; it limits temperatures
    gaps: Tensor
    lower_sums: Tensor
    upper_sums: Tensor

    @property
    def tiny(self) -> float:
        """Temperatures below are the hard limit."""
        return torch.finfo(self.kept).tiny

    def masses(self) -> Tensor:
        """M at every score."""
        index = torch.arange(
            self.scores.shape[-1], dtype=self.scores.dtype, device=self.scores.device
        )
        return index + 0.5 + (self.upper_sums - self.lower_sums) / 2

    def spread(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Distances of scores in temperatures, lower <= upper."""
        return distance(lower, upper, self.temperature, self.tiny)


class Thresholds(NamedTuple):
    """b at given masses, [rows, m] each, and how they depend on the scores.

    ``rank`` scores lie below b. The scores next to it have d b = low_share and up_share, of all on
    their side together, which add up to 1. ``below`` and ``above`` are the distances to those two
    scores in temperatures. ``root`` is (A + B) / 2, the mass that lies within reach.
    """

    b: Tensor
    rank: Tensor
    low_share: Tensor
    up_share: Tensor
    below: Tensor
    above: Tensor
    root: Tensor


def nodes_of(ordered: Tensor, temperature: Tensor, kept: torch.dtype, sums: Sums) -> Nodes:
    """Gaps and sums of sorted rows; NaN takes no part in them."""
    t = temperature[:, None].to(ordered.dtype)
    gaps = distance(ordered[:, :-1], ordered[:, 1:], t, torch.finfo(kept).tiny)
    ones = torch.ones_like(ordered)[:, None].detach()
    lower, upper = (sums(gaps, ones, reverse)[:, 0] for reverse in (False, True))
    return Nodes(ordered, t, kept, gaps, lower, upper)


def ranks_in_order(nodes: Nodes) -> Tensor:
    """Soft ranks of sorted rows; NaN for a NaN. Tied scores have the rank of their first one."""
    scores = nodes.scores
    ranks = nodes.masses() + 0.5
    ranks = ranks + (ranks.gather(-1, _first_of_tied(scores)) - ranks).detach()
    # Infinite scores have constant ranks, and what arrives at those may be NaN.
    ranks = torch.where(scores.isfinite(), ranks, ranks.detach())
    return ranks.masked_fill(scores.isnan(), math.nan)


def _first_of_tied(ordered: Tensor) -> Tensor:
    """For every score of sorted rows the place of the first that equals it."""
    index = torch.arange(ordered.shape[-1], device=ordered.device).expand(ordered.shape)
    is_tied = ordered[:, 1:] == ordered[:, :-1]
    starts = torch.cat((index[:, :1], index[:, 1:].masked_fill(is_tied, 0)), -1)
    return torch.cummax(starts, -1).values if starts.numel() else starts


def _shared_by_tied(nodes: Nodes) -> Tensor:
    """The sorted scores; in the hard limit what moves one moves all that are tied with it."""
    scores = nodes.scores
    first = _first_of_tied(scores)
    # Zeros, which have the derivatives of the scores: no sum of them overflows.
    moved = torch.where(scores.isfinite(), scores - scores.detach(), 0.0)
    nothing = torch.zeros_like(scores.detach())
    sums = nothing.scatter_add(-1, first, moved)
    tied = nothing.scatter_add(-1, first, torch.ones_like(nothing))
    shared = (sums / tied.clamp(min=1)).gather(-1, first)
    is_shared = scores.isfinite() & (nodes.temperature < nodes.tiny)
    return torch.where(is_shared, scores.detach() + shared, scores)


def thresholds_in_order(nodes: Nodes, masses: Tensor) -> Thresholds:
    """b with mass m, 0 < m < n, for every m of ``masses``: [rows, m], float64."""
    n = nodes.scores.shape[-1]
    dtype = nodes.scores.dtype
    knots = nodes.masses().detach().contiguous()
    masses = masses.to(dtype) + torch.zeros_like(knots[:, :1])  # for each row, mapped ones too
    count = torch.searchsorted(knots, masses)
    at_low, at_up = (count - 1).clamp(min=0), count.clamp(max=n - 1)
    scores = _shared_by_tied(nodes)
    low, up = scores.gather(-1, at_low), scores.gather(-1, at_up)
    # Where a side is empty its sum is 0, and its distance infinite.
    inside = (count > 0) & (count < n)
    gap = torch.where(inside, nodes.spread(low, up), math.inf)
    low_sum = torch.where(count > 0, nodes.lower_sums.gather(-1, at_low), 0.0)
    up_sum = torch.where(count < n, nodes.upper_sums.gather(-1, at_up), 0.0)
    excess = count - masses
    # Without excess A = B = root, which may be 0 and has no derivative then.
    is_even, is_low = excess == 0, excess > 0
    apart = torch.where(is_even, 1.0, excess).abs()
    coupling = low_sum * up_sum * torch.exp(-gap)
    # Next to an empty side, where the mass may be tiny, nothing is squared.
    is_coupled = coupling > 0
    root = torch.sqrt(torch.where(is_coupled, apart, 1.0) ** 2 + coupling)
    root = torch.where(is_coupled, root, apart)
    nearer = root + apart  # A where b hangs on the scores below, else B
    near_sum = torch.where(is_low, low_sum, up_sum)
    near = torch.log(torch.where(is_even, nearer, near_sum) / nearer)
    # Without excess b lies in the middle, but for a difference of the sums.
    both = torch.where(is_even, low_sum, 1.0), torch.where(is_even, up_sum, 1.0)
    aside = torch.log(both[0] / both[1]) / 2
    below = torch.where(is_even, gap / 2 + aside, torch.where(is_low, near, gap - near))
    above = torch.where(is_even, gap / 2 - aside, torch.where(is_low, gap - near, near))
    t = torch.where(nodes.temperature >= nodes.tiny, nodes.temperature, 0.0)
    is_open = (low == -math.inf) & (up == math.inf)
    middle = torch.where(is_open, 0.0, low / 2 + up / 2 + t * aside)
    b = torch.where(is_even, middle, torch.where(is_low, low + t * near, up - t * near))
    b = torch.where(b.isfinite(), b, b.detach())
    major, minor = nearer / (2 * root), coupling / nearer / (2 * root)
    even_root = torch.sqrt(both[0] * both[1]) * torch.exp(-gap / 2)
    root = torch.where(is_even, even_root, root)
    even_share = torch.where(is_open, 0.0, 0.5)
    low_share = torch.where(is_even, even_share, torch.where(is_low, major, minor))
    up_share = torch.where(is_even, even_share, torch.where(is_low, minor, major))
    return Thresholds(b, count, low_share, up_share, below, above, root)


def without_answer(
    ordered: Tensor,
    temperature: Tensor,
    is_masked: bool = False,
    kept: torch.dtype | None = None,
) -> Tensor:
    """Sorted rows that have a NaN, or a temperature that is none, [rows, 1].

    Of rows that are masked, those with a NaN are all NaN; so are those that are masked whole.
    ``kept`` is as in :class:`Nodes`, for scores that were made wider.
    """
    most = max_temperature(kept or ordered.dtype)
    is_bad = ~((temperature >= 0) & (temperature <= most))
    return (is_bad | ordered[:, 0 if is_masked else -1].isnan())[:, None]


def rank_rows(
    ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """Ranks of sorted rows, each at the place that ``order`` gives."""
    temperature = per_row_tensor(temperature, ordered)
    ranks = ranks_in_order(_nodes(ordered, temperature))
    ranks = ranks.masked_fill(without_answer(ordered, temperature, is_masked), math.nan)
    return torch.empty_like(ordered).scatter_(-1, order, ranks.to(ordered.dtype))


def rank_rows_backward(
    grad: Tensor, ordered: Tensor, order: Tensor, temperature: Tensor | float, is_masked: bool
) -> Tensor:
    """(1 / t) sum_j phi((r_i - r_j) / t) (g_i - g_j), phi(u) = e^{-|u|} / 2."""
    temperature = per_row_tensor(temperature, ordered)
    nodes = _nodes(ordered, temperature)
    is_live = ordered.isfinite() & (nodes.temperature >= nodes.tiny)
    grad = grad.gather(-1, order).to(nodes.scores.dtype).masked_fill(~is_live, 0.0)
    lower, upper = (
        decayed_sums(nodes.gaps, grad[:, None], reverse)[:, 0] for reverse in (False, True)
    )
    t = torch.where(nodes.temperature >= nodes.tiny, nodes.temperature, 1.0)
    found = (grad * (nodes.lower_sums + nodes.upper_sums) - (lower + upper)) / 2 / t
    found = found.masked_fill(~is_live, 0.0)
    found = found.masked_fill(without_answer(ordered, temperature, is_masked), math.nan)
    return torch.empty_like(ordered).scatter_(-1, order, found.to(ordered.dtype))


def threshold_rows(
    ordered: Tensor, temperature: Tensor | float, masses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """b at every mass, [rows, m], how many scores lie below it (int32), and two coefficients.

    Without ``masses`` [m] they are 1/2, 3/2, ..., those of a sort. The coefficients are d b for the
    scores on either side of b: ``low`` e^{-(s_{c-1} - s_i)/t} below, ``up`` e^{-(s_i - s_c)/t}
    above.
    """
    temperature = per_row_tensor(temperature, ordered)
    nodes, n = _nodes(ordered, temperature), ordered.shape[-1]
    if masses is None:
        masses = torch.arange(n, dtype=nodes.scores.dtype, device=ordered.device) + 0.5
    found = thresholds_in_order(nodes, masses.to(nodes.scores.dtype)[None])
    low_sum = nodes.lower_sums.gather(-1, (found.rank - 1).clamp(min=0))
    up_sum = nodes.upper_sums.gather(-1, found.rank.clamp(max=n - 1))
    is_moved = found.b.isfinite()
    low = torch.where(is_moved, found.low_share / low_sum, 0.0)
    up = torch.where(is_moved, found.up_share / up_sum, 0.0)
    b = found.b.masked_fill(without_answer(ordered, temperature), math.nan)
    dtype = ordered.dtype
    return b.to(dtype), found.rank.to(torch.int32), low.to(dtype), up.to(dtype)


def threshold_rows_backward(
    grad: Tensor,
    count: Tensor,
    low: Tensor,
    up: Tensor,
    ordered: Tensor,
    order: Tensor,
    temperature: Tensor | float,
) -> Tensor:
    """sum_j g_j d b_j / d r_i, by two scans from the scores next to the thresholds."""
    temperature = per_row_tensor(temperature, ordered)
    nodes, n = _nodes(ordered, temperature), ordered.shape[-1]
    wide = nodes.scores.dtype
    grad, count = grad.to(wide), count.long()
    from_low, from_up = torch.zeros_like(nodes.scores), torch.zeros_like(nodes.scores)
    from_low.scatter_add_(-1, (count - 1).clamp(min=0), grad * low.to(wide))
    from_up.scatter_add_(-1, count.clamp(max=n - 1), grad * up.to(wide))
    found = decayed_sums(nodes.gaps, from_low[:, None], True)
    found = found + decayed_sums(nodes.gaps, from_up[:, None], False)
    found = found[:, 0].masked_fill(without_answer(ordered, temperature), math.nan)
    return torch.empty_like(ordered).scatter_(-1, order, found.to(ordered.dtype))


def _nodes(ordered: Tensor, temperature: Tensor) -> Nodes:
    kept = compute_dtype(ordered.dtype)
    return nodes_of(ordered.to(temperature.dtype), temperature, kept, decayed_sums)

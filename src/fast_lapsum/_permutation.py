"""The soft permutation P of a sort as an operator: P v and its transpose without the matrix.

Thresholds b_1, ..., b_{n-1} part the line into n places, b_j at the mass j. Score k lies in one of
them, and the rest of its mass decays to both sides. With s_k between b_low and b_up, and places of
the width d_j = (b_j - b_{j-1}) / t,

    P_kj = 1 - (e^{-(b_up - s_k)/t} + e^{-(s_k - b_low)/t}) / 2     its own place
    P_kj = (1 - e^{-d_j}) e^{-(b_{j-1} - s_k)/t} / 2                above it
    P_kj = (1 - e^{-d_j}) e^{-(s_k - b_j)/t} / 2                    below it

so that every entry is made of differences, by expm1, and sums over scores or places are scans.
Everything is computed in the widest dtype of the device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._arguments import check_flag
from ._ranking_call import Number, check_one_dim, given_temperature
from ._ranking_formulas import decayed_sums, nothing_of, sorted_nodes, spoil
from .backends.common import compute_dtype
from .backends.torch import ranking_entry as plain


class Places(NamedTuple):
    """Sorted scores and the places between thresholds, [rows, n] but for what has n - 1."""

    rank: Tensor  # how many scores are below each threshold, n - 1
    below: Tensor  # from a threshold down to the next score, in temperatures, n - 1
    above: Tensor  # and up, n - 1
    widths: Tensor  # 1 - e^{-d_j}; the first and the last place are infinitely wide
    between: Tensor  # d_j of the places between two thresholds, n - 2
    place: Tensor  # the place that a score lies in
    own: Tensor  # the part of a score that stays there
    to_low: Tensor  # e^{-(s_k - b_low)/t}, 0 in the first place
    to_up: Tensor  # e^{-(b_up - s_k)/t}, 0 in the last place


def places_of(nodes: plain.Nodes) -> Places:
    """Thresholds at the masses 1, ..., n - 1, and where the scores lie among them."""
    scores = nodes.scores
    rows, n = scores.shape
    masses = torch.arange(1, n, device=scores.device, dtype=scores.dtype).expand(rows, -1)
    found = plain.thresholds_in_order(nodes, masses)
    between = _widths(nodes, found, masses)
    infinite = torch.full_like(scores[:, :1], math.inf)
    widths = -torch.expm1(-torch.cat((infinite, between, infinite), -1))
    index = torch.arange(n, device=scores.device).expand(rows, -1).contiguous()
    place = torch.searchsorted(found.rank.contiguous(), index, right=True)
    low, up = (place - 1).clamp(min=0), place.clamp(max=n - 2)
    under = scores.gather(-1, found.rank.gather(-1, low).clamp(max=n - 1))
    over = scores.gather(-1, (found.rank.gather(-1, up) - 1).clamp(min=0))
    # Where there is no such threshold the distance is not used: it must not be infinite below 0.
    under, over = torch.where(place > 0, under, scores), torch.where(place < n - 1, over, scores)
    to_low = torch.where(place > 0, found.above.gather(-1, low) + nodes.spread(under, scores), 0.0)
    to_up = torch.where(place < n - 1, found.below.gather(-1, up) + nodes.spread(scores, over), 0.0)
    stays_low = torch.where(place > 0, -torch.expm1(-to_low), 1.0)
    stays_up = torch.where(place < n - 1, -torch.expm1(-to_up), 1.0)
    return Places(
        *(found.rank, found.below, found.above, widths, between, place),
        (stays_low + stays_up) / 2,
        torch.where(place > 0, torch.exp(-to_low), 0.0),
        torch.where(place < n - 1, torch.exp(-to_up), 0.0),
    )


def _widths(nodes: plain.Nodes, found: plain.Thresholds, masses: Tensor) -> Tensor:
    """Distances between neighbouring thresholds, in temperatures.

    In one gap of the scores it is the logarithm of a quotient of A, or of B: of 1 + 1 / A or so,
    which the difference of two distances would round away.
    """
    count, root = found.rank, found.root
    excess = count - masses
    before, after = excess[:, :-1], excess[:, 1:]  # in one gap the second is the first less 1
    is_same = count[:, 1:] == count[:, :-1]
    is_low = before + after > 0
    near = torch.where(is_low, root[:, 1:] + after, root[:, :-1] - before)
    near = near.clamp(min=torch.finfo(near.dtype).tiny)
    # root = hypot(excess, K), with one K: its difference is that of squares over the sum.
    steps = (before + after).abs() / torch.where(is_same, root[:, :-1] + root[:, 1:], 1.0)
    inside = _log_grown(torch.where(is_same, near, 1.0), 1 + steps)
    n = nodes.scores.shape[-1]
    first = nodes.scores.gather(-1, count[:, :-1].clamp(max=n - 1))
    last = nodes.scores.gather(-1, (count[:, 1:] - 1).clamp(min=0))
    passed = nodes.spread(torch.where(is_same, last, first), last)
    across = found.above[:, :-1] + passed + found.below[:, 1:]
    return torch.where(is_same, inside, across)


def _log_grown(part: Tensor, growth: Tensor) -> Tensor:
    """log(1 + growth / part), of a growth of at least 1.

    The derivative of a quotient by a part that is next to nothing would overflow.
    """
    is_small = part < 1
    large = torch.where(is_small, 1.0, part)
    return torch.where(
        is_small, torch.log(part + growth) - torch.log(part), torch.log1p(growth / large)
    )


class SoftPermutation:
    """The soft permutation that sorts scores along a dimension; see ``soft_argsort``.

    ``apply(values)`` moves values to their places, ``T.apply(values)`` moves places back to where
    the scores are, and ``dense()`` is the matrix P, scores by places.
    """

    def __init__(
        self,
        scores: Tensor,
        temperature: Number | Tensor = 1.0,
        *,
        dim: int = -1,
        descending: bool = False,
    ) -> None:
        self.dim = check_one_dim(scores, dim)
        self.shape = scores.shape
        descending = check_flag("descending", descending)
        rows = scores.movedim(self.dim, -1)
        t = given_temperature(rows, temperature)
        self._is_transposed = False
        self._dtype = compute_dtype(scores.dtype)
        self._nodes, self._order = sorted_nodes(rows, t, None, descending)
        self._places = places_of(self._nodes) if rows.shape[-1] > 1 else None

    @property
    def T(self) -> SoftPermutation:  # noqa: N802
        """The transpose, which shares everything with the permutation."""
        other = object.__new__(SoftPermutation)
        other.__dict__.update(self.__dict__)
        other._is_transposed = not self._is_transposed
        return other

    def apply(self, values: Tensor) -> Tensor:
        """P^T v: sum_i P_ij v_i at place j, along the dimension of the sort; see ``soft_argsort``.

        ``values`` have the shape of the scores, or that shape and more dimensions behind it. The
        result has their shape and dtype.
        """
        dims = len(self.shape)
        if not isinstance(values, Tensor):
            raise TypeError(f"values must be a torch.Tensor, got {type(values).__name__}")
        if values.shape[:dims] != self.shape:
            raise ValueError(
                f"values must have the shape of scores, {tuple(self.shape)}, perhaps with more "
                f"dimensions behind it, got shape {tuple(values.shape)}"
            )
        if not values.is_floating_point():
            raise TypeError(f"values must hold floating-point numbers, got {values.dtype}")
        if not values.numel():
            return values + self._nothing().to(values.dtype)
        nodes = self._nodes
        moved = values.movedim(self.dim, -1)  # rows, columns, n, but for the number of dimensions
        outer = moved.shape[:-1]
        columns = math.prod(values.shape[dims:])
        given = moved.reshape(nodes.scores.shape[0], columns, self.shape[self.dim])
        found = self._rows(given.to(nodes.scores.dtype))
        return found.view(*outer, -1).to(values.dtype).movedim(-1, self.dim)

    def dense(self) -> Tensor:
        """The matrix, [..., score, place], the two as the last dimensions: n^2 numbers for a row.

        That of the transpose is [..., place, score].
        """
        n, outer = self.shape[self.dim], list(self.shape)
        del outer[self.dim]
        scores = self._nodes.scores
        eye = torch.eye(n, dtype=scores.dtype, device=scores.device)
        found = self._rows(eye.expand(scores.shape[0], n, n)) if n else scores[:, None]
        found = found if found.numel() else found + self._nothing()
        return found.view(*outer, n, n).to(self._dtype)

    def _rows(self, values: Tensor) -> Tensor:
        """Values moved, [rows, columns, n]."""
        found = self._from_places(values) if self._is_transposed else self._to_places(values)
        found = found if self._places is not None else found + self._nothing()
        return spoil(found, self._nodes)

    def _nothing(self) -> Tensor:
        """0, by which what is the same for all scores is a function of them."""
        return nothing_of(self._nodes.scores, self._nodes.temperature)

    def _to_places(self, values: Tensor) -> Tensor:
        """sum_i P_ij v_i at place j."""
        values = values.gather(-1, _over(self._order, values))
        at, n = self._places, values.shape[-1]
        if at is None:
            return values
        gaps = self._nodes.gaps
        lower, upper = (decayed_sums(gaps, values, reverse) for reverse in (False, True))
        low = _over(at.rank - 1, values)
        low = torch.where(low < 0, 0.0, lower.gather(-1, low.clamp(min=0)))
        up = _over(at.rank, values)
        up = torch.where(up == n, 0.0, upper.gather(-1, up.clamp(max=n - 1)))
        # A place has the scores under its lower threshold and those over its upper one,
        low = torch.exp(-at.below)[:, None] * low
        up = torch.exp(-at.above)[:, None] * up
        nothing = torch.zeros_like(values[..., :1])
        passing = torch.cat((nothing, low), -1) + torch.cat((up, nothing), -1)
        # and those that lie in it, one after the other: a scan that ends where the place does.
        ends = torch.where(at.place[:, 1:] == at.place[:, :-1], 0.0, math.inf)
        inside = decayed_sums(ends.to(values.dtype), values * at.own[:, None], False)
        index = torch.arange(n, device=values.device).expand(at.place.shape).contiguous()
        last = torch.searchsorted(at.place, index, right=True) - 1
        is_held = (last >= 0) & (at.place.gather(-1, last.clamp(min=0)) == index)
        inside = inside.gather(-1, _over(last.clamp(min=0), values))
        inside = torch.where(is_held[:, None], inside, 0.0)
        return inside + at.widths[:, None] / 2 * passing

    def _from_places(self, values: Tensor) -> Tensor:
        """sum_j P_ij v_j at score i."""
        at, n = self._places, values.shape[-1]
        found = values
        if at is not None:
            sent = at.widths[:, None] / 2 * values
            from_below = decayed_sums(at.between, sent[..., :-1], False)
            from_above = decayed_sums(at.between, sent[..., 1:], True)
            found = at.own[:, None] * values.gather(-1, _over(at.place, values))
            low = _over((at.place - 1).clamp(min=0), values)
            up = _over(at.place.clamp(max=n - 2), values)
            found = found + at.to_low[:, None] * from_below.gather(-1, low)
            found = found + at.to_up[:, None] * from_above.gather(-1, up)
        return torch.zeros_like(found).scatter(-1, _over(self._order, found), found)


def _over(index: Tensor, values: Tensor) -> Tensor:
    """An index of rows, for every column of values."""
    return index[:, None].expand(-1, values.shape[1], -1)

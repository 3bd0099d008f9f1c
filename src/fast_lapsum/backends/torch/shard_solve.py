"""From what all ranks have measured of rows to their thresholds: see shard_search.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common import SATURATION
from ..shards import INFINITE_COUNT, Solved
from .forward import renormalise
from .shard_search import Seen, State
from .sort_scan import root_of


def unsolved(rows: int, ranks: int, like: Tensor) -> Solved:
    """Rows of which nothing is known yet."""
    nan = like.new_full((rows,), math.nan)
    zero = torch.zeros_like(nan)
    return Solved(nan, nan, nan, zero, zero, zero.expand(ranks, rows), zero, zero)


def advance(
    seen: Seen, pivots: Tensor, solved: Solved, kept: torch.dtype, looks: bool
) -> tuple[State, Solved]:
    """The rows that these measurements solve, and where the search for the others goes on.

    With ``looks`` the host looks whether there are such rows before it does either.
    """
    bracket = seen.narrowed(pivots)
    state = seen.state
    is_torn = ~(bracket.left < bracket.right)  # by rounding: whole counts, of a hard mask, agree
    is_verified = (bracket.left >= state.low) & (bracket.right <= state.high)
    settled, is_settled = _settled(seen, kept)
    is_new = state.is_open & (is_settled | is_torn | (is_verified & seen.is_complete))
    is_open = state.is_open & ~is_new
    if not looks or bool(is_new.any()):
        searched = _searched(seen, kept)
        searched = searched._replace(
            hi=torch.where(is_torn, bracket.left, searched.hi),
            lo=torch.where(is_torn, 0.0, searched.lo),
        )
        found = (torch.where(is_settled, a, b) for a, b in zip(settled, searched, strict=True))
        solved = Solved(*(torch.where(is_new, a, b) for a, b in zip(found, solved, strict=True)))
    if looks and not bool(is_open.any()):
        return state._replace(is_open=is_open), solved
    following = seen.next_state(bracket)
    # Rows that are done have an empty band.
    low, high = (torch.where(is_open, end, 0.0) for end in (following.low, following.high))
    return following._replace(low=low, high=high, is_open=is_open), solved


def _settled(seen: Seen, kept: torch.dtype) -> tuple[Solved, Tensor]:
    """Rows that counts and ends decide, and which rows those are."""
    asked, budget, temperature = seen.asked, seen.asked.budget, seen.asked.temperature
    finite = seen.valid - seen.infinite
    remaining = budget - seen.infinite
    is_answerable = (budget >= 0) & (budget <= seen.valid) & asked.is_usable
    is_answerable &= seen.nan_count == 0
    # More +inf scores than budget share it.
    is_shared = torch.where(asked.is_hard, seen.remaining <= 0, remaining < 0)
    edge = (SATURATION * temperature).clamp(max=torch.finfo(kept).max / 2)
    edge = torch.where(asked.is_hard, 0.0, edge)
    is_whole = remaining == finite
    hi = torch.where(is_whole, seen.lowest, seen.highest)
    lo = torch.where(is_whole, -edge, edge)
    lo = torch.where(finite == 0, 0.0, lo)
    share = budget / seen.infinite.clamp(min=1)
    hi, lo = torch.where(is_shared, math.inf, hi), torch.where(is_shared, share, lo)
    hi, lo = (torch.where(is_answerable, x, math.nan) for x in (hi, lo))
    is_soft_end = ~asked.is_hard & ((remaining == 0) | is_whole)
    is_settled = ~is_answerable | is_shared | is_soft_end | (finite == 0)
    ties = torch.where(is_shared, seen.columns[..., INFINITE_COUNT], 0.0)
    return (
        Solved(
            hi,
            lo,
            _log_share(budget, seen.infinite),
            (remaining == 0).to(hi.dtype),
            torch.where(is_shared, budget, 0.0),
            ties,
            seen.valid,
            (seen.nan_count > 0).to(hi.dtype),
        ),
        is_settled,
    )


def _searched(seen: Seen, kept: torch.dtype) -> Solved:
    """The thresholds of rows whose band holds them, and is known whole."""
    asked = seen.asked
    hi, lo = renormalise(*root_of(seen.curve, seen.excess, asked.scale), kept)
    # In the hard limit: the first score up to which there are as many as its rank says.
    rank = seen.excess[:, None] + seen.curve.passed[:, 1:]
    place = (rank < 0).sum(-1, keepdim=True).clamp(max=rank.shape[-1] - 1)
    boundary = seen.nodes.values.gather(-1, place)
    over = (seen.nodes.weights * (seen.nodes.values > boundary)).sum(-1)
    over = over + seen.above.members + seen.infinite
    ties = (seen.weights * (seen.values == boundary)).sum(-1)
    part, tied = asked.budget - over, ties.sum(0).clamp(min=1)
    is_hard = asked.is_hard
    return Solved(
        torch.where(is_hard, boundary[:, 0], hi),
        torch.where(is_hard, part / tied, lo),
        _log_share(part, tied),
        torch.zeros_like(hi),
        part,
        ties,
        seen.valid,
        torch.zeros_like(hi),
    )


def _log_share(part: Tensor, tied: Tensor) -> Tensor:
    """log(part / tied); next to 1 it would lose its digits if the quotient were rounded first."""
    tied = tied.clamp(min=1)
    return torch.where(2 * part > tied, ((part - tied) / tied).log1p(), (part / tied).log())

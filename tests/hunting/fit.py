"""What one p of a row says of the others, by the definition of the operator alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from cases import U_ROUNDING

#: Below so many times the smallest normal number p may be 0, or have lost digits.
FLOOR = 1024.0
#: In units of eps: a phi of which nothing shows in 1 - phi.
NEXT_TO_NOTHING = 2.0**-20
#: Rows of up to so many scores are looked at whole.
WHOLE = 128
#: Of a longer row, so many places at random, and the outermost scores of so many parts and those
#: nearest to the threshold.
PLACES, PARTS = 64, 8


def fitted(scores: Tensor, t: Tensor, p: Tensor, is_most: Tensor) -> tuple[Tensor, Tensor]:
    """How far p of rows [rows, n] are from what one of them says, over what they may be, [rows].

    The one is the largest p up to 1/2 or the smallest above, whichever tells its u better. If the
    first is 0 and the second 1, u of the second is at least that of the last number below 1. And
    from which score on p is 1 to many more digits than it has, [rows, 1].
    """
    info = torch.finfo(p.dtype)
    lows, low_scores, highs, high_scores = _nearest(scores, p, is_most)
    low, high = (x.double() for x in (lows.amax(-1, True), highs.amin(-1, True)))
    low_score, high_score = low_scores.amax(-1, True), high_scores.amin(-1, True)
    u_low, u_high = torch.log(2 * low), -torch.log(2 * (1 - high))
    # What p's own rounding means for u, and what u may be off.
    low_slack = info.eps / 2 + 16 * info.tiny / low + U_ROUNDING * info.eps * (1 - u_low)
    high_slack = info.eps / 4 / (1 - high) + U_ROUNDING * info.eps * (1 + u_high)
    low_slack = torch.where(low >= FLOOR * info.tiny, low_slack, math.inf)
    high_slack = torch.where(high < 1, high_slack, math.inf)
    is_low, own = low_slack < high_slack, low_slack.minimum(high_slack)
    otherwise = torch.where(high > 1, -math.inf, -math.log(info.eps / 2))  # none above, or all 1
    u_anchor = torch.where(own < math.inf, torch.where(is_low, u_low, u_high), otherwise)
    u_anchor, own = u_anchor.clamp(min=-1e4), torch.where(own < math.inf, own, 0.0)
    anchor = torch.where(is_low, low_score, high_score)

    is_there: Tensor | None = None
    if p.shape[-1] > WHOLE:
        p = _chosen(p, lows, highs)
        scores = _chosen(scores, low_scores, high_scores)
        is_there = (p >= 0) & (p <= 1)  # a part may have none below or none above
        is_there[:, : -2 * PARTS] = True
    # A hard row has no distance but 0.
    inverse = torch.where(t < info.tiny, math.inf, 1 / t).to(p.dtype)
    apart = torch.where(scores == anchor, 0.0, (scores - anchor) * inverse)
    u = apart + u_anchor.to(p.dtype)
    distance = u.abs().clamp(max=1e4)
    phi = torch.exp(-distance) / 2
    # By what part phi may be off: differences, products and sums are rounded here, too.
    units = (U_ROUNDING + 2) * distance + (U_ROUNDING + 2 * u_anchor.abs()).to(p.dtype)
    slack = info.eps * units + own.to(p.dtype)
    rounding = torch.where(u > 0, (2 * phi).clamp(max=info.eps / 4), info.eps / 2 * phi)
    allowed = 2 * (rounding + FLOOR * info.tiny) + phi * slack * (1 + slack)
    off = (p - torch.where(u > 0, 1 - phi, phi)).abs() / allowed
    misfit = (off if is_there is None else torch.where(is_there, off, 0.0)).amax(-1)

    # Where phi is next to nothing, however b + u t is rounded.
    beyond = anchor.double() + t * (-math.log(info.eps * NEXT_TO_NOTHING) - u_anchor)
    infinity = torch.full_like(anchor, math.inf)
    return misfit, torch.nextafter(beyond.to(p.dtype), infinity)


def _nearest(scores: Tensor, p: Tensor, is_most: Tensor) -> tuple[Tensor, ...]:
    """The largest p up to 1/2 and the smallest above, and such scores, of each part of a row."""
    found = []
    for values, below, above in ((p, -1.0, 2.0), (scores, -math.inf, math.inf)):
        # where() is a good deal faster than masked_fill() on a CPU
        found.append(_of_parts(torch.where(is_most, below, values), torch.amax))
        found.append(_of_parts(torch.where(is_most, values, above), torch.amin))
    return found[0], found[2], found[1], found[3]


def _of_parts(values: Tensor, reduced: Callable[..., Tensor]) -> Tensor:
    """The largest or the smallest value of each part of a row; of a short row, of all."""
    n = values.shape[-1]
    if n <= WHOLE:
        return reduced(values, -1, True)
    size = n // PARTS
    parts = reduced(values[:, : PARTS * size].unflatten(-1, (PARTS, size)), -1)
    if n > PARTS * size:  # what no part holds goes with the last
        rest = torch.cat((parts[:, -1:], values[:, PARTS * size :]), -1)
        parts[:, -1:] = reduced(rest, -1, True)
    return parts


def _chosen(values: Tensor, lows: Tensor, highs: Tensor) -> Tensor:
    """Values at random places, the outermost of each part, and the nearest to the threshold.

    p and scores are taken apart: if p does not rise with the scores they do not fit.
    """
    g = Generator().manual_seed(values.shape[-1])
    places = torch.randint(values.shape[-1], (PLACES,), generator=g).to(values.device)
    outermost = (_of_parts(values, reduced) for reduced in (torch.amax, torch.amin))
    return torch.cat((values[:, places], *outermost, lows, highs), -1)

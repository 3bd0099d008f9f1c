"""Rows for ranks, sorts and permutations, and how close to the pairwise definitions is close."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cases import DISTRIBUTIONS, generator
from fast_lapsum.reference import laplace_cdf

inf, nan = math.inf, math.nan
#: Ranks may be off by this part of themselves; sums of masses by this part of n.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


class Rows(NamedTuple):
    """Rows of one length with a temperature each."""

    scores: Tensor
    temperature: Tensor
    what: str


def draw(
    seed: int,
    batches: int,
    rows: int,
    dtype: torch.dtype,
    lengths: tuple[int, ...] = (1, 2, 3, 5, 16, 33, 60, 110),
) -> Iterator[Rows]:
    """Random and adversarial rows: every distribution, ties, clusters, offsets, infinities."""
    g = generator(seed)
    kinds = ("plain", "tied", "clusters", "offset", "infinite", "denormal", "constant", "largest")
    for number in range(batches):
        n = lengths[number % len(lengths)]
        kind = kinds[int(torch.randint(len(kinds), (), generator=g))]
        names = list(DISTRIBUTIONS)
        make = DISTRIBUTIONS[names[int(torch.randint(len(names), (), generator=g))]]
        scores = torch.stack([make(n, g) for _ in range(rows)]).clamp(-1e30, 1e30)
        scale = scores.abs().median().clamp(min=1e-3)
        exponent = torch.rand(rows, generator=g, dtype=torch.float64) * 14 - 10
        t = scale * 10**exponent
        if kind == "tied":
            scores = (scores / scale * 2).round() * scale
        elif kind == "clusters":
            far = torch.randint(-2, 3, scores.shape, generator=g)
            scores = scores * 1e-6 + far * scale
        elif kind == "offset":
            scores = scores + 1e10 * t[:, None]
        elif kind == "infinite":
            at = torch.rand(scores.shape, generator=g)
            scores = scores.masked_fill(at < 0.1, -inf).masked_fill(at > 0.9, inf)
        elif kind == "denormal":
            scores, t = scores * 1e-39, t * 1e-37
        elif kind == "constant":
            scores = scores[:, :1].expand(rows, n).contiguous()
        elif kind == "largest":
            scores = scores.sign() * torch.finfo(dtype).max * (0.99 - scores.abs().clamp(max=1) / 2)
            t = 10 ** (exponent - 8) * torch.finfo(dtype).max  # b itself must be no larger
        t[number % rows] = 0.0
        yield Rows(scores.to(dtype), t.clamp(max=torch.finfo(dtype).max / 300), f"{kind}, n={n}")


def distances(left: Tensor, right: Tensor, t: Tensor, tiny: float) -> Tensor:
    """(left_i - right_j) / t of batches of rows, [rows, left, right], in float64."""
    left, right = left.double()[:, :, None], right.double()[:, None]
    t = t[:, None, None]
    u = (left / 2 - right / 2) / torch.where(t < tiny, 1.0, t) * 2
    u = torch.where(t < tiny, torch.where(left > right, inf, -inf).double(), u)
    return torch.where(left == right, 0.0, u)


def ranks(rows: Rows) -> Tensor:
    """The definition, for every row at once."""
    scores, t, _ = rows
    return 0.5 + laplace_cdf(distances(scores, scores, t, torch.finfo(scores.dtype).tiny)).sum(-1)


def masses(b: Tensor, rows: Rows) -> Tensor:
    """The mass at every b."""
    scores, t, _ = rows
    return laplace_cdf(distances(b, scores, t, torch.finfo(scores.dtype).tiny)).sum(-1)


def assert_masses(b: Tensor, wanted: Tensor, rows: Rows) -> None:
    """b has the wanted mass, or one ulp to either side of it has more and less."""
    n, dtype = rows.scores.shape[-1], rows.scores.dtype
    wanted, slack = wanted.double(), TOLERANCE[dtype] * n
    below = torch.nextafter(b, torch.tensor(-inf, dtype=dtype))
    above = torch.nextafter(b, torch.tensor(inf, dtype=dtype))
    is_reached = masses(above, rows) >= wanted - slack
    is_not_passed = masses(below, rows) <= wanted + slack
    is_infinite = b.isinf()  # where there are infinite scores, with half of their own mass
    bad = ~(is_reached & is_not_passed) & ~is_infinite
    assert not bad.any(), f"{rows.what}: {bad.nonzero()[0].tolist()}"
    minus, plus = ((rows.scores == x).sum(-1, keepdim=True) for x in (-inf, inf))
    assert torch.equal(b == -inf, (wanted <= minus).expand(b.shape) & (minus > 0)), rows.what
    assert torch.equal(b == inf, (wanted >= n - plus).expand(b.shape) & (plus > 0)), rows.what


def permutations(rows: Rows) -> Tensor:
    """P of every row, [rows, score, place], in float64: thresholds by halving, all at once.

    A threshold lies between two sorted scores, and is looked for by its distance from the nearer
    one, so that no digits are lost however far apart the scores are. The mass at it is the number
    of scores below, less a tail of those, and a tail of those above. Infinite scores, and finite
    ones at temperature 0, have even shares of their places.
    """
    n, tiny = rows.scores.shape[-1], torch.finfo(rows.scores.dtype).tiny
    scores, order = rows.scores.double().sort(-1)
    u = distances(scores, scores, rows.temperature, tiny)
    wanted = torch.arange(1, n)
    shares = _even_shares(scores)
    if n < 2:
        return shares.diff(dim=-1)
    lowest, highest = ((scores == x).sum(-1, keepdim=True) for x in (-inf, inf))
    at_scores = torch.where(scores.isfinite(), laplace_cdf(u).sum(-1), scores)
    below = (at_scores[:, None] <= wanted[:, None]).sum(-1)  # [rows, n - 1]
    # The scores next to each threshold; there is none on a side where all are infinite.
    lower, upper = (below - 1).clamp(min=0), below.clamp(max=n - 1)
    no_lower, no_upper = below <= lowest, below >= n - highest
    from_lower, from_upper = (u.gather(1, x[..., None].expand(-1, -1, n)) for x in (lower, upper))
    is_below = torch.arange(n) < below[..., None]
    tail_below = torch.where(is_below, torch.exp(-from_lower.abs()), 0.0).sum(-1) / 2
    tail_above = torch.where(is_below, 0.0, torch.exp(-from_upper.abs())).sum(-1) / 2
    tail_below = tail_below.masked_fill(no_lower, 0.0)
    tail_above = tail_above.masked_fill(no_upper, 0.0)
    gap = from_upper.gather(-1, lower[..., None])[..., 0].masked_fill(no_lower | no_upper, inf)

    def excess(near: Tensor, is_lower: Tensor) -> Tensor:
        """The mass over what is wanted, at a distance from the lower or from the upper score."""
        to_lower, to_upper = (torch.where(x, near, gap - near) for x in (is_lower, ~is_lower))
        tails = tail_above * torch.exp(-to_upper) - tail_below * torch.exp(-to_lower)
        return below - wanted + tails

    is_lower = no_upper | (~no_lower & (excess(gap / 2, ~no_upper) >= 0))
    # Beyond 800 temperatures a tail is 0.
    least, most = torch.zeros_like(gap), (gap / 2).clamp(max=800.0)
    for _ in range(64):
        middle = (least + most) / 2
        is_further = (excess(middle, is_lower) < 0) == is_lower
        least, most = torch.where(is_further, middle, least), torch.where(is_further, most, middle)
    away = torch.where(is_lower, most, -most)[..., None]
    reached = laplace_cdf(torch.where(is_lower[..., None], from_lower, from_upper) + away)
    is_soft = scores.isfinite() & (rows.temperature >= tiny)[:, None]
    is_between = (wanted > lowest) & (wanted < n - highest)
    inner = torch.where(is_soft[..., None] & is_between[:, None], reached.mT, shares[..., 1:-1])
    P = torch.cat((shares[..., :1], inner, shares[..., -1:]), -1).diff(dim=-1)
    return torch.empty_like(P).scatter(1, order[..., None].expand_as(P), P)


def _even_shares(scores: Tensor) -> Tensor:
    """How much of each score lies in the first places, 0 to n of them, where ties share evenly."""
    same = scores[:, :, None] == scores[:, None]
    first = (scores[:, None] < scores[:, :, None]).sum(-1, keepdim=True)
    places = torch.arange(scores.shape[-1] + 1, dtype=torch.float64)
    return ((places - first) / same.sum(-1, keepdim=True)).clamp(0, 1)

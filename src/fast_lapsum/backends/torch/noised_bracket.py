"""The paper's Algorithm 1: bracket b by a kernel-noised sample, sort only the scores inside.

LapSum(b) = n Pr(Y >= b) for Y = r_I + Laplace(0, t), so b is the (n - k)/n quantile of Y, and two
order statistics of a small sample of Y bracket it. One pass sums up the scores outside the bracket
and gathers the band M inside, which the full-sort solver's scan then solves exactly.

Two things are done differently from the paper's text, with the same result in exact arithmetic.
Each tail sum is relative to the tail's score nearest to the bracket instead of to the bracket's
end, because a sum relative to an end that is thousands of temperatures away underflows. And an
order statistic that does not exist (j < 1 or l > K) is replaced by that end of the a-priori
bracket, not by the sample's extreme, which would miss b far more often than z promises.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .closed_form import prior_bracket, surplus_mass
from .sort_scan import Tail, solve_band

SampleSize = Literal["two_thirds", "sqrt"]
Sampler = Literal["systematic", "iid"]


class BracketOptions(NamedTuple):
    """The choices of Algorithm 1; see :func:`solve`."""

    z: float = 5.16
    sample_size: SampleSize = "two_thirds"
    sampler: Sampler = "systematic"
    validated: bool = True
    max_widenings: int = 4


PAPER_OPTIONS = BracketOptions()


class BracketRecord(NamedTuple):
    """What happened in one row.

    Attributes:
        left: a_L of the bracket that was used in the end.
        right: a_R of it.
        covered: whether the certificate held for the sampled bracket; None if not validated.
        widenings: how often one side was doubled.
        fell_back: whether the a-priori bracket had to be used.
        band_size: number of scores in the bracket, which are those that were sorted.
    """

    left: float
    right: float
    covered: bool | None
    widenings: int
    fell_back: bool
    band_size: int


def solve(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    *,
    z: float = PAPER_OPTIONS.z,
    sample_size: SampleSize = PAPER_OPTIONS.sample_size,
    sampler: Sampler = PAPER_OPTIONS.sampler,
    validated: bool = PAPER_OPTIONS.validated,
    max_widenings: int = PAPER_OPTIONS.max_widenings,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of clean rows, in expected linear time.

    Rows are solved one by one, and each waits for the device several times: the band has a size
    that only the data know, and the certificate decides about another attempt.

    Args:
        scores: [rows, n].
        budget: [rows].
        temperature: [rows].
        z: half-width of the bracket in standard deviations of the binomial count.
        sample_size: K = ceil(n^(2/3)), or ceil(2 sqrt(n)) for a smaller sample and a wider band.
        sampler: every (n // K)-th score from a random offset on, or K draws with replacement. The
            former has no guarantee: scores that repeat with the stride defeat it.
        validated: check the certificate LapSum(a_R) <= k <= LapSum(a_L). Without it the result is
            silently wrong whenever the bracket misses b.
        max_widenings: doublings of the missed side before the a-priori bracket is used.
        generator: source of the sample; a fresh one with a fixed seed if None.
    """
    options = BracketOptions(z, sample_size, sampler, validated, max_widenings)
    return solve_recorded(scores, budget, temperature, options, generator)[:2]


def solve_recorded(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    options: BracketOptions = PAPER_OPTIONS,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, list[BracketRecord]]:
    """Like :func:`solve`, and one record per row of how its bracket fared."""
    if generator is None:
        generator = torch.Generator(scores.device).manual_seed(0)
    hi, lo = torch.empty_like(budget), torch.empty_like(budget)
    records = []
    for row in range(scores.shape[0]):
        included = scores[row][scores[row] > -math.inf][None]
        here = slice(row, row + 1)
        hi[here], lo[here], record = _solve_row(
            included, budget[here], temperature[here], options, generator
        )
        records.append(record)
    return hi, lo, records


def _solve_row(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    options: BracketOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, BracketRecord]:
    """Algorithm 1 on one row of finite scores, [1, n]; budget and temperature are [1]."""
    prior = _prior_ends(scores, budget, temperature)
    left, right = _sampled_bracket(scores, budget, temperature, prior, options, generator)
    covered: bool | None = None
    widenings, fell_back = 0, False
    if options.validated:
        side = missed_side(scores, left, right, budget, temperature)
        covered = side == 0
        while side != 0 and widenings < options.max_widenings:
            left, right = _widened(left, right, side, temperature)
            widenings += 1
            side = missed_side(scores, left, right, budget, temperature)
        fell_back = side != 0
        left, right = prior if fell_back else (left, right)

    in_above = scores >= right[:, None]
    in_below = ~in_above & (scores < left[:, None])  # no score in both, should the ends be crossed
    band = scores[~(in_above | in_below)].sort(descending=True).values[None]
    nearest_above = torch.where(in_above, scores, math.inf).amin(-1)
    nearest_below = torch.where(in_below, scores, -math.inf).amax(-1)
    hi, lo = solve_band(
        band,
        torch.ones_like(band),
        _tail(scores, in_above, nearest_above, scores.amax(-1), temperature),
        _tail(scores, in_below, nearest_below, scores.amin(-1), temperature),
        budget,
        temperature,
    )
    record = BracketRecord(float(left), float(right), covered, widenings, fell_back, band.shape[-1])
    return hi, lo, record


def _prior_ends(scores: Tensor, budget: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """[r_min, r_max], extended by the a-priori bound: it holds b, and every score is inside."""
    lowest, highest, shift = prior_bracket(scores, budget, temperature)
    # The band is open on the right, so its end must be above the highest score.
    right = torch.nextafter(highest + shift.clamp(min=0), torch.full_like(shift, math.inf))
    return lowest + shift.clamp(max=0), right


def _sampled_bracket(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    prior: tuple[Tensor, Tensor],
    options: BracketOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Two order statistics of the noised sample (the paper's eq. binom-bracket), [1] each."""
    count = scores.shape[-1]
    drawn = _draw(scores[0], options, generator)
    # The difference of two exponential variables has the Laplace distribution.
    noise = torch.empty_like(drawn).exponential_(generator=generator)
    noise -= torch.empty_like(drawn).exponential_(generator=generator)
    noised = (drawn + temperature * noise).sort().values

    size = noised.shape[0]
    share_above, share_below = float(budget) / count, (count - float(budget)) / count
    margin = options.z * math.sqrt(size * share_above * share_below)
    # Ranks counted from the top: a budget near 0 would vanish against n in K q.
    left_rank = size - math.ceil(size * share_above + margin)
    right_rank = max(size - math.floor(size * share_above - margin), 1)
    left = noised[left_rank - 1 : left_rank] if left_rank >= 1 else prior[0]
    right = noised[right_rank - 1 : right_rank] if right_rank <= size else prior[1]
    return left, right


def _draw(scores: Tensor, options: BracketOptions, generator: torch.Generator) -> Tensor:
    count = scores.shape[0]
    two_thirds = options.sample_size == "two_thirds"
    size = min(count, math.ceil(count ** (2 / 3) if two_thirds else 2 * math.sqrt(count)))
    if options.sampler == "iid":
        drawn = torch.randint(count, (size,), generator=generator, device=scores.device)
        return scores[drawn]
    # Every score has the same chance: the stride runs to the end even if that is one over K.
    stride = count // size
    offset = int(torch.randint(stride, (), generator=generator, device=scores.device))
    return scores[offset::stride]


def missed_side(
    scores: Tensor, left: Tensor, right: Tensor, budget: Tensor, temperature: Tensor
) -> int:
    """0 if the certificate LapSum(a_R) <= k <= LapSum(a_L) holds, 1 if b > a_R, -1 if b < a_L."""
    zero = torch.zeros_like(left)
    # An end that overflowed to NaN certifies nothing.
    if not bool(surplus_mass(scores, left, zero, budget, temperature) >= 0):
        return -1
    return int(not bool(surplus_mass(scores, right, zero, budget, temperature) <= 0))


def _widened(left: Tensor, right: Tensor, side: int, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """One-sided doubling: the next bracket begins where this one ends and is twice as wide."""
    width = 2 * torch.maximum(right - left, temperature)  # ties can leave no width to double
    return (right, right + width) if side > 0 else (left - width, left)


def _tail(
    scores: Tensor, member: Tensor, nearest: Tensor, if_empty: Tensor, temperature: Tensor
) -> Tail:
    """Count and tail sum of the scores on one side of the bracket (the paper's eq. tails-main)."""
    score = torch.where(nearest.isfinite(), nearest, if_empty)
    decay = torch.exp(-(scores - score[:, None]).abs() / temperature[:, None])
    decayed_sum = torch.where(member, decay, 0.0).sum(-1)
    return Tail(score, decayed_sum, member.sum(-1).to(scores.dtype))

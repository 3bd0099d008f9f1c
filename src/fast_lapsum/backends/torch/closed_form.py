"""The closed forms that the solvers share: Laplace CDF, budget curve, prior bracket, interval root.

All functions work on rows: scores are [rows, n], everything else is [rows] unless it says
otherwise. A score of -inf is excluded and contributes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def laplace_cdf(u: Tensor) -> Tensor:
    """sigma(u) = e^u / 2 for u <= 0 and 1 - e^-u / 2 for u > 0, element by element."""
    half = torch.exp(-u.abs()) / 2
    return torch.where(u > 0, 1 - half, half)


def surplus_mass(
    scores: Tensor, hi: Tensor, lo: Tensor, budget: Tensor, temperature: Tensor
) -> Tensor:
    """Height of the budget curve over the budget, LapSum(b) - k, at the threshold b = hi + lo.

    The budget is taken off the integer count of scores above b before the exponentials are
    added, so a budget close to 0 or to the number of scores keeps its small digits.
    """
    u = ((scores - hi[:, None]) - lo[:, None]) / temperature[:, None]
    above = u > 0
    half = torch.exp(-u.abs()) / 2
    return (above.sum(-1) - budget) + torch.where(above, -half, half).sum(-1)


def prior_bracket(
    scores: Tensor, budget: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lowest score, highest score and shift: b lies in [lowest + shift, highest + shift].

    If all n scores were equal to r, the threshold would be r - t sigma^-1(k/n). It grows with
    every score, so the lowest and the highest score bound it.
    """
    included = scores > -math.inf
    count = included.sum(-1)
    lowest = torch.where(included, scores, math.inf).amin(-1)
    # Both tails are taken from their own small number, because 1 - k/n would round it away.
    below_half = torch.log(2 * budget / count)
    above_half = -torch.log(2 * (count - budget) / count)
    quantile = torch.where(2 * budget <= count, below_half, above_half)
    return lowest, scores.amax(-1), -temperature * quantile


def interval_root(
    upper_sum: Tensor,
    lower_sum: Tensor,
    excess: Tensor,
    temperature: Tensor,
    upper_score: Tensor,
    lower_score: Tensor,
) -> tuple[Tensor, Tensor]:
    """The threshold pair (hi, lo) between two neighbouring scores of a row.

    With d = upper_score - b the budget equation of the interval is

        excess - upper_sum e^{-d/t} / 2 + lower_sum e^{-(gap - d)/t} / 2 = 0,

    a quadratic in e^{d/t}. ``excess`` is the number of scores above less the budget, and each
    sum is relative to its own end of the interval, sum_{r >= upper_score} e^{(upper_score - r)/t}
    and sum_{r <= lower_score} e^{(r - lower_score)/t}, so that neither can underflow. An open end,
    with no score on that side, has the sum 0 and any score on that side, also an infinite one.
    """
    half_gap = upper_score / 2 - lower_score / 2  # the gap itself may be over the largest float
    # Half the exponent under the root, and hypot: neither square may underflow on its own.
    coupling = torch.sqrt(upper_sum * lower_sum) * torch.exp(-half_gap / temperature)
    root = torch.hypot(excess, coupling)
    # b is measured from the end whose formula does not cancel; an open end is never that end.
    from_upper = -temperature * _log_quotient(upper_sum, root + excess)
    from_lower = temperature * _log_quotient(lower_sum, root - excess)
    # Without excess both exponentials are equal, however small: the gap is halved in logarithms,
    # from the end that b is nearer to, as half a gap and more may be over the largest float.
    off_middle = temperature * torch.log(upper_sum / lower_sum) / 2
    from_lower = torch.where(excess < 0, from_lower, half_gap - off_middle)
    from_upper = torch.where(excess > 0, from_upper, -half_gap - off_middle)
    is_lower = (excess < 0) | ((excess == 0) & (off_middle > 0))
    hi = torch.where(is_lower, lower_score, upper_score)
    lo = torch.where(is_lower, from_lower, from_upper)
    return hi, lo


def _log_quotient(total: Tensor, share: Tensor) -> Tensor:
    """log(total / share): a denormal share, as that of a budget of 5e-324, makes it overflow."""
    quotient = total / share
    return torch.where(quotient.isinf(), total.log() - share.log(), quotient.log())


def root_between(
    scores: Tensor, budget: Tensor, temperature: Tensor, lower_end: Tensor, upper_end: Tensor
) -> tuple[Tensor, Tensor]:
    """The threshold pair (hi, lo) between two neighbouring scores, from one pass over the scores.

    The tail sums are taken relative to those two. An end beyond the outermost score is infinite.
    """
    is_above = scores >= upper_end[:, None]
    t = temperature[:, None]
    # A row without a score on one side has an infinite end there: its sum is over nothing.
    upper = torch.exp((upper_end[:, None] - scores) / t).masked_fill(~is_above, 0)
    lower = torch.exp((scores - lower_end[:, None]) / t).masked_fill(is_above, 0)
    return interval_root(
        upper.nan_to_num(nan=0.0).sum(-1),
        lower.nan_to_num(nan=0.0).sum(-1),
        is_above.sum(-1) - budget,
        temperature,
        upper_end,
        lower_end,
    )

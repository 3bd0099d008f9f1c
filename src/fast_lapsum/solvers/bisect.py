"""The paper's baseline: 60 bisection steps, each of which sums all n terms again."""

from __future__ import annotations

import torch
from torch import Tensor

from .closed_form import prior_bracket, surplus_mass

STEPS = 60


def solve(scores: Tensor, budget: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of clean rows, by bisection of the a-priori bracket.

    The bracket [r_min, r_max] - t sigma^-1(k/n) is 2^-60 of its width after the last step, and
    that is the precision of b: (r_max - r_min) 2^-61, plus rounding of a few units in the last
    place of t. One far outlier therefore costs digits that the other solvers keep. No host sync.
    """
    lowest, highest, shift = prior_bracket(scores, budget, temperature)
    # The left end is a pair and the width only ever halves, so the bracket never loses the root
    # to rounding, however small t is against the scores.
    hi, lo = _two_sum(lowest, shift)
    width = highest - lowest
    for _ in range(STEPS):
        width = width / 2
        middle_hi, rounding = _two_sum(hi, width)
        middle_lo = lo + rounding
        right_of_middle = surplus_mass(scores, middle_hi, middle_lo, budget, temperature) > 0
        hi = torch.where(right_of_middle, middle_hi, hi)
        lo = torch.where(right_of_middle, middle_lo, lo)
    return hi, lo + width / 2


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as its rounded sum and the exact rounding error (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)

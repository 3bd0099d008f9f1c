"""The paper's baseline: bisection, every step of which sums all n terms again.

Half of a bracket is here half of the floats in it, not half of its width. However far one score is
from the others and however small t is, the bracket then ends as two neighbouring floats, between
which there is no score: the closed form of that interval is the answer, without a resolution of
its own. Halvings of the width stop at a part of the spread, which can be many temperatures.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .closed_form import root_between, surplus_mass
from .float_order import middle_float


def solve(scores: Tensor, budget: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Threshold pair (hi, lo) of clean rows: one full sum per bit of a float, and a closing one.

    The bracket is the whole line of floats. The paper's a-priori bracket would save steps only if
    the host waited for its width, and its ends would need room for their rounding. No host sync.
    """
    left, right = (torch.full_like(budget, end) for end in (-math.inf, math.inf))
    on_the_float = torch.zeros_like(budget)
    for _ in range(torch.finfo(scores.dtype).bits):
        middle = middle_float(left, right)
        surplus = surplus_mass(scores, middle, on_the_float, budget, temperature)
        left = torch.where(surplus > 0, middle, left)
        right = torch.where(surplus > 0, right, middle)
    nearest_below = scores.masked_fill(scores > left[:, None], -math.inf).amax(-1)
    nearest_above = scores.masked_fill(scores < right[:, None], math.inf).amin(-1)
    return root_between(scores, budget, temperature, nearest_below, nearest_above)

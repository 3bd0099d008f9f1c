"""One trial of a sampler: does its first bracket hold the threshold, and what comes of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk
from fast_lapsum.backends.cpu import entry, inspection
from fast_lapsum.backends.torch import noised_bracket
from fast_lapsum.backends.torch.closed_form import laplace_cdf
from fast_lapsum.backends.triton import loader

from ..experiment import Unavailable

#: The paper's Algorithm 1 as in tab:robustness: z = 5.16, K = ceil(n^(2/3)), strided, trusted.
UNVALIDATED = noised_bracket.PAPER_OPTIONS._replace(validated=False)


class Trial(NamedTuple):
    """How one row fared."""

    #: Whether the true threshold lies in the first bracket.
    is_covered: bool
    #: Whether the fast way has to be left.
    falls_back: bool
    #: |sum p - k| / k, added up in float64.
    budget_error: float


def paper_trial(
    scores: Tensor, k: float, temperature: float, true: float, generator: torch.Generator
) -> Trial:
    """Algorithm 1 on scores [n], in float64; its bracket is [a_L, a_R)."""
    rows = scores.double()[None]
    budget, t = rows.new_tensor([k]), rows.new_tensor([temperature])
    hi, lo, (record,) = noised_bracket.solve_recorded(rows, budget, t, UNVALIDATED, generator)
    left, right = rows.new_tensor([record.left]), rows.new_tensor([record.right])
    side = noised_bracket.missed_side(rows, left, right, budget, t)
    mask = laplace_cdf(((rows - hi) - lo) / t).to(scores.dtype)
    return Trial(record.left <= true < record.right, side != 0, _budget_error(mask, k))


def our_trial(scores: Tensor, k: float, temperature: float, true: float) -> Trial:
    """The sampler of the kernel that a call on this device takes."""
    if scores.is_cuda:
        if loader.entry() is None:
            raise Unavailable(f"no kernel, no sampler: {loader.description()}")
        from fast_lapsum.backends.triton import inspection as of_gpu

        bands = of_gpu.sample_bands(scores[None], k, temperature)
        lower, upper = float(bands.lower), float(bands.upper)
        held = bool(bands.is_settled)
    else:
        if not entry.supports(scores):
            raise Unavailable("no C++ kernel, no sampler: plain torch reads the whole row")
        band, has_held = inspection.sample_bands(scores[None], k, temperature)
        lower, upper = band[0].tolist()
        held = bool(has_held)
    mask = soft_topk(scores, k, temperature)
    return Trial(lower <= true <= upper, not held, _budget_error(mask, k))


def _budget_error(mask: Tensor, k: float) -> float:
    return abs(float(mask.sum(dtype=torch.float64)) - k) / k

"""The official LapSum release, in both of its forms: a full sort, then the closed form.

L. Struski, M. B. Bednarczyk, I. Podolak, J. Tabor, "LapSum - One Method to Differentiate Them All:
Ranking, Sorting and Top-k Selection", ICML 2025. The same operator as this package's,

    p_i = sigma((s_i - b) / t),  sum_i p_i = k      (sigma: the Laplace CDF).

With the scores sorted, r_0 >= r_1 >= ..., the budget curve at a score is

    LapSum(r_i) = i + 1/2 + (B_i - A_i) / 2,
    A_i = sum_{j <= i} e^{-(r_j - r_i)/t},     B_i = sum_{j >= i} e^{-(r_i - r_j)/t}.

It grows with i; between the two scores where it passes k, the equation for b is a quadratic in
e^{b/t}. Both forms keep log A and log B, since the sums themselves overflow:

- serial: row by row, one search for the interval that looks at log2(n) points of the curve. In
  float64.
- vectorised: the whole curve of all rows by ``logcumsumexp``, the interval by ``searchsorted``. In
  the dtype of the scores, so in float32 the logarithms cost digits where the spread is many t.

Any k in [0, n]; the budget is exact up to this rounding; the gradient is the closed form, with
slopes e^-|u| / 2. Memory O(n).
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor

from fast_lapsum.backends.torch.closed_form import interval_root, laplace_cdf

from . import implicit
from .protocol import Peer, check_budget


def lapsum_serial(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], one row after the other.

    >>> lapsum_serial(torch.tensor([[0.0, 2.0]]), 1, 1.0)
    tensor([[0.1839, 0.8161]])
    """
    check_budget(k, scores.shape[-1])
    with torch.no_grad():
        u = torch.cat(
            [_search_row(row[None], float(k), temperature) for row in scores.detach().double()]
        )
    return _mask(scores, u, temperature)


def lapsum_vectorised(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], all rows at once.

    >>> lapsum_vectorised(torch.tensor([[0.0, 2.0]]), 1, 1.0)
    tensor([[0.1839, 0.8161]])
    """
    n = scores.shape[-1]
    check_budget(k, n)
    with torch.no_grad():
        ordered, log_above, log_below = _sorted_sums(scores.detach(), temperature)
        index = torch.arange(n, device=scores.device, dtype=scores.dtype)
        curve = index + 0.5 + (torch.exp(log_below) - torch.exp(log_above)) / 2
        wanted = curve.new_full((curve.shape[0], 1), k)
        count_above = torch.searchsorted(curve, wanted, right=True)
        hi, lo = _root(ordered, log_above, log_below, count_above, k, temperature)
        u = ((scores.detach() - hi) - lo) / temperature
    return _mask(scores, u, temperature)


def _mask(scores: Tensor, u: Tensor, temperature: float) -> Tensor:
    return implicit.with_gradient(scores, laplace_cdf(u), torch.exp(-u.abs()) / 2, temperature)


def _search_row(row: Tensor, k: float, temperature: float) -> Tensor:
    """u = (s - b) / t of one row [1, n]."""
    ordered, log_above, log_below = _sorted_sums(row, temperature)

    def curve(i: int) -> float:
        return i + 0.5 + float(torch.exp(log_below[0, i]) - torch.exp(log_above[0, i])) / 2

    count_above = torch.tensor([[bisect_right(range(row.shape[-1]), k, key=curve)]])
    hi, lo = _root(ordered, log_above, log_below, count_above.to(row.device), k, temperature)
    return ((row - hi) - lo) / temperature


def _sorted_sums(scores: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """The scores in descending order, log A and log B, each [B, n]."""
    ordered = scores.sort(-1, descending=True).values
    middle = ordered[:, ordered.shape[-1] // 2, None]
    x = (ordered - middle) / temperature
    log_above = torch.logcumsumexp(-x, -1) + x
    log_below = torch.logcumsumexp(x.flip(-1), -1).flip(-1) - x
    return ordered, log_above, log_below


def _root(
    ordered: Tensor,
    log_above: Tensor,
    log_below: Tensor,
    count_above: Tensor,
    k: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """b = hi + lo, each [B, 1], between scores number ``count_above`` - 1 and ``count_above``."""
    n = ordered.shape[-1]
    upper, lower = (count_above - 1).clamp(min=0), count_above.clamp(max=n - 1)
    above = torch.exp(log_above.gather(-1, upper)).masked_fill(count_above == 0, 0)
    below = torch.exp(log_below.gather(-1, lower)).masked_fill(count_above == n, 0)
    return interval_root(
        above,
        below,
        count_above.to(ordered.dtype) - k,
        torch.full_like(above, temperature),
        ordered.gather(-1, upper),
        ordered.gather(-1, lower),
    )


_PAPER = (
    "Struski, Bednarczyk, Podolak, Tabor 2025, LapSum - One Method to Differentiate Them All: "
    "Ranking, Sorting and Top-k Selection, ICML"
)

PEERS = (
    Peer(
        name="Official LapSum (serial)",
        paper=_PAPER,
        function=lapsum_serial,
        exact_budget=True,
        memory="O(n)",
        temperature="The same t.",
    ),
    Peer(
        name="Official LapSum (vectorised)",
        paper=_PAPER,
        function=lapsum_vectorised,
        exact_budget=True,
        memory="O(n)",
        temperature="The same t.",
    ),
)

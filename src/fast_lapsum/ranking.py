"""Soft ranks, sorts, quantiles and permutations: exact, differentiable, O(n log n).

F is the Laplace CDF. The ranks count scores by F, and b(m) is the number below which scores of the
mass m lie: sum_i F((b - r_i) / t) = m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _ranking_call, _ranking_traced
from ._derivatives import is_traced
from ._permutation import SoftPermutation
from ._ranking_call import Number
from .backends.common import compute_dtype, row_dtype

__all__ = [
    "SoftPermutation",
    "soft_argsort",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "spearman",
]


def soft_rank(
    scores: Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Differentiable ranks, 1 for the smallest score.

    .. math:: R_i = \tfrac12 + \sum_j F((r_i - r_j) / t)

    They add up to n (n + 1) / 2, whatever the temperature. Tied scores have equal ranks, and at
    temperature 0 these are the average ranks of statistics.

    Args:
        scores: r, a float16, bfloat16, float32 or float64 tensor of any shape and strides. Scores
            of -inf and +inf come first and last, with gradient 0; a NaN makes its row NaN.
        temperature: t >= 0, a number, or a tensor that broadcasts to the shape of ``scores``
            without ``dim``, which receives a gradient. Large is soft; 0 is the hard limit.
        dim: the dimension to rank along.
        descending: 1 for the largest score.
        mask: boolean, broadcasts to ``scores``; False leaves a score out. Its rank is NaN, and its
            gradient 0.

    Returns:
        The ranks, in the shape of ``scores``: float64 for float64 scores, else float32.

    Example:
        >>> scores = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
        >>> ranks = soft_rank(scores, temperature=0.1)
        >>> ranks
        tensor([3.0000, 1.0000, 2.0000], grad_fn=<SoftRankBackward>)
        >>> soft_rank(scores.detach(), temperature=1.0)
        tensor([2.7484, 1.2516, 2.0000])
        >>> soft_rank(torch.tensor([5.0, 7.0, 5.0]), temperature=0)
        tensor([1.5000, 3.0000, 1.5000])
    """
    call = _ranking_traced.soft_rank if is_traced() else _ranking_call.soft_rank
    return call(scores, temperature, dim, descending, mask)


def soft_sort(
    scores: Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
) -> Tensor:
    r"""Differentiable sorted scores: the quantiles b(1/2), b(3/2), ..., b(n - 1/2).

    .. math:: \sum_i F((b_j - r_i) / t) = j - \tfrac12

    They grow with every score, and with all scores by as much. At temperature 0 they are the sorted
    scores, with the gradient of the limit: that of ``torch.sort``, shared evenly by tied scores.
    Their sum is not that of the scores; :func:`soft_argsort` has a permutation that keeps it.

    Args:
        scores: as in :func:`soft_rank`.
        temperature: as in :func:`soft_rank`.
        dim: the dimension to sort along.
        descending: the largest first.

    Returns:
        In the shape of ``scores``: float64 for float64 scores, else float32.

    Example:
        >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=0.1)
        tensor([1.0000, 2.0000, 3.0000])
        >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=1.0)
        tensor([0.5924, 2.0000, 3.4076])
    """
    call = _ranking_traced.soft_sort if is_traced() else _ranking_call.soft_sort
    return call(scores, temperature, dim, descending)


def soft_quantile(
    scores: Tensor,
    q: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
) -> Tensor:
    r"""Differentiable quantiles: b with :math:`\sum_i F((b - r_i) / t) = q n`.

    At temperature 0 it is the order statistic whose place holds q n, and the middle of two of them
    where q n is a whole number; ``torch.quantile`` interpolates between places instead. q = i / n
    is rounded, so q n counts as a whole number where it is one within an ulp of q: in float64 for a
    number, and in its own dtype for a tensor. Where that many scores are -inf and all others +inf,
    every number has the mass, and the quantile is 0, with gradient 0.

    Args:
        scores: as in :func:`soft_rank`, with at least one score along ``dim``.
        q: 0 < q < 1, a number or a 1-D tensor, and q n a normal number: at 0 and 1 b would be
            infinite. Values of a tensor are looked at on a CPU; on a GPU what is no quantile gives
            NaN.
        temperature: as in :func:`soft_rank`.
        dim: the dimension that the quantiles are taken along.

    Returns:
        In the shape of ``scores`` without ``dim``, and for a tensor ``q`` with its length in front:
        float64 for float64 scores, else float32.

    Example:
        >>> scores = torch.tensor([4.0, 1.0, 3.0, 2.0])
        >>> soft_quantile(scores, 0.5, temperature=0.1)
        tensor(2.5000)
        >>> soft_quantile(scores, torch.tensor([0.25, 0.4]), temperature=0)
        tensor([1.5000, 2.0000])
    """
    call = _ranking_traced.soft_quantile if is_traced() else _ranking_call.soft_quantile
    return call(scores, q, temperature, dim)


def soft_argsort(
    scores: Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
) -> SoftPermutation:
    r"""The soft permutation that sorts, as an operator that is never built as a matrix.

    .. math:: P_{ij} = F((b_j - r_i) / t) - F((b_{j-1} - r_i) / t)

    with b_j = b(j), b_0 = -inf and b_n = +inf: how much of score i comes to place j. All rows and
    columns add up to 1. ``apply(values)`` moves values as the scores are moved, in O(n log n + n d)
    for values of d columns; ``T.apply(values)`` moves them back, and ``dense()`` is P.

    ``apply(scores)`` keeps the sum of the scores. It is not ``soft_sort(scores)``: that has the
    places where the mass of the scores is j - 1/2, this has means of scores.

    Args:
        scores: as in :func:`soft_rank`.
        temperature: as in :func:`soft_rank`. At 0 tied scores share their places evenly.
        dim: the dimension to sort along.
        descending: the largest first.

    Example:
        >>> permutation = soft_argsort(torch.tensor([3.0, 1.0, 2.0]), temperature=0.1)
        >>> permutation.apply(torch.tensor([30.0, 10.0, 20.0]))
        tensor([10.0337, 20.0000, 29.9663])
        >>> permutation.dense().sum(0)
        tensor([1., 1., 1.])
    """
    return SoftPermutation(scores, temperature, dim=dim, descending=descending)


def spearman(
    prediction: Tensor,
    target: Tensor,
    temperature: Number | Tensor,
    *,
    dim: int = -1,
) -> Tensor:
    """Spearman's rank correlation of soft ranks of predictions with the ranks of targets.

    The targets have hard ranks, tied ones their average, and no gradient. At temperature 0 it is
    the correlation of statistics. It is NaN where all ranks of a row are equal, or a score is NaN.
    At high temperatures ranks differ little from their mean, by about (r_i - mean) n / 2t. So they
    are computed of float64 copies of all scores, which takes the memory and the time of float64
    scores, and has seven digits up to a temperature of some 1e8 times the spread of the scores.
    From some 1e15 times on, and 1e16 / n in long rows, ranks differ by no more than rounding, and
    count as equal.

    Args:
        prediction: scores, as in :func:`soft_rank`.
        target: scores of the same shape, on the same device, or whole numbers, such as grades or
            ranks, which are exact up to 2**53.
        temperature: as in :func:`soft_rank`, for the predictions.
        dim: the dimension to correlate along.

    Returns:
        In the shape of ``prediction`` without ``dim``: float64 for float64 scores, else float32.

    Example:
        >>> prediction = torch.tensor([0.1, 0.7, 0.5])
        >>> spearman(prediction, torch.tensor([1.0, 2.0, 3.0]), temperature=0.01)
        tensor(0.5000)
    """
    found, has_order = correlation(prediction, target, temperature, dim)
    return found.masked_fill(~has_order, torch.nan)


def correlation(
    prediction: Tensor, target: Tensor, temperature: Number | Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """What ``spearman`` gives, and the rows that have one; the others have no gradient."""
    dim = _ranking_call.check_one_dim(prediction, dim)
    target = given_target(target, prediction)
    n = prediction.shape[dim]
    wide, middle = row_dtype(prediction), (n + 1) / 2  # the mean of all ranks
    soft = soft_rank(prediction.to(wide), temperature, dim=dim) - middle
    hard = soft_rank(target.detach().to(wide), 0.0, dim=dim) - middle
    # Ranks are sums of n exponentials, each by the gap from the one before.
    noise = (4 + n / 4) * n * torch.finfo(wide).eps
    is_flat = _all_within(soft, noise, dim) | _all_within(hard, 0.0, dim)
    # Any order in place of none: the derivatives of 0 / 0 would be NaN.
    ramp = torch.arange(n, device=prediction.device, dtype=wide) - (n - 1) / 2
    ramp = ramp.reshape(-1, *(1,) * (prediction.dim() - dim - 1))
    soft, hard = (torch.where(is_flat.unsqueeze(dim), ramp, one) for one in (soft, hard))
    squares = torch.sqrt((soft**2).sum(dim) * (hard**2).sum(dim))
    found = (soft * hard).sum(dim) / (squares if n > 1 else 1.0)
    return found.to(compute_dtype(prediction.dtype)), ~is_flat


def _all_within(values: Tensor, distance: float, dim: int) -> Tensor:
    """Rows whose values are that close to each other; not those with a NaN."""
    values = values.detach()
    if not values.shape[dim]:
        return torch.ones_like(values.sum(dim), dtype=torch.bool)
    return values.amax(dim) - values.amin(dim) <= distance


def given_target(target: Tensor, prediction: Tensor) -> Tensor:
    """What predictions are to be ordered like: whole numbers in the dtype of row sums."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    if target.shape != prediction.shape:
        raise ValueError(
            f"target must have the shape of prediction, {tuple(prediction.shape)}, "
            f"got shape {tuple(target.shape)}"
        )
    if target.is_complex():
        dtype = str(target.dtype).removeprefix("torch.")
        raise TypeError(f"target must be of real numbers, got {dtype}")
    return target if target.is_floating_point() else target.to(row_dtype(prediction))

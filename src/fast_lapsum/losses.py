"""Losses and measures of what is ranked first, with gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ._arguments import Dim, check_mask, check_number, check_scores, check_whole_number
from ._autograd import is_plain
from ._call import Number
from .functional import log_soft_topk, soft_topk
from .ranking import correlation, soft_rank

__all__ = [
    "TopKCrossEntropyLoss",
    "recall_at_k",
    "soft_ndcg",
    "spearman_loss",
]

Reduction = Literal["mean", "sum", "none"]


class TopKCrossEntropyLoss(torch.nn.Module):
    r"""Cross entropy of the label being among the first K, for a K that is drawn from ``p_k``.

    .. math:: -\log \sum_k P(K = k) \, p^{(k)}_\text{label}

    :math:`p^{(k)}` is the soft mask with budget k: the probability that a class is among the first
    k. All classes take part, however many, and the logarithm is taken without underflow.

    Args:
        p_k: the probabilities of K = 1, 2, ..., which add up to 1. ``[0, 0, 0, 0, 1]`` trains the
            top-5 accuracy, ``[0.5, 0, 0, 0, 0.5]`` both.
        temperature: of the soft masks.
        top1: what stands for K = 1: the ``"softmax"`` of the scores, which makes ``p_k=[1]`` the
            usual cross entropy, or the ``"soft_topk"`` with k = 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: a label of rows that are passed over.

    Shape:
        scores: ``(..., classes)``.
        target: labels, ``(...)`` of whole numbers; or several labels per row, ``(..., classes)``,
            boolean or as weights, of whose losses a row has the mean. A row without labels is
            passed over.

    Example:
        >>> loss = TopKCrossEntropyLoss([0.0, 1.0], temperature=0.1)
        >>> scores = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
        >>> loss(scores, torch.tensor([1, 0]))  # both are among the first two
        tensor(0.0017)
        >>> loss(scores, torch.tensor([[True, True, False], [True, True, False]]))
        tensor(0.0017)
    """

    def __init__(
        self,
        p_k: Sequence[float],
        temperature: Number | Tensor = 1.0,
        *,
        top1: Literal["softmax", "soft_topk"] = "softmax",
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        given: Any = p_k
        is_list = hasattr(given, "__iter__") and not isinstance(given, (str, bytes))
        if not is_list or (isinstance(given, Tensor) and given.dim() != 1):
            raise TypeError(
                f"p_k must be a sequence of the probabilities of K = 1, 2, ..., got p_k={given!r}"
            )
        shares = [float(check_number(f"p_k[{i}]", share)) for i, share in enumerate(p_k)]
        if not shares or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise ValueError(f"p_k must be probabilities that add up to 1, got p_k={shares}")
        if top1 not in ("softmax", "soft_topk"):
            raise ValueError(f"top1 must be 'softmax' or 'soft_topk', got top1={top1!r}")
        self.p_k, self.temperature, self.top1 = shares, _checked_temperature(temperature), top1
        self.reduction, self.ignore_index = _checked_reduction(reduction), ignore_index

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of ``scores`` for ``target``."""
        check_scores(scores, -1)
        if len(self.p_k) > scores.shape[-1]:
            raise ValueError(
                f"p_k must have at most one probability per class, of which there are "
                f"{scores.shape[-1]}, got {len(self.p_k)}"
            )
        _check_tensor("target", target)
        is_label = not target.is_floating_point() and target.dtype != torch.bool
        wanted = scores.shape[:-1] if is_label else scores.shape
        if target.shape != wanted:
            if target.is_floating_point() and target.shape == scores.shape[:-1]:
                dtype = str(target.dtype).removeprefix("torch.")
                raise TypeError(
                    "target must have a dtype of whole numbers for labels, such as int64, or the "
                    f"shape {tuple(scores.shape)} for several labels per row, got {dtype} and "
                    f"shape {tuple(target.shape)}"
                )
            kind = "labels" if is_label else "several labels per row"
            raise ValueError(
                f"target must have the shape {tuple(wanted)} for {kind}, got {tuple(target.shape)}"
            )
        if is_label:
            # As indices have to be; small dtypes have no -100 to compare with.
            target = target.long()
            _check_labels(target, scores.shape[-1], self.ignore_index)
            is_valid = target != self.ignore_index
            places = target.where(is_valid, 0).unsqueeze(-1)
            of_row = -_summed([log.gather(-1, places) for log in self._logs(scores)]).squeeze(-1)
            return _reduced(of_row, is_valid, self.reduction)
        weights = target.to(torch.promote_types(scores.dtype, torch.float32))
        _check_not_negative("target", target, weights)
        total = weights.sum(-1)
        # A class that is no label may have a probability of 0.
        logs = _summed([log.where(weights != 0, 0) for log in self._logs(scores)])
        is_some = ~(total <= 0)  # a NaN is to be seen
        of_row = -(logs * weights).sum(-1) / torch.where(is_some, total, 1)
        return _reduced(of_row, is_some, self.reduction)

    def _logs(self, scores: Tensor) -> Iterator[Tensor]:
        """log (P(K = k) p) for every k that is drawn."""
        for k, share in enumerate(self.p_k, start=1):
            if share == 0:
                continue
            if k == 1 and self.top1 == "softmax":
                log = scores.log_softmax(-1, torch.promote_types(scores.dtype, torch.float32))
            else:
                log = log_soft_topk(scores, k, self.temperature)
            yield log + math.log(share)

    def extra_repr(self) -> str:
        """What ``print`` shows of the loss."""
        return f"p_k={self.p_k}, temperature={self.temperature}, top1={self.top1!r}"


def recall_at_k(
    scores: Tensor,
    relevant: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The share of what is relevant that is among the first k, differentiable, to be maximised.

    .. math:: \sum_i p_i y_i \Big/ \sum_i y_i

    Args:
        scores: of the candidates.
        relevant: y, boolean or weights of at least 0, in the shape of ``scores``. With weights
            below 0 this is no share; they are looked at on a CPU alone.
        k: how many are retrieved, see :func:`~fast_lapsum.soft_topk`.
        temperature: of the soft mask; at 0 this is the measure itself, without a gradient.
        dim: the dimension of the candidates.
        mask: boolean, broadcasts to ``scores``; False leaves a candidate out, and a row with fewer
            than k is retrieved whole.
        reduction: ``"mean"`` over the rows that have something relevant, ``"sum"``, or ``"none"``,
            which has 0 for a row that has not.

    Example:
        >>> scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
        >>> relevant = torch.tensor([[True, False, True, False]])
        >>> recall_at_k(scores, relevant, k=2, temperature=0)
        tensor(0.5000)
    """
    check_scores(scores, -1)
    _check_like(scores, "relevant", relevant)
    mask = None if mask is None else check_mask(mask, scores)
    soft = soft_topk(scores, k, temperature, dim=dim, mask=mask, clamp=mask is not None)
    weights = relevant.to(torch.promote_types(scores.dtype, torch.float32))
    weights = weights if mask is None else weights.where(mask, 0)
    _check_not_negative("relevant", relevant, weights)
    total = weights.sum(dim)  # type: ignore[arg-type]
    found = (soft * weights).sum(dim)  # type: ignore[arg-type]
    is_some = ~(total <= 0)  # a NaN is to be seen
    return _reduced(found / torch.where(is_some, total, 1), is_some, reduction)


def soft_ndcg(
    scores: Tensor,
    gains: Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    k: int | None = None,
    dim: int = -1,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Normalised discounted cumulative gain of soft ranks, differentiable, to be maximised.

    .. math:: \sum_i \frac{g_i}{\log_2(1 + R_i)} \Big/ \sum_j \frac{g_{(j)}}{\log_2(1 + j)}

    R are the soft ranks of the scores, 1 for the largest, and :math:`g_{(j)}` the gains in falling
    order. Where ``k`` is given, each gain is weighted by its candidate's value in the soft mask of
    the first k, and the ideal order has its first k gains alone.

    Args:
        scores: of the candidates.
        gains: g, boolean or at least 0, in the shape of ``scores``; for relevances of 0, 1, 2, ...
            ``2**relevance - 1`` is usual. A row whose ideal order has no gain over 0 is passed
            over, and the mean of no rows is NaN; gains below 0 are looked at on a CPU alone.
        temperature: of the ranks and of the soft mask; at 0 this is the measure itself, with
            average ranks for ties, and without a gradient.
        k: how many candidates count, a whole number, at most all; None counts all.
        dim: the dimension of the candidates.
        mask: boolean, broadcasts to ``scores``; False leaves a candidate out.
        reduction: ``"mean"`` over the rows that have a gain, ``"sum"``, or ``"none"``, which has 0
            for a row that has not.

    Example:
        >>> gains = torch.tensor([[3.0, 0.0, 1.0]])
        >>> soft_ndcg(torch.tensor([[9.0, 1.0, 5.0]]), gains, temperature=0.1)
        tensor(1.)
        >>> soft_ndcg(torch.tensor([[1.0, 9.0, 5.0]]), gains, temperature=0)
        tensor(0.5869)
    """
    check_scores(scores, dim)
    _check_like(scores, "gains", gains)
    k = None if k is None else check_whole_number(k, dim)
    mask = None if mask is None else check_mask(mask, scores)
    weights = gains.to(torch.promote_types(scores.dtype, torch.float32))
    weights = weights if mask is None else weights.where(mask, 0)
    _check_not_negative("gains", gains, weights)
    ranks = soft_rank(scores, temperature, dim=dim, descending=True, mask=mask)
    ranks = ranks if mask is None else ranks.where(mask, 1)
    counted = weights
    if k is not None:
        clamp = mask is not None
        counted = weights * soft_topk(scores, k, temperature, dim=dim, mask=mask, clamp=clamp)
    found = (counted / torch.log2(1 + ranks)).sum(dim)
    falling = weights.movedim(dim, -1).sort(-1, descending=True).values[..., :k]
    places = torch.arange(2, falling.shape[-1] + 2, device=scores.device, dtype=falling.dtype)
    ideal = (falling / torch.log2(places)).sum(-1)
    is_some = ~(ideal <= 0)  # a NaN is to be seen
    return _reduced(found / torch.where(is_some, ideal, 1), is_some, reduction)


def spearman_loss(
    prediction: Tensor,
    target: Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    reduction: Reduction = "mean",
) -> Tensor:
    """One less Spearman's rank correlation, by the soft ranks of the predictions.

    0 for predictions in the order of the targets, 2 for the opposite order. A row whose targets or
    predictions are all equal has no correlation, and is passed over. So is one whose soft ranks
    differ by no more than rounding, see :func:`~fast_lapsum.spearman`. The mean of no rows is NaN.

    Args:
        prediction: scores.
        target: what they are to be ordered like, in the same shape; without a gradient. Whole
            numbers, such as grades or ranks, are taken as well.
        temperature: of the soft ranks of the predictions.
        dim: the dimension of what is ordered.
        reduction: ``"mean"`` over the rows that have a correlation, ``"sum"``, or ``"none"``, which
            has 0 for a row that has not.

    Example:
        >>> target = torch.tensor([1.0, 2.0, 3.0])
        >>> spearman_loss(torch.tensor([0.1, 0.5, 0.7]), target, temperature=0.01)
        tensor(0.)
        >>> spearman_loss(torch.tensor([0.7, 0.5, 0.1]), target, temperature=0.01)
        tensor(2.)
    """
    correlated, has_order = correlation(prediction, target, temperature, dim)
    return _reduced(1 - correlated, has_order, reduction)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def _check_like(scores: Tensor, name: str, value: Tensor) -> None:
    _check_tensor(name, value)
    if value.shape != scores.shape:
        raise ValueError(
            f"{name} must have the shape of scores, {tuple(scores.shape)}, got {tuple(value.shape)}"
        )


def _checked_temperature(temperature: Number | Tensor) -> Number | Tensor:
    is_tensor = isinstance(temperature, Tensor)
    if not is_tensor and not 0 <= check_number("temperature", temperature) < math.inf:
        raise ValueError(
            f"temperature must be finite and at least 0, got temperature={temperature}"
        )
    return temperature


def _check_not_negative(name: str, given: Tensor, weights: Tensor) -> None:
    """An error for a weight below 0, on a CPU, where the least one is soon found."""
    if given.dtype == torch.bool or not weights.numel():
        return
    if not weights.is_cpu or not is_plain(weights):
        return
    least = weights.detach().amin().item()  # a NaN is to be seen
    if least < 0:
        raise ValueError(f"{name} must be at least 0, got {least:g}")


def _check_labels(target: Tensor, classes: int, ignore_index: int) -> None:
    """An error for the first label that is no class, on a CPU; a GPU would be waited for."""
    if not target.is_cpu or not is_plain(target):
        return
    bad = (target != ignore_index) & ((target < 0) | (target >= classes))
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        row = f" in row {where}" if where else ""
        raise ValueError(
            f"target must have labels in [0, {classes - 1}] for {classes} classes, or "
            f"ignore_index={ignore_index}, got {int(target[where])}{row}"
        )


def _summed(logs: list[Tensor]) -> Tensor:
    """The logarithm of a sum."""
    if len(logs) == 1:
        return logs[0]
    every = torch.stack(logs)
    # Of a sum of zeros each has an even part: that of 0 / 0 would be NaN.
    is_none = (every.detach() == -math.inf).all(0)
    return torch.where(is_none, every.mean(0), every.masked_fill(is_none, 0).logsumexp(0))


def _checked_reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got reduction={reduction!r}")
    return reduction


def _reduced(of_row: Tensor, is_valid: Tensor, reduction: str) -> Tensor:
    """Rows that are not valid count as zero, and not at all in the mean."""
    of_row = of_row.where(is_valid, 0)
    if _checked_reduction(reduction) == "none":
        return of_row
    return of_row.sum() / is_valid.sum() if reduction == "mean" else of_row.sum()

"""Compute with some of the tokens: select and gather them, and scatter them back."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._arguments import check_mask, check_number, check_scores
from ..backends.common import row_dtype
from ..functional import soft_topk
from ..selection import hard_topk_mask, select_topk
from .budgeted import Tempered, check_tensor, checked_choice, shown
from .running_threshold import RunningThreshold


class SelectedTokens(NamedTuple):
    """Tokens that were selected, in their order, and where they belong.

    Attributes:
        tokens: the selected tokens, ``(..., places, dim)``; zeros in places left over.
        indices: where they came from, ``(..., places)``; -1 in places left over.
        weights: the soft mask's values there, with its gradient, ``(..., places)``; 0 in places
            left over.
        is_selected: which tokens were selected, ``(..., length)``.
    """

    tokens: Tensor
    indices: Tensor
    weights: Tensor
    is_selected: Tensor

    def scatter(self, computed: Tensor, onto: Tensor) -> Tensor:
        """``onto``, with ``computed`` times the weights added at the selected tokens.

        This is the residual form of a Mixture of Depths: tokens that were not selected stay what
        they are, and the weight tells the router what a token gained. ``onto`` is
        ``(..., length, dim)``, ``computed`` is ``(..., places, dim)``.
        """
        check_tensor("computed", computed)
        check_tensor("onto", onto)
        width = computed.shape[-1:]
        _check_shape("computed", computed, (*self.indices.shape, *width))
        _check_shape("onto", onto, (*self.is_selected.shape, *width))
        used = self.indices >= 0
        added = computed.where(used.unsqueeze(-1), 0) * self.weights.unsqueeze(-1)
        where = self.indices.clamp(min=0).unsqueeze(-1).expand(added.shape)
        return onto.scatter_add(-2, where, added.to(onto.dtype))

    def fused_rest(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """One token, ``(..., 1, dim)``: the mean of those that were not selected, by ``weights``.

        As in EViT, where ``weights`` is the attention that tokens receive, ``(..., length)``. Zeros
        if there is no rest.
        """
        check_tensor("tokens", tokens)
        check_tensor("weights", weights)
        _check_shape("tokens", tokens, (*self.is_selected.shape, *tokens.shape[-1:]))
        _check_shape("weights", weights, self.is_selected.shape)
        rest = weights.where(~self.is_selected, 0)
        total = rest.sum(-1, keepdim=True)
        share = rest / torch.where(total > 0, total, 1)
        return share.unsqueeze(-2).to(tokens.dtype) @ tokens


class TokenSelect(Tempered):
    """Select a share or a number of the tokens of every sequence, by scores, differentiably.

    The selected tokens have the highest scores. Their weights are the values of the soft mask, so
    that gradients reach the scores of tokens that were not selected, too. In ``eval()`` a token may
    come alone, in which case nothing is known of its sequence: it is selected if its score is over
    a threshold that training keeps (:class:`RunningThreshold`). Nothing there depends on the other
    tokens, so generation token by token gives what a whole sequence gives.

    Args:
        keep: the share of the tokens, a float in (0, 1], rounded up in every sequence; or their
            number, an int, limited to the length.
        temperature: of the soft mask. It can be set or annealed.
        inference: ``"threshold"``, or ``"budget"`` to select as in training where sequences are
            always whole, as in image models.
        momentum: of the threshold, see :class:`BudgetGate`.

    Example:
        >>> select = TokenSelect(keep=0.5, temperature=0.1)
        >>> tokens = torch.arange(8.0).reshape(1, 4, 2)
        >>> selected = select(tokens, torch.tensor([[0.1, 2.0, -1.0, 1.0]]))
        >>> selected.indices
        tensor([[1, 3]])
        >>> selected.scatter(100 * torch.ones(1, 2, 2), onto=tokens)
        tensor([[[  0.0000,   1.0000],
                 [102.0000, 103.0000],
                 [  4.0000,   5.0000],
                 [105.4446, 106.4446]]])
    """

    def __init__(
        self,
        keep: float,
        temperature: float | Tensor = 1.0,
        *,
        inference: Literal["threshold", "budget"] = "threshold",
        momentum: float | None = 0.01,
    ) -> None:
        super().__init__(temperature)
        self.keep = _checked_keep(keep)
        self.inference = checked_choice("inference", inference, ("threshold", "budget"))
        by_threshold = inference == "threshold"
        # Of the selection, and of the weights, which belong to the soft mask.
        self.selecting = RunningThreshold(momentum=momentum) if by_threshold else None
        self.weighting = RunningThreshold(momentum=momentum) if by_threshold else None

    def forward(
        self,
        tokens: Tensor,
        scores: Tensor,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> SelectedTokens:
        """Select among ``tokens``, ``(..., length, dim)``, by ``scores``, ``(..., length)``.

        ``mask``, like the scores, is True for tokens that take part; ``lengths``, ``(...)``, says
        how many of each sequence do, from the front; one over the length is the length. A share is
        one of these.
        """
        check_scores(scores, -1)
        check_tensor("tokens", tokens)
        if tokens.shape[:-1] != scores.shape:
            raise ValueError(
                "scores must have the shape of tokens without the last dimension, "
                f"{tuple(tokens.shape[:-1])}, got {tuple(scores.shape)}"
            )
        mask = _valid(scores, mask, lengths)
        temperature = self._value("given_temperature")
        if self.selecting is not None and self.weighting is not None:
            if not self.training:
                over = self.selecting.exceeded(scores)
                over = over if mask is None else over & mask
                soft = self.weighting.soft_mask(scores, temperature)
                return _gathered(tokens, scores, over, soft, scores.shape[-1])
            if scores.numel():
                total = self._total(scores, mask)
                self.selecting.update(scores, total, mask=mask, setting=self.keep)
                self.weighting.update(scores, total, temperature, mask=mask, setting=temperature)
        length = scores.shape[-1]
        if mask is None:
            return self._of_whole(tokens, scores, temperature)
        k = self._budgets(mask)
        soft = soft_topk(scores, k, temperature, mask=mask, clamp=True)
        over = hard_topk_mask(scores, k, mask=mask, clamp=True) == 1
        return _gathered(tokens, scores, over, soft, self._count(length))

    def _of_whole(
        self, tokens: Tensor, scores: Tensor, temperature: float | Tensor
    ) -> SelectedTokens:
        indices, weights = select_topk(scores, self._count(scores.shape[-1]), temperature)
        times = torch.zeros_like(scores, dtype=torch.int32)
        times = times.scatter_add(-1, indices.clamp(min=0), (indices >= 0).to(times.dtype))
        return SelectedTokens(_take(tokens, indices), indices, weights, times > 0)

    def _count(self, length: int) -> int:
        """How many of a whole sequence."""
        return min(self.keep, length) if isinstance(self.keep, int) else _share(self.keep, length)

    def _budgets(self, mask: Tensor) -> float | Tensor:
        """How many of each sequence."""
        if isinstance(self.keep, int):
            return self.keep
        valid = torch.count_nonzero(mask, -1).to(row_dtype(mask))
        return (valid * (self.keep * (1 - 1e-12))).ceil()

    def _total(self, scores: Tensor, mask: Tensor | None) -> float | Tensor:
        if mask is None:
            return self._count(scores.shape[-1]) * scores.shape[:-1].numel()
        valid = torch.count_nonzero(mask, -1).to(row_dtype(mask))
        return torch.minimum(torch.ones_like(valid) * self._budgets(mask), valid).sum()

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        return (
            f"keep={self.keep}, temperature={shown(self.temperature)}, inference={self.inference!r}"
        )


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ValueError(
            f"{name} must have the shape {tuple(shape)} by the tokens that were selected, "
            f"got {tuple(value.shape)}"
        )


def _checked_keep(keep: float) -> float:
    number = check_number("keep", keep)
    if isinstance(number, int):
        if number < 1:
            raise ValueError(f"keep must be at least 1 as a number of tokens, got keep={keep}")
    elif not 0 < number <= 1:
        raise ValueError(f"keep must lie in (0, 1] as a share of the tokens, got keep={keep}")
    return number


def _share(keep: float, length: int) -> int:
    """Rounded up, but for a product that is a whole number up to rounding."""
    return math.ceil(length * (keep * (1 - 1e-12)))


def _valid(scores: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    if mask is not None:
        mask = check_mask(mask, scores)
    if lengths is None:
        return mask
    check_tensor("lengths", lengths)
    if lengths.shape != scores.shape[:-1]:
        raise ValueError(
            f"lengths must have one value per sequence, shape {tuple(scores.shape[:-1])}, "
            f"got shape {tuple(lengths.shape)}"
        )
    places = torch.arange(scores.shape[-1], device=scores.device)
    within = places < lengths.unsqueeze(-1)
    return within if mask is None else mask & within


def _take(tokens: Tensor, indices: Tensor) -> Tensor:
    """Tokens at the indices, zeros for -1."""
    places = indices.unsqueeze(-1).expand(*indices.shape, tokens.shape[-1])
    return tokens.gather(-2, places.clamp(min=0)).where(places >= 0, 0)


def _gathered(
    tokens: Tensor, scores: Tensor, over: Tensor, soft: Tensor, places: int
) -> SelectedTokens:
    """The tokens where ``over`` is True, at most ``places`` of a sequence."""
    indices = select_topk(scores.detach(), places, 0.0, mask=over).indices
    # A product, so that NaN, of a threshold that is not known, stays to be seen.
    weights = soft.gather(-1, indices.clamp(min=0)) * (indices >= 0)
    return SelectedTokens(_take(tokens, indices), indices, weights, over)

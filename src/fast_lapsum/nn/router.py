"""A router of tokens to experts whose budget is exact and whose selection is differentiable."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from .._arguments import check_flag, check_mask, check_number
from ..backends.common import row_dtype
from ..functional import log_soft_topk, soft_topk, threshold
from ..selection import hard_topk_mask
from .budgeted import (
    Tempered,
    check_tensor,
    checked_choice,
    checked_count,
    rounded_up,
    shown,
    whole_budget,
)
from .routing import Routing
from .running_threshold import RunningThreshold

#: Along which dimension of tokens and experts a budget is spent.
_DIMS = {"token": -1, "batch": None, "expert": 0}


class TopKRouter(torch.nn.Module):
    """Route tokens to experts: top_k experts per token, exactly, with gradients to all of them.

    The router's logits are a linear map of the tokens, in float32. Which experts are chosen is the
    hard top-k of the logits; their weights are the values of the soft mask there, so that the
    gradient of a weight reaches the logits of the experts that were not chosen, too. Ties go to the
    earliest, the same whenever a layer is computed again.

    Args:
        dim: the width of a token.
        num_experts: the number of experts.
        top_k: experts per token.
        temperature: of the soft mask. It can be set or annealed.
        budget: who has the budget. ``"token"``: each token has exactly top_k experts. ``"batch"``:
            tokens compete, and have top_k experts on average over the batch. ``"expert"``: each
            expert chooses equally many tokens, top_k * tokens / num_experts, rounded down. In the
            latter two a token depends on the others of its batch, in training; in ``eval()`` it is
            routed by itself, by thresholds that training keeps (:class:`RunningThreshold`). Before
            the first batch there are none: probabilities are NaN, and no expert is chosen.
        normalize: divide the weights of a token by their sum, also where they are too small for
            their dtype: a token that has an expert has weights that add up to one. With top_k = 1
            all weights are then one and the router learns nothing.
        capacity_factor: in training an expert takes at most ``capacity_factor * top_k * tokens /
            num_experts`` tokens, rounded up, those of the highest weights. Where weights are one
            but for rounding, those that lie highest over their thresholds are taken. Padding does
            not count as tokens. None is no limit.
        use_selection_bias: keep a bias per expert that moves which experts are chosen and nothing
            else: weights are those of the logits without it. :meth:`update_selection_bias` balances
            loads with it, without a loss.
        momentum: of the thresholds, see :class:`BudgetGate`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> router = TopKRouter(dim=16, num_experts=8, top_k=2, temperature=0.5)
        >>> routing = router(torch.randn(32, 16))
        >>> routing.routing_map.sum(-1).unique(), routing.tokens_per_expert().sum()
        (tensor([2]), tensor(64))
        >>> weights, experts = routing.top(2)
        >>> weights.shape, experts.shape
        (torch.Size([32, 2]), torch.Size([32, 2]))
    """

    weight: Parameter

    def __init__(
        self,
        dim: int,
        num_experts: int,
        top_k: int,
        temperature: float | Tensor = 1.0,
        *,
        budget: Literal["token", "batch", "expert"] = "token",
        normalize: bool = False,
        capacity_factor: float | None = None,
        use_selection_bias: bool = False,
        momentum: float | None = 0.01,
    ) -> None:
        super().__init__()
        self.dim = checked_count("dim", dim)
        self.num_experts = checked_count("num_experts", num_experts)
        self.top_k = checked_count("top_k", top_k)
        if top_k > num_experts:
            raise ValueError(f"top_k must lie in [1, num_experts={num_experts}], got top_k={top_k}")
        self.budget = checked_choice("budget", budget, ("token", "batch", "expert"))
        self.normalize = check_flag("normalize", normalize)
        if capacity_factor is not None and not check_number("capacity_factor", capacity_factor) > 0:
            raise ValueError(f"capacity_factor must be over 0, got {capacity_factor}")
        self.capacity_factor = capacity_factor
        if budget == "expert" and (use_selection_bias or capacity_factor is not None):
            raise ValueError(
                'budget="expert" has equal loads by itself: expected use_selection_bias=False and '
                f"capacity_factor=None, got {use_selection_bias} and {capacity_factor}"
            )
        self.weight = Parameter(torch.empty(self.num_experts, self.dim))
        self.state = _RouterState(
            temperature,
            self.num_experts if check_flag("use_selection_bias", use_selection_bias) else None,
            {"token": None, "batch": (), "expert": (self.num_experts,)}[self.budget],
            momentum,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight as :class:`torch.nn.Linear` does, and forget bias and thresholds."""
        torch.nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.state.reset()

    @property
    def temperature(self) -> float | Tensor:
        """The temperature of the soft mask."""
        return self.state.temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        self.state.temperature = value

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Routing:
        """The routing of ``tokens``, ``(..., dim)``; ``mask``, ``(...)``, is False for padding."""
        check_tensor("tokens", tokens)
        if tokens.shape[-1:] != (self.dim,):
            raise ValueError(
                f"tokens must have dim={self.dim} entries in the last dimension, "
                f"got shape {tuple(tokens.shape)}"
            )
        return self.route(self._logits(tokens), mask)

    def route(self, logits: Tensor, mask: Tensor | None = None) -> Routing:
        """The routing of ``logits``, ``(..., num_experts)``, that something else has computed.

        ``mask`` is that of :meth:`forward`. Logits of two bytes are taken in float32.
        """
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(f"logits must be a tensor of a floating-point dtype, got {got}")
        if logits.shape[-1:] != (self.num_experts,):
            raise ValueError(
                f"logits must have num_experts={self.num_experts} entries in the last dimension, "
                f"got shape {tuple(logits.shape)}"
            )
        if logits.dtype.itemsize < 4:
            logits = logits.to(torch.float32)
        # Every view is a node of the graph: tokens in one dimension have none.
        is_flat = logits.dim() == 2
        flat = logits if is_flat else logits.reshape(-1, self.num_experts)
        rows = None
        if mask is not None:
            mask = _checked_mask(mask, logits)
            rows = mask.reshape(-1, 1).expand(flat.shape)
        soft, chosen = self._choose(flat, rows)
        is_limited = self.training and self.capacity_factor is not None
        if is_limited:
            chosen = self._within_capacity(flat.detach(), chosen, rows)
        scores = soft.exp() if self.normalize else soft
        if not self.normalize:
            weights = scores * chosen
        elif self.budget == "token" and mask is None and not is_limited:
            weights = _shares(soft, chosen, -math.inf)  # each has an expert, or a NaN
        else:
            # Where nothing is chosen the product is 0, without a gradient, or a NaN to be seen.
            lowest = torch.finfo(soft.dtype).min
            weights = _shares(soft, chosen, lowest).where(chosen, scores.detach() * chosen)
        if not is_flat:
            shape = logits.shape
            scores, weights, chosen = (one.reshape(shape) for one in (scores, weights, chosen))
        return Routing(logits, scores, weights, chosen, mask)

    def _logits(self, tokens: Tensor) -> Tensor:
        """In float32: rounding would move which experts are chosen."""
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        device = tokens.device.type
        # Meta has none; a graph, which older versions cannot ask in, is of another device.
        if not (torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)):
            return F.linear(tokens.to(dtype), self.weight.to(dtype))
        with torch.autocast(device, enabled=False):
            return F.linear(tokens.to(dtype), self.weight.to(dtype))

    def _choose(self, logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The soft mask, and which experts are chosen, ``(tokens, num_experts)`` both.

        To normalize it is the logarithm of the soft mask, which does not underflow.
        """
        state = self.state
        temperature = state.of_call()
        biased = state.biased(logits.detach())
        if self.budget != "token" and not self.training:
            return state.apart(logits, biased, temperature, mask, self.normalize)
        dim = _DIMS[self.budget]
        k: float | Tensor = self.top_k
        if self.budget != "token":
            count = _token_count(logits, mask)
            k = k * count if self.budget == "batch" else k * count / self.num_experts
        clamp = mask is not None
        soft_mask = log_soft_topk if self.normalize else soft_topk
        soft = soft_mask(logits, k, temperature, dim=dim, mask=mask, clamp=clamp)
        hard = hard_topk_mask(biased, whole_budget(k, 1), dim=dim, mask=mask, clamp=clamp)
        if self.budget != "token" and logits.shape[0]:
            state.update(logits.detach(), biased, k, temperature, dim, mask)
        return soft, hard == 1

    def _within_capacity(self, logits: Tensor, chosen: Tensor, mask: Tensor | None) -> Tensor:
        """Of the chosen tokens of an expert, as many as it takes."""
        assert self.capacity_factor is not None
        count = _token_count(logits, mask)
        most = rounded_up(self.capacity_factor * (self.top_k * count / self.num_experts))
        # A weight grows with a logit's height over its token's threshold, and saturates at one.
        heights = logits
        if self.budget == "token" and self.top_k < self.num_experts:
            temperature, clamp = self.state.of_call(), mask is not None
            b = threshold(logits, self.top_k, temperature, mask=mask, clamp=clamp)
            heights = logits - torch.where(b.isfinite(), b, 0).unsqueeze(-1)
        return hard_topk_mask(heights, most, dim=0, mask=chosen, clamp=True) == 1

    @torch.no_grad()
    def update_selection_bias(self, tokens_per_expert: Tensor, rate: float = 1e-3) -> None:
        """Move the bias of experts with less than the mean load up by ``rate``, of others down.

        Once per step of an optimiser, with loads that are summed over the step's batches and over
        all processes.
        """
        bias = self.state.selection_bias
        if bias is None:
            raise ValueError(
                "update_selection_bias needs a router with use_selection_bias=True, got False"
            )
        check_tensor("tokens_per_expert", tokens_per_expert)
        if tokens_per_expert.shape != bias.shape:
            raise ValueError(
                f"tokens_per_expert must have one number for each of {self.num_experts} experts, "
                f"got shape {tuple(tokens_per_expert.shape)}"
            )
        load = tokens_per_expert.to(bias.dtype)
        bias.add_((load.mean() - load).sign(), alpha=rate)

    def extra_repr(self) -> str:
        """What ``print`` shows of the router."""
        is_limited, running = self.capacity_factor is not None, self.state.selecting
        return (
            f"dim={self.dim}, num_experts={self.num_experts}, top_k={self.top_k}, "
            f"temperature={shown(self.temperature)}, budget={self.budget!r}"
            + (", normalize=True" if self.normalize else "")
            + (f", capacity_factor={self.capacity_factor}" if is_limited else "")
            + (", use_selection_bias=True" if self.state.selection_bias is not None else "")
            + (f", momentum={running.momentum}" if running is not None else "")
        )

    def __repr__(self) -> str:
        """Without the state, unless a model has put something else beside it."""
        if len(self._modules) > 1:
            return super().__repr__()
        return f"{type(self).__name__}({self.extra_repr()})"


def _checked_mask(mask: Tensor, logits: Tensor) -> Tensor:
    """A mask of tokens, which an error calls by their name."""
    try:
        return check_mask(mask, logits[..., 0])
    except ValueError:
        raise ValueError(
            "mask must broadcast to the shape of tokens without the last dimension, "
            f"{tuple(logits.shape[:-1])}, on {logits.device}, got shape {tuple(mask.shape)} "
            f"on {mask.device}"
        ) from None


def _token_count(logits: Tensor, mask: Tensor | None) -> int | Tensor:
    """How many tokens are no padding."""
    if mask is None:
        return logits.shape[0]
    return torch.count_nonzero(mask[:, 0]).to(row_dtype(logits))


def _shares(logs: Tensor, chosen: Tensor, of_others: float) -> Tensor:
    """What the chosen experts have of a token's weight, from the logarithms of their weights.

    Those are finite here: chosen experts of weight 0, as there are at temperature 0, share alike.
    If the others are finite, too, a token without an expert has gradients without a NaN.
    """
    lowest = torch.finfo(logs.dtype).min
    return logs.clamp(min=lowest / 2).where(chosen, of_others).softmax(-1)


class _RouterState(Tempered):
    """What a router keeps beside its weight, in float32 whatever the weight's dtype."""

    selection_bias: Tensor | None

    def __init__(
        self,
        temperature: float | Tensor,
        num_biases: int | None,
        thresholds: tuple[int, ...] | None,
        momentum: float | None,
    ) -> None:
        super().__init__(temperature)
        bias = None if num_biases is None else torch.zeros(num_biases, dtype=torch.float32)
        self.register_buffer("selection_bias", bias)
        # Of the selection by biased logits, and of the weights, which have no bias.
        self.selecting, self.weighting = (
            None if thresholds is None else RunningThreshold(thresholds, momentum) for _ in range(2)
        )

    def reset(self) -> None:
        for kept in (self.selecting, self.weighting):
            if kept is not None:
                kept.reset()
        if self.selection_bias is not None:
            self.selection_bias.zero_()

    def of_call(self) -> float | Tensor:
        return self._value("given_temperature")

    def biased(self, logits: Tensor) -> Tensor:
        return logits if self.selection_bias is None else logits + self.selection_bias

    def update(
        self,
        logits: Tensor,
        biased: Tensor,
        k: float | Tensor,
        temperature: float | Tensor,
        dim: int | None,
        mask: Tensor | None,
    ) -> None:
        assert self.selecting is not None
        assert self.weighting is not None
        self.selecting.update(biased, k, dim=dim, mask=mask)
        self.weighting.update(logits, k, temperature, dim=dim, mask=mask, setting=temperature)

    def apart(
        self,
        logits: Tensor,
        biased: Tensor,
        temperature: float | Tensor,
        mask: Tensor | None,
        is_log: bool,
    ) -> tuple[Tensor, Tensor]:
        """Each token by itself."""
        assert self.selecting is not None
        assert self.weighting is not None
        soft_mask = self.weighting.log_soft_mask if is_log else self.weighting.soft_mask
        soft = soft_mask(logits, temperature)
        chosen = self.selecting.exceeded(biased)
        if mask is None:
            return soft, chosen
        return soft.masked_fill(~mask, -math.inf if is_log else 0), chosen & mask

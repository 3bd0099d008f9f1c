"""What a router decides, in the forms that expert layers expect."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from .kept import is_traced


class Routing(NamedTuple):
    """Which experts compute which tokens, and with which weight.

    All tensors but the last have the shape ``(..., num_experts)``, with the leading dimensions of
    the tokens.

    Attributes:
        logits: what the router computed, float32.
        scores: the soft mask of the logits, over all experts, whose mass is the budget.
        probabilities: the weights of the chosen experts, and zeros elsewhere.
        routing_map: True where an expert is chosen.
        is_token: False for padding, ``(...)``, or None.
    """

    logits: Tensor
    scores: Tensor
    probabilities: Tensor
    routing_map: Tensor
    is_token: Tensor | None

    def tokens_per_expert(self) -> Tensor:
        """How many tokens each expert computes, ``(num_experts,)``, int64."""
        return torch.count_nonzero(self.routing_map.reshape(-1, self.logits.shape[-1]), 0)

    def top(self, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Weights and experts of each token as lists of ``width`` places, experts ascending.

        A place that a token does not use has weight 0 and the expert ``num_experts``, one past the
        last. Without a width there is a place for every expert: how many would do is only known on
        the device.

        A token that has more experts than places loses the last ones, which is a ValueError on a
        CPU and cannot be seen on a GPU without waiting for it. So give a width only where no token
        has more experts, as top_k with ``budget="token"``.
        """
        num_experts = self.logits.shape[-1]
        width = num_experts if width is None else min(width, num_experts)
        if width < num_experts:
            self._check_width(width)
        order = self.routing_map.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        experts = order[..., :width]
        weights = self.probabilities.gather(-1, experts)
        return weights, experts.where(self.routing_map.gather(-1, experts), num_experts)

    def _check_width(self, width: int) -> None:
        chosen = self.routing_map
        if chosen.device.type != "cpu" or not chosen.numel() or is_traced() or is_fake(chosen):
            return
        most = int(torch.count_nonzero(chosen, -1).max())
        if most > width:
            raise ValueError(
                f"width must be at least the number of experts that a token has, {most} here, or "
                f"None, got width={width}"
            )

    def for_transformers(self, width: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, weights and experts, as the routers of Hugging Face's transformers return them.

        All tokens are in one dimension. Expert layers there skip the expert ``num_experts``, so
        unused places cost nothing. For a router with another budget than ``"token"`` leave
        ``width`` out, or a token that has more experts loses the last ones, see :meth:`top`.
        """
        weights, experts = self.top(width)
        return _flat(self.logits), _flat(weights), _flat(experts)

    def for_torchtitan(self, width: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, experts and tokens per expert, as torchtitan dispatches tokens.

        All tokens are in one dimension, ``(num_tokens, width)``. Every place must name an expert
        there, so ``width`` has to be the number that each token has: top_k of a router with
        ``budget="token"``, without padding and without a capacity. A token with more loses the last
        ones, see :meth:`top`.
        """
        weights, experts = self.top(width)
        return _flat(weights), _flat(experts), self.tokens_per_expert()

    def for_megatron(self) -> tuple[Tensor, Tensor]:
        """Probabilities and routing map, as Megatron-Core's routers return them.

        All tokens are in one dimension, ``(num_tokens, num_experts)``. Both are dense, so no expert
        is lost.
        """
        return _flat(self.probabilities), _flat(self.routing_map)

    def load_balance_loss(self) -> Tensor:
        r"""Expected load times share of the soft mask, summed over experts; 1 for equal loads.

        .. math:: E \sum_e f_e P_e

        f is the share of assignments that expert e has, without a gradient, and P its share of the
        soft mask, as in the Switch Transformer. It is 0 for a batch without tokens.
        """
        num_experts = self.logits.shape[-1]
        mass = self.scores.reshape(-1, num_experts).sum(0)
        load = self.tokens_per_expert().to(torch.promote_types(mass.dtype, torch.float32))
        total = mass.sum()
        total = total.masked_fill(total == 0, 1)
        return num_experts * (load / load.sum().clamp(min=1) * mass).sum() / total

    def z_loss(self) -> Tensor:
        """Mean of the squared log-sum-exp of the logits, which keeps them small; 0 of no tokens."""
        squares = self.logits.logsumexp(-1).square()
        if self.is_token is None:
            return squares.mean() if squares.numel() else squares.sum()
        valid = self.is_token.expand(squares.shape)
        return squares.where(valid, 0).sum() / torch.count_nonzero(valid).clamp(min=1)


def _flat(of_tokens: Tensor) -> Tensor:
    """With one dimension for all tokens."""
    if of_tokens.dim() == 2:
        return of_tokens
    return of_tokens.reshape(math.prod(of_tokens.shape[:-1]), of_tokens.shape[-1])

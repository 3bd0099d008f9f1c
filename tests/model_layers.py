"""Every layer for models once, with an input of its kind and what of its output is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from fast_lapsum import nn


class Case(NamedTuple):
    """How to make a layer, what to call it with, and the tensors of what it returns."""

    make: Callable[[], Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    outputs: Callable[[Any], tuple[Tensor, ...]] = lambda out: (out,)


def _rows() -> tuple[Tensor, ...]:
    return (torch.randn(6, 5, 40),)


def _tokens() -> tuple[Tensor, ...]:
    return (torch.randn(24, 8),)


def _scored_tokens() -> tuple[Tensor, ...]:
    return torch.randn(4, 20, 8), torch.randn(4, 20)


def _selected(out: nn.SelectedTokens) -> tuple[Tensor, ...]:
    return out.tokens, out.weights, out.indices


def _routed(out: nn.Routing) -> tuple[Tensor, ...]:
    return out.probabilities, out.scores, out.routing_map


LAYERS = {
    "gate-row": Case(lambda: nn.BudgetGate(3, 0.3), _rows),
    "gate-batch": Case(lambda: nn.BudgetGate(2.5, 0.3, budget="batch"), _rows),
    "gate-hard": Case(lambda: nn.BudgetGate(2.5, 0.3, budget="batch", hard=True), _rows),
    "topk": Case(lambda: nn.TopKActivation(3), _rows),
    "topk-threshold": Case(lambda: nn.TopKActivation(3, inference="threshold"), _rows),
    "batch-topk": Case(lambda: nn.BatchTopK(2.5), _rows),
    "batch-topk-soft": Case(lambda: nn.BatchTopK(2.5, 0.3, hard=False), _rows),
    "router-token": Case(
        lambda: nn.TopKRouter(
            8, 6, 2, use_selection_bias=True, capacity_factor=1.0, normalize=True
        ),
        _tokens,
        _routed,
    ),
    "router-batch": Case(lambda: nn.TopKRouter(8, 6, 2, budget="batch"), _tokens, _routed),
    "router-expert": Case(lambda: nn.TopKRouter(8, 6, 2, budget="expert"), _tokens, _routed),
    "tokens": Case(lambda: nn.TokenSelect(0.3, 0.5), _scored_tokens, _selected),
    "tokens-budget": Case(
        lambda: nn.TokenSelect(6, 0.5, inference="budget"), _scored_tokens, _selected
    ),
    "attention": Case(lambda: nn.SparseAttentionBias(3, 0.5), lambda: (torch.randn(2, 1, 12, 12),)),
    "attention-blocks": Case(
        lambda: nn.SparseAttentionBias(2, 0.5, block_size=4), lambda: (torch.randn(2, 1, 12, 3),)
    ),
}

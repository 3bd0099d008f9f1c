"""Layers that several tests make, and what a call of one passes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK, TopKRouter
from fast_lapsum.nn import layer as layer_module

#: Of routers: tokens of a batch, numbers of a token, and experts.
TOKENS, DIM, EXPERTS = 48, 8, 6


def learned_layer(n: int = 12, **rest: Any) -> SoftTopK:
    return SoftTopK(
        k=3, temperature=0.5, num_scores=n, learn_k=True, learn_temperature=True, **rest
    )


def small_router(**settings: Any) -> TopKRouter:
    torch.manual_seed(0)
    return TopKRouter(DIM, EXPERTS, 2, 0.5, **settings).double()


def number(value: float | Tensor) -> float:
    return value.item() if isinstance(value, Tensor) else value


def passed_on(layer: SoftTopK, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The arguments that a call of the layer gives to the function."""
    passed: dict[str, object] = {}

    def spy(scores: Tensor, k: Any, temperature: Any, **rest: Any) -> object:
        passed.update(k=k, temperature=temperature, **rest)
        return soft_topk(scores, k, temperature, **rest)

    monkeypatch.setattr(layer_module, "soft_topk", spy)
    layer(normal(4, 12))
    return passed

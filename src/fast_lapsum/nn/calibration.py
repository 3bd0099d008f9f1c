"""Inference thresholds found anew, for a model whose training is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Module

from .gate import BudgetGate, at_least_one
from .router import TopKRouter
from .running_threshold import RunningThreshold
from .token_select import TokenSelect


@torch.no_grad()
def update_thresholds(
    model: Module, batches: Iterable[Any], forward: Callable[[Any], Any] | None = None
) -> None:
    """Find the inference thresholds of a model's gates, routers and token selections anew.

    While a model learns its scores move, and a threshold follows with few batches in mind. Here
    weights stand still and all batches count alike, so the budget is kept as exactly as there are
    batches. Gates choose by their budgets meanwhile, and everything else is in evaluation, as at
    inference; modes are as before in the end. Like :func:`torch.optim.swa_utils.update_bn`.

    Args:
        model: what has the layers; or a layer.
        batches: of inputs, such as a data loader. They should be many and like those to come;
            without any thresholds stay what they are, and that is an error.
        forward: what computes with a batch; None calls the model with it.

    Example:
        >>> from fast_lapsum.nn import BudgetGate
        >>> gate = BudgetGate(k=2).eval()
        >>> update_thresholds(gate, [torch.arange(12.0).reshape(3, 4)])
        >>> gate(torch.tensor([5.0, 6.0, 7.0]))
        tensor([0., 1., 1.])
    """
    running = [one for one in model.modules() if isinstance(one, RunningThreshold)]
    if not running:
        raise ValueError(
            "model must have a layer that keeps a threshold, such as BudgetGate, BatchTopK, "
            "TokenSelect(inference='threshold') or a TopKRouter whose budget is not 'token', "
            f"got {type(model).__name__}"
        )
    batches = at_least_one(batches)
    modes = {module: module.training for module in model.modules()}
    momenta = [one.momentum for one in running]
    try:
        model.eval()
        for module in modes:
            if isinstance(module, (BudgetGate, TokenSelect, TopKRouter)):
                module.training = True  # of itself alone
        for one in running:
            one.reset()
            one.momentum = None
        for batch in batches:
            model(batch) if forward is None else forward(batch)
    finally:
        for one, momentum in zip(running, momenta, strict=True):
            one.momentum = momentum
        for module, mode in modes.items():
            module.training = mode

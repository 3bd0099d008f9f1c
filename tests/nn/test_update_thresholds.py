"""Thresholds that are found anew after training keep budgets, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cases import normal
from fast_lapsum.nn import BatchTopK, BudgetGate, TokenSelect, TopKRouter, update_thresholds


class Layered(nn.Module):
    """Every layer that keeps a threshold, after a dropout that would move scores."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.scorer = nn.Dropout(0.5), nn.Linear(8, 1)
        self.router = TopKRouter(8, 6, 2, 0.5, budget="expert")
        self.select, self.latents = TokenSelect(0.25, 0.5), BatchTopK(3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.drop(x)
        selected = self.select(x, self.scorer(x).squeeze(-1))
        chosen = self.router(x).routing_map
        return selected.is_selected, chosen, self.latents(x) > 0


def _batches(count: int, seed: int) -> list[Tensor]:
    # Sequences differ in scale, so that batches have thresholds of their own.
    return [
        normal(4, 32, 8, seed=seed + i).float() * (0.5 + i % 3) for i in range(count)
    ]  # fmt: skip


def test_budgets_are_kept_as_by_the_batches_given() -> None:
    torch.manual_seed(0)
    model = Layered()
    for x in _batches(5, seed=0):
        model(50 * x + 10)  # thresholds that are of no use
    update_thresholds(model, _batches(300, seed=1000))
    model.eval()
    found = [model(x) for x in _batches(300, seed=5000)]
    selected, chosen, active = (
        torch.cat([one[at].float() for one in found]) for at in range(3)
    )  # fmt: skip
    assert selected.mean().item() == pytest.approx(0.25, rel=0.02)
    assert chosen.sum(-1).mean().item() == pytest.approx(2, rel=0.02)
    assert active.sum(-1).mean().item() == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("training", [False, True])
def test_modes_momenta_and_weights_are_as_before(training: bool) -> None:
    model = Layered().train(training)
    model.drop.train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    update_thresholds(model, _batches(2, seed=0))
    assert [module.training for module in model.modules()] == modes
    assert model.latents.running.momentum == 0.01
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.grad is None for value in model.parameters())


def test_modes_and_momenta_outlive_an_error() -> None:
    gate = BudgetGate(2).eval()
    with pytest.raises(TypeError):
        update_thresholds(gate, [torch.ones(3, 4, dtype=torch.int64)])
    assert not gate.training
    assert gate.running.momentum == 0.01


def test_a_batch_may_be_taken_apart() -> None:
    gate = BudgetGate(2)
    update_thresholds(gate, [(torch.arange(12.0).reshape(3, 4), "label")], lambda b: gate(b[0]))
    assert gate.threshold == 5


def test_no_batches_are_refused_and_nothing_is_forgotten() -> None:
    gate, x = BudgetGate(2), torch.arange(12.0).reshape(3, 4)
    used_up = iter([x])
    gate.calibrate(used_up)
    for nothing in ([], used_up):
        for find in (gate.calibrate, lambda batches: update_thresholds(gate, batches)):
            with pytest.raises(ValueError, match="batches must have at least one batch, got none"):
                find(nothing)
    assert gate.threshold == 5
    assert gate.running.num_batches == 1
    assert gate.running.momentum == 0.01


def test_a_model_without_thresholds_is_refused() -> None:
    with pytest.raises(ValueError, match="model must have a layer that keeps a threshold"):
        update_thresholds(nn.Linear(2, 2), [torch.ones(1, 2)])
    with pytest.raises(ValueError, match=r"TokenSelect\(inference='threshold'\)"):
        update_thresholds(TokenSelect(0.5, inference="budget"), [torch.ones(1, 2)])

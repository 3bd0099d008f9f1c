"""Pruning: soft masks with a budget in training, and exactly that many weights in the end."""

from __future__ import annotations

import copy
import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from cases import normal
from fast_lapsum import hard_topk_mask, soft_topk
from fast_lapsum.nn import TemperatureSchedule
from fast_lapsum.prune import soften
from prunable_model import NAMES, make_model


def _weights(model: torch.nn.Module) -> dict[str, Tensor]:
    values = dict(model.named_parameters())
    return {name: values[name].detach().clone() for name in NAMES}


def _inputs(seed: int = 5) -> Tensor:
    return normal(3, 4, 6, 6, seed=seed)


@pytest.mark.parametrize("scores", ["magnitude", "learned"])
@pytest.mark.parametrize("scope", ["global", "layer", "2:4"])
def test_weights_that_are_no_numbers_stop_it_before_anything_changes(
    scope: str, scores: str
) -> None:
    model = make_model()
    before = _weights(model)
    names = NAMES if scope != "2:4" else NAMES[:2]
    pruning = soften(
        model, names, density=None if scope == "2:4" else 0.5, scope=scope, scores=scores
    )
    with torch.no_grad():
        model[2].parametrizations.weight.original[1, 2, 0, 0] = math.nan
    with pytest.raises(ValueError, match=r"choose weights by NaN, got some in '2\.weight'"):
        pruning.finalize()
    with torch.no_grad():
        model[2].parametrizations.weight.original[1, 2, 0, 0] = before["2.weight"][1, 2, 0, 0]
    masks = pruning.finalize()
    assert sum(int(mask.sum()) for mask in masks.values()) == pruning.count
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name)[mask], before[name][mask])


@pytest.mark.parametrize("fixed", [False, True])
def test_infinite_weights_that_are_left_out_are_zero(fixed: bool) -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.fill_(-math.inf)
    (mask,) = soften(torch.nn.Sequential(layer), density=0.25).finalize(fixed).values()
    assert mask.sum() == 4
    assert torch.equal(layer.weight, torch.zeros(4, 4).masked_fill(mask, -math.inf))


@pytest.mark.parametrize("density", [0.0, 0.037, 0.5, 1.0])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("scores", ["magnitude", "learned"])
def test_exactly_as_many_weights_are_left(density: float, scope: str, scores: Any) -> None:
    model = make_model()
    before = _weights(model)
    pruning = soften(model, density=density, scope=scope, scores=scores)
    model(_inputs())
    masks = pruning.finalize()
    sizes = [one.numel() for one in before.values()]
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    assert tuple(counts) == NAMES
    if scope == "global":
        wanted = round(density * sum(sizes))
        assert sum(counts.values()) == wanted
        flat = torch.cat([one.flatten().abs() for one in before.values()])
        mask = hard_topk_mask(flat, wanted)
        assert torch.equal(torch.cat([one.flatten() for one in masks.values()]).double(), mask)
    else:
        assert list(counts.values()) == [round(density * size) for size in sizes]
    assert pruning.count == sum(counts.values())
    after = _weights(model)
    for name in NAMES:
        assert torch.equal(after[name], before[name] * masks[name])
        assert torch.count_nonzero(after[name]) == counts[name]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("hard", [False, True])
def test_training_has_the_gradient_of_the_masked_model(scope: str, hard: bool) -> None:
    """Weights times their soft masks, written out."""
    model, dense = make_model(), make_model()
    soften(model, density=0.3, scope=scope, temperature=0.05, hard=hard)
    weights = {name: value.requires_grad_() for name, value in _weights(dense).items()}
    if scope == "global":
        flat = torch.cat([one.abs().flatten() for one in weights.values()])
        count = round(0.3 * flat.numel())
        soft = soft_topk(flat, count, 0.05, hard=hard).split([w.numel() for w in weights.values()])
        assert sum(float(part.detach().sum()) for part in soft) == pytest.approx(count)
    else:
        soft = tuple(
            soft_topk(one.abs(), round(0.3 * one.numel()), 0.05, dim=None, hard=hard)
            for one in weights.values()
        )
    masked = {
        name: weight * mask.view_as(weight)
        for (name, weight), mask in zip(weights.items(), soft, strict=True)
    }
    wanted = torch.func.functional_call(dense, masked, (_inputs(),))
    found = model(_inputs())
    torch.testing.assert_close(found, wanted)
    wanted.square().sum().backward()
    found.square().sum().backward()
    for name in NAMES:
        layer = model[int(name[0])]
        original = layer.parametrizations.weight.original  # type: ignore[union-attr]
        torch.testing.assert_close(original.grad, weights[name].grad)


def test_evaluation_is_what_is_left() -> None:
    model = make_model()
    pruning = soften(model, density=0.2, temperature=0.1)
    model(_inputs())
    model.eval()
    wanted = model(_inputs())
    assert torch.count_nonzero(model[0].weight) < 4 * 8 * 9  # type: ignore[arg-type]
    pruning.finalize()
    torch.testing.assert_close(model(_inputs()), wanted)


def test_checkpoints_before_and_after() -> None:
    """Before the end a checkpoint goes on; after it, it is that of a plain model."""
    model, other = make_model(), make_model(seed=1)
    pruning = soften(model, density=0.25, scores="learned")
    pruning.temperature = 0.003
    again = soften(other, density=0.9, scores="learned")
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "pruning": pruning.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["pruning"])
    torch.testing.assert_close(other(_inputs()), model(_inputs()))
    assert (again.density, again.temperature) == (0.25, 0.003)
    pruning.finalize()
    plain = make_model(seed=2)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.eval()(_inputs()), model.eval()(_inputs()))


def test_training_goes_on_with_the_same_optimiser() -> None:
    """Anneal, end, and train on with fixed masks: the zeros stay, and the loss falls."""
    model = make_model()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    pruning = soften(model, density=0.4, temperature=0.05)
    schedule = TemperatureSchedule(pruning, steps=20, start=0.05, end=0.002)
    x, target = _inputs(), normal(3, 5, seed=9)
    losses = []
    for step in range(60):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if step == 30:
            masks = pruning.finalize(fixed=True)
    assert losses[-1] < losses[31] < losses[0]
    for name, mask in masks.items():
        layer = model[int(name[0])]
        assert (layer.weight[~mask] == 0).all()  # type: ignore[index]
        parametrize.remove_parametrizations(layer, "weight")
        assert torch.count_nonzero(layer.weight) == mask.sum()  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["2:4", "1:2", "4:4"])
def test_patterns_keep_n_of_every_m_inputs(pattern: str) -> None:
    kept, size = (int(one) for one in pattern.split(":"))
    model = make_model()
    before = _weights(model)
    pruning = soften(model, scope=pattern, temperature=0.02)
    found = model[0].weight  # type: ignore[union-attr]
    groups = before["0.weight"].movedim(1, -1).unflatten(-1, (-1, size))
    soft = soft_topk(groups.abs(), kept, 0.02).flatten(-2).movedim(-1, 1)
    torch.testing.assert_close(found, before["0.weight"] * soft)
    masks = pruning.finalize()
    for mask in masks.values():
        grouped = mask.movedim(1, -1).unflatten(-1, (-1, size))
        assert (grouped.sum(-1) == kept).all()
    assert pruning.count == sum(int(mask.sum()) for mask in masks.values())


def test_layers_are_computed_again_with_the_same_masks() -> None:
    """Activation checkpointing in the middle of a model, whose masks span all of it."""

    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.first, self.second(x), use_reentrant=False)

    gradients = []
    for repeat in (True, False):
        torch.manual_seed(0)
        model: Any = Repeated().double()
        soften(model, density=0.5, temperature=0.1)
        x = normal(3, 6)
        if repeat:
            model(x).square().sum().backward()
        else:
            masks = soft_topk(
                torch.cat([model.first.parametrizations.weight.original.abs().flatten(),
                           model.second.parametrizations.weight.original.abs().flatten()]),
                36, 0.1)  # fmt: skip
            parts = [part.view(6, 6) for part in masks.split(36)]
            first, second = (
                layer.parametrizations.weight.original * part
                for layer, part in zip((model.first, model.second), parts, strict=True)
            )
            hidden = x @ second.T + model.second.bias
            (hidden @ first.T + model.first.bias).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_that_would_lose_gradients_is_named() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))

    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.layers, x, use_reentrant=True)

    model = Repeated()
    soften(model, density=0.5, temperature=0.1)
    found = model(normal(3, 6).float().requires_grad_())
    with pytest.raises(RuntimeError, match="must be checkpointed with use_reentrant=False"):
        found.sum().backward()


def test_layers_are_trained_and_evaluated_one_by_one() -> None:
    """Masks are soft in training and hard in eval(), whatever the other layers do."""
    model = make_model()
    soften(model, density=0.3, temperature=0.05)
    originals = {place: model[place].weight for place in (0, 2, 5)}
    weights: dict[int, Tensor] = {}
    for place in originals:
        model[place].register_forward_hook(
            lambda layer, *_, place=place: weights.__setitem__(place, layer.weight)
        )
    model.train()(_inputs())
    soft = dict(weights)
    model.eval()(_inputs())
    hard = dict(weights)
    for evaluated in originals:
        model.train()[evaluated].eval()
        model(_inputs())
        for place, weight in weights.items():
            wanted = hard if place == evaluated else soft
            assert torch.equal(weight, wanted[place])
            assert torch.equal(model[place].weight, wanted[place])  # outside of a forward pass
            scores: Any = model[place].parametrizations.weight.original  # type: ignore[union-attr]
            (gradient,) = torch.autograd.grad(weight.square().sum(), scores, retain_graph=True)
            # A hard mask has no gradient, so this is that of the weights that are kept.
            assert torch.equal(gradient, 2 * weight) == (place == evaluated)


@pytest.mark.parametrize("density", [0.3, 1.0])
def test_a_model_in_training_can_be_copied_and_leaves_no_graph(density: float) -> None:
    model = make_model()
    pruning = soften(model, density=density, temperature=0.05)
    output = model(_inputs())
    other = copy.deepcopy(model)
    torch.testing.assert_close(other(_inputs()), output)
    output.sum().backward()
    copy.deepcopy(pruning)
    masks = pruning._last_masks
    assert masks is not None
    assert all(mask.grad_fn is None for mask in masks)


def test_a_weight_outside_of_the_model_has_its_mask_too() -> None:
    model = make_model()
    soften(model, density=0.3, temperature=0.05)
    inside: list[Tensor] = []
    model[5].register_forward_hook(lambda layer, *_: inside.append(layer.weight.detach()))
    model(_inputs()).sum().backward()
    model(_inputs()).sum().backward()  # again, with the same weights and another graph
    outside = model[5].weight
    torch.testing.assert_close(outside, inside[0])
    outside.sum().backward()  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("scope", ["global", "2:4"])
def test_a_pruned_model_is_one_graph(scope: str, fresh_compiler: None) -> None:
    model = make_model()
    pruning = soften(model, density=0.3 if scope == "global" else None, scope=scope)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for x in (_inputs(), _inputs(seed=6)):
        found, wanted = compiled(x), other(x)
        torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for one, two in itertools.zip_longest(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad, two.grad)
    assert pruning.names == list(NAMES)


def test_a_model_of_two_bytes() -> None:
    model = make_model().bfloat16()
    pruning = soften(model, density=0.3)
    out = model(_inputs().bfloat16())
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert sum(int(mask.sum()) for mask in pruning.finalize().values()) == pruning.count


def test_what_is_left_can_be_pruned_by_another_budget() -> None:
    model = make_model()
    soften(model, ["0.weight"], density=0.5, scope="layer")
    assert soften(model, density=0.25, scope="layer").names == list(NAMES[1:])


def test_learned_scores_are_parameters_for_an_optimiser_made_after() -> None:
    model = make_model()
    before = set(model.parameters())
    soften(model, density=0.5, scores="learned")
    assert len(set(model.parameters()) - before) == len(NAMES)


def test_an_end_is_an_end() -> None:
    model = make_model()
    pruning = soften(model, density=0.5)
    pruning.density = 0.25
    pruning.finalize()
    with pytest.raises(RuntimeError, match="finalize must be called once"):
        pruning.finalize()
    with pytest.raises(RuntimeError, match=r"density must be set before finalize.*density=0\.2"):
        pruning.density = 0.2
    with pytest.raises(ValueError, match=r"density follows from scope='1:2', got density=0\.3"):
        soften(model, scope="1:2").density = 0.3
    with pytest.raises(ValueError, match="state must have density and temperature"):
        pruning.load_state_dict({})
    assert "3 parameters, density=0.25" in repr(pruning)

"""Activations of sparse autoencoders against plain top-k, and dead latents."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import BatchTopK, BudgetSchedule, DeadLatents, TopKActivation


def _plain_topk(x: Tensor, k: int) -> Tensor:
    """The activation as published: ReLU of the k largest of a row."""
    values, places = x.topk(k, dim=-1)
    return torch.zeros_like(x).scatter(-1, places, values.relu())


def _plain_batch_topk(x: Tensor, k: float) -> Tensor:
    flat = x.relu().flatten()
    values, places = flat.topk(int(k * x.shape[:-1].numel()))
    return torch.zeros_like(flat).scatter(0, places, values).view_as(x)


@pytest.mark.parametrize("shape", [(30,), (5, 30), (2, 3, 30)])
def test_forward_is_the_plain_activation(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    assert torch.equal(TopKActivation(4)(x), _plain_topk(x, 4))
    assert torch.equal(TopKActivation(4).eval()(x), _plain_topk(x, 4))
    assert torch.equal(BatchTopK(2.5)(x), _plain_batch_topk(x, 2.5))
    many = BatchTopK(29)(x)  # more than are positive
    assert torch.equal(many, x.relu())


def test_at_temperature_0_the_gradient_is_the_plain_one_too() -> None:
    x, upstream = normal(4, 20).requires_grad_(), normal(4, 20, seed=1)
    for layer, plain in (
        (TopKActivation(3, 0.0), _plain_topk),
        (BatchTopK(3, 0.0), _plain_batch_topk),
    ):
        (found,) = torch.autograd.grad(layer(x), x, upstream)
        (wanted,) = torch.autograd.grad(plain(x, 3), x, upstream)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("hard", [True, False])
def test_the_gradient_reaches_latents_that_are_not_chosen(hard: bool) -> None:
    x, upstream = normal(4, 20).requires_grad_(), normal(4, 20, seed=1)
    (found,) = torch.autograd.grad(BatchTopK(3, 0.3, hard=hard)(x), x, upstream)
    wanted = torch.relu(x) * soft_topk(x, 12, 0.3, dim=None, hard=hard)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, x, upstream)[0])
    assert (found[_plain_batch_topk(x.detach(), 3) == 0] != 0).any()


@pytest.mark.parametrize("hard", [True, False], ids=["hard", "annealed"])
@pytest.mark.parametrize("name", ["batch", "row"])
def test_a_jumprelu_with_the_exported_threshold_has_k_active_latents(name: str, hard: bool) -> None:
    """On held-out data of the same distribution, to 1%."""
    torch.manual_seed(0)
    encoder = torch.nn.Linear(32, 2048)
    layer: TopKActivation | BatchTopK
    if name == "batch":
        layer = BatchTopK(32, 0.1, hard=hard)
    else:
        layer = TopKActivation(32, 0.1, hard=hard, inference="threshold")
    schedule = BudgetSchedule(layer, steps=10, start=256, end=32)
    with torch.no_grad():
        for _ in range(150):
            layer(encoder(torch.randn(64, 32)))
            schedule.step()
        held_out = encoder(torch.randn(8192, 32))
        active = (layer.eval()(held_out) > 0).sum(-1).double().mean().item()
        threshold = layer.jumprelu_threshold(2048)
        jumprelu = held_out * (held_out > threshold)
    assert active == pytest.approx(32, rel=0.01)
    assert torch.equal(jumprelu, layer(held_out))
    assert threshold.shape == (2048,)


def test_a_jumprelu_threshold_is_at_least_0() -> None:
    layer = BatchTopK(25)
    layer(normal(8, 30))
    assert layer.threshold < 0
    assert (layer.jumprelu_threshold(30) == 0).all()
    x = normal(8, 30, seed=2)
    assert torch.equal(layer.eval()(x), x.relu())


def test_the_dtype_of_activations_is_that_of_the_model() -> None:
    x = normal(4, 30, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for layer in (TopKActivation(3), BatchTopK(3)):
            assert layer(x).dtype == torch.bfloat16
            assert layer.eval()(x).dtype == torch.bfloat16


def test_masked_latents_are_silent() -> None:
    x, mask = normal(4, 30).abs(), torch.arange(30) < 5
    for layer in (TopKActivation(9), BatchTopK(9)):
        for training in (True, False):
            active = layer.train(training)(x, mask) > 0
            assert not active[:, 5:].any()
            assert active.sum() <= 20
    assert (TopKActivation(9).eval()(x, mask)[:, :5] == x[:, :5]).all()


def test_dead_latents_are_counted_by_rows() -> None:
    dead = DeadLatents(4, patience=6)
    one = torch.tensor([1.0, 0.0, 0.0, -2.0])
    dead.update(one.expand(2, 2, 4))
    assert dead.rows_since_fired.tolist() == [0, 4, 4, 0]
    dead.update(torch.tensor([[0.0, 0.0, 3.0, 0.0]]))
    dead.update(one)
    assert dead.rows_since_fired.tolist() == [0, 6, 1, 0]
    assert dead.is_dead.tolist() == [False, True, False, False]
    other = DeadLatents(4, patience=6)
    other.load_state_dict(dead.state_dict())
    assert torch.equal(other.half().rows_since_fired, dead.rows_since_fired)


@pytest.mark.parametrize("num_dead", [0, 3, 12])
def test_the_auxiliary_selection_takes_the_largest_dead_latents(num_dead: int) -> None:
    dead = DeadLatents(20, patience=1)
    dead.rows_since_fired[:num_dead] = 5
    latents = normal(2, 6, 20).requires_grad_()
    chosen = dead(latents, k=5)
    wanted = torch.zeros_like(latents)
    if num_dead:
        values, places = latents[..., :num_dead].topk(min(5, num_dead), dim=-1)
        wanted = wanted.scatter(-1, places, values)
    assert torch.equal(chosen.activations, wanted)
    assert chosen.share.item() == pytest.approx(min(num_dead / 5, 1))
    upstream = normal(2, 6, 20, seed=1)
    (gradient,) = torch.autograd.grad(chosen.activations, latents, upstream)
    assert torch.equal(gradient, upstream * (wanted != 0))
    (soft,) = torch.autograd.grad(dead(latents, 5, 0.3).activations, latents, upstream)
    assert (soft[..., num_dead:] == 0).all()
    assert (soft != gradient).any() == (num_dead > 5)


def test_infinite_latents_that_are_not_chosen_are_zero() -> None:
    dead = DeadLatents(6, patience=1)
    dead.rows_since_fired[3:] = 5
    latents = torch.tensor([[math.inf, -math.inf, math.nan, 1.0, -math.inf, 3.0]])
    latents.requires_grad_()
    for temperature in (0.0, 0.3):
        found = dead(latents, 2, temperature).activations
        assert found.tolist() == [[0.0, 0.0, 0.0, 1.0, 0.0, 3.0]]
        (gradient,) = torch.autograd.grad(found.sum(), latents)
        assert gradient.isfinite().all()
        assert (gradient[0, :3] == 0).all()


def test_no_dead_latents_have_no_share_of_none() -> None:
    dead = DeadLatents(6, patience=1)
    chosen = dead(normal(2, 6), 0)
    assert (chosen.activations == 0).all()
    assert chosen.share.item() == 0
    dead.rows_since_fired[3:] = 5
    assert dead(normal(2, 6), 0).share.item() == 1


def test_a_loop_of_dead_latents_is_one_graph(fresh_compiler: None) -> None:
    dead, eager = DeadLatents(20, patience=3), DeadLatents(20, patience=3)

    def step(counter: DeadLatents, x: Tensor) -> Tensor:
        counter.update(x)
        return counter(x, 4).activations

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        x = normal(2, 20, seed=seed).relu() * (torch.arange(20) > 9)
        assert torch.equal(compiled(dead, x), step(eager, x))
    assert torch.equal(dead.rows_since_fired, eager.rows_since_fired)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="patience must be a whole number over 0, got patience=0"):
        DeadLatents(4, 0)
    with pytest.raises(ValueError, match=r"num_latents must be a whole number .*num_latents=1\.5"):
        DeadLatents(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"latents must have num_latents=4 .*\(2, 5\)"):
        DeadLatents(4)(normal(2, 5), 1)
    with pytest.raises(ValueError, match="inference must be one of 'budget', 'threshold'"):
        TopKActivation(4, inference="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k must lie in \[0, 3\].*k=4"):
        TopKActivation(4)(normal(2, 3))
    assert math.isnan(TopKActivation(4).threshold)
    with pytest.raises(ValueError, match=r"k must be a whole number .*hard=True, got k=2\.5"):
        TopKActivation(2.5)


def test_a_fractional_k_is_for_soft_masks_and_for_the_way_of_a_schedule() -> None:
    x = normal(5, 30)
    assert TopKActivation(0.1 * 30).k == 0.1 * 30  # whole but for rounding
    soft = TopKActivation(2.5, 0.3, hard=False)
    torch.testing.assert_close(soft(x), torch.relu(x) * soft_topk(x, 2.5, 0.3))
    layer = TopKActivation(4)
    schedule = BudgetSchedule(layer, steps=2, start=8, end=4)
    schedule.step()
    assert 5 < layer.k < 6
    assert torch.equal(layer(x), _plain_topk(x, 5))


@pytest.mark.parametrize(
    "layer", [BatchTopK(3), TopKActivation(3, inference="threshold"), TopKActivation(3)]
)
def test_a_threshold_that_is_not_known_is_not_exported(layer: BatchTopK | TopKActivation) -> None:
    says = f"{type(layer).__name__} has no threshold to export yet: .*calibrate"
    with pytest.raises(RuntimeError, match=says):
        layer.jumprelu_threshold(30)
    layer(normal(5, 30))
    if isinstance(layer, TopKActivation) and layer.inference == "budget":
        with pytest.raises(RuntimeError, match='make it with inference="threshold" and train it'):
            layer.jumprelu_threshold(30)
        layer.calibrate(normal(5, 30))
    assert (layer.jumprelu_threshold(30) > 0).all()
    nothing = layer.to("meta").jumprelu_threshold(30)
    assert nothing.is_meta


@pytest.mark.parametrize("k", [0.02, 2.5, 30.0])
def test_compiled_thresholds_are_the_eager_ones(k: float, fresh_compiler: None) -> None:
    """A graph has the best latent that is left out from the gate, and solves for no threshold."""
    eager = BatchTopK(k)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = normal(6, 30)
    ties, unknown, infinite = (x * 2).round(), x.clone(), x.clone()
    unknown[2, 3], infinite[0, 0] = math.nan, math.inf
    infinite[1] = -math.inf if k < 30 else 0  # no budget fits scores that take no part
    mask = normal(6, 30, seed=1) > -0.5
    batches = ((unknown, None), (x, None), (ties, None), (infinite, None), (x, mask), (ties, mask))
    for batch, valid in (*batches, (x.bfloat16(), None), (unknown, None)):
        torch.testing.assert_close(compiled(batch, valid), eager(batch, valid), equal_nan=True)
        for name, value in eager.state_dict().items():
            found = layer.state_dict()[name]
            torch.testing.assert_close(found, value, rtol=1e-6, atol=0, equal_nan=True, msg=name)

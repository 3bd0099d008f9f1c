"""What every layer for models has: a state, compiled graphs, dtypes, copies."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from fast_lapsum import nn
from model_layers import LAYERS, Case

CASES = pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS.keys())


def _trained(case: Case, seed: int = 0) -> Module:
    torch.manual_seed(seed)
    layer = case.make()
    for _ in range(3):
        layer(*case.inputs())
    return layer


def _same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)


@CASES
def test_a_state_dict_has_all_that_inference_needs(case: Case) -> None:
    layer, other = _trained(case), case.make()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    inputs = case.inputs()
    copies = [other, copy.deepcopy(layer)]
    for training in (True, False):
        wanted = case.outputs(layer.train(training)(*inputs))
        assert all(one.is_floating_point() <= bool(one.isfinite().any()) for one in wanted)
        for one in copies:
            _same(case.outputs(one.train(training)(*inputs)), wanted)


@CASES
def test_a_graph_is_whole_and_keeps_the_threshold(case: Case, fresh_compiler: None) -> None:
    """The compiled layer moves its buffers as the eager one does, forward and backward."""
    eager = _trained(case)
    layer = copy.deepcopy(eager)
    for training in (True, False):
        compiled = torch.compile(layer.train(training), fullgraph=True, backend="aot_eager")
        eager.train(training)
        inputs = case.inputs()
        theirs = [one.clone().requires_grad_() for one in inputs]
        ours = [one.clone().requires_grad_() for one in inputs]
        wanted, found = case.outputs(eager(*theirs)), case.outputs(compiled(*ours))
        _same(found, wanted)
        if not wanted[0].requires_grad:
            continue
        for one, given in ((wanted, theirs), (found, ours)):
            sums = [x.square().nan_to_num(posinf=0).sum() for x in one if x.requires_grad]
            torch.stack(sums).sum().backward()
            assert any(x.grad is not None for x in given)
        for a, b in zip(theirs, ours, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                _same((b.grad,), (a.grad,))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, msg=name, equal_nan=True)


@pytest.mark.parametrize("use_reentrant", [False, True])
@CASES
def test_a_batch_that_is_computed_again_counts_once(case: Case, use_reentrant: bool) -> None:
    """Checkpointing runs a layer a second time, in the backward pass, for its gradient."""
    layer = _trained(case)
    once, inputs = copy.deepcopy(layer), case.inputs()

    def step(layer: Module, is_checkpointed: bool) -> tuple[Tensor, ...]:
        leaves = [one.clone().requires_grad_() for one in inputs]

        def loss(*scores: Tensor) -> Tensor:
            outputs = case.outputs(layer(*(2 * one for one in scores)))
            finite = [one.nan_to_num(neginf=0).square().sum() for one in outputs]
            return torch.stack(finite).sin().sum()  # which all of it is computed again for

        if is_checkpointed:
            found = checkpoint(loss, *leaves, use_reentrant=use_reentrant)  # type: ignore[no-untyped-call]
        else:
            found = loss(*leaves)
        found.backward()
        return tuple(leaf.grad for leaf in leaves if leaf.grad is not None)

    _same(step(layer, is_checkpointed=True), step(once, is_checkpointed=False))
    _same(tuple(layer.state_dict().values()), tuple(once.state_dict().values()))


def test_dead_latents_that_are_computed_again_count_once() -> None:
    dead = nn.DeadLatents(4, patience=6)

    def loss(latents: Tensor) -> Tensor:
        dead.update(latents)
        return latents.square().sum()

    latents = torch.tensor([[1.0, 0.0, 0.0, 2.0]], requires_grad=True)
    checkpoint(loss, latents, use_reentrant=False).backward()  # type: ignore[no-untyped-call]
    assert dead.rows_since_fired.tolist() == [0, 1, 1, 0]


@CASES
def test_thresholds_stay_float32_in_a_model_of_two_bytes(case: Case) -> None:
    layer = _trained(case)
    for dtype in (torch.bfloat16, torch.float16):
        before = copy.deepcopy(layer.state_dict())
        layer.to(dtype)
        for name, value in layer.state_dict().items():
            if name != "weight":
                assert torch.equal(value.nan_to_num(7), before[name].nan_to_num(7)), name
                assert value.dtype == before[name].dtype
        for training in (True, False):
            inputs = tuple(one.to(dtype) for one in case.inputs())
            out = case.outputs(layer.train(training)(*inputs))
            assert not any(one.isnan().any() for one in out)


def _near(found: Tensor, wanted: Tensor, name: str = "") -> None:
    """As close as numbers of two bytes are, measured by the largest."""
    scale = float(wanted.detach().where(wanted.isfinite(), 0).abs().max())
    tolerances = {"rtol": 2**-7, "atol": 2**-7 * scale}
    torch.testing.assert_close(
        found.to(wanted.dtype), wanted, **tolerances, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )


@CASES
def test_autocast_is_near_float32(case: Case) -> None:
    """Outputs, gradients and what is kept: those of the same scores in float32."""
    layer = _trained(case)
    for training in (True, False):
        layer.zero_grad()
        wide = copy.deepcopy(layer).train(training)
        given = tuple(one.to(torch.bfloat16).requires_grad_() for one in case.inputs())
        given_wide = tuple(one.detach().float().requires_grad_() for one in given)
        with torch.autocast("cpu", torch.bfloat16):
            out = case.outputs(layer.train(training)(*given))
        wanted = case.outputs(wide(*given_wide))
        for found, one in zip(out, wanted, strict=True):
            if one.is_floating_point():
                _near(found, one)
            else:
                assert torch.equal(found, one)
        for name, value in wide.state_dict().items():
            _near(layer.state_dict()[name], value, name)
        if not any(one.requires_grad for one in wanted):
            continue
        for outputs in (out, wanted):
            sums = [x.float().square().nan_to_num(posinf=0).sum() for x in outputs]
            torch.stack([x for x in sums if x.requires_grad]).sum().backward()
        leaves = [*zip(given, given_wide, strict=True)]
        leaves += zip(layer.parameters(), wide.parameters(), strict=True)
        assert any(one.grad is not None and one.grad.abs().sum() > 0 for _, one in leaves)
        for ours, theirs in leaves:
            assert (ours.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                _near(ours.grad, theirs.grad)


@CASES
def test_an_empty_batch_changes_nothing(case: Case) -> None:
    layer = _trained(case)
    before = copy.deepcopy(layer.state_dict())
    for training in (True, False):
        out = layer.train(training)(*(one[:0] for one in case.inputs()))
        assert all(one.numel() == 0 for one in case.outputs(out))
    for name, value in layer.state_dict().items():
        assert torch.equal(value.nan_to_num(7), before[name].nan_to_num(7)), name


@CASES
def test_a_batch_with_nan_spoils_no_threshold(case: Case) -> None:
    layer = _trained(case)
    known = {name: bool(value.isfinite().all()) for name, value in layer.state_dict().items()}
    inputs = case.inputs()
    for one in inputs:
        one.view(-1)[3] = math.nan
    layer(*inputs)
    for name, value in layer.state_dict().items():
        assert bool(value.isfinite().all()) == known[name], name


@CASES
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_tensor_is_named(case: Case, training: bool) -> None:
    layer, inputs = case.make().train(training), case.inputs()
    name = "tokens" if isinstance(layer, (nn.TokenSelect, nn.TopKRouter)) else "scores"
    with pytest.raises(TypeError, match=rf"{name} must be a torch\.Tensor, got list"):
        layer([1, 2], *inputs[1:])


def test_what_is_no_tensor_is_named_elsewhere() -> None:
    attention = nn.SparseAttentionBias(2)
    running, tokens = nn.RunningThreshold(), torch.randn(3, 5, 8)
    router, select = nn.TopKRouter(8, 6, 2, use_selection_bias=True), nn.TokenSelect(2)
    selected = select(tokens, tokens[..., 0])
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("scores", attention.score_mod),
        ("scores", attention.block_mask),
        ("scores", lambda x: running.update(x, 1)),
        ("scores", running.mask),
        ("scores", lambda x: running.soft_mask(x, 0.5)),
        ("scores", lambda x: running.log_soft_mask(x, 0.5)),
        ("tokens_per_expert", router.update_selection_bias),
        ("scores", lambda x: select(tokens, x)),
        ("lengths", lambda x: select(tokens, tokens[..., 0], lengths=x)),
        ("computed", lambda x: selected.scatter(x, tokens)),
        ("onto", lambda x: selected.scatter(selected.tokens, x)),
        ("tokens", lambda x: selected.fused_rest(x, tokens[..., 0])),
        ("weights", lambda x: selected.fused_rest(tokens, x)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=rf"^{name} must be a torch\.Tensor, got list"):
            call([1, 2])


@CASES
def test_layers_are_shown(case: Case) -> None:
    assert repr(case.make()).startswith(type(case.make()).__name__ + "(")


@pytest.mark.parametrize("name", ["gate-batch", "batch-topk", "topk-threshold"])
def test_an_unknown_threshold_is_seen(name: str) -> None:
    """Evaluated before it was trained or calibrated, a layer has no answer: NaN, not zeros."""
    layer = LAYERS[name].make().eval()
    assert layer(*LAYERS[name].inputs()).isnan().all()


def test_an_unknown_threshold_is_seen_in_routers_and_selections() -> None:
    assert LAYERS["router-batch"].make().eval()(torch.randn(3, 8)).probabilities.isnan().all()
    tokens, scores = LAYERS["tokens"].inputs()
    selected = nn.TokenSelect(0.5).eval()(tokens, scores)
    assert selected.scatter(selected.tokens, onto=tokens).isnan().any()


def test_schedules_set_every_layer() -> None:
    layers = [case.make() for case in LAYERS.values()]
    nn.TemperatureSchedule(layers, steps=4, start=0.75, end=0.25).step()
    for layer in layers:
        assert layer.temperature == pytest.approx(0.75 * (1 / 3) ** 0.25)  # type: ignore[arg-type]
    budgets = [nn.BatchTopK(4), nn.SoftTopK(4), nn.SparseAttentionBias(4)]
    schedule = nn.BudgetSchedule(budgets, steps=3, start=32, end=4, shape="linear")
    for _ in range(5):
        schedule.step()
    assert [layer.k for layer in budgets] == [4.0] * 3
    with pytest.raises(TypeError, match=r"layers must have a k .* got Linear"):
        nn.BudgetSchedule(torch.nn.Linear(2, 2), steps=3, start=32, end=4)

"""The operators of gated activations as torch.library, FakeTensor and torch.compile see them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import is_fake
from torch.library import opcheck

from cases import normal
from fast_lapsum import _activation_ops, soft_topk
from fast_lapsum.nn import BatchTopK, BudgetGate, TopKActivation, activated

OPERATORS = torch.ops.fast_lapsum
#: What opcheck looks at; autograd is registered outside of the operators.
CHECKS = ("test_schema", "test_faketensor")


def _scores(kind: str) -> Tensor:
    wide = normal(3, 10)
    tied, spoilt = (2 * wide[0]).round(), wide[0].clone()
    tied[2], spoilt[4] = -math.inf, math.nan
    return {
        "rows": wide.float(),
        "double": wide,
        "half": wide.bfloat16(),
        "transposed": normal(10, 3).mT,
        "one row": wide[0].float(),
        "ties": tied.float(),
        "nan": spoilt.float(),
        "no rows": wide[:0],
        "no scores": wide[0, :0],
    }[kind]


KINDS = ("rows", "double", "half", "transposed", "one row", "ties", "nan", "no rows", "no scores")


def _given(scores: Tensor, k: float, t: float) -> tuple[Tensor, ...]:
    values = (torch.tensor(x, dtype=torch.float64).expand(scores.shape[:-1]) for x in (k, t))
    return scores, *values, torch.tensor(0.5)


@pytest.mark.parametrize("gate_dtype", [None, torch.float32])
@pytest.mark.parametrize("output", ["hard", "mask"])
@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind: str, output: str, gate_dtype: torch.dtype | None) -> None:
    scores = _scores(kind)
    k = min(3, scores.shape[-1])
    is_one = scores.dim() == 1 and output == "hard" and scores.numel() > 0
    for keeps_gate in (True, False) if is_one else (True,):
        rest = (output, gate_dtype or scores.dtype, keeps_gate)
        given = (*_given(scores, k, 0.3), *rest)
        opcheck(OPERATORS.gated_activation.default, given, test_utils=CHECKS)
        out, _, best, pair, kept = OPERATORS.gated_activation(*given)
        backward = (out, scores, given[2], best, pair, kept, output, keeps_gate)
        opcheck(OPERATORS.gated_activation_backward.default, backward, test_utils=CHECKS)


@pytest.mark.parametrize("t", [0.3, 0.0])
@pytest.mark.parametrize("k", [0, 3, 10])
@pytest.mark.parametrize("output", ["hard", "mask"])
@pytest.mark.parametrize("kind", ["rows", "double", "transposed", "one row", "ties", "nan"])
def test_operators_are_what_they_stand_for(kind: str, output: str, k: int, t: float) -> None:
    """ReLU times the mask, and the gradient of that, whether the gate is kept or its boundary."""
    leaf = _scores(kind).requires_grad_()
    scores = leaf.detach()
    k = k if kind != "ties" else min(k, 9)  # a score of -inf takes no part
    gate = soft_topk(leaf, k, t, hard=output == "hard")
    wanted, upstream = torch.relu(leaf) * gate, normal(*scores.shape, seed=1).to(scores.dtype)
    (wanted_gradient,) = torch.autograd.grad(wanted, leaf, upstream)
    is_one = scores.dim() == 1 and output == "hard"
    for keeps_gate in (True, False) if is_one else (True,):
        given = _given(scores, k, t)
        found = OPERATORS.gated_activation(*given, output, scores.dtype, keeps_gate)
        out, count, best, pair, kept = found
        torch.testing.assert_close(out, wanted.detach(), rtol=0, atol=0, equal_nan=True)
        assert count == (scores > 0.5).sum()
        left = scores[gate.detach() != 1]
        assert torch.equal(best.isnan(), left.isnan().any())
        if not best.isnan():
            assert best == (left.max() if left.numel() else -math.inf)
        backward = (upstream, scores, given[2], best, pair, kept, output, keeps_gate)
        gradient = OPERATORS.gated_activation_backward(*backward)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.fixture(params=[10**9, 0], ids=["gate kept", "boundary kept"])
def in_graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs have the operators, as on a GPU, and what they call is noted."""
    kernels, called = SimpleNamespace(LONGEST_WITH_GATE=request.param), []

    def kernels_for(scores: Tensor) -> Any:
        return kernels if is_fake(scores) else called.append(request.param)

    monkeypatch.setattr(_activation_ops, "kernels_for", kernels_for)
    monkeypatch.setattr(activated, "_DEVICES_WITH_KERNELS", ("cpu",))
    return called


LAYERS: dict[str, Callable[[], BudgetGate]] = {
    "batch": lambda: BatchTopK(2.5),
    "batch of none": lambda: BatchTopK(0.02),
    "batch of all": lambda: BatchTopK(30),
    "cold batch": lambda: BatchTopK(3, 0.0),
    "soft batch": lambda: BatchTopK(2.5, 0.3, hard=False),
    "rows": lambda: TopKActivation(3),
    "soft rows": lambda: TopKActivation(2.5, 0.3, hard=False),
    "rows with a threshold": lambda: TopKActivation(3, inference="threshold"),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_are_the_eager_ones(name: str, in_graphs: list[Any]) -> None:
    """Activations, gradients and thresholds, of one graph, also as k and temperature change."""
    eager = LAYERS[name]()
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = normal(6, 30).float()
    ties, unknown = (x * 2).round(), x.clone()
    unknown[2, 3] = math.nan
    half, three = x.bfloat16(), x.view(2, 3, 30)
    for seed, batch in enumerate((unknown, x, ties, half, three, x)):
        leaf, other = (batch.clone().requires_grad_() for _ in range(2))
        before = len(in_graphs)
        found, wanted = compiled(leaf), eager(other)
        assert len(in_graphs) == before + 1
        torch.testing.assert_close(found, wanted, equal_nan=True)
        upstream = normal(*batch.shape, seed=seed).to(batch.dtype)
        (gradient,) = torch.autograd.grad(found, leaf, upstream)
        assert len(in_graphs) == before + 2
        (wanted_gradient,) = torch.autograd.grad(wanted, other, upstream)
        digits = {} if batch.dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-3}
        # Of the number 0 a call knows beforehand that the gate has no gradient, not even a NaN.
        if not (batch is unknown and "cold" in name):
            torch.testing.assert_close(gradient, wanted_gradient, **digits, equal_nan=True)
        for key, value in eager.state_dict().items():
            one = layer.state_dict()[key]
            torch.testing.assert_close(one, value, rtol=1e-6, atol=0, equal_nan=True, msg=key)
        if seed == 4:
            for changed in (eager, layer):
                changed.k, changed.temperature = changed.k / 2, changed.temperature / 2


@pytest.mark.usefixtures("fresh_compiler")
def test_a_graph_without_kernels_has_operations_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activated, "_DEVICES_WITH_KERNELS", ("cpu",))
    eager = BatchTopK(3)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = normal(6, 30).float().requires_grad_()
    found, wanted = compiled(x), eager(x)
    upstream = normal(6, 30, seed=1).float()
    torch.testing.assert_close(found, wanted)
    for one, other in ((found, wanted), (layer.threshold, eager.threshold)):
        torch.testing.assert_close(one, other)
    got = torch.autograd.grad(found, x, upstream)
    torch.testing.assert_close(got, torch.autograd.grad(wanted, x, upstream))


@pytest.mark.usefixtures("fresh_compiler")
def test_batches_of_other_sizes_need_no_new_graph(in_graphs: list[Any]) -> None:
    layer, eager = BatchTopK(3), BatchTopK(3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    made = []
    for rows in (6, 9, 4, 11):
        x = normal(rows, 30).float().requires_grad_()
        found, wanted = compiled(x), eager(x)
        torch.testing.assert_close(found, wanted)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
        torch.testing.assert_close(gradient, torch.autograd.grad(wanted.square().sum(), x)[0])
        torch.testing.assert_close(layer.threshold, eager.threshold)
        assert len(in_graphs) == 2
        in_graphs.clear()
        made.append(counter.frame_count)
    assert made[1:] == [made[1]] * 3


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("in_graphs", [200], indirect=True)
def test_a_short_batch_between_long_ones_leaves_their_masks_out_of_memory(
    in_graphs: list[Any],
) -> None:
    layer = BatchTopK(3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    frames = []
    for rows in (8, 6, 8, 10, 3, 8, 12):
        x = normal(rows, 30).float().requires_grad_()
        out = compiled(x)
        kept = [saved.numel() for saved in out.grad_fn.saved_tensors]
        assert kept.count(x.numel()) == (1 if x.numel() > 200 else 2), rows
        assert len(in_graphs) == 1
        in_graphs.clear()
        frames.append(counter.frame_count)
    assert frames[3:] == frames[3:4] * 4


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("learned", ["k", "temperature"])
def test_what_is_learned_has_its_gradient_in_a_graph(learned: str, in_graphs: list[Any]) -> None:
    values = {"k": torch.tensor(3.0), "temperature": torch.tensor(0.3)}
    values[learned] = torch.nn.Parameter(values[learned])
    eager = BatchTopK(**values)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = normal(6, 30).float()
    for one in (compiled, eager):
        one(x).square().sum().backward()
    (found,), (wanted,) = layer.parameters(), eager.parameters()
    assert found.grad is not None
    torch.testing.assert_close(found.grad, wanted.grad)
    assert not in_graphs


def test_rows_that_a_mask_picks_are_in_one_graph(in_graphs: list[Any]) -> None:
    """How many there are is not known to the graph."""
    layer, scores = TopKActivation(4, 0.3), normal(32, 64).float()

    def call(x: Tensor, is_picked: Tensor) -> Tensor:
        found: Tensor = layer(x[is_picked])
        return found

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        for share in (0.5, 0.2):
            is_picked = torch.rand(32, generator=torch.Generator().manual_seed(1)) < share
            torch.testing.assert_close(compiled(scores, is_picked), call(scores, is_picked))

"""Layers for models on a GPU: what a CPU gives, without waiting, in compiled graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from dense_attention import dense_attention
from fast_lapsum import nn
from fast_lapsum.backends.triton import activation_entry as kernels
from fast_lapsum.losses import TopKCrossEntropyLoss, recall_at_k, soft_ndcg, spearman_loss
from fast_lapsum.prune import soften
from model_layers import LAYERS, Case

NoSync = Callable[[], AbstractContextManager[None]]
CASES = pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS.keys())


def _pair(case: Case) -> tuple[Module, Module]:
    """The same layer on the CPU and on the GPU, trained a little."""
    torch.manual_seed(0)
    layer = case.make()
    for _ in range(3):
        layer(*case.inputs())
    return layer, copy.deepcopy(layer).cuda()


def _squares(outputs: tuple[Tensor, ...]) -> Tensor:
    squares = [one.square().nan_to_num(posinf=0).sum() for one in outputs if one.requires_grad]
    return torch.stack(squares).sum()


def _same(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5, equal_nan=True)


@CASES
def test_a_gpu_gives_what_a_cpu_gives(case: Case) -> None:
    here, there = _pair(case)
    for training in (True, True, False):
        inputs = case.inputs()
        leaves = [one.clone().requires_grad_() for one in inputs]
        moved = [one.cuda().requires_grad_() for one in inputs]
        wanted = case.outputs(here.train(training)(*leaves))
        found = case.outputs(there.train(training)(*moved))
        _same(found, wanted)
        if wanted[0].requires_grad:
            _squares(wanted).backward()
            _squares(found).backward()
            for one, other in zip(moved, leaves, strict=True):
                if other.grad is not None:
                    assert one.grad is not None
                    _same((one.grad,), (other.grad,))
    for name, value in here.state_dict().items():
        found_value = there.state_dict()[name]
        assert found_value.is_cuda
        torch.testing.assert_close(
            found_value.cpu(), value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
        )


@CASES
def test_layers_wait_for_nothing(case: Case, no_sync: NoSync) -> None:
    _, layer = _pair(case)
    inputs = [one.cuda().requires_grad_() for one in case.inputs()]
    for training in (True, False):
        layer.train(training)
        _forward_and_backward(layer, case, inputs)  # compiles
        with no_sync():
            _forward_and_backward(layer, case, inputs)


def _forward_and_backward(layer: Module, case: Case, inputs: list[Tensor]) -> None:
    out = case.outputs(layer(*inputs))
    if out[0].requires_grad:
        _squares(out).backward()


def _masked_calls() -> dict[str, tuple[Module, tuple[Any, ...]]]:
    scores, tokens = torch.randn(6, 40).cuda(), torch.randn(6, 40, 8).cuda()
    mask = torch.rand(6, 40).cuda() < 0.7
    lengths = torch.tensor([40, 30, 20, 10, 5, 0]).cuda()
    return {
        "gate": (nn.BudgetGate(3, 0.3).cuda(), (scores, mask)),
        "gate-batch": (nn.BudgetGate(3, 0.3, budget="batch", hard=True).cuda(), (scores, mask)),
        "tokens": (nn.TokenSelect(0.3, 0.5).cuda(), (tokens, scores, mask)),
        "tokens-count": (nn.TokenSelect(4, 0.5).cuda(), (tokens, scores, None, lengths)),
        "router": (nn.TopKRouter(8, 6, 2, capacity_factor=1.0).cuda(), (tokens, mask)),
        "router-expert": (nn.TopKRouter(8, 6, 2, budget="expert").cuda(), (tokens, mask)),
        "dead": (nn.DeadLatents(40, 3).cuda(), (scores, 5)),
    }


@pytest.mark.parametrize(
    "name", ["gate", "gate-batch", "tokens", "tokens-count", "router", "router-expert", "dead"]
)
def test_masked_calls_wait_for_nothing(name: str, no_sync: NoSync) -> None:
    torch.manual_seed(0)
    layer, given = _masked_calls()[name]
    layer(*given)
    if isinstance(layer, nn.DeadLatents):
        layer.update(given[0])
    with no_sync():
        out = layer(*given)
        if isinstance(out, nn.Routing):
            out.load_balance_loss(), out.z_loss(), out.top(2), out.for_torchtitan(2)
        if isinstance(layer, nn.DeadLatents):
            layer.update(given[0])
    layer.eval()
    layer(*given)
    with no_sync():
        layer(*given)


@pytest.mark.parametrize("name", ["batch-topk", "router-token", "tokens", "attention"])
def test_layers_compile(name: str) -> None:
    """By the default compiler, with thresholds that move."""
    torch._dynamo.reset()
    case = LAYERS[name]
    _, eager = _pair(case)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True)
    for _ in range(3):
        inputs = [one.cuda() for one in case.inputs()]
        wanted, found = case.outputs(eager(*inputs)), case.outputs(compiled(*inputs))
        _same(found, tuple(one.cpu() for one in wanted))
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[key], value, equal_nan=True, msg=key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.1, 0.0])
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("shape", [(301, 4099), (2048, 4096)])
def test_one_pass_gives_what_many_operations_give(
    dtype: torch.dtype,
    temperature: float,
    skipped: int,
    shape: tuple[int, int],
    no_sync: NoSync,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of BatchTopK, in memory of any alignment: activations, gradients and thresholds.

    The larger batch is one whose mask is never in memory.
    """
    torch.manual_seed(0)
    fused = nn.BatchTopK(20, temperature).cuda()
    plain = copy.deepcopy(fused)
    assert not nn.sparse_activation.has_kernel(torch.zeros(3), plain.threshold)
    for _ in range(4):
        rows = torch.randn(shape[0] * shape[1] + skipped, device="cuda", dtype=dtype)
        scores = rows[skipped:].view(shape).requires_grad_()
        upstream = torch.randn_like(scores)
        assert nn.sparse_activation.has_kernel(scores, fused.threshold)
        torch.autograd.grad(fused(scores), scores, upstream)  # compiles
        with no_sync():
            out = fused(scores)
            (gradient,) = torch.autograd.grad(out, scores, upstream)
        with monkeypatch.context() as patched:
            patched.setattr(nn.sparse_activation, "has_kernel", lambda *given: False)
            plain(scores.detach())
            wanted = plain(scores)
            (wanted_gradient,) = torch.autograd.grad(wanted, scores, upstream)
        assert torch.equal(out, wanted)
        assert int(torch.count_nonzero(out)) == 20 * shape[0]
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(
            gradient, wanted_gradient, rtol=tolerance, atol=tolerance * temperature
        )
        for name, value in plain.state_dict().items():
            found = fused.state_dict()[name]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("n", [40, 4099, 16_384, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "layer",
    [nn.TopKActivation(20, 0.3), nn.TopKActivation(20, 0.3, hard=False), nn.BatchTopK(20, 0.3)],
    ids=str,
)
def test_the_whole_gradient_of_activations_is_that_of_float64(
    layer: Module, dtype: torch.dtype, n: int
) -> None:
    """With ties, infinities and, in a row of its own, a NaN; and derivatives of it are those."""
    torch.manual_seed(0)
    scores = torch.randn(33, n).to(dtype)
    scores[3, :5], scores[4, 7:9], scores[5] = float("-inf"), 50.0, scores[5].round()
    if isinstance(layer, nn.TopKActivation):
        scores[6, 1] = float("nan")
    upstream = torch.randn_like(scores)
    # Both at the scores as they are: those of two bytes have ties that float64 has, too.
    wide = scores.double().requires_grad_()
    (wanted,) = torch.autograd.grad(copy.deepcopy(layer)(wide), wide, upstream.double())
    leaf = scores.cuda().requires_grad_()
    out = copy.deepcopy(layer).cuda()(leaf)
    (found,) = torch.autograd.grad(out, leaf, upstream.cuda(), retain_graph=True)
    (again,) = torch.autograd.grad(out, leaf, upstream.cuda(), create_graph=True)
    assert again.requires_grad
    for one in (found, again.detach()):
        one = one.cpu().double()
        assert torch.equal(one.isnan(), wanted.isnan())
        error = (one - wanted).nan_to_num(0).abs().max()
        most = 1e-5 if dtype == torch.float32 else 2e-2
        assert error <= most * wanted.nan_to_num(0).abs().max()


def test_a_batch_takes_no_memory_but_activations_and_gradients() -> None:
    """No mask is kept for backward, and nothing of the scores' size is written on the way."""
    layer = nn.BatchTopK(100).cuda()
    scores = torch.randn(1024, 16_384, device="cuda", requires_grad=True)
    upstream = torch.randn_like(scores)
    torch.autograd.grad(layer(scores), scores, upstream)  # compiles
    rest = 4 << 20  # of what is told from launch to launch
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = layer(scores)
    assert torch.cuda.max_memory_allocated() - before <= out.nbytes + rest
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    (gradient,) = torch.autograd.grad(out, scores, upstream)
    assert torch.cuda.max_memory_allocated() - before <= gradient.nbytes + rest


@pytest.mark.parametrize("shape", [(64, 4096), (301, 4099), (2048, 4096)])
@pytest.mark.parametrize(
    "layer",
    [
        *(nn.BatchTopK(20, 0.3), nn.BatchTopK(20, 0.0), nn.BatchTopK(20, 0.3, hard=False)),
        *(nn.TopKActivation(20, 0.3), nn.TopKActivation(20, 0.3, inference="threshold")),
    ],
    ids=str,
)
def test_compiled_activations_take_the_kernels(
    layer: nn.BudgetGate, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph, by the default compiler: what an eager layer gives, thresholds, too.

    The largest batch is one whose mask is never in memory.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    called: list[str] = []

    def note(name: str) -> None:
        function = getattr(kernels, name)

        def noted(*given: Any) -> Any:
            called.append(name)
            return function(*given)

        monkeypatch.setattr(kernels, name, noted)

    for name in ("activate", "gated_forward", "gated_backward"):
        note(name)
    eager = copy.deepcopy(layer).cuda()
    same = copy.deepcopy(eager)
    compiled = torch.compile(same, fullgraph=True)
    for seed in range(3):
        scores = torch.randn(shape, device="cuda", requires_grad=True)
        upstream = torch.randn_like(scores)
        wanted = eager(scores)
        (wanted_gradient,) = torch.autograd.grad(wanted, scores, upstream)
        called.clear()
        found = compiled(scores)
        (gradient,) = torch.autograd.grad(found, scores, upstream)
        is_long = layer.hard and layer.budget == "batch" and scores.numel() > 2**22
        assert called == ["gated_forward" if is_long else "activate", "gated_backward"], seed
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-5, atol=1e-5)
        for name, value in eager.state_dict().items():
            one = same.state_dict()[name]
            torch.testing.assert_close(one, value, rtol=1e-4, atol=1e-6, equal_nan=True, msg=name)


def test_a_compiled_batch_takes_no_memory_but_activations_and_gradients() -> None:
    torch._dynamo.reset()
    layer = torch.compile(nn.BatchTopK(100).cuda(), fullgraph=True)
    scores = torch.randn(1024, 16_384, device="cuda", requires_grad=True)
    upstream = torch.randn_like(scores)
    for _ in range(2):
        torch.autograd.grad(layer(scores), scores, upstream)  # compiles
    rest = 4 << 20  # of what is told from launch to launch
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = layer(scores)
    assert torch.cuda.max_memory_allocated() - before <= out.nbytes + rest
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    (gradient,) = torch.autograd.grad(out, scores, upstream)
    assert torch.cuda.max_memory_allocated() - before <= gradient.nbytes + rest


def test_compiled_activations_wait_for_nothing(no_sync: NoSync) -> None:
    torch._dynamo.reset()
    layer = torch.compile(nn.BatchTopK(20).cuda(), fullgraph=True)
    scores = torch.randn(2048, 4096, device="cuda", requires_grad=True)
    for _ in range(2):
        torch.autograd.grad(layer(scores), scores, scores.detach())  # compiles
    with no_sync():
        torch.autograd.grad(layer(scores), scores, scores.detach())


def test_evaluation_keeps_the_budget_in_bfloat16() -> None:
    """Pre-activations of two bytes have ties; the budget is kept to the ties at the threshold."""
    torch.manual_seed(0)
    layer = nn.BatchTopK(100).cuda().bfloat16()
    for _ in range(30):
        layer(torch.randn(64, 16_384, device="cuda").bfloat16())
    layer.eval()
    active = (layer(torch.randn(512, 16_384, device="cuda").bfloat16()) > 0).sum(-1).float().mean()
    assert active.item() == pytest.approx(100, rel=0.05)
    assert layer.threshold.dtype == torch.float32


@pytest.mark.parametrize("block_size", [1, 16])
def test_flex_attention_passes_the_gradient_on(block_size: int) -> None:
    """Compiled, to the indexer and to its own inputs, as with the bias for every pair."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 4, 128, 32, device="cuda", requires_grad=True) for _ in range(3)
    )
    scores = torch.randn(2, 1, 128, 128 // block_size, device="cuda", requires_grad=True)
    bias = nn.SparseAttentionBias(4, 0.5, block_size=block_size).cuda()
    inputs = (query, key, value, scores)
    upstream = torch.randn_like(query)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(scores))
    attend = torch.compile(flex_attention)
    found = attend(query, key, value, score_mod=bias.score_mod(scores))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    for one, other in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(wanted, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("keys", [128, 256])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("through", ["scaled_dot_product_attention", "flex_attention"])
def test_the_attentions_gradient_reaches_the_indexer(
    through: str, block_size: int, keys: int
) -> None:
    """Output and gradients against dense float64; 128 queries, which may follow cached keys."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    torch.manual_seed(0)
    k, t = 4, 0.5
    shapes = ((2, 4, 128, 32), (2, 4, keys, 32), (2, 4, keys, 32), (2, 1, 128, keys // block_size))
    drawn = [torch.randn(shape) for shape in shapes]
    upstream = torch.randn(shapes[0])
    dense = [one.double().requires_grad_() for one in drawn]
    wanted = dense_attention(*dense, k, t, block_size)
    inputs = [one.cuda().requires_grad_() for one in drawn]
    query, key, value, scores = inputs
    bias = nn.SparseAttentionBias(k, t, block_size=block_size).cuda()
    if through == "flex_attention":
        found = torch.compile(flex_attention)(query, key, value, score_mod=bias.score_mod(scores))
    else:
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(scores))
    gradients = torch.autograd.grad(found, inputs, upstream.cuda())
    for one, other in zip(
        (found, *gradients),
        (wanted, *torch.autograd.grad(wanted, dense, upstream.double())),
        strict=True,
    ):
        error = (one.detach().cpu() - other.detach()).abs().max()
        assert error <= 5e-3 * other.detach().abs().max()
    # The indexer learns of blocks that were not chosen, too, and of nothing that is not seen.
    seen = bias.selection(scores).isfinite()
    left_out = seen & (bias.eval().selection(scores) != 0)
    assert (gradients[3].masked_select(left_out) != 0).float().mean() > 0.9
    assert (gradients[3].masked_select(~seen) == 0).all()


@pytest.mark.parametrize("scope", ["global", "layer", "2:4"])
def test_pruning_on_a_gpu_is_exact(scope: str, no_sync: NoSync) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model.cuda()
    pruning = soften(model, density=None if scope == "2:4" else 0.1, scope=scope)
    x = torch.randn(16, 64, device="cuda")
    model(x).square().sum().backward()
    with no_sync():
        model(x).square().sum().backward()
    wanted = model.eval()(x)
    masks = pruning.finalize()
    assert sum(int(mask.sum()) for mask in masks.values()) == pruning.count
    torch.testing.assert_close(model(x), wanted)


def test_losses_on_a_gpu(no_sync: NoSync) -> None:
    torch.manual_seed(0)
    scores, target = torch.randn(32, 200, requires_grad=True), torch.rand(32, 200)
    labels = torch.randint(0, 200, (32,))
    cross_entropy = TopKCrossEntropyLoss([0.5, 0.0, 0.5], 0.3)
    moved = scores.detach().cuda().requires_grad_()
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda x: cross_entropy(x, labels.to(x.device)),
        lambda x: cross_entropy(x, (target > 0.9).to(x.device)),
        lambda x: recall_at_k(x, (target > 0.9).to(x.device), 10, 0.3),
        lambda x: soft_ndcg(x, target.to(x.device), 0.3, k=10),
        lambda x: spearman_loss(x, target.to(x.device), 0.3),
    ]
    for loss in losses:
        wanted, found = loss(scores), loss(moved)
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
        (one,), (other,) = torch.autograd.grad(found, moved), torch.autograd.grad(wanted, scores)
        torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-6)
    there, several = labels.cuda(), (target > 0.9).cuda()
    with no_sync():
        cross_entropy(moved, there).backward()
        cross_entropy(moved, several).backward()
        recall_at_k(moved, several, 10, 0.3).backward()

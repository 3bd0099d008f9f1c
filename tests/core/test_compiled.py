"""The compiled call: as thin as the eager one, and compiled once whatever k and t become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

import fast_lapsum
from cases import generator, normal
from fast_lapsum import (
    hard_topk_mask,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_argsort,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_list,
    threshold,
)
from fast_lapsum.losses import spearman_loss
from fast_lapsum.nn import BatchTopK, SoftTopK

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Function = Callable[..., Tensor]


def _hard(scores: Tensor, k: Any, t: Any, **rest: Any) -> Tensor:
    return soft_topk(scores, k, t, hard=True, **rest)


def _with_threshold(scores: Tensor, k: Any, t: Any) -> Tensor:
    out, b = soft_topk(scores, k, t, return_threshold=True)
    return out + b[..., None]


def _weights(scores: Tensor, k: Any, t: Any) -> Tensor:
    return select_topk(scores, k, t).weights


def _sampled(scores: Tensor, k: Any, t: Any) -> Tensor:
    return sample_topk(scores, k, t).sum(-1) + 0 * scores.sum(-1)


DIFFERENTIABLE: dict[str, Function] = {
    "soft_topk": soft_topk,
    "hard": _hard,
    "log_soft_topk": log_soft_topk,
    "threshold": threshold,
    "with_threshold": _with_threshold,
}
ALL = DIFFERENTIABLE | {"select_topk": _weights, "sample_topk": _sampled}
DIFFERENTIABLE["select_topk"] = _weights


def _grads(function: Function, scores: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    out = function(leaf, *rest)
    upstream = normal(*out.shape, seed=5, dtype=out.dtype)
    return out.detach(), torch.autograd.grad(out, leaf, upstream)[0]


def _temperatures(count: int) -> list[float]:
    return [float(t) for t in torch.linspace(2.0, 0.05, count, dtype=torch.float64)]


@pytest.mark.parametrize(
    ("name", "budgets"),
    [pytest.param(name, range(2, 52), id=name) for name in ALL]
    + [
        pytest.param(name, [float(k) for k in range(50)], id=f"{name}-float")
        for name in ALL
        if name != "select_topk"  # k is a size there
    ],
)
def test_fifty_numbers_and_one_recompilation(name: str, budgets: Sequence[float]) -> None:
    """When k and t first change the compiler makes them variable, and that is all."""
    function, counter = ALL[name], CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    scores = normal(4, 60, dtype=torch.float32)
    graphs = []
    for k, t in zip(budgets, _temperatures(50), strict=True):
        one, two = (_grads(call, scores, k, t) for call in (function, compiled))
        for expected, found in zip(one, two, strict=True):
            assert torch.equal(expected, found), (k, t)
        graphs.append(counter.frame_count)
    assert graphs == [1] + [2] * 49


@pytest.mark.parametrize("name", ["soft_topk", "log_soft_topk", "threshold", "with_threshold"])
def test_fifty_fractional_budgets_and_one_recompilation(name: str) -> None:
    function, counter = ALL[name], CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    scores = normal(4, 60, dtype=torch.float32)
    for step, t in enumerate(_temperatures(50)):
        k = 0.3 + 1.1 * step
        one, two = (_grads(call, scores, k, t) for call in (function, compiled))
        for expected, found in zip(one, two, strict=True):
            assert torch.equal(expected, found), (k, t)
    assert counter.frame_count == 2


@pytest.mark.parametrize("t", [0.0, 1e-300, 1e30])
def test_a_temperature_at_the_end_of_its_range_is_not_compiled_again(t: float) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(_with_threshold, fullgraph=True, backend=counter)
    scores = normal(4, 60, dtype=torch.float32)
    for given in (1.0, 0.5, t):
        assert torch.equal(compiled(scores, 7, given), _with_threshold(scores, 7, given))
    assert counter.frame_count == 2


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_fifty_tensors_and_no_recompilation(name: str) -> None:
    function, counter = DIFFERENTIABLE[name], CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    scores = normal(4, 60, dtype=torch.float32)
    for step, t in enumerate(_temperatures(50)):
        k = 7 if name == "select_topk" else torch.full((4,), 2.0 + step)
        given = (k, torch.tensor(t))
        one, two = (_grads(call, scores, *given) for call in (function, compiled))
        for expected, found in zip(one, two, strict=True):
            assert torch.equal(expected, found), given
    assert counter.frame_count == 1


def test_the_graph_is_the_operator_and_nothing_else() -> None:
    """No tensors for numbers, and no gradients that nobody asked for."""
    seen: list[list[str]] = []

    def record(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nodes = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        seen.append([name for name in nodes if "getitem" not in name])
        return graph

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=record, bw_compiler=record)
    compiled = torch.compile(lambda x, k, t: soft_topk(x, k, t), fullgraph=True, backend=backend)
    for t, which in ((0.5, ""), (0.25, "_host")):
        seen.clear()
        _grads(compiled, normal(4, 60), 7, t)
        forward = [name for name in seen[0] if "fast_lapsum" in name]
        assert forward == [f"fast_lapsum.soft_topk{which}.default"]
        assert [name for name in seen[1] if "fast_lapsum" in name] == [
            f"fast_lapsum.soft_topk_backward{which}.default"
        ]
        assert not which or len(seen[0] + seen[1]) <= 8  # and a scalar or two
        assert which or len(seen[0] + seen[1]) == 2


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_other_batches_and_other_lengths(name: str) -> None:
    function, counter = DIFFERENTIABLE[name], CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for rows, n in ((4, 60), (5, 61), (9, 300), (2, 1500), (700, 17)):
        scores = normal(rows, n, dtype=torch.float32)
        one, two = (_grads(call, scores, 7, 0.3) for call in (function, compiled))
        for expected, found in zip(one, two, strict=True):
            assert torch.equal(expected, found), (rows, n)
    assert counter.frame_count <= 2


def test_reduce_overhead_is_the_same_function() -> None:
    compiled = torch.compile(soft_topk, fullgraph=True, mode="reduce-overhead")
    scores = normal(4, 60, dtype=torch.float32)
    for k, t in ((7, 0.3), (7, 0.2), (8, 0.1), (9.5, 0.1)):
        one, two = (_grads(call, scores, k, t) for call in (soft_topk, compiled))
        for expected, found in zip(one, two, strict=True):
            assert torch.equal(expected, found), (k, t)


@pytest.mark.parametrize("dynamic", [False, True])
def test_vmap_inside_a_graph(dynamic: bool) -> None:
    """Budgets of each call, a mask, and a float that changes."""

    def call(scores: Tensor, k: Tensor, t: float, mask: Tensor) -> Tensor:
        return torch.vmap(lambda x, k: soft_topk(x, k, t, mask=mask, dim=(0, 1)))(scores, k)

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    scores, k = normal(3, 4, 20), torch.tensor([3.0, 4.5, 6.0], dtype=torch.float64)
    mask = torch.rand(20, generator=generator(3)) < 0.7
    for t in (0.5, 0.25, 0.125):
        found = compiled(scores, k, t, mask)
        torch.testing.assert_close(found, soft_topk(scores, k, t, mask=mask, dim=(1, 2)))


def test_hard_masks_have_no_gradient_in_a_graph() -> None:
    compiled = torch.compile(hard_topk_mask, fullgraph=True, backend="aot_eager")
    scores = normal(4, 60).requires_grad_()
    out = compiled(scores, 7)
    assert torch.equal(out, hard_topk_mask(scores, 7))
    assert not out.requires_grad


@pytest.mark.parametrize("keep_threshold", [False, True])
def test_export_of_a_module_that_holds_the_layer(keep_threshold: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = SoftTopK(k=3, temperature=0.2, keep_threshold=keep_threshold)

        def forward(self, scores: Tensor) -> Tensor:
            return self.gate(scores.tanh()) * scores

    model, batch = Model(), torch.export.Dim("batch")
    program = torch.export.export(model, (normal(4, 12),), dynamic_shapes=({0: batch},))
    for rows in (4, 9):
        scores = normal(rows, 12, seed=rows)
        torch.testing.assert_close(program.module()(scores), Model()(scores))
    names = [str(node.target) for node in program.run_decompositions().graph.nodes]
    assert any("fast_lapsum.soft_topk" in name for name in names)


def test_samples_of_batches_of_two_sizes() -> None:
    compiled = torch.compile(
        lambda scores: sample_topk(scores, 5, 0.5), fullgraph=True, backend="aot_eager"
    )
    for rows in (4, 6, 9):
        drawn = compiled(normal(rows, 64, seed=rows))
        assert drawn.shape == (rows, 64)
        assert (drawn.sum(-1) == 5).all()


def test_export_of_a_permutation_whose_batch_changes() -> None:
    class Module(torch.nn.Module):
        def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
            permutation = soft_argsort(scores, 0.1)
            return permutation.apply(scores), permutation.dense()

    batch = torch.export.Dim("batch")
    exported = torch.export.export(Module(), (normal(4, 9),), dynamic_shapes=({0: batch},))
    for rows in (4, 7):
        scores = normal(rows, 9, seed=rows)
        torch.testing.assert_close(exported.module()(scores), Module()(scores))


def test_spearman_in_a_graph_whose_sizes_change() -> None:
    compiled = torch.compile(
        lambda x, y: spearman_loss(x, y, 0.3), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for shape in ((4, 9), (6, 12)):
        prediction, target = normal(*shape).requires_grad_(), normal(*shape, seed=1)
        found, wanted = (call(prediction, target) for call in (compiled, _spearman))
        torch.testing.assert_close(found, wanted)
        one, two = (torch.autograd.grad(loss, prediction)[0] for loss in (found, wanted))
        torch.testing.assert_close(one, two)


def _spearman(prediction: Tensor, target: Tensor) -> Tensor:
    return spearman_loss(prediction, target, 0.3)


# numbers of numpy's in a graph, which are tensors there


def test_numpy_numbers() -> None:
    scores = normal(3, 8)
    two, half, last = np.int64(2), np.float32(0.5), np.int64(-1)
    compiled = torch.compile(lambda x: soft_topk(x, two, half), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores), soft_topk(scores, 2, 0.5))
    for function, says in (
        (lambda x: soft_topk(x, 2, dim=last), r"dim must be a Python int.*say int\(dim\)"),
        (lambda x: select_topk(x, two).weights, r"k must be a Python number.*say int\(k\)"),
    ):
        with pytest.raises(Exception, match=says):
            torch.compile(function, fullgraph=True, backend="aot_eager")(scores)


@pytest.mark.parametrize("bad", [[1.0, 2.0, 3.0], "2", None], ids=str)
def test_what_is_no_number_is_named_in_a_graph_too(bad: Any) -> None:
    with pytest.raises(Exception, match="k must be a number or a tensor"):
        torch.compile(lambda x: soft_topk(x, bad), fullgraph=True, backend="aot_eager")(
            normal(3, 8)
        )


def test_export_of_a_selection_whose_k_is_a_length() -> None:
    class Module(torch.nn.Module):
        def forward(self, scores: Tensor, other: Tensor) -> Tensor:
            return select_topk(scores, other.shape[0], 0.5).weights

    rows = torch.export.Dim("rows", min=1, max=7)
    given = (normal(3, 8), torch.zeros(4))
    exported = torch.export.export(Module(), given, dynamic_shapes=({}, {0: rows}), strict=False)
    for count in (2, 5):
        torch.testing.assert_close(
            exported.module()(given[0], torch.zeros(count)),
            select_topk(given[0], count, 0.5).weights,
        )


# validate=True in a graph


@pytest.mark.parametrize("name", ["soft_topk", "hard", "log_soft_topk", "threshold", "sample_topk"])
def test_validate_looks_when_the_graph_runs(name: str) -> None:
    function = {"sample_topk": sample_topk}.get(name, ALL[name])
    compiled = torch.compile(
        lambda x, k, t, mask: function(x, k, t, mask=mask, validate=True),
        fullgraph=True,
        backend="aot_eager",
    )
    scores = normal(3, 10)
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[1, 4:] = False
    k, t = torch.tensor([5.0, 4.0, 2.0]), torch.tensor(0.5)
    assert not compiled(scores, k, t, mask).isnan().any()
    with pytest.raises(ValueError, match=r"k must .*\[0, 4\], got k=5\.0 in row \(1,\)"):
        compiled(scores, torch.tensor([5.0, 5.0, 2.0]), t, mask)
    with pytest.raises(ValueError, match=r"temperature must .*got temperature=-1\.0 in row \(0,\)"):
        compiled(scores, k, torch.tensor(-1.0), mask)
    with pytest.raises(ValueError, match=r"k must .*\[0, 4\], got k=5\.0 in row \(1,\)"):
        compiled(scores, 5, t, mask)


def test_validate_keeps_the_gradient_for_k() -> None:
    compiled = torch.compile(
        lambda x, k: soft_topk(x, k, 0.5, validate=True), fullgraph=True, backend="aot_eager"
    )
    scores, found = normal(3, 10), []
    for call in (lambda x, k: soft_topk(x, k, 0.5), compiled):
        k = torch.tensor([5.0, 4.0, 2.0], requires_grad=True)
        found.append(torch.autograd.grad(call(scores, k).square().sum(), k)[0])
    torch.testing.assert_close(*found)


# The operators whose numbers are tensors


def _scalar(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


def test_opcheck_of_operators_with_numbers_in_memory() -> None:
    scores, grad = normal(3, 10), normal(3, 10, seed=1)
    k, t = _scalar(3.0), _scalar(0.5)
    ops = torch.ops.fast_lapsum
    forward = (scores, None, k, None, t, None, None, True, "mask", torch.float64, "auto")
    opcheck(ops.soft_topk_host.default, forward)
    out, pair = ops.soft_topk_host(*forward)
    numbers = (scores, None, 3.0, None, 0.5, *forward[5:])
    assert torch.equal(out, ops.soft_topk(*numbers)[0])
    for per_row in (False, True):
        backward = (grad, scores, None, t, None, pair, True, "mask", per_row)
        opcheck(ops.soft_topk_backward_host.default, backward)
        assert len(ops.soft_topk_backward_host(*backward)) == 1 + 2 * per_row
    select = (scores, 3, None, t, None, True, False, torch.float64)
    opcheck(ops.select_topk_host.default, select)
    places, weights, pair = ops.select_topk_host(*select)
    for per_row in (False, True):
        backward = (weights, places, scores, None, t, None, pair, True, per_row)
        opcheck(ops.select_topk_backward_host.default, backward)
    start = torch.rand(3, generator=generator(2), dtype=torch.float64)
    sample = (scores, None, k, None, t, None, start, True, torch.float64)
    opcheck(ops.sample_topk_host.default, sample)


def test_opcheck_of_the_check_of_values() -> None:
    rows = torch.full((3,), 2.0, dtype=torch.float64)
    given = (normal(3, 10), rows, rows, None, True, False, False)
    opcheck(torch.ops.fast_lapsum.check_values.default, given)


def test_operators_that_look_at_numbers_are_not_recorded() -> None:
    """A graph of CUDA launches would repeat the first number for ever."""
    unsafe = torch.Tag.cudagraph_unsafe
    ops = torch.ops.fast_lapsum
    for name in ("soft_topk", "soft_topk_backward", "select_topk", "sample_topk"):
        assert unsafe in getattr(ops, f"{name}_host").default.tags
        assert unsafe not in getattr(ops, name).default.tags
    assert unsafe in ops.check_values.default.tags


@pytest.mark.parametrize("derivative", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd])
def test_a_derivative_inside_a_graph_is_refused(derivative: Any) -> None:
    """It would be zeros; that of what a graph returns is right."""
    scores, weights = normal(2, 6), normal(2, 6, seed=1)

    def loss(x: Tensor) -> Tensor:
        return (soft_topk(x, 3, 0.5) * weights).sum()

    with pytest.raises(torch._dynamo.exc.Unsupported, match="cannot be taken inside"):
        torch.compile(derivative(loss), fullgraph=True, backend="aot_eager")(scores)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaf = scores.clone().requires_grad_()
    (found,) = torch.autograd.grad(compiled(leaf), leaf)
    torch.testing.assert_close(found, torch.func.grad(loss)(scores))


def _ragged(scores: Tensor) -> Tensor:
    offsets = torch.tensor([0, 3, scores.numel()], device=scores.device)
    return soft_topk(scores.flatten(), 2.0, 0.5, cu_seqlens=offsets)


OF_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "soft_topk": lambda scores: soft_topk(scores, 2.0, 0.5),
    "select_topk": lambda scores: select_topk(scores, 2, 0.5).weights,
    "cu_seqlens": _ragged,
    "soft_topk_list": lambda scores: soft_topk_list([scores, scores[0]], 2.0, 0.5)[0],
    "soft_rank": soft_rank,
    "soft_sort": soft_sort,
    "soft_quantile": lambda scores: soft_quantile(scores, 0.3),
    "BatchTopK": BatchTopK(2),
}


@pytest.mark.parametrize("name", OF_SCORES)
def test_a_graph_has_the_version(name: str) -> None:
    """The compiler keeps on disk what it makes of a graph, and takes it for an equal one."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(graph.code)
        return graph.forward

    torch.compile(OF_SCORES[name], backend=keep, fullgraph=True)(normal(2, 8, seed=1))
    calls = [line for code in graphs for line in code.splitlines() if "fast_lapsum.call_" in line]
    assert calls
    assert all(repr(fast_lapsum.__version__) in line for line in calls)

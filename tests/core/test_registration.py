"""The operators as torch.library, FakeTensor, torch.compile and torch.export see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from cases import BACKENDS, DTYPES, generator, normal
from fast_lapsum import log_soft_topk, soft_topk, threshold
from fast_lapsum.nn import SoftTopK

MASK = torch.rand(3, 10, generator=generator(1)) < 0.8


# torch.library


def _forward_arguments() -> dict[str, tuple[object, ...]]:
    scores, rows = normal(3, 10, dtype=torch.float32), torch.tensor([2.0, 3.5, 0.0]).double()
    numbers = (scores, None, 2.5, None, 0.5, None, None, True, "mask", torch.float32)
    with_rows = (scores, rows, 0.0, rows + 0.1, 1.0, None, None, True, "mask", torch.float32)
    wide = scores.double()
    half = scores.bfloat16()
    mask_and_start = (wide, rows, 0.0, None, 0.5, MASK, rows, False, "mask", torch.float64)
    return {
        "numbers": numbers,
        "rows": with_rows,
        "mask_and_warm_start": mask_and_start,
        "hard": (scores, None, 2.0, None, 0.5, MASK, None, True, "hard", torch.float32),
        "half": (half, None, 2.0, None, 0.5, None, None, True, "mask", torch.bfloat16),
        "half_to_float": (half, None, 2.0, None, 0.5, None, None, True, "mask", torch.float32),
        "float_to_double": (scores, None, 2.0, None, 0.5, None, None, True, "mask", torch.float64),
        "one_row": (scores[0], rows[0], 0.0, rows[1], 1.0, None, None, True, "mask", torch.float32),
        "transposed": (wide.mT, None, 1.5, None, 0.5, None, None, True, "mask", torch.float64),
        "expanded": (
            wide[:1].expand(4, 10), None, 1.5, None, 0.5, None, None, True, "mask", torch.float64,
        ),
        "stepped": (wide[:, ::2], None, 1.5, None, 0.5, None, None, True, "mask", torch.float64),
        "three_dims": (
            normal(2, 3, 5).permute(2, 0, 1), None, 1.5, None, 0.0, None, None, True, "mask",
            torch.float64,
        ),
        "no_rows": (scores[:0], None, 2.0, None, 0.5, None, None, True, "mask", torch.float32),
        "no_scores": (scores[:, :0], None, 0.0, None, 0.5, None, None, True, "mask", torch.float32),
    }  # fmt: skip


OUTPUTS = ("mask", "hard", "log", "threshold")


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", _forward_arguments())
def test_opcheck_of_the_forward_operator(backend: str, case: str, output: str) -> None:
    arguments = _forward_arguments()[case]
    whole = case in ("half", "hard", "no_scores")  # a hard mask of another k is NaN
    if output == "mask" or whole or (output != "hard" and case in ("numbers", "rows", "stepped")):
        arguments = (*arguments[:8], output, arguments[9])
        opcheck(torch.ops.fast_lapsum.soft_topk.default, (*arguments, backend))


#: Masks of every case, the other outputs of those that differ in tensors, dtype, strides or sizes;
#: with and without gradients for k and t by turns, and both where there are tensors for them.
BACKWARD = [
    (case, per_row, output)
    for number, case in enumerate(_forward_arguments())
    for turn, output in enumerate(OUTPUTS)
    for per_row in (False, True)
    if output == "mask" or case in ("numbers", "rows", "half", "stepped", "no_rows", "no_scores")
    if case in ("numbers", "rows") or per_row == ((number + turn) % 2 == 0)
]


@pytest.mark.parametrize(("case", "per_row", "output"), BACKWARD)
def test_opcheck_of_the_backward_operator(
    backend: str, case: str, per_row: bool, output: str
) -> None:
    arguments = _forward_arguments()[case]
    scores, _, _, temperature, number, mask, _, largest, _, out_dtype = arguments
    _, pair = torch.ops.fast_lapsum.soft_topk(*arguments, backend)
    shape = scores.shape[:-1] if output == "threshold" else scores.shape  # type: ignore[attr-defined]
    upstream = normal(*shape, seed=4, dtype=out_dtype)  # type: ignore[arg-type]
    given = [upstream]
    if output == "mask":
        given.append(upstream[..., :1].expand(upstream.shape))
    for grad in given:
        opcheck(
            torch.ops.fast_lapsum.soft_topk_backward.default,
            (grad, scores, temperature, number, mask, pair, largest, output, per_row),
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fake_tensors_have_the_real_shape_dtype_and_strides(
    backend: str, function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    for scores in (
        normal(3, 10, dtype=dtype),
        normal(10, 3, dtype=dtype).mT,
        normal(1, 10, dtype=dtype).expand(3, 10),
        normal(3, 20, dtype=dtype)[:, ::2],
    ):
        real = function(scores, 2.5, 0.5, solver=backend)
        with FakeTensorMode() as mode:
            fake = function(mode.from_tensor(scores), 2.5, 0.5, solver=backend)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        assert fake.stride() == real.stride()


# torch.compile

#: Only soft_topk has a hard variant. Graphs of two backends differ in the name of the solver, so
#: the backends take turns: each has every variant and every function.
VARIANTS = ("numbers", "tensors", "mask", "smallest", "hard", "other_dim")
COMPILED = [
    pytest.param(backend, function, variant, id=f"{backend}-{function.__name__}-{variant}")
    for first, function in enumerate((soft_topk, log_soft_topk, threshold))
    for second, variant in enumerate(VARIANTS)
    for turn, backend in enumerate(BACKENDS)
    if variant != "hard" or function is soft_topk
    if variant == "hard" or (first + second + turn) % 2 == 0
]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("backend", "function", "variant"), COMPILED, indirect=["backend"])
def test_compiled_is_eager(backend: str, function: Callable[..., Tensor], variant: str) -> None:
    """fullgraph=True, dynamic=True: the same values and gradients."""
    scores = normal(3, 10, dtype=torch.float32)
    k, t = torch.tensor([2.0, 3.0, 1.0]), torch.tensor(0.5)
    rest: dict[str, object] = {"solver": backend}
    rest |= {
        "mask": {"mask": MASK},
        "smallest": {"largest": False},
        "hard": {"hard": True},
        "other_dim": {"dim": 0},
    }.get(variant, {})
    if variant == "other_dim":
        k = torch.tensor(1.5)

    def call(scores: Tensor, k: Tensor, t: Tensor) -> Tensor:
        if variant == "numbers":
            out = function(scores, 2.5, 0.5, **rest)
        else:
            out = function(scores, k, t, **rest)
        return torch.where(out.isfinite(), out, 0.0)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    results = []
    for run in (call, compiled):
        leaves = tuple(x.clone().requires_grad_() for x in (scores, k, t))
        used = leaves[:1] if variant == "numbers" else leaves
        out = run(*leaves)
        upstream = normal(*out.shape, seed=2, dtype=torch.float32)
        results.append((out, *torch.autograd.grad(out, used, upstream)))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_the_default_backend(backend: str) -> None:
    """Through the inductor, in a small network with gradients."""
    weight = normal(8, 20, seed=3, dtype=torch.float32)

    def network(x: Tensor, weight: Tensor, k: Tensor) -> Tensor:
        scores = torch.tanh(x @ weight)
        return (soft_topk(scores, k, 0.2, solver=backend) * scores).square().sum()

    compiled = torch.compile(network, fullgraph=True, dynamic=True)
    for rows in (4, 7):
        x = normal(rows, 8, dtype=torch.float32)
        grads = []
        for run in (network, compiled):
            leaf, k = weight.clone().requires_grad_(), torch.tensor(5.5, requires_grad=True)
            grads.append(torch.autograd.grad(run(x, leaf, k), (leaf, k)))
        for one, two in zip(*grads, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fresh_compiler")
def test_no_recompilation_storm(backend: str, function: Callable[..., Tensor]) -> None:
    """New shapes, new temperatures and new budgets reuse the graphs there are."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda scores, k, t: function(scores, k, t, solver=backend),
        fullgraph=True,
        dynamic=True,
        backend=counter,
    )
    calls = [
        (normal(rows, n, dtype=torch.float32), k, t)
        for rows, n in ((4, 16), (5, 17), (9, 100), (2, 31))
        for k in (2, 3, 2.5, 7.25)
        for t in (1.0, 0.9, 0.05, 2)
    ]
    for scores, k, t in calls:
        torch.testing.assert_close(
            compiled(scores, k, t), function(scores, k, t, solver=backend), rtol=1e-5, atol=1e-6
        )
    # One for each pair of int or float in k and t, and room for one without symbols.
    assert counter.frame_count <= 8, f"{counter.frame_count} graphs for {len(calls)} calls"


@pytest.mark.usefixtures("fresh_compiler")
def test_no_recompilation_in_an_annealed_training_loop(backend: str) -> None:
    """The common loop: tensors of changing batch size, a python temperature that falls."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda scores, t: soft_topk(scores, 4, t, solver=backend),
        fullgraph=True,
        dynamic=True,
        backend=counter,
    )
    for step in range(20):
        scores = normal(2 + step % 5, 16, dtype=torch.float32).requires_grad_()
        compiled(scores, 1.0 - 0.04 * step).square().sum().backward()
        assert scores.grad is not None
    assert counter.frame_count <= 2


@pytest.mark.usefixtures("fresh_compiler")
def test_the_module_compiles() -> None:
    """With learned parameters and the kept threshold, over several steps."""
    layer = SoftTopK(k=3, temperature=0.5, num_scores=12, learn_k=True, learn_temperature=True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for step in range(6):
        scores = normal(4, 12, seed=step, dtype=torch.float32)
        out = compiled(scores)
        torch.testing.assert_close(out, soft_topk(scores, layer.k, layer.temperature))
        out.square().sum().backward()
    assert counter.frame_count <= 3
    assert all(p.grad is not None and p.grad.isfinite() for p in layer.parameters())


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_errors_are_still_errors() -> None:
    compiled = torch.compile(lambda x, k: soft_topk(x, k), backend="aot_eager")
    with pytest.raises(Exception, match="k must lie in"):
        compiled(normal(4), 5)


def test_export(backend: str) -> None:
    """torch.export keeps the operator, and the exported program takes other batch sizes."""

    class Model(torch.nn.Module):
        def forward(self, scores: Tensor, k: Tensor) -> Tensor:
            return soft_topk(scores, k, 0.5, solver=backend)

    scores, k = normal(4, 12), torch.tensor(3.5)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Model(), (scores, k), dynamic_shapes={"scores": {0: batch}, "k": None}
    )
    assert any("fast_lapsum" in str(node.target) for node in program.graph.nodes)
    for rows in (4, 9):
        given = normal(rows, 12, seed=1)
        torch.testing.assert_close(
            program.module()(given, k), soft_topk(given, k, 0.5, solver=backend)
        )

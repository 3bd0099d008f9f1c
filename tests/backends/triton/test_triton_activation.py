"""Gated activations, interpreted, against the operations of torch that they stand for."""

from __future__ import annotations

import copy
import math
import os
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

import triton.language as tl

from cases import expected, normal
from fast_lapsum import hard_topk_mask
from fast_lapsum.backends.triton import activation_backward, activation_entry, launch
from fast_lapsum.backends.triton.config import LongBackwardPlan, SharedPlan
from fast_lapsum.nn import (
    BatchTopK,
    BudgetGate,
    RunningThreshold,
    TopKActivation,
    sparse_activation,
)
from interpreting import in_chunks, poison  # noqa: F401

inf, nan = math.inf, math.nan
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
# A GPU makes a NaN of a product with infinity without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three programs of several blocks, the last one in part."""
    monkeypatch.setattr(activation_entry, "BLOCK", 64)
    monkeypatch.setattr(activation_entry, "MOST_PROGRAMS", 3)


def _checked(scores: Tensor, gate: Tensor, b: float) -> Tensor:
    out, counts, best = activation_entry.activate(scores, gate, torch.tensor(b))
    wanted = torch.relu(scores) * gate
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert out.dtype == scores.dtype
    assert counts.sum() == (scores.float() > b).sum()
    left = scores.float().masked_fill(gate == 1, -inf).amax()
    torch.testing.assert_close(best.amax(), left, rtol=0, atol=0, equal_nan=True)
    return out


@DTYPES
@pytest.mark.parametrize("n", [1, 63, 64, 500])
def test_one_pass_gives_all_of_it(dtype: torch.dtype, n: int) -> None:
    scores = normal(n).to(dtype)
    for k in {0, n // 8, n}:
        gate = hard_topk_mask(scores, k)
        for b in (0.5, -inf, inf, nan):
            _checked(scores, gate, b)


def test_ties_infinities_and_nans() -> None:
    scores = (normal(300) * 2).round().float()
    _checked(scores, hard_topk_mask(scores, 40), 1.0)
    scores[:20], scores[290:] = -inf, inf
    _checked(scores, hard_topk_mask(scores, 40), 1.0)
    _checked(scores, hard_topk_mask(scores, 5), 1.0)  # infinities that are left out make NaNs
    scores[100] = nan
    assert _checked(scores, hard_topk_mask(scores, 40), 1.0).isnan().all()


@DTYPES
@pytest.mark.parametrize("with_gate", [True, False])
def test_gradients(dtype: torch.dtype, with_gate: bool) -> None:
    scores, grad = normal(300).to(dtype), normal(300, seed=1).to(dtype)
    scores[5] = 0.0
    gate = hard_topk_mask(scores.float(), 200)  # some of them negative; float32 as under autocast
    d_scores, d_gate = activation_entry.activate_backward(grad, scores, gate, with_gate)
    torch.testing.assert_close(d_scores, (grad * gate * (scores > 0)).to(dtype), rtol=0, atol=0)
    assert (d_gate is not None) == with_gate
    if d_gate is not None:
        wanted = grad.float() * torch.relu(scores.float())
        torch.testing.assert_close(d_gate, wanted, rtol=0, atol=0)


class Batch(NamedTuple):
    """Scores of rows, how many of each are let through, and the upstream gradient."""

    scores: Tensor
    k: int
    grad: Tensor


def _batches() -> dict[str, Batch]:
    plain, grad = normal(3, 201), normal(3, 201, seed=1)
    tied = (2 * plain).round() / 2
    mixed = plain.clone()
    mixed[0, :40], mixed[1, 190:], mixed[2, 7] = -inf, inf, 0.0
    crowded = plain.clone()
    crowded[:, 100:150] = inf  # more than are let through: the hard limit
    spoilt = plain.clone()
    spoilt[1, 5] = nan
    return {
        "normal": Batch(plain, 25, grad),
        "tied": Batch(tied, 25, grad),
        "one score": Batch(plain[:, :1], 1, grad[:, :1]),
        "short": Batch(plain[:, :37], 4, grad[:, :37]),
        "aligned": Batch(plain[:, :192], 24, grad[:, :192]),
        "none": Batch(plain, 0, grad),
        "all": Batch(plain, 201, grad),
        "negative": Batch(-plain.abs(), 25, grad),
        "infinite": Batch(mixed, 25, grad),
        "too many infinite": Batch(crowded, 25, grad),
        "nan": Batch(spoilt, 25, grad),
        "far apart": Batch(1000 * plain, 25, grad),
    }


def _reference_gradient(scores: Tensor, grad: Tensor, gate: Tensor, k: int, t: float) -> Tensor:
    """Of relu(r) g in float64: g [r > 0], and the reference's gradient of the mask."""
    rows, upstream = scores.double(), grad.double()
    relu = torch.where(rows <= 0, 0.0, rows)
    through_mask = expected(rows, k, t, upstream * relu.where(rows.isfinite(), 0.0)).d_scores
    return torch.where(rows <= 0, 0.0, upstream * gate.double()) + through_mask


@pytest.fixture(params=["held", "long"])
def length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a program holds, or that several share, in more tiles than are summed at a time."""
    if request.param == "long":
        plan = LongBackwardPlan(block=32, warps=1, sum_programs=3, write_programs=2)
        monkeypatch.setattr(activation_entry, "LONG_BACKWARD", plan)
        monkeypatch.setattr(activation_entry, "LONGEST_BLOCK", 0)
        monkeypatch.setattr(activation_backward, "TILES_PER_SUM", tl.constexpr(2))
        monkeypatch.setattr(activation_entry, "LANES", 2)  # of more numbers than those


@DTYPES
@pytest.mark.parametrize(
    ("name", "t"), [*((name, 0.3) for name in _batches()), ("normal", 0.0), ("tied", 1e-4)]
)
@pytest.mark.usefixtures("length")
def test_the_whole_gradient_is_that_of_the_reference(
    name: str, t: float, dtype: torch.dtype
) -> None:
    """Of rows together, and of one by itself with the best score that is left out."""
    batch = _batches()[name]
    scores, grad = batch.scores.to(dtype), batch.grad.to(dtype)
    for output in ("hard", "mask"):
        given = (scores, None, float(batch.k), None, t, None, None, True, output, dtype)
        gate, pair = launch.forward(*given)
        found = activation_entry.gated_backward(grad, scores, gate, None, None, t, pair)
        _assert_close(found, _reference_gradient(scores, grad, gate, batch.k, t), dtype)
        for row in range(1, 3 if output == "hard" else 0):
            rows = tuple(x[row].contiguous() for x in (grad, scores, gate))
            best = activation_entry.activate(rows[1], rows[2], torch.tensor(0.5))[2]
            alone = activation_entry.gated_backward(*rows, best, None, t, pair[row])
            torch.testing.assert_close(alone, found[row], rtol=1e-5, atol=1e-5, equal_nan=True)


def _assert_close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """To the rounding of the result, and to that of what was added up, which may cancel out."""
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), wanted.isnan())
    size = wanted.nan_to_num(0).abs().amax(-1, keepdim=True)
    error = (found.double() - wanted).nan_to_num(0).abs()
    most = torch.finfo(dtype).eps * wanted.nan_to_num(0).abs() + 3e-6 * (1 + size)
    assert (error <= most).all(), float((error - most).amax())


@pytest.mark.usefixtures("length")
def test_rows_may_have_temperatures_of_their_own_and_gates_another_dtype() -> None:
    """As in a graph, where numbers are tensors, and as under autocast."""
    scores, grad = normal(2, 3, 96).bfloat16(), normal(2, 3, 96, seed=1).bfloat16()
    t = torch.tensor([[0.1, 0.3, 0.5], [0.2, 0.0, 1.0]], dtype=torch.float64)
    given = (scores, None, 12.0, t, nan, None, None, True, "hard", torch.float32)
    gate, pair = launch.forward(*given)
    found = activation_entry.gated_backward(grad, scores, gate, None, t, nan, pair)
    wanted = torch.empty(2, 3, 96, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            rows = scores[i, j], grad[i, j], gate[i, j]
            wanted[i, j] = _reference_gradient(*rows, 12, t[i, j].item())
    _assert_close(found, wanted, torch.bfloat16)
    shared = t[:1, :1].expand(2, 3)
    given = (scores, None, 12.0, shared, nan, None, None, True, "hard", torch.float32)
    gate, pair = launch.forward(*given)
    found = activation_entry.gated_backward(grad, scores, gate, None, shared, nan, pair)
    alone = activation_entry.gated_backward(grad, scores, gate, None, None, 0.1, pair)
    assert torch.equal(found, alone)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any length are solved in chunks, and their gradients taken in tiles."""
    monkeypatch.setattr(activation_entry, "longest_block", lambda itemsize: 0)

    def chunks(n: int, rows: int, itemsize: int, width: int, *rest: Any) -> SharedPlan:
        return in_chunks(n, 512, width=width)._replace(piece=64 * width)

    monkeypatch.setattr(activation_entry, "_plan", chunks)
    plan = LongBackwardPlan(block=32, warps=1, sum_programs=3, write_programs=2)
    monkeypatch.setattr(activation_entry, "LONG_BACKWARD", plan)
    monkeypatch.setattr(activation_entry, "LONGEST_BLOCK", 0)
    activation_entry._solving.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "t"), [*((name, 0.3) for name in _batches()), ("normal", 0.0), ("tied", 1e-4)]
)
@pytest.mark.usefixtures("shared")
def test_activations_need_no_mask_in_memory(name: str, t: float, dtype: torch.dtype) -> None:
    """They are what a mask lets through, and so are what else is found, and their gradient."""
    batch = _batches()[name]
    for row in (0, 1):
        scores, grad = batch.scores[row].to(dtype), batch.grad[row].to(dtype)
        given = (scores, None, float(batch.k), None, t, None, None, True, "hard", dtype)
        gate, pair = launch.forward(*given, plan=in_chunks(len(scores), 512))
        wanted = activation_entry.activate(scores, gate, torch.tensor(0.5))
        found = activation_entry.gated_forward(scores, batch.k, t, torch.tensor(0.5))
        assert found is not None
        assert torch.equal(found.activations.nan_to_num(7.5), wanted[0].nan_to_num(7.5))
        assert found.activations.dtype == dtype
        assert found.counts.sum() == wanted[1].sum()
        both = (found.best.amax(), wanted[2].amax())
        torch.testing.assert_close(*both, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(found.pair, pair, rtol=0, atol=0, equal_nan=True)
        alone = activation_entry.gated_backward(
            grad, scores, None, None, None, t, found.pair, found.boundary
        )
        _assert_close(alone, _reference_gradient(scores, grad, gate, batch.k, t), dtype)


def test_short_rows_have_their_mask_at_hand() -> None:
    scores = torch.zeros(100)
    assert activation_entry.gated_forward(scores, 3, 0.1, torch.tensor(0.5)) is None
    assert activation_entry.gated_forward(torch.zeros(2, 50_000), 3, 0.1, scores[0]) is None


@pytest.mark.parametrize("t", [0.1, 0.0])
@pytest.mark.usefixtures("shared")
def test_a_batch_without_a_mask_in_memory(t: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer has the same activations, gradients, derivatives of those and thresholds."""
    plain, layer, exact = (BatchTopK(3, t) for _ in range(3))
    exact.double()
    for seed in range(3):
        scores = normal(6, 40, seed=seed).float()
        found = _all_of(layer, scores, monkeypatch, with_kernel=True)
        wanted = _all_of(plain, scores, monkeypatch, with_kernel=False)
        truth = _all_of(exact, scores.double(), monkeypatch, with_kernel=False)
        assert torch.equal(found[0], wanted[0])
        # The mask is found in other steps than without it: its threshold may be another float.
        for one, exactly, digits in zip(found[1:], truth[1:], (5e-7, 5e-7, 2e-6), strict=False):
            assert (one.double() - exactly).abs().max() <= digits * (1 + exactly.abs().max())
    torch.testing.assert_close(layer.threshold, plain.threshold)


def test_of_nothing_there_is_no_gradient() -> None:
    for shape in ((0,), (3, 0), (0, 5)):
        none, pair = torch.empty(shape), torch.empty(*shape[:-1], 2)
        given = (none, none, none, None, None, 0.1, pair)
        assert activation_entry.gated_backward(*given).shape == shape


@pytest.mark.parametrize("momentum", [0.01, 0.6, None])
def test_a_step_of_a_threshold_is_that_of_the_layer(momentum: float | None) -> None:
    """Of batches that are close, far, spoilt, all over the threshold and all below it."""
    wanted = RunningThreshold(momentum=momentum)
    found = copy.deepcopy(wanted)
    names = ("threshold", "mean_miss", "mean_size", "mean_distance", "num_batches")
    drawn = normal(3, 3000, seed=5).float()
    steps = [(400, 1.0), (0, nan), (390, 1.1), (400, inf), (420, 1.05), (0, 7.0), (9000, -4.0)]
    steps += [(400, -inf)] + [(400 + round(40 * float(x)), 1 + float(x) / 9) for x in drawn[0, :40]]
    for number, (count, best) in enumerate([(0, nan), (0, -inf), *steps]):
        parts = torch.full((2000,), -inf)
        parts[number * 31], counts = best, torch.zeros(2000, dtype=torch.int64)
        counts[number * 7], counts[1999 - number] = count // 2, count - count // 2
        wanted._move(torch.tensor(count / 410 - 1), torch.tensor(best))
        state = tuple(getattr(found, name) for name in names)
        activation_entry.move(counts, parts, state, 410.0, momentum or 0.0)
        for name in names:
            one, other = getattr(found, name), getattr(wanted, name)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)
            other.copy_(one)  # so that rounding does not add up


def test_without_a_miss_in_sight_a_threshold_stays() -> None:
    """Sizes of misses have become so small that their quotients are infinite: 0 times that is 0."""
    wanted = RunningThreshold(momentum=0.5)
    for name, value in (("threshold", 1.5), ("mean_size", 1e-42), ("mean_distance", 0.3)):
        getattr(wanted, name).fill_(value)
    wanted.num_batches.fill_(200)
    found = copy.deepcopy(wanted)
    names = ("threshold", "mean_miss", "mean_size", "mean_distance", "num_batches")
    wanted._move(torch.tensor(0.0), torch.tensor(1.2))
    counts, best = torch.tensor([410]), torch.tensor([1.2])
    activation_entry.move(counts, best, tuple(getattr(found, x) for x in names), 410.0, 0.5)
    assert float(found.threshold) == float(wanted.threshold) == 1.5


@pytest.mark.parametrize(
    "plain",
    [
        *(BatchTopK(k, t) for k in (3, 2.5, 0, 40) for t in (0.1, 0.0)),
        BatchTopK(2.5, 0.5, hard=False),
        BatchTopK(torch.tensor(2.5)),
        TopKActivation(3),
        TopKActivation(3, 0.3, hard=False, inference="threshold"),
    ],
    ids=str,
)
def test_layers_are_the_same_with_it(plain: BudgetGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations, gradients, derivatives of those, and all that the threshold is made of."""
    layer, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    for seed in range(4):
        scores = normal(6, 40, seed=seed).float()
        found = _all_of(layer, scores, monkeypatch, with_kernel=True)
        wanted = _all_of(plain, scores, monkeypatch, with_kernel=False)
        truth = _all_of(exact, scores.double(), monkeypatch, with_kernel=False)
        _assert_same(found, wanted, truth)
        assert torch.equal(found[2], wanted[2])
        for name, value in plain.state_dict().items():
            one = layer.state_dict()[name]
            torch.testing.assert_close(one, value, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)


def _assert_same(
    found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], truth: tuple[Tensor, ...]
) -> None:
    """All but the kernel's own gradient is what it is without the kernel.

    The gradient is nearer to that of float64 than without it, which is off by up to 5e-6.
    """
    assert torch.equal(found[0], wanted[0])
    for one, other in zip(found[2:], wanted[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    error = (found[1].double() - truth[1]).abs().max()
    assert error <= 5e-7 * (1 + truth[1].abs().max())


def _all_of(
    layer: BudgetGate, scores: Tensor, monkeypatch: pytest.MonkeyPatch, with_kernel: bool
) -> tuple[Tensor, ...]:
    monkeypatch.setattr(sparse_activation, "has_kernel", lambda *given: with_kernel)
    leaf, upstream = scores.clone().requires_grad_(), torch.ones_like(scores) + scores
    out = layer(leaf)
    (gradient,) = torch.autograd.grad(out, leaf, upstream, retain_graph=True)
    (again,) = torch.autograd.grad(out, leaf, upstream, create_graph=True)
    if not again.requires_grad:
        return out, gradient, again
    (second,) = torch.autograd.grad(again.square().sum(), leaf)
    return out, gradient, again, second


@pytest.mark.parametrize("k", [0.0, 25.0, 201.0])
@pytest.mark.parametrize("t", [0.3, 0.0])
@pytest.mark.usefixtures("shared")
def test_numbers_in_memory_are_those_of_a_call(k: float, t: float) -> None:
    """As graphs have them, without a mask in memory: bit by bit the same."""
    scores, grad = normal(201).float(), normal(201, seed=1).float()
    b = torch.tensor(0.5)
    wanted = activation_entry.gated_forward(scores, k, t, b)
    in_memory = (torch.tensor(x, dtype=torch.float64) for x in (k, t))
    found = activation_entry.gated_forward(scores, *in_memory, b)
    assert wanted is not None
    assert found is not None
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    given = (grad, scores, None, None)
    alone = activation_entry.gated_backward(*given, None, t, wanted.pair, wanted.boundary)
    rows = torch.tensor(t, dtype=torch.float64)
    again = activation_entry.gated_backward(*given, rows, 1.0, found.pair, found.boundary)
    assert torch.equal(again, alone)


@pytest.mark.usefixtures("shared")
def test_a_budget_that_is_not_whole_has_no_activations() -> None:
    scores, b = normal(201).float(), torch.tensor(0.5)
    for k in (2.5, torch.tensor(2.5, dtype=torch.float64)):
        found = activation_entry.gated_forward(scores, k, 0.1, b)
        assert found is not None
        assert bool(found.activations.isnan().all())
        assert bool(found.boundary[0].isnan())

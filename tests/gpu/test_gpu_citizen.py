"""How the GPU's operators behave: graphs, streams, waiting, memory, bits, sizes, torch.compile."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from sampled import deceive
from torch import Tensor

from cases import expected, generator, normal
from fast_lapsum import reference, soft_topk
from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import LongPlan, SharedPlan, TeamPlan
from fast_lapsum.backends.triton.device import room_of
from fast_lapsum.backends.triton.inspection import sample_bands

#: One length for every way that rows are solved, two of them or as many as are said below.
TIERS = (1000, 16384, 40_000, 70_000, 5_000_000)
ROWS = {40_000: 96}
NoSync = Callable[[], AbstractContextManager[None]]
Step = Callable[[], tuple[Tensor, ...]]


def _randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=draw, device="cuda", dtype=dtype)


def _step(scores: Tensor, grad: Tensor, k: Tensor | float, t: Tensor | float, **more: Any) -> Step:
    """Forward and backward: the mask and every gradient there is."""
    leaves = [x.requires_grad_() for x in (scores, k, t) if isinstance(x, Tensor)]

    def step() -> tuple[Tensor, ...]:
        p = soft_topk(scores, k, t, **more)
        return p.detach(), *torch.autograd.grad(p, leaves, grad)

    return step


def _per_row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cuda")


def _rows(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of n scores."""
    return _randn(ROWS.get(n, 2), n, seed=seed, dtype=dtype)


def _in_turn(n: int, *values: float) -> Tensor:
    """Two values for these rows, one after the other."""
    return _per_row(*values).repeat(ROWS.get(n, 2) // 2)


def _steps(n: int) -> dict[str, Step]:
    """Calls of all kinds on rows of n scores."""
    grad = _rows(n, seed=1)
    mask = _rows(n, seed=2) > -0.5
    k, t = n // 16, 0.1

    def scores(dtype: torch.dtype = torch.float32) -> Tensor:
        return _rows(n, dtype=dtype)

    steps = {
        "numbers": _step(scores(), grad, k, t),
        "tensors": _step(scores(), grad, _in_turn(n, k, k + 0.5), _in_turn(n, t, 1.0)),
        "hard": _step(scores(), grad, k, t, hard=True),
        "zero_temperature": _step(scores(), grad, k, 0.0),
    }
    if n == 16384:  # as at 1000, with more warps
        return steps
    return steps | {
        "mask": _step(scores(), grad, k, 1e-3, mask=mask, largest=False),
        "bfloat16": _step(scores(torch.bfloat16), grad.bfloat16(), k, t),
        "float16": _step(scores(torch.float16), grad.half(), k, t),
    }


# nothing waits for the device


@pytest.mark.parametrize("n", TIERS[:4])
def test_nothing_waits_for_the_device(n: int, no_sync: NoSync) -> None:
    for name, step in _steps(n).items():
        step()  # compile first
        torch.cuda.synchronize()
        try:
            with no_sync():
                step()
        except RuntimeError as error:
            raise AssertionError(f"{name} waits at n = {n}") from error


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((3, 70_000), TeamPlan),
        ((66, 40_000), TeamPlan),
        ((96, 40_000), LongPlan),
        ((66, 40_000), SharedPlan),
    ],
    ids=["held", "cached", "long", "shared"],
)
def test_samples_that_lie(
    shape: tuple[int, int],
    kind: type[TeamPlan | LongPlan | SharedPlan],
    no_sync: NoSync,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is read first is far from all else: the answer is the same, and nothing waits for it."""
    rows, n = shape
    if kind is SharedPlan:
        monkeypatch.setattr(launch, "CACHED_BYTES", 0)
    scores, grad = _randn(rows, n), _randn(rows, n, seed=1)
    scores[1::3] = (4 * scores[1::3]).round()
    scores[2::3] = scores[2::3] ** 3
    plan = launch._plan(n, rows, 4, 4, room_of(scores.device))
    assert isinstance(plan, kind)
    deceive(scores, plan.sample, getattr(plan, "run", 1), 100.0)
    k = _per_row(n / 3, 17.5, 0.7 * n + 0.25).repeat(rows // 3)
    t = _per_row(1e-4, 0.3, 1e-2).repeat(rows // 3)
    if isinstance(plan, SharedPlan):
        assert not sample_bands(scores, n / 3, 1e-4, plan).is_settled.any()
    step = _step(scores, grad, k, t)
    step()
    torch.cuda.synchronize()
    with no_sync():
        p, d_scores, _, _ = step()
    want = expected(scores.detach(), k.detach().cpu(), t.detach().cpu(), grad)
    assert ((p - want.mask).abs() <= want.mask_tolerance).all()
    assert ((d_scores - want.d_scores).abs() <= want.d_scores_tolerance).all()


# graphs, streams, devices


@pytest.mark.parametrize("kind", ["numbers", "tensors"])
@pytest.mark.parametrize("n", TIERS)
def test_a_captured_graph_replays_with_other_inputs(n: int, kind: str) -> None:
    scores, grad = _rows(n), _rows(n, seed=1)
    k: Tensor | float = n / 16
    t: Tensor | float = 0.1
    if kind == "tensors":
        k, t = _in_turn(n, n / 16, n / 3), _in_turn(n, 0.1, 1.0)
    step = _step(scores, grad, k, t)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in (3, 4, 5):
        with torch.no_grad():
            scores.copy_(_rows(n, seed=seed) * seed + seed)
            grad.copy_(_rows(n, seed=seed + 10))
            if isinstance(k, Tensor) and isinstance(t, Tensor):
                k.copy_(_in_turn(n, n / seed, 1.5))
                t.copy_(_in_turn(n, 0.0 if seed == 4 else 0.01, 1e-3))
        graph.replay()
        got = [x.clone() for x in captured]
        for one, two in zip(got, step(), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("n", TIERS[:4])
def test_work_goes_to_the_current_stream(n: int) -> None:
    """The inputs are made late on a stream of their own: any other stream would be too early."""
    late = _rows(n, seed=7)
    scores, grad = torch.zeros_like(late), _rows(n, seed=1)
    wanted = _step(late.clone(), grad, n / 8, 0.1)()
    step = _step(scores, grad, n / 8, 0.1)
    step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(50_000_000)
        scores.copy_(late)
        with torch.enable_grad():
            got = step()
    stream.synchronize()
    for one, two in zip(got, wanted, strict=True):
        assert torch.equal(one, two)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device here")
@pytest.mark.parametrize("n", TIERS[:4])
def test_a_device_that_is_not_the_current_one(n: int) -> None:
    scores, grad = _rows(n), _rows(n, seed=1)
    wanted = _step(scores, grad, n / 8, 0.1)()
    there = [x.detach().to("cuda:1") for x in (scores, grad)]
    got = _step(*there, n / 8, 0.1)()
    for one, two in zip(got, wanted, strict=True):
        assert one.device == torch.device("cuda:1")
        assert torch.equal(one.cpu(), two.cpu())
    assert torch.cuda.current_device() == 0


# bits and memory


@pytest.mark.parametrize("n", TIERS)
def test_bits_do_not_depend_on_the_run(n: int) -> None:
    for t in (1e-4, 0.01, 1.0):
        step = _step(_rows(n), _rows(n, seed=1), _in_turn(n, n / 16, n / 3), _in_turn(n, t, t))
        first = step()
        for _ in range(4):
            for one, two in zip(step(), first, strict=True):
                assert torch.equal(one, two)


def _allocated() -> int:
    """Bytes in use once autograd's own thread has let go of the last step, a moment after it."""
    gc.collect()
    found = []
    for _ in range(50):
        torch.cuda.synchronize()
        found.append(torch.cuda.memory_allocated())
        time.sleep(0.01)
    return min(found)


@pytest.mark.parametrize(("n", "steps"), [(1000, 10_000), (100_000, 300)])
def test_memory_does_not_grow(n: int, steps: int) -> None:
    step = _step(_randn(1, n), _randn(1, n, seed=1), n / 16, 0.1)
    step()
    before = _allocated()
    for _ in range(steps):
        step()
    assert _allocated() == before


@pytest.mark.parametrize("t", [1.0, 1e-3])
def test_scratch_memory_is_small(t: float) -> None:
    """Forward and backward at n = 1e8: 1% of the scores and 16 MiB beyond what they return."""
    n = 100_000_000
    scores, grad = _randn(n).requires_grad_(), _randn(n, seed=1)
    limit = 4 * n // 100 + (16 << 20)
    soft_topk(scores, n / 16, t).backward(grad)
    scores.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    p = soft_topk(scores, n / 16, t)
    extra = torch.cuda.max_memory_allocated() - before - 4 * n
    assert extra <= limit, f"forward takes {extra / 2**20:.0f} MiB"
    assert abs(p.detach().sum(dtype=torch.float64).item() * 16 / n - 1) <= 1e-6
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(p, scores, grad)
    extra = torch.cuda.max_memory_allocated() - before - 4 * n
    assert extra <= limit, f"backward takes {extra / 2**20:.0f} MiB"


# sizes beyond 32 bits


def _needs(gigabytes: float) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes:.0f} GB of device memory, {free:.0f} GB are free")


def _sum(values: Tensor) -> float:
    return sum(chunk.double().sum().item() for chunk in values.split(1 << 28))


def _assert_end(p: Tensor, d: Tensor, scores: Tensor, grad: Tensor, b: float, t: float) -> None:
    """The last elements are what the formulas say of them; <g, q> is 0 for a random g."""
    u = (scores.double() - b) / t
    wanted = reference.laplace_cdf(u)
    torch.testing.assert_close(p.double(), wanted, rtol=1e-2, atol=1e-5)
    d_wanted = grad.double() * torch.exp(-u.abs()) / (2 * t)
    torch.testing.assert_close(d.double(), d_wanted, rtol=2e-2, atol=2e-3)


def test_a_row_of_more_than_2_to_the_31_scores() -> None:
    n, t = 2**31 + 1024, 0.5
    _needs(2 * n * 4 / 1e9 + 2)
    scores = _randn(n, dtype=torch.bfloat16).requires_grad_()
    p, b = soft_topk(scores, n / 16, t, return_threshold=True)
    # p is rounded to bfloat16, and there are few different ones.
    assert _sum(p.detach()) == pytest.approx(n / 16, rel=1e-3)
    grad = _randn(n, seed=1, dtype=torch.bfloat16)
    (d,) = torch.autograd.grad(p, scores, grad)
    for part in (slice(0, 4096), slice(2**30, 2**30 + 4096), slice(n - 4096, n)):
        _assert_end(p.detach()[part], d[part], scores.detach()[part], grad[part], float(b), t)


@pytest.mark.parametrize("n", [16384, 65536], ids=["held", "read"])
def test_more_than_2_to_the_32_scores_in_all(n: int) -> None:
    rows, t = 2**32 // n + 1, 0.5
    _needs(4 * rows * n * 2 / 1e9 + 4)
    scores = _randn(rows, n, dtype=torch.bfloat16).requires_grad_()
    p, b = soft_topk(scores, n / 16, t, return_threshold=True)
    for part in p.detach().split(1 << 14):
        total = part.sum(-1, dtype=torch.float64)
        assert ((total - n / 16).abs() <= 1e-3 * n / 16).all()
    grad = _randn(rows, n, seed=1, dtype=torch.bfloat16)
    (d,) = torch.autograd.grad(p, scores, grad)
    for row in (0, rows // 2, rows - 1):
        got = p.detach()[row], d[row], scores.detach()[row], grad[row]
        u = (got[2].double() - b[row].double()) / t
        torch.testing.assert_close(got[0].double(), reference.laplace_cdf(u), rtol=1e-2, atol=1e-5)
        phi = torch.exp(-u.abs()) / 2
        mean = (got[3].double() * phi).sum() / phi.sum()
        wanted = (got[3].double() - mean) * phi / t
        torch.testing.assert_close(got[1].double(), wanted, rtol=2e-2, atol=1e-4)


# torch.compile


@pytest.mark.filterwarnings("ignore")  # the compiler warns about itself
@pytest.mark.parametrize(("n", "backend"), [(1000, "inductor"), (70_000, "aot_eager")])
def test_compiled_is_eager(n: int, backend: str) -> None:
    torch.compiler.reset()

    def network(scores: Tensor, k: Tensor) -> Tensor:
        return (soft_topk(scores.tanh(), k, 0.2) * scores).sum(-1)

    scores, k = _randn(3, n).requires_grad_(), _per_row(n / 16, n / 3, 17.5).requires_grad_()
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in (network, torch.compile(network, fullgraph=True, backend=backend)):
            out = run(scores, k)
            results.append((out, *torch.autograd.grad(out.square().sum(), (scores, k))))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * math.sqrt(n))


# the CPU says the same


@pytest.mark.parametrize("n", TIERS[:4])
def test_cpu_and_gpu_agree(n: int) -> None:
    scores = normal(2, n, dtype=torch.float32)
    k = n * torch.rand(2, generator=generator(3), dtype=torch.float64)
    t = torch.tensor([0.1, 0.01], dtype=torch.float64)
    on_cpu, on_gpu = (soft_topk(scores.to(d), k.to(d), t.to(d)).cpu() for d in ("cpu", "cuda"))
    torch.testing.assert_close(on_gpu, on_cpu, rtol=2e-5, atol=1e-7)

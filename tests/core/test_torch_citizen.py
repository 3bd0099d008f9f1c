"""A good citizen of PyTorch: torch.func, checkpointing, gradient modes, threads, processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cases import generator, normal
from fast_lapsum import soft_topk
from fast_lapsum.backends.cpu import loader
from fast_lapsum.nn import SoftTopK

# torch.func


def test_vmap_over_any_dimension(backend: str, function: Callable[..., Tensor]) -> None:
    scores = normal(4, 5, 6)
    k, t = torch.tensor([1.5, 2.0, 2.5, 0.5]), torch.tensor([0.1, 0.5, 1.0, 2.0])
    for in_dim in (0, 1, 2):
        moved = scores.movedim(0, in_dim)
        got = vmap(lambda x, k, t: function(x, k, t, solver=backend), (in_dim, 0, 0))(moved, k, t)
        want = torch.stack([function(scores[i], k[i], t[i], solver=backend) for i in range(4)])
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("which", ["scores", "k", "t", "mask", "warm_start"])
def test_vmap_over_one_argument(backend: str, function: Callable[..., Tensor], which: str) -> None:
    masks = torch.rand(3, 10, generator=generator(5)) < 0.8
    batched: dict[str, Tensor] = {
        "scores": normal(3, 10),
        "k": torch.tensor([1.5, 2.0, 4.0]),
        "t": torch.tensor([0.1, 0.5, 1.0]),
        "mask": masks,
        "warm_start": torch.tensor([0.0, 1.0, -1.0]),
    }

    def call(value: Tensor) -> Tensor:
        values = {name: x[0] for name, x in batched.items()} | {which: value}
        return function(
            values["scores"], values["k"], values["t"],
            mask=values["mask"], warm_start=values["warm_start"], solver=backend,
        )  # fmt: skip

    want = torch.stack([call(value) for value in batched[which]])
    torch.testing.assert_close(vmap(call)(batched[which]), want)


def test_vmap_nested_and_with_dim(backend: str, function: Callable[..., Tensor]) -> None:
    scores, k = normal(3, 4, 5, 6), torch.tensor([1.0, 2.0, 2.5, 3.0])
    inner = vmap(lambda x, k: function(x, k, 0.5, dim=0, solver=backend), (0, 0))
    got = vmap(inner, (0, None))(scores, k)
    want = torch.stack(
        [
            torch.stack([function(row[i], k[i], 0.5, dim=0, solver=backend) for i in range(4)])
            for row in scores
        ]
    )  # fmt: skip
    torch.testing.assert_close(got, want)


def test_vmap_of_the_hard_mask_and_numbers(backend: str) -> None:
    scores = normal(3, 4, 10)
    got = vmap(lambda x: soft_topk(x, 3, 0.5, hard=True, largest=False, solver=backend))(scores)
    assert torch.equal(got, soft_topk(scores, 3, 0.5, hard=True, largest=False, solver=backend))


def test_per_sample_gradients(backend: str, function: Callable[..., Tensor]) -> None:
    """vmap over grad, for scores, k and t at once."""
    scores, k, t = normal(4, 8), torch.tensor([1.5, 2, 3, 7.5]).double(), normal(4).exp()
    weights = normal(8, seed=2)

    def loss(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return (function(x, k, t, solver=backend) * weights).sum()

    got = vmap(grad(loss, argnums=(0, 1, 2)))(scores, k, t)
    leaves = tuple(x.clone().requires_grad_() for x in (scores, k, t))
    total = sum(loss(*(x[i] for x in leaves)) for i in range(4))
    want = torch.autograd.grad(total, leaves)  # type: ignore[arg-type]
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two)


def test_jacobians_agree(backend: str, function: Callable[..., Tensor]) -> None:
    scores, k, t = normal(2, 6), torch.tensor([1.5, 4.0]).double(), torch.tensor(0.7).double()

    def call(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return function(x, k, t, solver=backend)

    wanted = torch.autograd.functional.jacobian(call, (scores, k, t))
    for transform in (jacrev, jacfwd):
        for got, want in zip(transform(call, argnums=(0, 1, 2))(scores, k, t), wanted, strict=True):
            torch.testing.assert_close(got, want)


def test_hessian(backend: str, function: Callable[..., Tensor]) -> None:
    scores, weights = normal(5), normal(5, seed=1)

    def loss(x: Tensor) -> Tensor:
        return (function(x, 2.3, 0.6, solver=backend) * weights).square().sum()

    want = torch.autograd.functional.hessian(loss, scores)
    for transform in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(jacfwd(f))):
        torch.testing.assert_close(transform(loss)(scores), want)


def test_jvp_and_forward_mode(backend: str, function: Callable[..., Tensor]) -> None:
    """torch.func.jvp, dual numbers, and a finite difference agree."""
    inputs = (normal(7), torch.tensor(2.4).double(), torch.tensor(0.8).double())
    direction = (normal(7, seed=1), torch.tensor(0.3).double(), torch.tensor(-0.2).double())

    def call(*x: Tensor) -> Tensor:
        return function(*x, solver=backend)

    value, tangent = jvp(call, inputs, direction)
    torch.testing.assert_close(value, call(*inputs))
    with torch.autograd.forward_ad.dual_level():
        duals = [
            torch.autograd.forward_ad.make_dual(x, d)
            for x, d in zip(inputs, direction, strict=True)
        ]
        dual = torch.autograd.forward_ad.unpack_dual(call(*duals))
    torch.testing.assert_close(dual.tangent, tangent)
    step = 1e-6
    ahead, behind = (
        call(*(x + sign * step * d for x, d in zip(inputs, direction, strict=True)))
        for sign in (1, -1)
    )
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_functional_call_over_the_module() -> None:
    """grad over a module's parameters, with a batch of them: an ensemble."""
    layer = SoftTopK(k=3, temperature=0.5, num_scores=8, learn_k=True, learn_temperature=True)
    scores = normal(4, 8, dtype=torch.float32)
    layer(scores)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    grads = grad(loss)(parameters, scores)
    layer(scores).square().sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)
    ensemble = {name: torch.stack((p, p + 0.5)) for name, p in parameters.items()}
    losses = vmap(loss, in_dims=(0, None))(ensemble, scores)
    torch.testing.assert_close(losses[0], loss(parameters, scores))
    layer(scores)  # nothing of the transform is left behind in the kept threshold


# checkpointing, autocast, gradient modes


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(backend: str, function: Callable[..., Tensor], use_reentrant: bool) -> None:
    leaves = tuple(x.requires_grad_() for x in (normal(3, 9), normal(3).abs() * 3, normal().exp()))

    def call(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return function(torch.tanh(x), k, t, solver=backend)

    plain = call(*leaves)
    saved = checkpoint(call, *leaves, use_reentrant=use_reentrant)
    assert torch.equal(plain, saved)
    upstream = normal(*plain.shape, seed=1)
    results = []
    for out in (plain, saved):
        for leaf in leaves:
            leaf.grad = None
        out.backward(upstream)
        results.append([leaf.grad for leaf in leaves])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_gradients_under_autocast(backend: str) -> None:
    """A bfloat16 matrix product feeds the mask, and the gradient finds its way back."""
    weight = normal(6, 20, dtype=torch.float32).requires_grad_()
    x = normal(4, 6, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = x @ weight
        assert scores.dtype == torch.bfloat16
        p = soft_topk(scores, 5, 0.5, solver=backend)
    assert p.dtype == torch.float32
    (got,) = torch.autograd.grad(p.square().sum(), weight)
    assert got.isfinite().all()
    assert got.abs().max() > 0


def test_gradient_modes(backend: str, function: Callable[..., Tensor]) -> None:
    scores = normal(3, 9).requires_grad_()
    want = function(scores, 2.5, solver=backend)
    assert want.requires_grad
    with torch.no_grad():
        quiet = function(scores, 2.5, solver=backend)
    with torch.inference_mode():
        inference = function(scores, 2.5, solver=backend)
    assert not quiet.requires_grad
    assert inference.is_inference()
    for out in (quiet, inference):
        assert torch.equal(out, want)


def _negated_view(values: Tensor) -> Tensor:
    """The same values, but stored with the opposite sign: a view with torch's negative bit."""
    view = torch.complex(torch.zeros_like(values), -values).conj().imag
    assert view.is_neg()
    assert torch.equal(view, values)
    return view


@pytest.mark.parametrize("which", ["scores", "k", "t", "warm_start", "grad"])
def test_views_with_the_negative_bit(backend: str, which: str) -> None:
    """The number that counts is not the number in memory."""
    values = {
        "scores": normal(3, 9),
        "k": torch.tensor([1.0, 2.5, 4.0], dtype=torch.float64),
        "t": torch.tensor([0.5, 1.0, 0.1], dtype=torch.float64),
        "warm_start": torch.tensor([0.5, 1.0, 0.1], dtype=torch.float64),
        "grad": normal(3, 9, seed=1),
    }
    results = []
    for changed in (values, values | {which: _negated_view(values[which])}):
        leaves = [changed[name].detach().requires_grad_() for name in ("scores", "k", "t")]
        p = soft_topk(*leaves, warm_start=changed["warm_start"], solver=backend)
        results.append((p, *torch.autograd.grad(p, leaves, changed["grad"])))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_parameters_and_subclasses(backend: str) -> None:
    """An nn.Parameter and a Tensor subclass as scores, k and t."""

    class Tagged(Tensor):
        pass

    scores, k, t = normal(3, 9), torch.tensor(2.5).double(), torch.tensor(0.5).double()
    want = soft_topk(scores, k, t, solver=backend)
    for wrap in (torch.nn.Parameter, lambda x: x.as_subclass(Tagged)):
        got = soft_topk(wrap(scores), wrap(k), wrap(t), solver=backend)
        torch.testing.assert_close(got.as_subclass(Tensor), want)


def test_dispatch_modes_see_the_operator(backend: str) -> None:
    """Whoever watches the dispatcher (profilers, flop counters, tracers) sees the call."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    scores = normal(3, 9).requires_grad_()
    with Watch():
        soft_topk(scores, 2.5, solver=backend).square().sum().backward()
    assert any("fast_lapsum.soft_topk.default" in name for name in seen)
    assert any("fast_lapsum.soft_topk_backward.default" in name for name in seen)


def test_a_zero_gradient_without_memory(backend: str) -> None:
    """torch may send zeros that have no memory behind them; a process of its own may crash."""
    script = """
import sys, torch
from fast_lapsum import soft_topk
scores = torch.randn(3, 9).requires_grad_()
p = soft_topk(scores, 2.5, solver=sys.argv[1])
(grad,) = torch.autograd.grad(p, scores, torch._efficientzerotensor(3, 9))
assert (grad == 0).all()
"""
    done = _run_script(script, backend)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"


def test_backward_twice_needs_retain_graph(backend: str) -> None:
    scores = normal(3, 9).requires_grad_()
    out = soft_topk(scores, 2.5, solver=backend).square().sum()
    out.backward(retain_graph=True)
    first = scores.grad
    assert first is not None
    scores.grad = None
    out.backward()
    assert torch.equal(first, scores.grad)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_changed_input_is_noticed(backend: str) -> None:
    """What backward needs is saved through autograd, which sees in-place changes."""
    scores = normal(3, 9).requires_grad_()
    moved = scores * 1
    out = soft_topk(moved, 2.5, solver=backend).square().sum()
    moved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


# threads and processes


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("shape", [(40, 257), (1, 150_000)], ids=str)
def test_concurrent_calls_give_the_same_bits(backend: str, shape: tuple[int, int]) -> None:
    """Four python threads, each with its own temperature, forward and backward."""
    inputs = [(normal(*shape, seed=i, dtype=torch.float32), 0.01 * 9**i) for i in range(4)]
    results: dict[int, list[tuple[Tensor, Tensor]]] = {i: [] for i in range(4)}

    def work(index: int) -> tuple[Tensor, Tensor]:
        scores, t = inputs[index]
        leaf = scores.clone().requires_grad_()
        p = soft_topk(leaf, shape[1] / 8, t, solver=backend)
        return p.detach(), torch.autograd.grad(p.square().sum(), leaf)[0]

    def repeat(index: int) -> None:
        for _ in range(3):
            results[index].append(work(index))

    alone = [work(index) for index in range(4)]
    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for index, (p, gradient) in enumerate(alone):
        assert len(results[index]) == 3
        for got_p, got_gradient in results[index]:
            assert torch.equal(got_p, p)
            assert torch.equal(got_gradient, gradient)


def _run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


FORK = """
import os, signal, sys, time
import torch
from fast_lapsum import soft_topk

solver, rows, threads, *lengths = sys.argv[1], *map(int, sys.argv[2:])

def call(n):
    scores = torch.randn(rows, n, generator=torch.Generator().manual_seed(0))
    # Added up without torch, whose sums are shared by threads, too.
    return sum(map(sum, soft_topk(scores, n / 8, 0.1, solver=solver).tolist()))

wanted = [call(n) for n in lengths]
children = []
for n, sum_of_all in zip(lengths, wanted):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(threads)
        time.sleep(2)  # threads that were late on a busy machine are forgotten by then
        os._exit(0 if abs(call(n) - sum_of_all) < 1e-9 * sum_of_all else 3)
    children.append(child)
deadline, codes = time.monotonic() + 30, []
while children and time.monotonic() < deadline:
    for child in list(children):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            children.remove(child)
            codes.append(os.waitstatus_to_exitcode(status))
    time.sleep(0.05)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
sys.exit("a forked child hangs" if children else max(codes, key=abs))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")
def test_forked_data_loader_workers_finish(backend: str) -> None:
    """The parent has used its threads; workers forked from it must not wait for them."""
    done = _run_script(FORK, backend, "4", "1", "100", "400000")  # DataLoader sets one thread
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")
@pytest.mark.skipif(not loader.status().available, reason="plain torch waits as torch does")
def test_small_calls_of_a_forked_process_need_no_threads() -> None:
    done = _run_script(FORK, "auto", "256", "2", "197")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")
@pytest.mark.skipif(not loader.status().available, reason="plain torch waits as torch does")
def test_large_calls_of_a_forked_process_wait_for_no_threads() -> None:
    done = _run_script(FORK, "auto", "2", "2", "400000")  # threads share a row, or have one each
    assert done.returncode == 0, done.stderr

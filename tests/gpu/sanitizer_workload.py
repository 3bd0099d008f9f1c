"""A few calls of every kernel on small rows, for `make test-gpu-sanitizer` to watch.

`python tests/gpu/sanitizer_workload.py 2 8` makes the third of eight parts of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from sampled import deceive
from torch import Tensor

from fast_lapsum import (
    log_soft_topk,
    soft_argsort,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_list,
    threshold,
)
from fast_lapsum._sharded_ops import _entries, topk_of_rank
from fast_lapsum.backends.torch.shard_entry import total
from fast_lapsum.backends.triton import launch, selection_launch
from fast_lapsum.backends.triton.config import (
    LongBackwardPlan,
    long_plan,
    shared_plan,
    team_plan,
    tile_plan,
)
from fast_lapsum.backends.triton.steps import ForwardPlan
from fast_lapsum.nn import BatchTopK


def _forward(
    scores: Tensor, t: float, plan: ForwardPlan | None, mask: Tensor | None, hard: bool
) -> Tensor:
    """Threshold pairs of a call whose mask has the right sums."""
    rows, n = scores.shape
    k = torch.linspace(n // 16, n // 3, rows, device="cuda", dtype=torch.float64).floor()
    out = scores.dtype if scores.dtype == torch.float64 else torch.float32
    given = (k, 0.0, None, t, mask, None, True, "hard" if hard else "mask", out)
    p, pairs = launch.forward(scores, *given, plan=plan)
    torch.testing.assert_close(p.sum(-1, dtype=torch.float64), k, rtol=1e-5, atol=0)
    return pairs


def _call(
    shape: tuple[int, int],
    plan: ForwardPlan | None = None,
    *,
    t: float = 0.1,
    dtype: torch.dtype = torch.float32,
    masked: bool = False,
    lies: bool = False,
) -> None:
    """Soft and hard masks, and all gradients with those of k and t and without."""
    scores = torch.randn(shape, device="cuda").to(dtype)
    if lies and plan is not None:
        sample = getattr(plan, "sample", 0)
        deceive(scores, sample, getattr(plan, "run", 1), 10.0)
    mask = torch.rand(shape, device="cuda") < 0.9 if masked else None
    _forward(scores, t, plan, mask, hard=True)
    pairs = _forward(scores, t, plan, mask, hard=False)
    grad = torch.randn(shape, device="cuda")
    plans = (None, LongBackwardPlan(256, 2)) if shape[1] > 256 else (None,)
    for backward_plan in plans:
        for per_row in (False, True):
            grads = launch.backward(
                grad, scores, None, t, mask, pairs, True, "mask", per_row, plan=backward_plan
            )
            assert all(x.isfinite().all() for x in grads if x is not None)


def _ties(shape: tuple[int, int]) -> None:
    """A hard mask of equal scores, all but one of which are taken, in chunks without a rest."""
    n = shape[1]
    scores = torch.ones(shape, device="cuda")
    given = (None, n - 1.0, None, 0.1, None, None, True, "hard", torch.float32)
    p, _ = launch.forward(scores, *given)
    assert p[:, :-1].all()
    assert not p[:, -1].any()


def _selections(shape: tuple[int, int]) -> None:
    """Indices and weights, and random masks."""
    scores = torch.randn(shape, device="cuda")
    indices, _, _ = selection_launch.select(scores, 5, None, 0.1, None, True, False, torch.float32)
    assert (indices.diff() > 0).all()
    start = torch.rand(shape[0], device="cuda", dtype=torch.float64)
    given = (None, 5.0, None, 0.1, None, start, True, torch.float32)
    assert (selection_launch.sample(scores, *given).sum(-1) == 5).all()


def _functions(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Logarithms and thresholds, forward and backward."""
    scores = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    for function in (log_soft_topk, threshold):
        function(scores, 5, 0.1).float().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def _segments(lengths: list[int]) -> None:
    """Rows of several lengths: soft and hard masks, and gradients."""
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], device="cuda")
    values = torch.randn(sum(lengths), device="cuda", requires_grad=True)
    budgets = torch.tensor([length // 3 for length in lengths], device="cuda")
    for hard in (False, True):
        p = soft_topk(values, budgets, 0.1, cu_seqlens=offsets, hard=hard)
        sums = [float(part.sum()) for part in p.detach().split(lengths)]
        torch.testing.assert_close(torch.tensor(sums), budgets.float().cpu(), rtol=1e-5, atol=1e-5)
        p.square().sum().backward()


def _list(sizes: list[int]) -> None:
    """Many tensors of one budget, of several dtypes."""
    dtypes = (torch.float32, torch.bfloat16)
    tensors = [
        torch.randn(size, device="cuda", dtype=dtypes[i % 2], requires_grad=True)
        for i, size in enumerate(sizes)
    ]
    for hard in (False, True):
        masks = soft_topk_list(tensors, sum(sizes) // 7, 0.1, hard=hard)
        sum(mask.float().square().sum() for mask in masks).backward()


def _ranks(shape: tuple[int, int]) -> None:
    """Ranks, sorts, quantiles and permutations, forward and backward."""
    scores = torch.randn(shape, device="cuda", requires_grad=True)
    values = torch.randn(*shape, 3, device="cuda", requires_grad=True)
    found = (
        soft_rank(scores, 0.1),
        soft_sort(scores, 0.1),
        soft_quantile(scores, 0.3, 0.1),
        soft_argsort(scores, 0.1).apply(values),
    )
    torch.stack([one.square().sum() for one in found]).sum().backward()


def _activations(shape: tuple[int, int], dtype: torch.dtype, t: float) -> None:
    """Activations in one pass, their gradients with those of the gate and without."""
    scores = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    layer = BatchTopK(3, t).cuda()
    for _ in range(2):
        layer(scores).float().square().sum().backward()
    assert layer.threshold.isfinite()
    assert layer.eval()(scores).isfinite().all()


def _shards(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """A rank's part of rows whose other part is the same: all outputs, and gradients of masks."""
    scores = torch.randn(shape, device="cuda").to(dtype)
    of_call = (None, 0.1, None, True)
    for output in ("mask", "hard", "log", "threshold"):
        given = (scores, None, 2.0 * (shape[1] // 5), *of_call, output, torch.float32)
        found, pairs = topk_of_rank(*given, 2, 0, lambda message: torch.stack((message, message)))
        if output != "mask":
            continue
        wanted = torch.full((shape[0],), float(shape[1] // 5), device="cuda")
        torch.testing.assert_close(found.sum(-1), wanted, rtol=1e-5, atol=1e-4)
        entry, t = _entries(scores, output)[1], torch.full_like(wanted, 0.1, dtype=torch.float64)
        part = (torch.ones_like(found), scores, t, None, pairs)
        sums = entry.gradient_sums(*part, True, output)
        totals, *_ = total(torch.stack((sums, sums)), t, pairs, output, pairs.dtype)
        assert entry.write_gradient(*part, totals, True, output).isfinite().all()


def workload() -> Iterator[Callable[[], None]]:
    """Tiles, blocks, teams that hold rows, long rows and shared ones; samples that lie."""
    yield lambda: _ties((32, 98_304))
    for shape in ((70, 64), (3, 3000), (2, 40_000)):
        yield partial(_selections, shape)
    yield lambda: _call((40, 33), masked=True)
    yield lambda: _call((5, 64), tile_plan(64, 4))
    yield lambda: _call((2, 1000), t=1e-3)
    yield lambda: _call((2, 4097), t=1.0, masked=True)
    yield lambda: _call((2, 5000), dtype=torch.float64)
    yield lambda: _call((2, 17_000), dtype=torch.bfloat16)
    for n, width in ((17_000, 4), (16_999, 1)):
        plans = (
            team_plan(n, 3, 4, width),
            long_plan(n, 3, width),
            long_plan(n, 400, width),
            shared_plan(n, 3, width),
        )
        for plan in plans:
            assert plan is not None
            yield partial(_call, (3, n), plan, masked=width == 1)
            yield partial(_call, (3, n), plan, t=1e-3, lies=True)
    yield lambda: _functions((70, 64), torch.float32)
    yield lambda: _functions((2, 5000), torch.float64)
    yield lambda: _functions((2, 40_000), torch.bfloat16)
    yield lambda: _segments([0, 5, 300, 0, 2000, 17])
    yield lambda: _segments([40_000, 3, 70_000])
    yield lambda: _list([100, 3000, 1, 20_000])
    yield lambda: _ranks((3, 50))
    yield lambda: _ranks((2, 5000))
    yield lambda: _shards((3, 777), torch.float32)
    yield lambda: _shards((1, 100_000), torch.bfloat16)
    yield lambda: _activations((7, 333), torch.float32, 0.1)
    yield lambda: _activations((4, 1024), torch.bfloat16, 0.0)
    yield lambda: _activations((3, 9001), torch.float16, 0.1)


def main(part: int, parts: int) -> None:
    """Every so many of the calls, so that several processes share them: most is compiling."""
    if not torch.cuda.is_available():
        raise SystemExit("error: no CUDA device")
    for call in itertools.islice(workload(), part, None, parts):
        torch.manual_seed(0)
        call()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3] or ("0", "1")))

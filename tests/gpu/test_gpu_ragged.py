"""Rows of several lengths, and one budget over many tensors, on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import DTYPES, normal
from fast_lapsum import log_soft_topk, soft_topk, soft_topk_list, threshold
from fast_lapsum.backends.triton import ragged_launch
from fast_lapsum.bench.ragged import lengths_of
from ragged_cases import Ragged, check, corners_of_all_kinds, distributions_of_all_kinds
from ragged_cases import lengths_of_all_kinds as lengths_of_kinds

NoSync = Callable[[], AbstractContextManager[None]]
#: Around every boundary of the classes.
LENGTHS = (
    *(0, 1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4096, 4097, 8192, 8193),
    *(16_384, 16_385, 32_768, 32_769, 70_001, 0),
)

#: How many segments, and the longest: of one class and of all of them.
SHAPES = ((50, 30), (5000, 2000), (200, 40_000), (4097, 300), (100, 300_000))


def _there(call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel entry for tensors of the host."""

    def moved(*args: Any) -> Any:
        given = [x.cuda() if isinstance(x, Tensor) else x for x in args]
        return tuple(None if x is None else x.cpu() for x in call(*given))

    return moved


forward, backward = _there(ragged_launch.ragged_forward), _there(ragged_launch.ragged_backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_of_every_class(dtype: torch.dtype) -> None:
    check(forward, backward, lengths_of_kinds(dtype, LENGTHS), offsets_dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distributions_and_corners(dtype: torch.dtype) -> None:
    for given in (
        distributions_of_all_kinds(dtype, (2, 67, 1025, 5000)),
        corners_of_all_kinds(dtype, (8, 30, 300, 2000)),
    ):
        check(forward, backward, given)


def test_masks_and_the_smallest() -> None:
    given = lengths_of_kinds(torch.float32, LENGTHS)
    mask = normal(len(given.values), seed=4) > -0.5
    counts = torch.stack([row.sum() for row in given.rows(mask)])
    check(forward, backward, given._replace(k=0.4 * counts), mask=mask, largest=False)


@pytest.mark.parametrize("hard", [False, True])
def test_the_same_as_on_a_cpu(hard: bool) -> None:
    given = lengths_of_kinds(torch.float32, LENGTHS)
    k = given.k.floor()
    call: Any = {"hard": hard, "return_threshold": True}
    p, b = soft_topk(given.values, k, given.t, cu_seqlens=given.offsets, **call)
    there = (given.values.cuda(), k.cuda(), given.t.cuda())
    q, c = soft_topk(*there, cu_seqlens=given.offsets.cuda(), **call)
    torch.testing.assert_close(q.cpu(), p, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(c.cpu(), b, atol=1e-4, rtol=1e-4)
    logs = log_soft_topk(*there, cu_seqlens=given.offsets.cuda())
    want = log_soft_topk(given.values, k, given.t, cu_seqlens=given.offsets)
    torch.testing.assert_close(logs.cpu(), want, atol=1e-3, rtol=1e-4)


def test_padded_rows() -> None:
    lengths = torch.tensor([[40_000, 7, 0], [1, 300, 33_000]])
    scores = normal(2, 3, 40_000, dtype=torch.float32)
    behind = torch.arange(40_000) >= lengths[..., None]
    leaf = scores.masked_fill(behind, math.nan).cuda().requires_grad_()
    p = soft_topk(leaf, (lengths / 4).cuda(), 0.1, lengths=lengths.cuda())
    want = soft_topk(scores, lengths / 4, 0.1, mask=~behind)
    torch.testing.assert_close(p.cpu(), want, atol=2e-6, rtol=1e-4)
    (grad,) = torch.autograd.grad(p.square().sum(), leaf)
    assert (grad.cpu()[behind] == 0).all()


def _graph_call(given: Ragged) -> tuple[Tensor, Tensor, Tensor]:
    return given.values.cuda(), given.offsets.cuda(), given.k.cuda()


# A leaf of the default stream is used on another one, as in any warm-up of a graph.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_nothing_waits_and_graphs_replay_with_other_offsets(no_sync: NoSync) -> None:
    given = lengths_of_kinds(torch.float32, LENGTHS)
    values, offsets, k = _graph_call(given)
    leaf = values.clone().requires_grad_()

    def call() -> tuple[Tensor, Tensor, Tensor]:
        p = soft_topk(leaf, k, 0.1, cu_seqlens=offsets)
        b = threshold(leaf, k, 0.1, cu_seqlens=offsets)
        return p, b, torch.autograd.grad(p, leaf, leaf.detach())[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    with no_sync():
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        p, b, d = call()
    order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor(LENGTHS)[order]
    offsets.copy_(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)) + 3)
    k.copy_(given.k[order])
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip((p, b, d), call(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_graphs_replay_with_other_classes_of_rows() -> None:
    """Rows of one class each time, of all of them, none at all, and one row of everything."""
    count = 300
    drawn = torch.tensor(lengths_of(count, 16, 40_000))
    total = int(drawn.sum()) + count
    values = normal(total, dtype=torch.float32).cuda()
    offsets = torch.zeros(count + 1, dtype=torch.int32, device="cuda")
    k = torch.ones(count, dtype=torch.float64, device="cuda")

    def use(lengths: Tensor) -> None:
        offsets.copy_(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
        k.copy_(lengths / 4)

    def call() -> tuple[Tensor, Tensor]:
        leaf = values.detach().requires_grad_()
        p = soft_topk(leaf, k, 0.1, cu_seqlens=offsets)
        return p.detach(), torch.autograd.grad(p, leaf, values)[0]

    use(drawn)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    everything = torch.zeros(count, dtype=torch.int64)
    everything[7] = total
    ways = [torch.full((count,), n) for n in (0, 5, 200, 900, 3000, total // count)]
    for lengths in (*ways, everything, drawn, drawn.flip(0)):
        use(lengths)
        graph.replay()
        torch.cuda.synchronize()
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        want = soft_topk(values.cpu(), lengths / 4, 0.1, cu_seqlens=ends)
        torch.testing.assert_close(found[0].cpu(), want, atol=2e-6, rtol=1e-4)
        for got, again in zip(found, call(), strict=True):
            assert torch.equal(got, again)


def test_segments_one_after_another_are_as_if_alone() -> None:
    """Launches begin beside those before, in memory that was theirs, and see none of it."""
    drawn = [lengths_of_kinds(torch.float32, tuple(lengths_of(n, 16, m))) for n, m in SHAPES]
    there = [_graph_call(given) for given in drawn]

    def call(i: int) -> Tensor:
        values, offsets, k = there[i % len(there)]
        return (
            threshold(values, k, 0.1, cu_seqlens=offsets)
            if i // len(there) % 2
            else soft_topk(values, k, 0.1, cu_seqlens=offsets)
        )

    alone = []
    for i in range(2 * len(there)):
        alone.append(call(i))
        torch.cuda.synchronize()
    queued = [call(i) for i in range(20 * len(there))]
    for i, found in enumerate(queued):
        assert torch.equal(found, alone[i % len(alone)]), i


def test_bits_repeat_and_do_not_depend_on_neighbours() -> None:
    lengths = lengths_of(200, 16, 40_000)
    given = lengths_of_kinds(torch.float32, tuple(lengths))
    values, offsets, k = _graph_call(given)
    first = soft_topk(values, k, 0.01, cu_seqlens=offsets)
    assert torch.equal(first, soft_topk(values, k, 0.01, cu_seqlens=offsets))
    ends = torch.stack((offsets[7], offsets[8]))
    alone = soft_topk(values, k[7:8], 0.01, cu_seqlens=ends)
    a, b = ends.tolist()
    assert torch.equal(alone[a:b], first[a:b])


@pytest.mark.parametrize("hard", [False, True])
def test_teams_share_the_longest_segments(hard: bool) -> None:
    """As on a CPU, among short ones, few of them and several; other neighbours, the same bits."""
    for lengths in ((5, 1_000_000, 0, 40_000), (262_145, 300_000, 7, 262_144, 700_001, 300_000)):
        given = lengths_of_kinds(torch.float32, lengths)
        k, weights = given.k.floor(), normal(len(given.values), seed=3, dtype=torch.float32)
        here, there = given.values.clone(), given.values.cuda()
        ends = given.offsets.cuda()
        p = soft_topk(here.requires_grad_(), k, given.t, cu_seqlens=given.offsets, hard=hard)
        q = soft_topk(there.requires_grad_(), k.cuda(), given.t.cuda(), cu_seqlens=ends, hard=hard)
        torch.testing.assert_close(q.cpu(), p, atol=2e-6, rtol=1e-4)
        (d_here,) = torch.autograd.grad(p, here, weights)
        (d_there,) = torch.autograd.grad(q, there, weights.cuda())
        size = float(d_here.abs().max())
        torch.testing.assert_close(d_there.cpu(), d_here, atol=2e-5 * size, rtol=1e-3)
        alone = soft_topk(
            *(there.detach(), k[1:2].cuda(), given.t[1:2].cuda()), cu_seqlens=ends[1:3], hard=hard
        )
        first, last = ends[1:3].tolist()
        assert torch.equal(alone[first:last], q.detach()[first:last])
        logs = log_soft_topk(there.detach(), k.cuda(), given.t.cuda(), cu_seqlens=ends)
        want = log_soft_topk(given.values, k, given.t, cu_seqlens=given.offsets)
        torch.testing.assert_close(logs.cpu(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("function", [soft_topk, log_soft_topk])
def test_the_gradient_of_a_sum(function: Any) -> None:
    """One number for all scores, as autograd gives it; and so a mask that takes all."""
    given = lengths_of_kinds(torch.float32, LENGTHS)
    found = []
    for device in ("cpu", "cuda"):
        values = given.values.to(device).nan_to_num().requires_grad_()
        ends, k, t = (x.to(device) for x in (given.offsets, given.k, given.t))
        mask = torch.tensor([True] + 7 * [False], device=device)[:1]
        p = function(values, k, t, cu_seqlens=ends, mask=mask)
        p.sum().backward()
        found.append((p.detach().cpu(), values.grad.cpu()))  # type: ignore[union-attr]
    for there, here in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(there, here, atol=1e-4, rtol=1e-4)


def test_many_tiny_segments() -> None:
    """More than a launch has programs: each looks at several."""
    lengths = torch.randint(0, 20, (70_000,), generator=torch.Generator().manual_seed(0))
    lengths[::9000] = 3000
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    values = normal(int(offsets[-1]), dtype=torch.float32)
    k = lengths / 3
    p = soft_topk(values.cuda(), k.cuda(), 0.1, cu_seqlens=offsets.cuda()).cpu()
    torch.testing.assert_close(
        p, soft_topk(values, k, 0.1, cu_seqlens=offsets), atol=2e-6, rtol=1e-4
    )


# lists


def test_lists_as_on_a_cpu() -> None:
    images = normal(2, 3, 40, 50, seed=1, dtype=torch.bfloat16)
    tensors = [
        normal(600, 400, seed=2, dtype=torch.float32).mT,
        images.to(memory_format=torch.channels_last),
        normal(3000, seed=3, dtype=torch.float16),
        normal(0, dtype=torch.float32),
    ]
    want = soft_topk_list(tensors, 2000, 0.1)
    leaves = [x.cuda().requires_grad_() for x in tensors]
    masks = soft_topk_list(leaves, 2000, 0.1)
    grads = torch.autograd.grad(masks, leaves, [x.detach() for x in leaves])
    same = [x.clone().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(soft_topk_list(same, 2000, 0.1), same, tensors)
    for x, p, q, d, e in zip(tensors, want, masks, grads, wanted, strict=True):
        assert (q.dtype, q.shape, q.stride()) == (x.dtype, x.shape, x.stride())
        loose = {"atol": 1e-2, "rtol": 1e-2} if x.dtype.itemsize == 2 else {}
        torch.testing.assert_close(q.cpu(), p, **(loose or {"atol": 2e-6, "rtol": 1e-4}))
        torch.testing.assert_close(d.cpu(), e, **(loose or {"atol": 1e-4, "rtol": 1e-3}))


@pytest.mark.parametrize("t", [0.0, 1e-3, 0.1, 10.0])
@pytest.mark.parametrize("kind", ["normal", "ties", "one score", "heavy"])
def test_long_lists_of_any_kind(kind: str, t: float) -> None:
    """A band, a band that is too full, and the last resort."""
    row = normal(700_000, dtype=torch.float32)
    row = {
        "normal": row,
        "ties": (2 * row).round(),
        "one score": torch.full_like(row, 0.1),
        "heavy": row.pow(9),
    }[kind]
    cuts = row.tensor_split(torch.tensor([5, 200_000, 200_001]))
    masks = soft_topk_list([x.cuda() for x in cuts], 70_000.5, t)
    want = soft_topk(row.double(), 70_000.5, t).float()
    got = torch.cat([x.cpu() for x in masks])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    same = soft_topk_list([x.cuda() for x in cuts], 70_000.5, t)
    assert all(torch.equal(x, y) for x, y in zip(masks, same, strict=True))


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_hard_masks_of_long_lists(kind: str) -> None:
    """The earliest of tied scores, in parts of several tensors."""
    tensors = [normal(n, seed=n, dtype=torch.float32) for n in (300_000, 7, 70_000, 131_072)]
    if kind == "ties":
        tensors = [(x * 2).round() / 2 for x in tensors]
    for k in (0, 1, 33_333, 400_000, sum(x.numel() for x in tensors)):
        wanted = soft_topk_list(tensors, k, 0.1, hard=True)
        found = soft_topk_list([x.cuda() for x in tensors], k, 0.1, hard=True)
        assert all(torch.equal(p.cpu(), q) for p, q in zip(found, wanted, strict=True))


LISTED = (150_000, 3, 700)


def test_lists_where_new_tensors_are_on_a_gpu() -> None:
    """The table of a list is made on the host, whatever the default device is."""
    tensors = [normal(n, seed=n, dtype=torch.float32) for n in LISTED]
    wanted = soft_topk_list(tensors, 1000, 0.1)
    with torch.device("cuda"):
        found = soft_topk_list([x.cuda() for x in tensors], 1000, 0.1)
    for p, q in zip(found, wanted, strict=True):
        torch.testing.assert_close(p.cpu(), q)


def _listed(tensors: list[Tensor], how: str) -> list[Tensor]:
    """Masks, hard ones, or the gradients of masks."""
    if how == "gradient":
        leaves = [x.detach().requires_grad_() for x in tensors]
        masks = soft_topk_list(leaves, 1000, 0.1)
        return list(torch.autograd.grad(masks, leaves, tensors))
    return soft_topk_list(tensors, 1000, 0.1, hard=how == "hard")


@pytest.mark.parametrize("how", ["mask", "hard", "gradient"])
def test_lists_in_a_cuda_graph(how: str) -> None:
    tensors = [normal(n, seed=n, dtype=torch.float32).cuda() for n in LISTED]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _listed(tensors, how)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        masks = _listed(tensors, how)
    for x in tensors:
        x.mul_(-0.7)
    graph.replay()
    for got, want in zip(masks, _listed(tensors, how), strict=True):
        assert torch.equal(got, want)


def test_lists_one_after_another_are_as_if_alone() -> None:
    """Launches begin beside those before, in memory that was theirs, and see none of it."""
    ways = ("mask", "hard", "gradient")
    drawn = [[normal(n, seed=n + i, dtype=torch.float32).cuda() for n in LISTED] for i in range(12)]
    alone: list[list[Tensor]] = []
    for i in range(12):
        alone.append(_listed(drawn[i], ways[i % 3]))
        torch.cuda.synchronize()
    queued = [_listed(drawn[i % 12], ways[i % 3]) for i in range(120)]
    for i, found in enumerate(queued):
        assert all(torch.equal(p, q) for p, q in zip(found, alone[i % 12], strict=True)), i


def test_lists_do_not_wait(no_sync: NoSync) -> None:
    tensors = [normal(n, seed=n, dtype=torch.float32).cuda() for n in (50_000, 3, 700)]
    soft_topk_list(tensors, 100, 0.1)
    with no_sync():
        masks = soft_topk_list(tensors, 100, 0.1)
    assert abs(sum(float(x.sum()) for x in masks) - 100) < 1e-3

"""Rows over many ranks on a GPU: a world of one process, and several ranks that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cases import DTYPES, normal
from fast_lapsum import log_soft_topk, soft_topk, threshold
from fast_lapsum.backends.triton import shard_entry
from fast_lapsum.bench import rank_local
from sharded_cases import Case, adversarial_cases, corner_cases, distribution_cases, option_cases
from sharded_checks import check
from sharded_simulation import call, same_bits

pytestmark = pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
NoSync = Callable[[], AbstractContextManager[None]]
RANKS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A group of this process alone."""
    meeting: Path = tmp_path_factory.mktemp("world") / "meeting"
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=0, world_size=1, device_id=device
    )
    yield dist.group.WORLD
    dist.destroy_process_group()


# several ranks, simulated


def _there(case: Case) -> Case:
    mask = None if case.mask is None else case.mask.cuda()
    return case._replace(
        scores=case.scores.cuda(), k=case.k.cuda(), temperature=case.temperature.cuda(), mask=mask
    )


def _checked(case: Case) -> None:
    """Outputs and gradients of all ranks, which never look, against the reference."""
    found, _ = call(
        _there(case), RANKS, shard_entry.Shard, shard_entry.Steps, shard_entry, looks=False
    )
    here = [
        {"cases": {case.name: {name: x.cpu() for name, x in one["cases"][case.name].items()}}}
        for one in found
    ]
    check(case, here, b_of_hard=False)


@pytest.mark.parametrize("number", range(16))
def test_corners(number: int) -> None:
    _checked(list(corner_cases())[number])


def test_distributions() -> None:
    for case in distribution_cases():
        _checked(case)


def test_masks_and_the_smallest() -> None:
    for case in option_cases():
        if not case.options.get("clamp"):
            _checked(case)


def test_adversarial_rows() -> None:
    for case in adversarial_cases(200):
        _checked(case)


# a world of one


def _rows(dtype: torch.dtype, *shape: int) -> Tensor:
    return normal(*shape, seed=shape[-1], dtype=torch.float32).to(dtype).cuda()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 300), (2, 50_000), (3_000_000,)], ids=str)
def test_the_same_as_without_a_group(
    world: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    scores = _rows(dtype, *shape).requires_grad_()
    k, weights = shape[-1] // 16, _rows(dtype, *shape)
    loose = {"atol": 2e-2, "rtol": 2e-2} if dtype.itemsize == 2 else {"atol": 1e-5, "rtol": 1e-3}
    for t in (1e-3, 0.1, 3.0):
        p, q = (soft_topk(scores, k, t, group=group) for group in (world, None))
        torch.testing.assert_close(p, q, **loose)
        grads = [torch.autograd.grad(x, scores, weights)[0] for x in (p, q)]
        size = float(grads[1].abs().max())
        torch.testing.assert_close(grads[0] / size, grads[1] / size, **loose)
        b, c = (threshold(scores.detach(), k, t, group=group) for group in (world, None))
        torch.testing.assert_close(b, c, atol=1e-3 * t + 1e-5, rtol=1e-4, check_dtype=False)
        logs = [log_soft_topk(scores.detach(), k, t, group=group) for group in (world, None)]
        torch.testing.assert_close(*logs, atol=1e-2 / t if dtype.itemsize == 2 else 0.1, rtol=1e-3)
    hard = [soft_topk(scores.detach(), k, 0.1, hard=True, group=group) for group in (world, None)]
    assert torch.equal(*hard)


@pytest.mark.parametrize("kind", ["ties", "one score", "heavy", "sorted", "masked", "infinite"])
@pytest.mark.parametrize("t", [0.0, 1e-7, 0.1, 30.0])
def test_long_rows_of_any_kind(world: Any, kind: str, t: float) -> None:
    """Lists that are full, bands of one number, scores that make a reading careful."""
    row = _rows(torch.float32, 2_000_000)
    row = {
        "ties": (2 * row).round(),
        "one score": torch.full_like(row, 0.1),
        "heavy": row.pow(9),
        "sorted": row.sort().values,
        "masked": row,
        "infinite": torch.where(row > 2.5, torch.inf, row),
    }[kind]
    mask = row > -1 if kind == "masked" else None
    p = soft_topk(row, 200_000.5, t, mask=mask, group=world)
    want = soft_topk(row.double(), 200_000.5, t, mask=mask).float()
    torch.testing.assert_close(p, want, atol=1e-5, rtol=1e-4)
    assert abs(float(p.double().sum()) - 200_000.5) < 0.2
    assert torch.equal(p, soft_topk(row, 200_000.5, t, mask=mask, group=world))


# A leaf of the default stream is used on another one, as in any warm-up of a graph.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_nothing_waits_and_graphs_replay(world: Any, no_sync: NoSync) -> None:
    scores = _rows(torch.float32, 4, 200_000).requires_grad_()

    def calls() -> tuple[Tensor, ...]:
        p = soft_topk(scores, 1000, 0.1, group=world)
        hard = soft_topk(scores.detach(), 1000, 0.1, hard=True, group=world)
        return p, hard, torch.autograd.grad(p, scores, scores.detach())[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            calls()
    torch.cuda.synchronize()
    with no_sync():
        calls()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = calls()
    with torch.no_grad():
        scores.mul_(-0.7)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(found, calls(), strict=True):
        assert same_bits(got, want)


def test_memory_is_the_output_and_a_few_percent(world: Any) -> None:
    scores = _rows(torch.float32, 50_000_000)
    soft_topk(scores, 10**6, 0.1, group=world)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    p = soft_topk(scores, 10**6, 0.1, group=world)
    beyond = torch.cuda.max_memory_allocated() - before - p.nbytes
    assert beyond < 0.06 * p.nbytes + (32 << 20)


def test_the_work_of_one_rank_is_timed() -> None:
    found = rank_local.measure(rank_local.LocalCase(8, 1, 1_000_000), 3, torch.device("cuda"))
    assert {x["source"] for x in found.values()} == {"graph"}

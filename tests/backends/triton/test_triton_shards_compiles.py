"""The kernels of rows over many ranks compile down to machine code; no GPU is needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted in this process", allow_module_level=True)

from triton.runtime import JITFunction

from compiling import Recorded, build, compiled, source_of
from fast_lapsum.backends.shards import COLUMNS, HEADER, Answers, Rows, Sizes, Totals
from fast_lapsum.backends.triton import shard_entry, shard_results, shard_rows, shard_steps
from fast_lapsum.backends.triton.shard_plan import shard_plan

RANKS = 8


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another run compiled does not count."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """What would be launched, which launches nothing."""
    found: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: found.append((self.kernel, args, kwargs))

    for module in (shard_results, shard_rows, shard_steps):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, JITFunction):
                monkeypatch.setattr(module, name, Recorder(kernel))
        monkeypatch.setattr(module, "on_device", lambda scores: contextlib.nullcontext())
    return found


def _new(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def _call(dtype: torch.dtype, n: int, rows: int, outputs: tuple[str, ...]) -> None:
    """All that a rank launches, of one round."""
    scores, t = _new(dtype, rows, n), _new(torch.float64, rows)
    sizes = Sizes.of(rows, RANKS)
    shard = shard_entry.Shard(scores, t, None, True)
    shard.sample(sizes.sample)
    steps = shard_entry.Steps(t, t, Rows(rows, dtype, RANKS, looks=False), sizes)
    nodes = rows * sizes.nodes * dtype.itemsize
    steps.begin(_new(torch.uint8, RANKS, 8 * HEADER + nodes))
    shard.measure(steps.low, steps.high, steps.pivots, sizes.nodes, steps.is_open)
    columns = COLUMNS + 2 * sizes.pivots
    steps.advance(_new(torch.uint8, RANKS, 8 * rows * columns + nodes))
    answers = Answers(t, t, t, t > 0, t, t, t > 0, t)
    pairs = _new(torch.float64 if dtype == torch.float64 else torch.float32, rows, 2)
    for output in outputs:
        shard_entry.write(scores, t, None, answers, True, output, dtype)
        given = (t if output == "threshold" else scores, scores, t, None, pairs)
        shard_entry.gradient_sums(*given, True, output)
        shard_entry.write_gradient(*given, Totals(t, t, t), True, output)


def _names(launches: list[Recorded]) -> list[str]:
    return [kernel.__name__ for kernel, _, _ in launches]


def test_a_call_has_few_launches(launches: list[Recorded]) -> None:
    """Beside the sort of a sample: two for a measurement, three for a step, one for the mask."""
    _call(torch.float32, 1_000_000, 1, ("mask",))
    sample, measure = ["sample_rows", "pick_nodes"], ["measure_chunks", "finish_rows"]
    steps = ["order_nodes", "sum_blocks"]
    wanted = [*sample, *steps, "begin_rows", *measure, *steps, "advance_rows"]
    wanted += ["write_pieces", "sums_backward", "add_gradient_sums", "write_gradient_pieces"]
    assert _names(launches) == wanted


@pytest.mark.parametrize("read", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_kernels_of_masks_compile(
    launches: list[Recorded], read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs that read are at work on a core: 64 registers a thread, little shared memory.

    Neither depends on how many scores a thread reads at a time, which are 16.
    """
    assert shard_plan(125_000_000, 1).chunks == 256
    plan = shard_plan(125_000, 1)
    assert plan.read == 16
    monkeypatch.setattr(shard_rows, "shard_plan", lambda n, rows: plan._replace(read=read))
    _call(torch.float32, 125_000, 1, ("mask",))
    for launched in launches:
        name = launched[0].__name__
        if name == "sums_backward":  # compiled elsewhere
            continue
        found = build(source_of(launched), launched, 90)
        if name == "measure_chunks":
            assert (found.metadata.num_warps, found.metadata.maxnreg) == (16, 64)
            assert found.metadata.shared <= 16 << 10


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_all_kernels_compile(launches: list[Recorded], dtype: torch.dtype) -> None:
    outputs = ("mask", "hard", "log", "threshold")
    _call(dtype, 100_000, 3, outputs)
    _call(dtype, 1000, 64, ())
    for launched in launches:
        compiled(launched)

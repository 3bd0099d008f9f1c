"""The second design of the kernels on a GPU: right answers, and the same bits for every grid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import team_plan
from hunting.check import judge
from hunting.rows import CALLS, KINDS, Batch, Spec, make

nan = math.nan


def forward(batch: Batch, **options: bool) -> tuple[Tensor, Tensor]:
    scores, k, t = batch.scores, batch.k, batch.temperature
    return launch.forward(
        scores,
        k if isinstance(k, Tensor) else None,
        nan if isinstance(k, Tensor) else k,
        t if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        batch.mask,
        None,
        batch.largest,
        options.get("hard", False),
        torch.float32 if scores.dtype.itemsize == 2 else scores.dtype,
    )


@pytest.mark.parametrize("n", [8, 37, 64, 100, 256, 300, 4096, 16384, 30_000, 32_768])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_program(kind: str, n: int) -> None:
    number = list(KINDS).index(kind)
    dtype = ("float32", "float64", "bfloat16", "float16")[(number + n) % 4]
    spec = Spec(5, number + n, kind, CALLS[(number + n) % len(CALLS)], dtype, n, 1000)
    batch = make(spec, torch.device("cuda"))
    verdict = judge(batch, forward(batch)[0])
    assert not verdict.wrong.any(), verdict.reason(int(verdict.wrong.int().argmax()))


@pytest.mark.parametrize("shape", [(1, 100_000), (64, 65_536), (3, 1_000_001), (1, 5_000_000)])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_teams(kind: str, shape: tuple[int, int]) -> None:
    number = list(KINDS).index(kind)
    rows, n = shape
    spec = Spec(6, number, kind, CALLS[(number + n) % len(CALLS)], "float32", n, rows)
    batch = make(spec, torch.device("cuda"))
    verdict = judge(batch, forward(batch)[0])
    assert not verdict.wrong.any(), verdict.reason(int(verdict.wrong.int().argmax()))


def test_bits_do_not_depend_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a device, a few programs that read their chunks again, and one program alone."""
    g = torch.Generator("cuda").manual_seed(0)
    scores = torch.randn(2, 300_000, generator=g, device="cuda")
    chunks = team_plan(300_000, 2, 4, 4).chunks
    for k, t in ((300.0, 1.0), (5000.0, 0.01), (3.0, 0.0)):
        batch = Batch(scores, k, t, None, True)
        want = forward(batch)
        for size in (chunks, 7, 1):
            monkeypatch.setattr(launch, "team_count", lambda *_, size=size: (size, 1))
            got = forward(batch)
            assert torch.equal(got[0], want[0])
            assert torch.equal(got[1], want[1])
        monkeypatch.undo()

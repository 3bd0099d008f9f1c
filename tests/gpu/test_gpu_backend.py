"""The second design of the kernels on a GPU: right answers, and the same bits for every grid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import long_plan
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


@pytest.mark.parametrize("shape", [(400, 40_000), (100, 65_537), (128, 262_144)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(kind: str, shape: tuple[int, int]) -> None:
    number = list(KINDS).index(kind)
    rows, n = shape
    dtype = ("float32", "float64", "bfloat16", "float16")[(number + n) % 4]
    spec = Spec(6, number, kind, CALLS[(number + n) % len(CALLS)], dtype, n, rows)
    batch = make(spec, torch.device("cuda"))
    verdict = judge(batch, forward(batch)[0])
    assert not verdict.wrong.any(), verdict.reason(int(verdict.wrong.int().argmax()))


def test_hard_masks_of_long_rows() -> None:
    """Exactly k ones, the earliest of tied scores first."""
    g = torch.Generator("cuda").manual_seed(0)
    scores = (8 * torch.randn(100, 40_000, generator=g, device="cuda")).round() / 8
    for k in (1, 3000, 39_999):
        p, _ = forward(Batch(scores, float(k), 0.1, None, True), hard=True)
        order = scores.argsort(dim=-1, descending=True, stable=True)
        want = torch.zeros_like(scores).scatter(-1, order[:, :k], 1.0)
        assert torch.equal(p, want)


def test_bits_do_not_depend_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many programs as a row has chunks, a few that take several, and one program alone."""
    g = torch.Generator("cuda").manual_seed(0)
    scores = torch.randn(2, 300_000, generator=g, device="cuda")
    plan = long_plan(300_000, 2, 4)
    for k, t in ((300.0, 1.0), (5000.0, 0.01), (3.0, 0.0)):
        found = []
        for size in (plan.chunks, 7, 1):
            monkeypatch.setattr(launch, "team_count", lambda *_, size=size: (size, 1))
            given = (None, k, None, t, None, None, True, False, torch.float32)
            found.append(launch.forward(scores, *given, plan=plan))
        for p, pairs in found[1:]:
            assert torch.equal(p, found[0][0])
            assert torch.equal(pairs, found[0][1])

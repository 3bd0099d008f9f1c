"""The kernels on a GPU: right answers, and the same bits for every grid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fast_lapsum.backends.triton import launch
from fast_lapsum.backends.triton.config import shared_plan, team_plan
from fast_lapsum.backends.triton.steps import ForwardPlan
from hunting.check import judge
from hunting.rows import CALLS, KINDS, Batch, Spec, make

nan = math.nan
#: Rows that are too long for one program to hold.
LONG = (
    (400, 40_000),  # a program each
    (100, 65_537),
    (128, 262_144),
    (1, 100_000),  # held by teams
    (5, 65_537),
    (1, 3_000_000),
    (2, 6_000_000),  # shared
    (90, 65_536),
)


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
        "hard" if options.get("hard") else "mask",
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


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(kind: str, shape: tuple[int, int]) -> None:
    number = list(KINDS).index(kind)
    rows, n = shape
    dtype = ("float32", "float64", "bfloat16", "float16")[(number + n) % 4]
    spec = Spec(6, number, kind, CALLS[(number + n) % len(CALLS)], dtype, n, rows)
    batch = make(spec, torch.device("cuda"))
    verdict = judge(batch, forward(batch)[0])
    assert not verdict.wrong.any(), verdict.reason(int(verdict.wrong.int().argmax()))


@pytest.mark.parametrize(
    "shape", [(100, 40_000), (1, 100_000), (5, 65_537), (70, 40_000), (1, 5_000_000)], ids=str
)
def test_hard_masks_of_long_rows(shape: tuple[int, int]) -> None:
    """Exactly k ones, the earliest of tied scores first."""
    g = torch.Generator("cuda").manual_seed(0)
    scores = (8 * torch.randn(shape, generator=g, device="cuda")).round() / 8
    order = scores.argsort(dim=-1, descending=True, stable=True)
    for k in (1, 3000, shape[1] - 1):
        p, _ = forward(Batch(scores, float(k), 0.1, None, True), hard=True)
        want = torch.zeros_like(scores).scatter(-1, order[:, :k], 1.0)
        assert torch.equal(p, want)


def _assert_same_bits(
    scores: Tensor, plan: ForwardPlan, rooms: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for k, t in ((300.0, 1.0), (5000.0, 0.01), (3.0, 0.0)):
        for output in ("mask", "hard"):
            found = []
            for room in rooms:
                monkeypatch.setattr(launch, "room_of", lambda device, room=room: room)
                given = (None, k, None, t, None, None, True, output, torch.float32)
                found.append(launch.forward(scores, *given, plan=plan))
            for p, pairs in found[1:]:
                assert torch.equal(p, found[0][0])
                assert torch.equal(pairs, found[0][1])


def test_bits_do_not_depend_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many programs as a row has chunks, a few that take several, and one program alone."""
    g = torch.Generator("cuda").manual_seed(0)
    for shape in ((2, 300_000), (90, 40_000)):
        scores = torch.randn(shape, generator=g, device="cuda")
        plan = shared_plan(shape[1], shape[0], 4)
        _assert_same_bits(scores, plan, (132, 7, 1), monkeypatch)


def test_bits_do_not_depend_on_the_number_of_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A team for each row, two teams that take turns, and one team for all rows."""
    g = torch.Generator("cuda").manual_seed(0)
    for shape in ((5, 65_536), (40, 40_000)):
        scores = torch.randn(shape, generator=g, device="cuda")
        plan = team_plan(shape[1], shape[0], 4, 4)
        assert plan is not None
        rooms = (132, 2 * plan.chunks, plan.chunks)
        _assert_same_bits(scores, plan, rooms, monkeypatch)

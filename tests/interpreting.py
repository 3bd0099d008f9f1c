"""Kernels run by Triton's interpreter: how they are called and checked, in guarded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from cases import assert_budget, assert_near, expected, generator, normal
from fast_lapsum.backends.triton import launch, steps
from fast_lapsum.backends.triton.config import (
    LongBackwardPlan,
    LongPlan,
    SharedPlan,
    TeamPlan,
    TilePlan,
)
from interpreter_speed import install

install()
inf, nan = math.inf, math.nan


class Plans(NamedTuple):
    """How rows are solved, and how their gradients are taken; None is as a call would have it."""

    forward: TilePlan | TeamPlan | LongPlan | SharedPlan | None = None
    backward: TilePlan | LongBackwardPlan | None = None


#: One warp, few scores at a time: rows of a few hundred scores are long ones then. Samples of fewer
#: than 128 say next to nothing: both ends of a band would be open.
ONE_PROGRAM = LongPlan(warps=1, sample=128, read=2, listed=2, written=2)
GRADIENTS = LongBackwardPlan(block=64, warps=1, sum_programs=4, write_programs=2)


def held(n: int) -> TeamPlan:
    """The programs of a team wait for each other; interpreted it can have one only."""
    block = max(32, 1 << (n - 1).bit_length())
    return TeamPlan(block, 1, 1, sample=32, sample_warps=1, run=2)


def read_by_a_team(n: int) -> TeamPlan:
    """Chunks that are not held, in blocks of two parts."""
    return TeamPlan(256, -(-n // 256), 1, sample=32, sample_warps=1, run=2, length=256)


def in_chunks(n: int, length: int = 128, **changes: Any) -> SharedPlan:
    """Chunks of a few scores each; their length is a multiple of 128."""
    plan = SharedPlan(-(-n // length), length, sample=128, sample_warps=1, run=2, warps=1)
    plan = plan._replace(gather_warps=2, read=2, read_again=2, listed=4, written=2)
    plan = plan._replace(**changes)
    return plan._replace(piece=plan.lanes * plan.written)


#: Plans, and how long a row they go with.
TIERS: dict[str, tuple[Plans, int]] = {
    "rows": (Plans(), 37),
    "held by a team": (Plans(held(101), GRADIENTS), 101),
    "read by a team": (Plans(read_by_a_team(530), GRADIENTS), 530),
    "one program": (Plans(ONE_PROGRAM), 130),
    "in chunks": (Plans(in_chunks(150), GRADIENTS), 150),
}
KERNELS = {
    name: value for name, value in vars(steps).items() if isinstance(value, InterpretedFunction)
}
GUARD = 64


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New memory is full of NaN, and has more of it on both sides, where nothing may be written."""
    made: list[tuple[Tensor, Tensor]] = []

    def guarded(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_guarded(*args: Any, **kwargs: Any) -> Tensor:
            plain = make(*args, **kwargs)
            length = 2 * GUARD + plain.untyped_storage().nbytes() // plain.itemsize
            bad = nan if plain.is_floating_point() else 0x5A5A5A5A
            bad = 0xFF if plain.dtype == torch.uint8 else bad  # NaN, whatever it is seen as
            memory = torch.full((length,), bad, dtype=plain.dtype)
            made.append((memory, memory[:GUARD].clone()))
            return memory.as_strided(plain.shape, plain.stride(), GUARD)

        return make_guarded

    monkeypatch.setattr(torch, "empty", guarded(torch.empty))
    monkeypatch.setattr(torch, "empty_like", guarded(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", guarded(Tensor.new_empty))
    yield
    for memory, guard in made:
        for side in (memory[:GUARD], memory[-GUARD:]):
            assert torch.equal(side.view(torch.uint8), guard.view(torch.uint8)), "written outside"


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> tuple[Plans, int]:
    """Every way in which rows are solved."""
    return TIERS[request.param]


def forward(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    *,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    largest: bool = True,
    hard: bool = False,
    output: str = "mask",
    clamp: bool = False,
    out_dtype: torch.dtype | None = None,
    plans: Plans | None = None,
) -> tuple[Tensor, Tensor]:
    outer = scores.shape[:-1]
    return launch.forward(
        scores,
        k.expand(outer) if isinstance(k, Tensor) else None,
        nan if isinstance(k, Tensor) else k,
        t.expand(outer) if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        None if mask is None else mask.expand(scores.shape),
        warm_start,
        largest,
        "hard" if hard else output,
        out_dtype or scores.dtype,
        clamp,
        plan=(plans or Plans()).forward,
    )


def backward(
    grad: Tensor,
    scores: Tensor,
    t: Tensor | float,
    threshold: Tensor,
    *,
    mask: Tensor | None = None,
    largest: bool = True,
    output: str = "mask",
    per_row: bool = True,
    plans: Plans | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return launch.backward(
        grad,
        scores,
        t.expand(scores.shape[:-1]) if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        None if mask is None else mask.expand(scores.shape),
        threshold,
        largest,
        output,
        per_row,
        plan=(plans or Plans()).backward,
    )


def check(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    *,
    grad: Tensor | None = None,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    largest: bool = True,
    plans: Plans | None = None,
) -> None:
    """Mask and gradients of rows along the last dimension against the reference."""
    grad = normal(*scores.shape, seed=5, dtype=scores.dtype) if grad is None else grad
    before = scores.clone()
    p, threshold = forward(
        scores, k, t, mask=mask, warm_start=warm_start, largest=largest, plans=plans
    )
    common: dict[str, Any] = {"mask": mask, "largest": largest, "plans": plans}
    d_scores, d_k, d_t = backward(grad, scores, t, threshold, **common)
    d_scores_alone, no_k, no_t = backward(grad, scores, t, threshold, per_row=False, **common)
    assert no_k is no_t is None
    assert torch.equal(before.nan_to_num(nan=7.5), scores.nan_to_num(nan=7.5))
    assert (p.dtype, d_scores.dtype) == (scores.dtype, scores.dtype)
    assert d_k is not None
    assert d_t is not None

    side = 1 if largest else -1
    rows = side * scores
    rows = rows if mask is None else rows.masked_fill(~mask, -inf)
    want = expected(rows, k, t, grad)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    for name, got in (("d scores", d_scores), ("d scores alone", d_scores_alone)):
        assert_near(side * got, want.d_scores, want.d_scores_tolerance, name)
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")
    if scores.dtype.itemsize > 2:
        answered = ~want.mask.isnan().any(-1)
        ks = torch.as_tensor(k, dtype=torch.float64).expand(scores.shape[:-1])
        assert_budget(p[answered], ks[answered])


def shares(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)

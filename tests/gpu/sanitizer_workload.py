"""A few calls of every kernel on small rows, for `make test-gpu-sanitizer` to watch."""

from __future__ import annotations

import torch
from sampled import deceive
from torch import Tensor

from fast_lapsum.backends.triton import launch, selection_launch
from fast_lapsum.backends.triton.config import (
    LongBackwardPlan,
    long_plan,
    shared_plan,
    team_plan,
    tile_plan,
)
from fast_lapsum.backends.triton.steps import ForwardPlan


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


def main() -> None:
    """Tiles, blocks, teams that hold rows, long rows and shared ones; samples that lie."""
    if not torch.cuda.is_available():
        raise SystemExit("error: no CUDA device")
    torch.manual_seed(0)
    _ties((32, 98_304))
    for shape in ((70, 64), (3, 3000), (2, 40_000)):
        _selections(shape)
    _call((40, 33), masked=True)
    _call((5, 64), tile_plan(64, 4))
    _call((2, 1000), t=1e-3)
    _call((2, 4097), t=1.0, masked=True)
    _call((2, 5000), dtype=torch.float64)
    _call((2, 17_000), dtype=torch.bfloat16)
    for n, width in ((17_000, 4), (16_999, 1)):
        plans = (
            team_plan(n, 3, 4, width),
            long_plan(n, 3, width),
            long_plan(n, 400, width),
            shared_plan(n, 3, width),
        )
        for plan in plans:
            assert plan is not None
            _call((3, n), plan, masked=width == 1)
            _call((3, n), plan, t=1e-3, lies=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()

"""Rows of different lengths: ``clamp=True`` limits k to what a row has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import generator, normal
from fast_lapsum import (
    hard_topk_mask,
    log_soft_topk,
    reference,
    sample_topk,
    soft_topk,
    threshold,
)

inf, nan = math.inf, math.nan
COUNTS = (6, 4, 2, 0)
MASK = torch.arange(6) < torch.tensor(COUNTS)[:, None]


def _scores(dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(4, 6, dtype=dtype)


def _hard(scores: Tensor, k: Any, t: Any = 1.0, **rest: Any) -> Tensor:
    return soft_topk(scores, k, t, hard=True, **rest)


def _hard_mask(scores: Tensor, k: Any, t: Any = 1.0, **rest: Any) -> Tensor:
    return hard_topk_mask(scores, k, **rest)


def _sampled(scores: Tensor, k: Any, t: Any = 1.0, **rest: Any) -> Tensor:
    return sample_topk(scores, k, t, generator=generator(3), **rest)


SOLVING: dict[str, Callable[..., Tensor]] = {
    "soft_topk": soft_topk,
    "log_soft_topk": log_soft_topk,
    "threshold": threshold,
}
HARD: dict[str, Callable[..., Tensor]] = {
    "hard": _hard,
    "hard_topk_mask": _hard_mask,
    "sample_topk": _sampled,
}
ALL = SOLVING | HARD


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("left_out", ["mask", "infinity"])
@pytest.mark.parametrize("k", [0, 1.5, 3, 3.5, 6, 100, inf, "tensor"], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_is_the_call_with_the_limited_budget(
    name: str, k: Any, left_out: str, largest: bool, dtype: torch.dtype
) -> None:
    scores, mask = _scores(dtype), None
    if left_out == "mask":
        mask = MASK
    else:
        scores = scores.masked_fill(~MASK, -inf if largest else inf)
    given = torch.tensor([3.5, 3.5, 3.5, 0.0]) if k == "tensor" else k
    side = 1 if largest else -1
    rows = (side * scores).masked_fill(~MASK, -inf)
    each = given.tolist() if isinstance(given, Tensor) else [given] * 4
    limited = torch.tensor(
        [
            reference.clamped_budget(row, budget, hard=name in HARD)
            for row, budget in zip(rows, each, strict=True)
        ],
        dtype=torch.float64,
    )
    rest = {"mask": mask, "largest": largest}
    found = ALL[name](scores, given, 0.3, clamp=True, validate=True, **rest)
    expected = ALL[name](scores, limited, 0.3, **rest)
    assert not found.isnan().any()
    assert torch.equal(found, expected)


def test_without_it_a_short_row_has_no_answer() -> None:
    k = torch.tensor(3.0)
    assert soft_topk(_scores(), k, mask=MASK).isnan().any(-1).tolist() == [False, False, True, True]


@pytest.mark.parametrize("hard", [False, True])
def test_the_gradient_for_k_ends_where_it_limits(hard: bool) -> None:
    """Rounding down for a hard mask leaves it as it is; a budget that just fits is not limited."""
    k = torch.tensor([3.5, 4.0, 3.5, 1.0], dtype=torch.float64, requires_grad=True)
    scores, upstream = _scores().requires_grad_(), normal(4, 6, seed=1)
    out = soft_topk(scores, k, 0.3, mask=MASK, clamp=True, hard=hard)
    d_scores, d_k = torch.autograd.grad(out, (scores, k), upstream)
    budgets = torch.tensor([3.0 if hard else 3.5, 4.0, 2.0, 0.0], dtype=torch.float64)
    budgets.requires_grad_()
    same = soft_topk(scores, budgets, 0.3, mask=MASK, hard=hard)
    expected = torch.autograd.grad(same, (scores, budgets), upstream)
    assert torch.equal(d_scores, expected[0])
    assert torch.equal(d_k[:2], expected[1][:2])
    assert (d_k[:2] != 0).all()
    assert torch.equal(d_k[2:], torch.zeros(2, dtype=torch.float64))


def test_gradcheck_away_from_the_limit() -> None:
    k = torch.tensor([3.5, 2.5, 3.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, k: soft_topk(x, k, 0.7, mask=MASK, clamp=True),
        (_scores().requires_grad_(), k),
    )


@pytest.mark.parametrize(
    "k", [10**20, 10**400, 2**63, 1e300, inf], ids=["1e20", "1e400", "2^63", "1e300", "inf"]
)
def test_any_number_may_be_limited(k: float) -> None:
    for name in ALL:
        assert torch.equal(
            ALL[name](_scores(), k, clamp=True), ALL[name](_scores(), 100, clamp=True)
        )
    with pytest.raises(ValueError, match=r"k must lie in \[0, 3\]"):
        soft_topk(torch.zeros(3), 10**400)


@pytest.mark.parametrize("name", ALL)
def test_only_the_upper_end_is_limited(name: str) -> None:
    for bad in (-1, -0.5, nan):
        with pytest.raises(ValueError, match=f"k must be at least 0, got k={bad}"):
            ALL[name](_scores(), bad, clamp=True)
    k = torch.tensor([1.0, -1.0, nan, 0.0])
    found = ALL[name](_scores(), k, mask=MASK, clamp=True)
    assert found.reshape(4, -1).isnan().any(-1).tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match=r"k must be at least 0, got k=-1\.0 in row \(1,\)"):
        ALL[name](_scores(), k, mask=MASK, clamp=True, validate=True)


def test_several_dimensions_share_what_is_valid() -> None:
    found = hard_topk_mask(_scores(), 100, dim=None, mask=MASK, clamp=True)
    assert torch.equal(found, MASK.double())


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["soft_topk", "hard", "log_soft_topk", "threshold"])
def test_compiled_is_eager(name: str) -> None:
    function = ALL[name]
    compiled = torch.compile(
        lambda x, k: function(x, k, 0.3, mask=MASK, clamp=True), fullgraph=True, backend="aot_eager"
    )
    for k in (2, 3, 5, 3.5, 4.5, torch.tensor([1.0, 2.0, 3.0, 4.0])):
        expected = function(_scores(), k, 0.3, mask=MASK, clamp=True)
        assert torch.equal(compiled(_scores(), k), expected)


def test_vmap() -> None:
    k = torch.tensor([3.0, 3.0, 3.0, 0.5])
    found = torch.vmap(lambda x, m, k: soft_topk(x, k, 0.3, mask=m, clamp=True))(_scores(), MASK, k)
    torch.testing.assert_close(found, soft_topk(_scores(), k, 0.3, mask=MASK, clamp=True))


def test_the_error_names_the_row_of_the_mask(backend: str) -> None:
    """Also for a number, which is looked at without being asked to."""
    with pytest.raises(ValueError, match=r"k must be at most 0, .*got k=1 in row \(3,\)"):
        soft_topk(_scores(), 1, mask=MASK, solver=backend)
    with pytest.raises(ValueError, match=r"k must be at most 2, .*got k=2.5 in row \(0, 2\)"):
        soft_topk(_scores()[None, :3], 2.5, mask=MASK[:3], solver=backend)
    with pytest.raises(ValueError, match=r"k must be at most 2, .*got k=3;"):
        soft_topk(_scores()[2], 3, mask=MASK[2], solver=backend)
    with pytest.raises(ValueError, match=r"k must be at most 2, .*got k=3 in row \(2,\)"):
        sample_topk(_scores()[:3], 3, mask=MASK[:3])

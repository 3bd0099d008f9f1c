"""Infinite, NaN and masked scores, and rows without an answer: of the table of semantics, too."""

from __future__ import annotations

import math

import pytest
import torch

from cases import DTYPES, assert_budget, gradients, leaf_of, normal, same
from fast_lapsum import log_soft_topk, soft_topk, threshold

inf, nan = math.inf, math.nan
ROW = [3.0, -1.0, 2.0, 0.5]


# score = -inf, or masked out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1e-3, 1.0])
def test_left_out_scores_get_nothing_and_count_for_nothing(
    backend: str, dtype: torch.dtype, t: float
) -> None:
    kept = normal(7, dtype=dtype)
    row = torch.tensor([-inf] * 12, dtype=dtype)
    where = torch.tensor([0, 2, 3, 5, 8, 9, 11])
    row[where] = kept
    left_out = ~torch.isin(torch.arange(12), where)
    for k in (0.0, 1.5, 3.0, 6.9, 7.0):
        alone = soft_topk(kept, k, t, solver=backend)
        by_inf = row.clone().requires_grad_()
        by_mask = torch.where(left_out, 100.0, row).to(dtype).requires_grad_()
        for leaf, mask in ((by_inf, None), (by_mask, ~left_out)):
            p = soft_topk(leaf, k, t, mask=mask, solver=backend)
            torch.testing.assert_close(p[where], alone, rtol=4e-7, atol=1e-9)
            assert (p[left_out] == 0).all()
            (grad,) = gradients(p, leaf)
            assert (grad[left_out] == 0).all()
            assert grad.isfinite().all()


def test_k_up_to_the_valid_count_takes_all_that_is_valid(backend: str) -> None:
    scores = torch.tensor([1.0, -inf, 0.0, 5.0])
    mask = torch.tensor([True, True, True, False])
    same(soft_topk(scores, 3, solver=backend), [1, 0, 1, 1])
    same(soft_topk(scores, 2, mask=mask, solver=backend), [1, 0, 1, 0])


def test_masked_nan_and_inf_are_left_out_too(backend: str) -> None:
    """What is masked out may hold anything, forward and backward."""
    scores = leaf_of([nan, 2.0, inf, 1.0, -inf, 0.0])
    mask = torch.tensor([False, True, False, True, True, True])
    p = soft_topk(scores, 1.5, 0.5, mask=mask, solver=backend)
    wanted = soft_topk(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), 1.5, 0.5)
    torch.testing.assert_close(p[[1, 3, 5]], wanted)
    assert (p[[0, 2, 4]] == 0).all()
    (grad,) = gradients(p, scores)
    assert grad.isfinite().all()
    assert (grad[[0, 2, 4]] == 0).all()
    assert (log_soft_topk(scores, 1.5, mask=mask, solver=backend)[[0, 2, 4]] == -inf).all()


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_everything_left_out_with_nothing_to_spend(backend: str, t: float) -> None:
    temperature = leaf_of(t)
    for scores, mask in (
        (leaf_of([-inf, -inf, -inf]), None),
        (leaf_of([1.0, nan, inf]), torch.zeros(3, dtype=torch.bool)),
    ):
        k = leaf_of(0.0)
        p = soft_topk(scores, k, temperature, mask=mask, solver=backend)
        same(p, [0, 0, 0])
        for grad in gradients(p, scores, k, temperature):
            same(grad, torch.zeros(grad.shape))
        same(soft_topk(scores, 0, t, mask=mask, hard=True, solver=backend), [0, 0, 0])
        assert threshold(scores, 0, t, mask=mask, solver=backend) == 0
        same(soft_topk(scores, leaf_of(1.0), t, mask=mask, solver=backend), [nan, nan, nan])


# score = +inf


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1e-3, 1.0])
def test_infinite_scores_are_taken_whole(backend: str, dtype: torch.dtype, t: float) -> None:
    scores = leaf_of([0.0, inf, 1.0, inf, -2.0], dtype=dtype)
    finite = torch.tensor([0.0, 1.0, -2.0], dtype=dtype)
    for k in (2.0, 2.5, 3.0, 4.75, 5.0):
        p = soft_topk(scores, k, t, solver=backend)
        assert (p[[1, 3]] == 1).all()
        alone = soft_topk(finite, k - 2, t, solver=backend)
        torch.testing.assert_close(p[[0, 2, 4]], alone, rtol=4e-7, atol=1e-9)
        (grad,) = gradients(p, scores)
        assert (grad[[1, 3]] == 0).all()
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_more_infinities_than_budget_share_it(backend: str, dtype: torch.dtype, t: float) -> None:
    scores, k, temperature = leaf_of([0.0, inf, inf, inf, inf, -inf], dtype=dtype), leaf_of(1.0), t
    for budget, share in ((1.0, 0.25), (3.0, 0.75), (0.5, 0.125), (0.0, 0.0)):
        p = soft_topk(scores, budget, temperature, solver=backend)
        same(p, [0, share, share, share, share, 0])
        (grad,) = gradients(p, scores)
        same(grad, [0.0] * 6)
    p = soft_topk(scores, k, temperature, solver=backend)
    assert all(grad.isfinite().all() for grad in gradients(p, scores, k))


def test_only_infinities(backend: str) -> None:
    scores = leaf_of([inf, inf])
    same(soft_topk(scores, 2, solver=backend), [1, 1])
    same(soft_topk(scores, 1, solver=backend), [0.5, 0.5])
    same(soft_topk(leaf_of([inf, -inf]), 1, solver=backend), [1, 0])


# NaN in a row


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 5, 300])
def test_nan_spoils_its_own_row_only(backend: str, dtype: torch.dtype, n: int) -> None:
    clean = normal(4, n, dtype=dtype)
    dirty = clean.clone()
    dirty[2, n // 2] = nan
    k = torch.full((4,), n / 2, dtype=torch.float64, requires_grad=True)
    t = torch.ones(4, dtype=torch.float64, requires_grad=True)
    good = torch.tensor([0, 1, 3])
    want = soft_topk(clean, k, t, solver=backend)
    leaf = dirty.clone().requires_grad_()
    p = soft_topk(leaf, k, t, solver=backend)
    assert p[2].isnan().all()
    same(p[good], want[good])
    d_scores, d_k, d_t = gradients(p, leaf, k, t)
    for grad in (d_scores, d_k, d_t):
        assert grad[2].isnan().all()
        assert grad[good].isfinite().all()
    for function in (log_soft_topk, threshold):
        result = function(dirty, k, t, solver=backend)
        assert result[2].isnan().all()
        assert result[good].isfinite().all()


def test_bad_rows_next_to_good_ones(backend: str) -> None:
    """NaN, too much budget, both infinities and a mask in one batch: each row on its own."""
    scores = torch.tensor(
        [
            [1.0, 2.0, 3.0, 4.0],
            [nan, 2.0, 3.0, 4.0],
            [inf, inf, inf, 4.0],
            [inf, 2.0, -inf, 4.0],
            [1.0, 2.0, 3.0, 4.0],
            [-inf, -inf, -inf, 4.0],
            [nan, 2.0, inf, 4.0],
        ],
        requires_grad=True,
    )
    mask = torch.ones(7, 4, dtype=torch.bool)
    mask[4, :3] = False
    mask[6, 0] = False
    p = soft_topk(scores, torch.tensor(2.0), 0.5, mask=mask, solver=backend)
    third = 2 / 3
    same(p[1], [nan] * 4)
    torch.testing.assert_close(p[2], torch.tensor([third, third, third, 0.0]))
    assert p[3, 0] == 1
    assert p[3, 2] == 0
    same(p[4], [nan] * 4)
    same(p[5], [nan] * 4)
    assert p[6, 0] == 0
    assert p[6, 2] == 1
    assert_budget(p[[0, 2, 3, 6]].detach(), 2.0)
    (grad,) = gradients(p, scores)
    assert grad[[0, 2, 3, 6]].isfinite().all()
    assert grad[[1, 4, 5]].isnan().all()


# tensor values without an answer


@pytest.mark.parametrize(
    ("k", "t"),
    [(-1.0, 1.0), (5.0, 1.0), (nan, 1.0), (inf, 1.0), (2.0, -1.0), (2.0, nan), (2.0, inf)],
)
def test_tensor_values_without_an_answer_make_nan_rows(backend: str, k: float, t: float) -> None:
    scores = normal(3, 4, dtype=torch.float32).requires_grad_()
    ks, ts = torch.tensor([2.0, k, 2.0]), torch.tensor([1.0, t, 1.0])
    for hard in (False, True):
        p = soft_topk(scores, ks, ts, hard=hard, solver=backend)
        assert p[1].isnan().all()
        assert p[[0, 2]].isfinite().all()
        (grad,) = gradients(p, scores)
        assert grad[1].isnan().all()
        assert grad[[0, 2]].isfinite().all()
    with pytest.raises(ValueError, match=r"in row \(1,\)"):
        soft_topk(scores, ks, ts, solver=backend, validate=True)

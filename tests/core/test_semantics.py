"""What users rely on: budgets at their ends, t = 0, ties, dtypes, dimensions and options.

Scores that are no numbers have a file of their own: test_special_scores.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import fast_lapsum
from cases import DTYPES, FULL_DTYPES, assert_budget, generator, gradients, leaf_of, normal, same
from fast_lapsum import hard_topk_mask, log_soft_topk, sample_topk, soft_topk, threshold

inf, nan = math.inf, math.nan
ROW = [3.0, -1.0, 2.0, 0.5]


# k = 0, k = n


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1e-6, 1.0, 1e3])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_the_empty_and_the_full_budget_are_exact(
    backend: str, dtype: torch.dtype, t: float, as_tensor: bool
) -> None:
    scores = normal(3, 9, dtype=dtype).requires_grad_()
    for k, value in ((0, 0.0), (9, 1.0)):
        budget = torch.tensor(float(k), requires_grad=True) if as_tensor else k
        temperature = torch.tensor(t, requires_grad=True)
        p = soft_topk(scores, budget, temperature, solver=backend)
        assert (p == value).all()
        leaves = (scores, temperature) + ((budget,) if as_tensor else ())
        for grad in gradients(p, *leaves):
            assert grad.isfinite().all()


def test_the_gradient_for_k_at_its_ends_is_one_sided(backend: str) -> None:
    """At k = 0 and k = n the mass still goes where q points: <1, q> = 1."""
    scores = normal(9)
    for k in (0.0, 9.0):
        budget = leaf_of(k)
        (grad,) = torch.autograd.grad(soft_topk(scores, budget, 0.5, solver=backend).sum(), budget)
        assert float(grad) == pytest.approx(1.0, rel=1e-12)


# k fractional, per row, a tensor that requires grad; t a tensor, per row or scalar


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_every_row_has_its_own_budget_and_temperature(backend: str, dtype: torch.dtype) -> None:
    scores = normal(4, 11, dtype=dtype)
    k = torch.tensor([0.25, 3.0, 7.75, 10.5])
    t = torch.tensor([2.0, 0.0, 0.1, 1.0])
    together = soft_topk(scores, k, t, solver=backend)
    assert_budget(together, k)
    for row in range(4):
        alone = soft_topk(scores[row], float(k[row]), float(t[row]), solver=backend)
        torch.testing.assert_close(together[row], alone, rtol=4e-7, atol=1e-9)


def test_k_and_temperature_get_gradients_of_their_own_shape(backend: str) -> None:
    scores, k, t = normal(2, 3, 11), leaf_of([[2.5], [4.0]]), leaf_of([0.3, 0.6, 0.9])
    p = soft_topk(scores, k, t, solver=backend)
    d_k, d_t = gradients(p, k, t)
    assert d_k.shape == (2, 1)
    assert d_t.shape == (3,)
    assert d_k.abs().min() > 0
    assert d_t.abs().min() > 0


@pytest.mark.parametrize(
    "k",
    [2, 2.0, np.float32(2), np.int64(2), np.float64(2), torch.tensor(2), torch.tensor(2.0)],
    ids=lambda k: type(k).__name__ + str(getattr(k, "dtype", "")),
)
def test_any_kind_of_number_is_a_budget(backend: str, k: object) -> None:
    scores = torch.tensor(ROW)
    torch.testing.assert_close(
        soft_topk(scores, k, solver=backend),  # type: ignore[call-overload]
        soft_topk(scores, 2.0, 1.0, solver=backend),
    )
    temperature = soft_topk(scores, 2.0, k, solver=backend)  # type: ignore[call-overload]
    torch.testing.assert_close(temperature, soft_topk(scores, 2.0, 2.0, solver=backend))


# t = 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0, 0.0, torch.tensor(0.0)], ids=["int", "float", "tensor"])
def test_zero_temperature_is_the_hard_limit(
    backend: str, dtype: torch.dtype, t: float | Tensor
) -> None:
    """1 above, 0 below, ties at the boundary share what is left."""
    scores = leaf_of([1.0, 4.0, 2.0, 2.0, 2.0, -3.0], dtype=dtype)
    for k, wanted in (
        (1, [0, 1, 0, 0, 0, 0]),
        (2.5, [0, 1, 0.5, 0.5, 0.5, 0]),
        (4, [0, 1, 1, 1, 1, 0]),
        (4.25, [0.25, 1, 1, 1, 1, 0]),
        (5, [1, 1, 1, 1, 1, 0]),
        (0.5, [0, 0.5, 0, 0, 0, 0]),
        (0, [0, 0, 0, 0, 0, 0]),
        (6, [1, 1, 1, 1, 1, 1]),
    ):
        p = soft_topk(scores, k, t, solver=backend)
        same(p, wanted)
        (grad,) = gradients(p, scores)
        same(grad, [0.0] * 6)


def test_gradients_at_zero_temperature_are_zero(backend: str) -> None:
    scores, k, t = leaf_of(ROW), leaf_of(2.0), leaf_of(0.0)
    for grad in gradients(soft_topk(scores, k, t, solver=backend), scores, k, t):
        same(grad, torch.zeros(grad.shape))


def test_zero_temperature_beside_soft_rows(backend: str) -> None:
    scores, t = normal(3, 8).requires_grad_(), leaf_of([0.0, 1.0, 0.0])
    p = soft_topk(scores, 3, t, solver=backend)
    same(p[0], hard_topk_mask(scores[0], 3))
    assert 0 < p[1].min() < p[1].max() < 1
    d_scores, d_t = gradients(p, scores, t)
    assert (d_scores[[0, 2]] == 0).all()
    assert (d_scores[1] != 0).all()
    assert d_t[1] != 0
    assert (d_t[[0, 2]] == 0).all()


# ties, constant rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1e-6, 1.0, 1e3])
def test_equal_scores_get_equal_p(backend: str, dtype: torch.dtype, t: float) -> None:
    levels = torch.randint(0, 4, (5, 60), generator=generator(1)).to(dtype) / 8
    p = soft_topk(levels, 20.5, t, solver=backend)
    for row, mask in zip(levels, p, strict=True):
        for level in row.unique():
            assert len(mask[row == level].unique()) == 1


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("level", [0.0, 0.1, -1e8, 3e30])
@pytest.mark.parametrize("t", [0.0, 1e-6, 1.0, 1e3])
def test_a_constant_row_shares_evenly(
    backend: str, dtype: torch.dtype, level: float, t: float
) -> None:
    for n, k in ((1, 0.3), (10, 5), (10, 1e-6), (1000, 999.5)):
        scores = torch.full((n,), level, dtype=dtype, requires_grad=True)
        p = soft_topk(scores, k, t, solver=backend)
        # p is off by the rounding of u = log(2 k / n).
        rtol = 4 * torch.finfo(dtype).eps * (1 + abs(math.log(2 * k / n)))
        torch.testing.assert_close(p, torch.full_like(p, k / n), rtol=rtol, atol=0)
        (grad,) = gradients(p, scores)
        assert grad.isfinite().all()


# float16 / bfloat16, float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_solved_in_float32(backend: str, dtype: torch.dtype) -> None:
    """Only the result is rounded: the same scores in float32 give the same mask."""
    scores = normal(3, 500, dtype=dtype)
    p = soft_topk(scores, 31.5, 0.05, solver=backend)
    assert p.dtype == dtype
    wide = soft_topk(scores.float(), 31.5, 0.05, solver=backend)
    torch.testing.assert_close(p.float(), wide, rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert threshold(scores, 31.5, 0.05, solver=backend).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_returns_float32(backend: str, dtype: torch.dtype) -> None:
    scores = normal(3, 50, dtype=dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = soft_topk(scores, 7.5, solver=backend)
        log_p = log_soft_topk(scores, 7.5, solver=backend)
        assert soft_topk(scores.double(), 7.5, solver=backend).dtype == torch.float64
        assert soft_topk(scores.float(), 7.5, solver=backend).dtype == torch.float32
    assert p.dtype == torch.float32
    assert log_p.dtype == torch.float32
    assert_budget(p.detach(), 7.5)
    (grad,) = gradients(p, scores)
    assert grad.dtype == dtype


def test_float64_is_solved_in_float64(backend: str) -> None:
    scores = normal(5, 1000)
    p = soft_topk(scores, 123.456, 0.01, solver=backend)
    assert p.dtype == torch.float64
    assert (p.sum(-1) - 123.456).abs().max() <= 123.456e-12


# empty batch, n = 0 with k = 0, n = 1, any dim


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (0, 0), (2, 0, 4), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("function", [soft_topk, log_soft_topk, hard_topk_mask, sample_topk])
def test_empty_inputs_give_empty_outputs(
    shape: tuple[int, ...], function: Callable[..., Tensor]
) -> None:
    for dim in range(len(shape)):
        scores = torch.empty(shape, requires_grad=True)
        out = function(scores, 0, dim=dim)
        assert out.shape == shape
        if out.requires_grad:
            out.sum().backward()
            assert scores.grad is not None
            assert scores.grad.shape == shape


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_empty_inputs_on_every_backend(backend: str, shape: tuple[int, ...], t: float) -> None:
    scores = torch.empty(shape, requires_grad=True)
    k = torch.zeros(shape[:-1], requires_grad=True)
    for hard in (False, True):
        p, b = soft_topk(scores, k, t, hard=hard, return_threshold=True, solver=backend)
        assert p.shape == shape
        assert b.shape == shape[:-1]
        assert not b.isnan().any()
        d_scores, d_k = torch.autograd.grad(p.sum(), (scores, k))
        assert d_scores.shape == shape
        assert (d_k == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1e-6, 1.0, 1e3])
def test_one_score_gets_the_whole_budget(backend: str, dtype: torch.dtype, t: float) -> None:
    for k in (0.0, 0.25, 0.5, 1.0):
        p = soft_topk(torch.tensor([[7.0], [-2.0]], dtype=dtype), k, t, solver=backend)
        torch.testing.assert_close(p, torch.full_like(p, k), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
def test_dim_selects_the_rows(backend: str, dim: int) -> None:
    scores = normal(4, 5, 6)
    k = torch.rand([4, 5, 6][:dim] + [4, 5, 6][dim % 3 + 1 :], generator=generator(1)).double()
    p, b = soft_topk(scores, 3 * k, 0.5, dim=dim, return_threshold=True, solver=backend)
    moved = soft_topk(scores.movedim(dim, -1).contiguous(), 3 * k, 0.5, solver=backend)
    torch.testing.assert_close(p, moved.movedim(-1, dim))
    assert b.shape == k.shape
    torch.testing.assert_close(b, threshold(scores.movedim(dim, -1), 3 * k, 0.5, solver=backend))


# inputs never mutated


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_inputs_are_never_mutated(backend: str, dtype: torch.dtype, hard: bool) -> None:
    scores = normal(4, 30, dtype=dtype)
    scores[0, :3] = torch.tensor([inf, -inf, nan])
    inputs = {
        "scores": scores,
        "k": torch.tensor([2.0, 3.0, 0.0, 11.0], dtype=torch.float64),
        "temperature": torch.tensor([1.0, 0.0, 1e-6, 1e3], dtype=torch.float64),
        "mask": torch.rand(4, 30, generator=generator(1)) < 0.7,
        "warm_start": torch.tensor([0.0, nan, inf, 1.0], dtype=torch.float64),
    }
    before = {name: value.clone() for name, value in inputs.items()}
    for name in ("scores", "k", "temperature"):
        inputs[name].requires_grad_()
    for largest in (True, False):
        p = soft_topk(**inputs, largest=largest, hard=hard, solver=backend)
        upstream = normal(4, 30, seed=1, dtype=dtype)
        kept = upstream.clone()
        p.backward(upstream)
        assert torch.equal(upstream, kept)
        for name, value in inputs.items():
            same(value, before[name])


def test_the_result_shares_no_memory_with_the_input(backend: str) -> None:
    scores = normal(3, 8)
    p = soft_topk(scores, 8, solver=backend)
    assert p.data_ptr() != scores.data_ptr()
    p.zero_()
    same(scores, normal(3, 8))


# largest=False


@pytest.mark.parametrize("t", [0.0, 1e-3, 1.0])
def test_smallest_mirrors_largest(backend: str, t: float) -> None:
    scores = leaf_of([3.0, -1.0, -inf, 2.0, inf, 0.5])
    mirrored = leaf_of([-3.0, 1.0, inf, -2.0, -inf, -0.5])
    for k in (1.0, 2.0, 2.5, 4.0, 5.0):
        p = soft_topk(scores, k, t, largest=False, solver=backend)
        q = soft_topk(mirrored, k, t, solver=backend)
        same(p, q.detach())
        same(gradients(p, scores)[0], -gradients(q, mirrored)[0])
        same(
            threshold(scores, k, t, largest=False, solver=backend),
            -threshold(mirrored, k, t, solver=backend),
        )
        same(
            log_soft_topk(scores, k, t, largest=False, solver=backend),
            log_soft_topk(mirrored, k, t, solver=backend).detach(),
        )


def test_smallest_with_a_mask_and_a_dim(backend: str) -> None:
    scores, mask = normal(9, 4), torch.rand(9, 4, generator=generator(2)) < 0.7
    p = soft_topk(scores, 1.5, 0.3, dim=0, largest=False, mask=mask, solver=backend)
    same(p, soft_topk(-scores, 1.5, 0.3, dim=0, mask=mask, solver=backend))


# hard=True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_hard_has_exactly_k_ones_the_earliest_of_ties_first(
    backend: str, dtype: torch.dtype, t: float
) -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]], dtype=dtype)
    for k, first, second in (
        (0, [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        (1, [0, 1, 0, 0, 0], [1, 0, 0, 0, 0]),
        (2, [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]),
        (3, [0, 1, 1, 1, 0], [1, 1, 1, 0, 0]),
        (4, [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]),
        (5, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    ):
        for budget in (k, torch.tensor(k), torch.tensor([float(k)] * 2)):
            p = soft_topk(scores, budget, t, hard=True, solver=backend)
            assert p.dtype == dtype
            same(p, [first, second])
            same(hard_topk_mask(scores, budget), [first, second])


def test_hard_respects_mask_and_infinities(backend: str) -> None:
    scores = torch.tensor([inf, 1.0, inf, -inf, 2.0, nan])
    mask = torch.tensor([True, True, True, True, True, False])
    same(soft_topk(scores, 1, hard=True, mask=mask, solver=backend), [1, 0, 0, 0, 0, 0])
    same(soft_topk(scores, 3, hard=True, mask=mask, solver=backend), [1, 0, 1, 0, 1, 0])
    same(soft_topk(scores, 4, hard=True, mask=mask, solver=backend), [1, 1, 1, 0, 1, 0])
    same(soft_topk(scores, 2, hard=True, solver=backend), [nan] * 6)
    smallest = soft_topk(scores, 2, hard=True, mask=mask, largest=False, solver=backend)
    same(smallest, [0, 1, 0, 1, 0, 0])


def test_hard_needs_a_whole_k(backend: str) -> None:
    scores = normal(2, 6)
    for function in (
        lambda k: soft_topk(scores, k, hard=True, solver=backend),
        lambda k: hard_topk_mask(scores, k),
        lambda k: sample_topk(scores, k),
    ):
        with pytest.raises(ValueError, match=r"k must be a whole number.*k=2\.5"):
            function(2.5)
        rows = function(torch.tensor([2.5, 2.0]))
        assert rows[0].isnan().all()
        assert rows[1].sum() == 2
    with pytest.raises(ValueError, match=r"k must be a whole number.*k=2\.5"):
        soft_topk(scores, torch.tensor([2.0, 2.5]), hard=True, validate=True, solver=backend)


# what else comes back


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_returned_threshold_is_detached_and_the_same(backend: str, dtype: torch.dtype) -> None:
    scores = normal(3, 20, dtype=dtype).requires_grad_()
    p, b = soft_topk(scores, 4.5, 0.3, return_threshold=True, solver=backend)
    assert p.requires_grad
    assert not b.requires_grad
    assert b.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    same(b, threshold(scores, 4.5, 0.3, solver=backend).detach())


@pytest.mark.parametrize("guess", [nan, inf, -inf, 0.0, 1e30, -1e30, 1e-300])
def test_a_wild_warm_start_changes_nothing(backend: str, guess: float) -> None:
    scores = normal(3, 200)
    for largest in (True, False):
        cold = soft_topk(scores, 17.5, 0.01, largest=largest, solver=backend)
        for start in (torch.tensor(guess), torch.full((3,), guess)):
            warm = soft_topk(scores, 17.5, 0.01, largest=largest, warm_start=start, solver=backend)
            torch.testing.assert_close(warm, cold, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("number", [True, False], ids=["number", "tensor"])
def test_lapsum_chooses_the_side_by_the_sign_of_alpha(number: bool) -> None:
    scores = normal(4, 9)
    for alpha in (-0.5, 0.5, -1e-3, 0.0):
        given = alpha if number else torch.tensor(alpha, dtype=torch.float64)
        wanted = soft_topk(scores, 3.5, abs(alpha), largest=alpha <= 0)
        torch.testing.assert_close(fast_lapsum.lapsum(scores, 3.5, given), wanted)


def test_lapsum_takes_a_side_per_row_and_gives_alpha_its_gradient() -> None:
    scores, alpha = normal(3, 9), leaf_of([-0.5, 0.25, -2.0])
    p = fast_lapsum.lapsum(scores, 2.5, alpha)
    for row, largest in enumerate((True, False, True)):
        t = abs(alpha[row].item())
        torch.testing.assert_close(p[row], soft_topk(scores[row], 2.5, t, largest=largest))
    assert torch.autograd.gradcheck(lambda a: fast_lapsum.lapsum(scores, 2.5, a), alpha)

"""What a call writes beside the mask, interpreted: hard masks, log p, thresholds alone."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from fast_lapsum import reference
from fast_lapsum.backends.torch import entry as plain
from fast_lapsum.backends.triton import config, launch
from fast_lapsum.backends.triton.config import TeamPlan
from interpreting import Plans, backward, forward, normal, poison, tier

__all__ = ["poison", "tier"]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
inf, nan = math.inf, math.nan


def _rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, budgets and temperatures: soft, at t = 0, with +inf, ties, and unanswerable ones."""
    scores = normal(9, n, seed=3)
    scores[1] *= 1e4
    scores[2, :3] = inf
    scores[3, :3] = inf
    scores[4] = 2.0
    scores[5] = scores[5].round()
    scores[6, : n // 2] = -inf
    scores[7, 5] = nan
    k = torch.tensor([7.0, 5.0, 3.0, 2.0, 9.0, 6.0, 0.0, 4.0, 11.0], dtype=torch.float64)
    t = torch.tensor([0.5, 0.01, 0.3, 0.1, 0.2, 0.0, 0.7, 0.3, 1e-3], dtype=torch.float64)
    return scores, k, t


def _log_p(scores: Tensor, pairs: Tensor, k: Tensor, t: Tensor) -> Tensor:
    """The reference's, for threshold pairs that are known."""
    tiny = torch.finfo(pairs.dtype).tiny
    found = []
    for row, (hi, lo), budget, heat in zip(
        scores.double(), pairs.tolist(), k.tolist(), t.tolist(), strict=True
    ):
        threshold = reference.Threshold(hi, lo, is_hard=heat < tiny or hi == inf)
        found.append(reference.log_mask_row(row, threshold, budget, heat))
    return torch.stack(found)


def test_log_p(tier: tuple[Plans, int]) -> None:
    plans, n = tier
    scores, k, t = _rows(n)
    for largest in (True, False):
        rows = scores if largest else -scores
        found, pair = forward(rows, k, t, largest=largest, output="log", plans=plans)
        mask, same = forward(rows, k, t, largest=largest, plans=plans)
        assert torch.equal(pair, same) or torch.equal(pair.isnan(), same.isnan())
        wanted = _log_p(scores, pair, k, t)
        # Digits of u are those of the scores: |u| eps.
        torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(found.exp(), mask, rtol=1e-4, atol=1e-30, equal_nan=True)


def test_log_of_a_share_is_not_that_of_its_rounded_value(tier: tuple[Plans, int]) -> None:
    plans, n = tier
    k = torch.tensor([2 / 3, 5.2, 7.0, 9 - 2.0**-30, 11.9, 2.5, 3 - 2.0**-40, 1e-9, 12 - 1e-9])
    k = k.double()
    scores = torch.full((len(k), n), -1.0)
    scores[:, :12] = 0.0
    scores[:, :3] = torch.where(torch.arange(len(k)) % 2 == 0, inf, 0.0)[:, None]
    t = torch.zeros_like(k)
    found, pair = forward(scores, k, t, output="log", plans=plans)
    wanted = _log_p(scores, pair, k, t)
    torch.testing.assert_close(found.double(), wanted, rtol=1.2e-7, atol=0.0)


@pytest.mark.parametrize("output", ["log", "threshold"])
def test_gradients(tier: tuple[Plans, int], output: str) -> None:
    plans, n = tier
    scores, k, t = _rows(n)
    for largest in (True, False):
        rows = scores if largest else -scores
        _, pair = forward(rows, k, t, largest=largest, plans=plans)
        grad = normal(*(scores.shape if output == "log" else scores.shape[:1]), seed=5)
        wanted = plain.backward(grad, rows, t, 0.0, None, pair, largest, output, True)
        given: dict[str, Any] = {"largest": largest, "output": output, "plans": plans}
        found = backward(grad, rows, t, pair, **given)
        alone, no_k, no_t = backward(grad, rows, t, pair, per_row=False, **given)
        assert no_k is no_t is None
        for one, other in zip((*found, alone), (*wanted, wanted[0]), strict=True):
            assert one is not None
            # Gradients over wide gaps have no digits and are kept finite: they meet zeros.
            is_told = ~(other.abs() > 1e200)
            one, other = one.double()[is_told], other.double()[is_told]
            size = other.abs().nan_to_num().amax().item()
            torch.testing.assert_close(one, other, rtol=2e-4, atol=1e-6 * size, equal_nan=True)


LARGEST = torch.finfo(torch.float32).max


def _far_rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows whose r - b overflows, or whose (r - b) / t does; k and t."""
    drawn = normal(6, n, seed=6, dtype=torch.float32)
    even = 2 * torch.rand(2, n, generator=torch.Generator().manual_seed(7)) - 1
    scores = torch.cat((drawn, 0.99 * LARGEST * even))
    scores[0, ::3] = -LARGEST  # as masks are filled
    scores[1] *= 1e30
    scores[1, 0], scores[1, 1] = -LARGEST, LARGEST
    scores[2] = torch.where(drawn[2] > 0, 0.99 * LARGEST, -0.99 * LARGEST)
    scores[3, ::5] = -inf
    scores[3, 1::5] = -3e38
    scores[4, :2] = inf
    scores[4, 2::4] = -LARGEST
    scores[5] *= 1e35
    k = torch.full((8,), n / 3.7, dtype=torch.float64)
    t = torch.tensor([0.1, 1e30, 1e36, 1e-3, 0.5, 1e33, LARGEST / 300, 1e36], dtype=torch.float64)
    return scores, k, t


def test_log_p_where_distances_overflow(tier: tuple[Plans, int]) -> None:
    """It is what it is of r - b in float64, and so are all of its gradients, a far score's, too."""
    plans, n = tier
    scores, k, t = _far_rows(n)
    grad = normal(*scores.shape, seed=5, dtype=torch.float32)
    for largest in (True, False):
        side = 1 if largest else -1
        given: dict[str, Any] = {"largest": largest, "output": "log", "plans": plans}
        found, pair = forward(side * scores, k, t, **given)
        d_scores, d_k, d_t = backward(grad, side * scores, t, pair, **given)
        alone, _, _ = backward(grad, side * scores, t, pair, per_row=False, **given)
        assert d_k is not None
        assert d_t is not None
        wanted = _log_p(scores, pair, k, t).float()
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        for i, row in enumerate(scores):
            threshold, heat = reference.solve_row(row, float(k[i]), float(t[i])), float(t[i])
            want, want_k, want_t = reference.log_vjp_row(grad[i], row, threshold, heat)
            for got in (d_scores[i], alone[i]):
                torch.testing.assert_close(
                    side * got.double() * heat, want * heat, rtol=1e-5, atol=1e-5
                )
            torch.testing.assert_close(d_k[i].item(), want_k, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(d_t[i].item() * heat, want_t * heat, rtol=1e-4, atol=1e-4)


def test_a_threshold_alone_writes_nothing(tier: tuple[Plans, int]) -> None:
    plans, n = tier
    if not isinstance(plans.forward, TeamPlan | None):
        pytest.skip("lists lie in the result's memory: such rows are not taken that way")
    scores, k, t = _rows(n)
    out, pair = forward(scores, k, t, output="threshold", plans=plans)
    _, wanted = forward(scores, k, t, plans=plans)
    assert out.numel() == 0
    assert torch.equal(pair.nan_to_num(), wanted.nan_to_num())


def test_thresholds_of_long_rows_are_read_in_every_pass() -> None:
    for rows, n in ((1, 10**9), (4096, 65536), (500, 10**6)):
        plan = launch._plan(n, rows, 4, 4, 132, "threshold")
        assert isinstance(plan, TeamPlan)
        assert plan.length


def test_no_chunk_is_too_long_for_places_of_32_bits() -> None:
    """As of one long row at many temperatures, which needs no more memory than the row."""
    for rows in (1, 65, 10_000):
        for n in (2**31 - 5, 2**33, 2**36 + 1):
            plan = config.reading_plan(n, rows, 2, 8)
            assert plan.length + plan.block < 2**31
            assert plan.chunks * plan.length >= n


def test_hard_masks_at_zero_temperature(tier: tuple[Plans, int]) -> None:
    """The boundary is the threshold: one search, and ties to the earliest."""
    plans, n = tier
    scores = normal(4, n, seed=4)
    scores[1] = scores[1].round()
    scores[2] = 1.0
    for t in (0.0, 0.3, torch.tensor([0.0, 0.2, 0.0, 0.0], dtype=torch.float64)):
        p, _ = forward(scores, 9.0, t, hard=True, plans=plans)
        wanted = torch.stack([reference.hard_row(row, 9) for row in scores.double()])
        assert torch.equal(p.double(), wanted)

"""What ranks have found of a call on rows that are spread over them, against the reference.

A rank says of each case, by its name, its part of the output ("out") and of the scores' gradient
("d_scores"), and what all have in common: the threshold ("b"), "d_k" and "d_t".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cases import assert_near, expected
from fast_lapsum import reference
from function_cases import wanted
from sharded_cases import Case

Ranks = list[dict[str, Any]]


def _join(case: Case, ranks: Ranks, what: str) -> Tensor:
    return torch.cat([one["cases"][case.name][what] for one in ranks], -1)


def _assert_same_bits(ranks: Ranks, case: Case, what: str) -> None:
    first = ranks[0]["cases"][case.name][what]
    for one in ranks[1:]:
        other = one["cases"][case.name][what]
        is_same = (first == other) | (first.isnan() & other.isnan())
        assert bool(is_same.all()), f"{case.name}: {what} differs between ranks"


def _budget(case: Case, rows: Tensor) -> Tensor:
    if not case.options.get("clamp"):
        return case.k
    hard = case.function == "hard"
    pairs = zip(rows, case.k.tolist(), strict=True)
    return torch.tensor([reference.clamped_budget(row, k, hard) for row, k in pairs]).double()


def check(case: Case, ranks: Ranks, b_of_hard: bool = True) -> None:
    """Outputs and gradients of all ranks, put together, against the reference.

    With ``b_of_hard`` the threshold of a hard mask is what the public functions say.
    """
    size, rows, t = len(ranks), case.masked(), case.temperature
    side = 1 if case.options.get("largest", True) else -1
    k = _budget(case, rows)
    for what in ("b", "d_k", "d_t"):
        _assert_same_bits(ranks, case, what)
    d_scores = side * _join(case, ranks, "d_scores")
    d_k, d_t = (ranks[0]["cases"][case.name][what] for what in ("d_k", "d_t"))
    is_limited = torch.zeros_like(k, dtype=torch.bool) if k is case.k else k < case.k
    if case.function == "hard":
        out = _join(case, ranks, "out")
        pairs = list(zip(rows, k.tolist(), t.tolist(), strict=True))
        hard = torch.stack([reference.hard_row(row, budget) for row, budget, _ in pairs])
        no_soft = torch.stack([reference.soft_topk(row, budget, at) for row, budget, at in pairs])
        hard[no_soft.isnan().any(-1)] = torch.nan
        assert_near(out, hard, torch.zeros_like(hard), f"{case.name}: hard mask")
        boundaries = [reference.boundary_row(row, budget) for row, budget, _ in pairs]
        boundary = torch.tensor(boundaries, dtype=torch.float64).masked_fill(
            hard.isnan().any(-1), torch.nan
        )
        b = side * ranks[0]["cases"][case.name]["b"].double()
        same = (b == boundary) | (b.isnan() & boundary.isnan())
        assert same.all() or not b_of_hard, f"{case.name}: boundary {b} {boundary}"
        k = torch.where(hard.isnan().any(-1), torch.nan, k)
    if case.function in ("mask", "hard"):
        grad = case.grad(size) if case.mask is None else case.grad(size) * case.mask
        want: Any = expected(rows, k, t, grad, case.scores.dtype)
        value, tolerance = want.mask, want.mask_tolerance
    else:
        grad = case.grad(size)
        whole = side * grad.sum(0) if case.function == "threshold" else grad
        want = wanted(case.function, rows, k, t, whole, case.scores.dtype)
        value, tolerance = want.value, want.value_tolerance
    if case.function == "threshold":
        got = side * ranks[0]["cases"][case.name]["out"]
    else:
        got = _join(case, ranks, "out")
    if case.function != "hard":
        assert_near(got, value, tolerance, f"{case.name}: {case.function}")
    # What is over the largest number of the dtype is infinite.
    is_over = want.d_scores.abs() > torch.finfo(case.scores.dtype).max
    kept = d_scores.masked_fill(is_over & d_scores.isinf(), 0.0)
    wanted_scores = want.d_scores.masked_fill(is_over, 0.0)
    assert_near(kept, wanted_scores, want.d_scores_tolerance, f"{case.name}: d scores")
    wanted_k = want.d_budget.masked_fill(is_limited & ~want.d_budget.isnan(), 0.0)
    assert_near(d_k, wanted_k, want.d_budget_tolerance, f"{case.name}: d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, f"{case.name}: d t")

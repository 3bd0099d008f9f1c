"""Rows of several lengths from the table of cases, joined into one vector, and their checks.

Kernels are called like ``backends/*/entry.py``: the same checks are made of all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    TEMPERATURES,
    assert_near,
    budgets,
    corners,
    expected,
    generator,
    normal,
)

Forward = Callable[..., tuple[Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]


class Ragged(NamedTuple):
    """Segments of one vector, with values before the first and after the last."""

    values: Tensor
    offsets: Tensor
    k: Tensor
    t: Tensor

    def rows(self, values: Tensor) -> list[Tensor]:
        ends = self.offsets.tolist()
        return [values[a:b] for a, b in itertools.pairwise(ends)]

    def outside(self) -> Tensor:
        flags = torch.ones(len(self.values), dtype=torch.bool)
        flags[int(self.offsets[0]) : int(self.offsets[-1])] = False
        return flags


def join(rows: list[Tensor], k: list[float], t: list[float], before: int = 3) -> Ragged:
    """What is outside of all segments would spoil any row that it got into."""
    dtype = rows[0].dtype
    spoiling = torch.full((before,), math.nan, dtype=dtype)
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0) + before
    values = torch.cat((spoiling, *rows, spoiling))
    return Ragged(values, ends, *(torch.tensor(x, dtype=torch.float64) for x in (k, t)))


def lengths_of_all_kinds(dtype: torch.dtype, lengths: tuple[int, ...]) -> Ragged:
    """Plain rows, k and t drawn for each."""
    share = torch.rand(2, len(lengths), generator=generator(1), dtype=torch.float64)
    rows = [normal(n, seed=i, dtype=dtype) for i, n in enumerate(lengths)]
    k = [float(s) * n for s, n in zip(share[0], lengths, strict=True)]
    return join(rows, k, [0.1 + float(s) for s in share[1]])


def corners_of_all_kinds(dtype: torch.dtype, lengths: tuple[int, ...], every: int = 1) -> Ragged:
    """The corner cases of the table, one in so many, at several lengths; and empty segments."""
    rows: list[Tensor] = []
    ks: list[float] = []
    ts: list[float] = []
    for n in lengths:
        scores, k, t = (x[::every] for x in corners(n, dtype))
        rows += [*scores, scores[0, :0], scores[0, :0]]
        ks += [*k.tolist(), 0.0, 1.0]
        ts += [*t.tolist(), 1.0, 1.0]
    return join(rows, ks, ts)


def distributions_of_all_kinds(dtype: torch.dtype, lengths: tuple[int, ...]) -> Ragged:
    """Every distribution, budget and temperature of the table in turn."""
    rows: list[Tensor] = []
    ks: list[float] = []
    ts: list[float] = []
    for number, (name, n) in enumerate((name, n) for n in lengths for name in DISTRIBUTIONS):
        row = DISTRIBUTIONS[name](n, generator(n)).to(dtype)
        rows.append(row if row.isfinite().all() else row.clamp(-1e4, 1e4))
        ks.append(budgets(n)[number % len(budgets(n))])
        t = TEMPERATURES[number % len(TEMPERATURES)]
        ts.append(max(t, 0.01) if dtype == torch.float16 else t)
    return join(rows, ks, ts)


def check(
    forward: Forward,
    backward: Backward,
    given: Ragged,
    *,
    mask: Tensor | None = None,
    largest: bool = True,
    offsets_dtype: torch.dtype = torch.int64,
) -> None:
    """Masks and all gradients of every segment against the reference, and nothing outside."""
    values, offsets, k, t = given.values, given.offsets.to(offsets_dtype), given.k, given.t
    before = values.clone()
    out, pairs = forward(
        *(values, offsets, None, None, k, math.nan, t, math.nan, mask, None, largest, "mask"),
        values.dtype,
    )
    grad = normal(len(values), seed=9, dtype=values.dtype)
    given_back: Any = (t, math.nan, mask, pairs, largest, "mask")
    found = backward(grad, values, offsets, None, None, *given_back, True)
    alone, no_k, no_t = backward(grad, values, offsets, None, None, *given_back, False)
    assert no_k is no_t is None
    d_values, d_k, d_t = found
    assert d_k is not None
    assert d_t is not None
    torch.testing.assert_close(values, before, rtol=0, atol=0, equal_nan=True)
    side = 1 if largest else -1
    sides = side * values
    sides = sides if mask is None else sides.masked_fill(~mask, -math.inf)
    columns = (sides, grad, out, side * d_values, side * alone)
    for i, (row, g, p, d, d_alone) in enumerate(zip(*map(given.rows, columns), strict=True)):
        if not len(row):
            is_answered = k[i] == 0 and t[i] >= 0
            assert bool(pairs[i, 0].isnan()) != is_answered
            continue
        want = expected(row, k[i], t[i], g)
        assert_near(p, want.mask, want.mask_tolerance, f"mask of segment {i}")
        for got in (d, d_alone):
            assert_near(got, want.d_scores, want.d_scores_tolerance, f"d scores of segment {i}")
        assert_near(d_k[i], want.d_budget, want.d_budget_tolerance, f"d k of segment {i}")
        wanted, tolerance = want.d_temperature, want.d_temperature_tolerance
        assert_near(d_t[i], wanted, tolerance, f"d temperature of segment {i}")
    outside = given.outside()
    for what in (out, d_values, alone):
        assert (what[outside] == 0).all()


def one_for_all(number: float, others: float, count: int, dtype: torch.dtype) -> Tensor:
    """One number in the place of ``count``, with others behind it in memory."""
    memory = torch.full((2 * count,), others).to(dtype)
    memory[0] = number
    return memory[:1].expand(count)


def check_one_for_all(forward: Forward, backward: Backward, what: str) -> None:
    """Expanded tensors, such as the gradient of a sum, against copies that are not."""
    offsets, k = torch.tensor([0, 10, 24]), torch.tensor([3.0, 5.0], dtype=torch.float64)
    given: dict[str, Any] = {
        "grad": one_for_all(1.0, 100.0, 24, torch.float32),
        "mask": one_for_all(1.0, 0.0, 24, torch.bool),
        "scores": one_for_all(1.0, -5.0, 24, torch.float32),
    }
    plain = {"grad": normal(24, seed=1), "mask": None, "scores": normal(24)}
    found = []
    for tensor in (given[what], given[what].clone()):
        scores, mask, grad = ((plain | {what: tensor})[x] for x in ("scores", "mask", "grad"))
        call: Any = (offsets, None, None, k, math.nan, None, 0.5, mask)
        out, pairs = forward(scores, *call, None, True, "mask", torch.float32)
        back: Any = (offsets, None, None, None, 0.5, mask, pairs, True, "mask", True)
        found.append((out, pairs, *backward(grad, scores, *back)))
    assert given[what].stride() == (0,)
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)

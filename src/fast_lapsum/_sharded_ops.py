"""The operators of rows that are spread over a process group, as PyTorch sees them.

They are those of ``_ops.py`` with a part of every row on each rank: all ranks of ``group``, which
is a group's name, call them with the same budgets and temperatures, and get their part of the mask
and the same threshold pairs. Both directions communicate inside of the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from . import _collectives
from ._ops import backend_for, register
from ._sharded_rounds import search, together
from .backends.common import compute_dtype, per_row_values, row_dtype
from .backends.shards import Answers, Rows, Solved
from .backends.torch import shard_entry as plain

SHARDED_TOPK = (
    "(Tensor scores, Tensor? budget, Scalar budget_number, Tensor? temperature,"
    " Scalar temperature_number, Tensor? mask, bool largest, str output, ScalarType out_dtype,"
    " str group) -> (Tensor, Tensor)"
)
SHARDED_TOPK_BACKWARD = (
    "(Tensor grad, Tensor scores, Tensor? temperature, Scalar temperature_number, Tensor? mask,"
    " Tensor threshold, bool largest, str output, bool per_row, str group) -> Tensor[]"
)
#: The mean of p at which the mean of |u| is 3, if the threshold is outside of all scores.
FAR = math.exp(-3) / 2
#: Backends with kernels of their own, and what they write. Plain torch does the rest.
_OWN = {"cpu": ("mask", "hard"), "triton": ("mask", "hard", "log", "threshold")}


def _entries(scores: Tensor, output: str, grad: Tensor | None = None) -> tuple[Any, Any]:
    """What searches this rank's scores and what writes: the fastest backend's, or plain torch."""
    package = backend_for(scores, grad).__package__
    written = _OWN.get(package.split(".")[-1])
    if written is None:
        return plain, plain
    own = import_module(".shard_entry", package)
    return own, own if output in written else plain


def sharded_topk(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    group: str,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the output in ``out_dtype``, and threshold pairs [..., 2]."""
    ranks, rank = _collectives.size_of(group), _collectives.rank_in(group)
    return topk_of_rank(
        *(scores, budget, budget_number, temperature, temperature_number, mask, largest, output),
        *(out_dtype, ranks, rank, lambda message: _collectives.gather(message, group)),
    )


def topk_of_rank(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    ranks: int,
    rank: int,
    gather: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The same of one of ``ranks``, which ``gather`` brings the messages of all, [ranks, m]."""
    shape, kept = scores.shape, compute_dtype(scores.dtype)
    wide = row_dtype(scores)
    k = per_row_values(budget, budget_number, scores).reshape(-1).to(wide)
    t = per_row_values(temperature, temperature_number, scores).reshape(-1).to(wide)
    searching, writing = _entries(scores, output)
    # A hard mask is the one at temperature 0, and its gradient that at the caller's.
    needs_limit = output == "hard" and (temperature is not None or temperature_number > 0)
    temperatures = [t, torch.zeros_like(t)] if needs_limit else [t]
    if k.numel():
        steps = getattr(searching, "Steps", plain.Steps)
        rows = Rows(k.numel(), scores.dtype, ranks, scores.is_cpu, largest)
        searches = [
            search(
                searching.Shard(scores, scale_of(searching, k, one, kept), mask, largest),
                k,
                one,
                rows,
                steps,
            )
            for one in temperatures
        ]
        found = _exchange(searches, gather)
    else:
        found = [plain.unsolved(0, ranks, k)]
    if budget is None and scores.is_cpu:
        _check_budget_fits(found[0], budget_number, shape[:-1], largest)
    answers = answers_of(found, k, rank, output == "hard")
    threshold = torch.stack((answers.hi, answers.lo), -1).reshape(*shape[:-1], 2).to(kept)
    return writing.write(scores, t, mask, answers, largest, output, out_dtype), threshold


def scale_of(searching: Any, k: Tensor, temperature: Tensor, kept: torch.dtype) -> Tensor:
    """Temperatures that can be divided by, unless a backend's kernels take any."""
    if getattr(searching, "TAKES_ANY_TEMPERATURE", False):
        return temperature
    return plain.Asked.of(k, temperature, kept).scale


def _exchange(searches: list[Any], gather: Callable[[Tensor], Tensor]) -> list[Solved]:
    """Searches to their end, one collective for each of their messages."""
    both = together(searches)
    message = next(both)
    while True:
        try:
            message = both.send(gather(message))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def answers_of(found: list[Solved], k: Tensor, rank: int, is_hard: bool) -> Answers:
    """What a rank writes from, of what the searches have found."""
    soft, limit = found[0], found[-1]
    hi, lo, boundary, quota = soft.hi, soft.lo, limit.hi, limit.wanted_ties
    if is_hard:  # of exactly k ones
        # The lowest ranks have the first of tied scores.
        quota = (quota - limit.ties[:rank].sum(0)).clamp(min=0)
        is_whole = (k == k.floor()) & ~hi.isnan()
        hi, lo, boundary = (torch.where(is_whole, x, math.nan) for x in (hi, lo, boundary))
    # If b is outside of most scores, their masses are small and add up to the budget.
    is_far = torch.minimum(k, soft.valid_count - k) < FAR * soft.valid_count
    share, is_used_up = soft.log_share, soft.is_used_up > 0
    return Answers(hi, lo, share, is_used_up, boundary, quota, is_far, limit.ties[rank])


def _check_budget_fits(solved: Solved, k: float, rows_shape: torch.Size, largest: bool) -> None:
    """Raise, on all ranks, where a budget given as a number is over the row's valid scores."""
    is_over = solved.valid_count < k
    if not bool(is_over.any()):
        return
    is_over &= solved.has_nan == 0
    if not bool(is_over.any()):
        return
    counts = solved.valid_count.reshape(rows_shape)
    where = tuple(int(i) for i in is_over.reshape(rows_shape).nonzero()[0])
    row = f" in row {where}" if where else ""
    left_out = "-inf" if largest else "+inf"
    raise ValueError(
        f"k must be at most {int(counts[where])}, the number of scores that take part in a row on "
        f"all ranks (not masked out, not {left_out}), got k={k:g}{row}; clamp=True takes such a "
        "row whole"
    )


def sharded_topk_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
    group: str,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of the sum of all ranks' losses, by one collective.

    For this rank's scores, and with ``per_row`` for budget and temperature: the whole of those, on
    every rank.
    """
    outer, wide = scores.shape[:-1], row_dtype(scores)
    t = per_row_values(temperature, temperature_number, scores).reshape(-1).to(wide)
    entry = _entries(scores, output, grad)[1]
    given = (grad, scores, t, mask, threshold)
    sums = entry.gradient_sums(*given, largest, output)
    kept = compute_dtype(scores.dtype)
    everyone = _collectives.gather(sums, group)
    if not per_row:
        totals = plain.totals(everyone, output)
        return entry.write_gradient(*given, totals, largest, output), None, None
    totals, d_budget, d_temperature = plain.total(everyone, t, threshold, output, kept)
    d_scores = entry.write_gradient(*given, totals, largest, output)
    return d_scores, d_budget.reshape(outer), d_temperature.reshape(outer)


def _backward_tensors(*args: Any) -> list[Tensor]:
    return [found for found in sharded_topk_backward(*args) if found is not None]


def _fake_sharded_topk(
    scores: Tensor,
    budget: Tensor | None,
    budget_number: float,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
    group: str,
) -> tuple[Tensor, Tensor]:
    threshold = scores.new_empty((*scores.shape[:-1], 2), dtype=compute_dtype(scores.dtype))
    if output == "threshold":
        return scores.new_empty((0,), dtype=out_dtype), threshold
    return torch.empty_like(scores, dtype=out_dtype), threshold


def _fake_backward(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor | None,
    temperature_number: float,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
    per_row: bool,
    group: str,
) -> list[Tensor]:
    of_rows = (scores.new_empty(scores.shape[:-1], dtype=row_dtype(scores)) for _ in range(2))
    return [torch.empty_like(scores), *(of_rows if per_row else ())]


register("sharded_topk", SHARDED_TOPK, sharded_topk, _fake_sharded_topk)
register("sharded_topk_backward", SHARDED_TOPK_BACKWARD, _backward_tensors, _fake_backward)

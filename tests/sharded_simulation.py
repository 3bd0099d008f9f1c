"""A call on rows that are spread over ranks, all of which are in this process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fast_lapsum._sharded_ops import answers_of
from fast_lapsum._sharded_rounds import search as search_of
from fast_lapsum._sharded_rounds import together
from fast_lapsum.backends.common import compute_dtype, is_hard
from fast_lapsum.backends.shards import Rows, Solved
from fast_lapsum.backends.torch import shard_entry as plain
from sharded_cases import Case

#: What makes a rank's shard, and the other entries of a backend.
MakeShard = Callable[[Tensor, Tensor, Tensor | None, bool], Any]


def converse(searches: list[Any]) -> tuple[list[Any], int]:
    """What each of the generators comes to, and how many messages they have sent."""
    said, found, messages = [next(one) for one in searches], [], 0
    while said:
        gathered, said, messages = torch.stack(said), [], messages + 1
        for one in searches:
            try:
                said.append(one.send(gathered))
            except StopIteration as stop:
                found.append(stop.value)
    return found, messages


def find(
    case: Case, ranks: int, make: MakeShard, steps: Any, looks: bool
) -> tuple[list[list[Solved]], int]:
    """What all ranks find of the rows, and in how many messages."""
    kept, largest = compute_dtype(case.scores.dtype), case.options.get("largest", True)
    rows = Rows(len(case.k), case.scores.dtype, ranks, looks, largest)
    temperatures = [case.temperature]
    if case.function == "hard":
        temperatures.append(torch.zeros_like(case.temperature))
    searches, is_plain = [], make is plain.Shard  # kernels take any temperature
    for rank in range(ranks):
        part = case.part(case.scores, rank, ranks)
        mask = None if case.mask is None else case.part(case.mask, rank, ranks)
        own = [
            search_of(
                make(part, plain.Asked.of(case.k, t, kept).scale if is_plain else t, mask, largest),
                *(case.k, t, rows, steps),
            )
            for t in temperatures
        ]
        searches.append(together(own))
    return converse(searches)


def call(
    case: Case, ranks: int, make: MakeShard, steps: Any, entry: Any, looks: bool = True
) -> tuple[list[dict[str, Any]], int]:
    """Outputs and gradients of all ranks, as `sharded_checks.py` wants them, and messages."""
    kept, largest = compute_dtype(case.scores.dtype), case.options.get("largest", True)
    found, messages = find(case, ranks, make, steps, looks)
    t, output, grad = case.temperature, case.function, case.grad(ranks).to(case.scores.device)
    given, sums, said = [], [], []
    for rank, solved in enumerate(found):
        part = case.part(case.scores, rank, ranks)
        mask = None if case.mask is None else case.part(case.mask, rank, ranks)
        answers = answers_of(solved, case.k, rank, output == "hard")
        threshold = torch.stack((answers.hi, answers.lo), -1).to(kept)
        out = entry.write(part, t, mask, answers, largest, output, case.scores.dtype)
        hi, lo = threshold.double().unbind(-1)
        b = torch.where(is_hard(hi, t, kept), hi, hi + lo)
        b = answers.boundary if output == "hard" else b
        b = b if largest else -b
        own = grad[rank] if output == "threshold" else case.part(grad, rank, ranks)
        given.append((own, part, t, mask, threshold))
        sums.append(entry.gradient_sums(*given[-1], largest, output))
        said.append({"out": b if output == "threshold" else out, "b": b})
    for one, of_rank in zip(said, given, strict=True):
        totals, d_k, d_t = plain.total(torch.stack(sums), t, of_rank[-1], output, kept)
        d_scores = entry.write_gradient(*of_rank, totals, largest, output)
        one |= {"d_scores": d_scores, "d_k": d_k, "d_t": d_t}
    return [{"cases": {case.name: one}} for one in said], messages


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, NaN for NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all()) and math.prod(a.shape) == b.numel()

"""The soft mask of rows that are spread over three ranks, all of which are in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fast_lapsum._sharded_ops import _entries, answers_of, scale_of
from fast_lapsum._sharded_rounds import search
from fast_lapsum.backends.common import compute_dtype, row_dtype
from fast_lapsum.backends.shards import Rows
from fast_lapsum.backends.torch import shard_entry as plain
from sharded_cases import cut_places
from sharded_simulation import converse

RANKS = 3


def soft_topk_over_ranks(
    scores: Tensor, k: Tensor, temperature: Tensor, mask: Tensor | None, largest: bool
) -> Tensor:
    """All parts of the mask, one behind the other, in the dtype that thresholds are kept in."""
    return _OverRanks.apply(scores, k, temperature, mask, largest)  # type: ignore[no-any-return,no-untyped-call]


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        k: Tensor,
        temperature: Tensor,
        mask: Tensor | None,
        largest: bool,
    ) -> Tensor:
        kept, wide = compute_dtype(scores.dtype), row_dtype(scores)
        ctx.dtypes = k.dtype, temperature.dtype
        k, t = k.detach().to(wide), temperature.detach().to(wide)
        searching, writing = _entries(scores, "mask")
        rows = Rows(len(k), scores.dtype, RANKS, scores.is_cpu, largest)
        cut = ("even", "uneven", "first is empty")[scores.shape[-1] % 3]
        places = cut_places(scores.shape[-1], RANKS, cut)
        ctx.parts = [slice(*places[rank : rank + 2]) for rank in range(RANKS)]
        steps = getattr(searching, "Steps", plain.Steps)
        masks = [None if mask is None else mask[:, part] for part in ctx.parts]
        scale = scale_of(searching, k, t, kept)
        searches = [
            search(searching.Shard(scores[:, part], scale, own, largest), k, t, rows, steps)
            for part, own in zip(ctx.parts, masks, strict=True)
        ]
        found, _ = converse(searches)
        out, ctx.thresholds = [], []
        for rank, (part, own) in enumerate(zip(ctx.parts, masks, strict=True)):
            answers = answers_of([found[rank]], k, rank, False)
            ctx.thresholds.append(torch.stack((answers.hi, answers.lo), -1).to(kept))
            given = scores[:, part], t, own, answers
            out.append(writing.write(*given, largest, "mask", kept))
        ctx.save_for_backward(scores, t, *masks)
        ctx.largest, ctx.kept = largest, kept
        return torch.cat(out, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        scores, t, *masks = ctx.saved_tensors
        entry = _entries(scores, "mask", grad)[1]
        given = [
            (grad[:, part], scores[:, part], t, mask, threshold)
            for part, mask, threshold in zip(ctx.parts, masks, ctx.thresholds, strict=True)
        ]
        sums = torch.stack([entry.gradient_sums(*one, ctx.largest, "mask") for one in given])
        totals, d_k, d_t = plain.total(sums, t, ctx.thresholds[0], "mask", ctx.kept)
        d_scores = [entry.write_gradient(*one, totals, ctx.largest, "mask") for one in given]
        of_rows = (x.to(dtype) for x, dtype in zip((d_k, d_t), ctx.dtypes, strict=True))
        return torch.cat(d_scores, -1), *of_rows, None, None

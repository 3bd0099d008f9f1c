"""The soft mask of rows by other ways: as segments, padded, cut into lists, and over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fast_lapsum import soft_topk, soft_topk_list

from .over_ranks import soft_topk_over_ranks
from .rows import Batch, in_full


def segments(batch: Batch, solver: str) -> Tensor:
    """Each row a segment; between them others, of up to 36 scores, and empty ones.

    So segments begin anywhere, and those of one launch have several lengths.
    """
    rows, n = batch.scores.shape
    device = batch.scores.device
    between = (torch.arange(rows, device=device) * 7) % 37
    lengths = torch.stack((torch.full_like(between, n), between), -1).view(-1)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    places = offsets[:-1:2, None] + torch.arange(n, device=device)
    values = torch.ones(total, dtype=batch.scores.dtype, device=device)
    values[places] = batch.scores
    mask = None
    if batch.mask is not None:
        mask = torch.ones(total, dtype=torch.bool, device=device)
        mask[places] = batch.mask
    k, t = (_each(x, rows, device) for x in (batch.k, batch.temperature))
    k = torch.stack((k, between / 3), -1).view(-1)
    t = t.repeat_interleave(2)
    given = {"mask": mask, "largest": batch.largest, "solver": solver}
    with in_full(values):
        p = soft_topk(values, k, t, cu_seqlens=offsets.int(), **given)  # type: ignore[arg-type]
    return p[places]


def padded(batch: Batch, solver: str) -> Tensor:
    """Rows with something behind them that must have no part."""
    rows, n = batch.scores.shape
    behind = torch.tensor([math.nan, math.inf, 0.0], device=batch.scores.device)
    wide = torch.cat((batch.scores, behind.to(batch.scores.dtype).expand(rows, 3)), -1)
    mask = None
    if batch.mask is not None:
        mask = torch.nn.functional.pad(batch.mask, (0, 3), value=True)
    lengths = torch.full((rows,), n, device=wide.device)
    given = {"mask": mask, "largest": batch.largest, "solver": solver}
    k, t = (_each(x, rows, wide.device) for x in (batch.k, batch.temperature))
    with in_full(wide):
        p = soft_topk(wide, k, t, lengths=lengths, **given)  # type: ignore[arg-type]
    return torch.where((p[:, n:] == 0).all(-1, keepdim=True), p[:, :n], math.nan)


def lists(batch: Batch, solver: str) -> Tensor:
    """Every row a list of four tensors, of which one is empty; masked scores are -inf in it.

    A call takes one list, so there are as many calls as rows. All that is done to the rows besides
    is done to all at once, so that a GPU is not kept waiting for more than the calls.
    """
    rows, n = batch.scores.shape
    scores = batch.scores
    if batch.mask is not None:
        scores = scores.masked_fill(~batch.mask, -math.inf if batch.largest else math.inf)
    pieces = scores.tensor_split((n // 3, n // 3, n - n // 5), -1)
    ks, ts = (
        x.unbind() if isinstance(x, Tensor) else (x,) * rows for x in (batch.k, batch.temperature)
    )
    tensors = zip(*(piece.unbind() for piece in pieces), strict=True)
    with in_full(scores):
        masks = [
            soft_topk_list(row, k, t, largest=batch.largest)
            for row, k, t in zip(tensors, ks, ts, strict=True)
        ]
    return torch.cat([torch.stack(piece) for piece in zip(*masks, strict=True)], -1)


def ranks(batch: Batch, solver: str) -> Tensor:
    """Every row cut into three, whose ranks tell each other what they would tell over a network."""
    rows = len(batch.scores)
    k, t = (_each(x, rows, batch.scores.device) for x in (batch.k, batch.temperature))
    return soft_topk_over_ranks(batch.scores, k, t, batch.mask, batch.largest)


def _each(value: float | Tensor, rows: int, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device).expand(rows)


MASKS: dict[str, Callable[[Batch, str], Tensor]] = {
    "segments": segments,
    "padded": padded,
    "list": lists,
    "ranks": ranks,
}
